"""Which sampling profile rules a round at the verifier (4.1, 6.6, D21). Not here: whether an update comes in time."""

from __future__ import annotations

from sdcp.messages.contract import Sampling

MOST_PENDING = 64
"""Updates of one session that wait for their rounds."""


class Profiles:
    """The sampling profiles of a session: of updates with from_round <= k, the last received rules round k (D21).

    An update makes void all earlier ones from its round on, so what is kept is in order of from_round.
    """

    def __init__(self, profile: Sampling) -> None:
        self._updates: list[tuple[int, Sampling]] = [(0, profile)]

    def room_for(self, from_round: int, current: int) -> bool:
        """Whether an update from `from_round`, later than the current round, may wait with those that it leaves."""
        return sum(current < update[0] < from_round for update in self._updates) < MOST_PENDING

    def update(self, from_round: int, profile: Sampling) -> None:
        """Take the latest received update; `from_round` is at least 1."""
        self._updates = [update for update in self._updates if update[0] < from_round]
        self._updates.append((from_round, profile))

    def take(self, round: int) -> Sampling:
        """Return the profile of a round, and forget those that no later round can have."""
        while len(self._updates) > 1 and self._updates[1][0] <= round:
            del self._updates[0]
        return self._updates[0][1]
