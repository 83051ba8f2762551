"""The sampling profiles that a router has given a session, round by round (6.6, D21): a pure value.

Of updates with from_round <= k the last received rules round k. An update therefore ends the life of every earlier one
from its own round on, and what is kept is ordered by round and by arrival at once.
"""

from __future__ import annotations

from sdcp.messages.contract import Sampling
from sdcp.messages.session import Policy


class Profiles:
    """The updates that a verifier has accepted and that some round may still need."""

    def __init__(self) -> None:
        self._updates: list[Policy] = []

    def accept(self, policy: Policy, round_: int) -> None:
        """The verifier has taken `policy`, and has committed `round_`: what ruled earlier rounds alone is forgotten."""
        kept = [update for update in self._updates if update.from_round < policy.from_round]
        past = [update for update in kept if update.from_round <= round_ + 1]
        self._updates = [*past[-1:], *kept[len(past) :], policy]

    @property
    def latest(self) -> Sampling | None:
        """What assignments carry in `sampling`: None until the first update."""
        return self._updates[-1].sampling if self._updates else None

    def after(self, session: bytes, round_: int) -> list[Policy]:
        """Return what a verifier that resumes after `round_` has to be told, in order: in force, then pending (D21)."""
        in_force = [update for update in self._updates if update.from_round <= round_ + 1]
        pending = [update for update in self._updates if update.from_round > round_ + 1]
        first = [Policy(session=session, from_round=round_ + 1, sampling=in_force[-1].sampling)] if in_force else []
        return first + pending
