"""Low rounds and the escalation ladder: the counters c, g, j and the action of a round (6.5.2, D15, D29).

Words: c consecutive low rounds, g consecutive rounds that are not low, R the contract's low_rounds, j the position in
its fallback list. j outlives a change of drafter and a self-decoding period; it returns to zero when g reaches R.
Not here: finish, which outranks all of this and leaves the counters alone (D15), and what an action then does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sdcp.messages.contract import Action


class Terms(Protocol):
    """The members of a contract that rule escalation."""

    @property
    def low_rounds(self) -> int:
        """R, at least 1."""

    @property
    def fallback(self) -> Sequence[int]:
        """The ladder."""

    @property
    def self_load(self) -> int | None:
        """The greatest load at which the verifier decodes by itself; without it, never."""

    @property
    def self_max(self) -> int | None:
        """The most tokens of one self-decoding period; without it, no limit."""


@dataclass(frozen=True, slots=True)
class Counters:
    """The three counters of a session; `c` is `low` in a verdict (D15)."""

    c: int = 0
    g: int = 0
    j: int = 0


def is_low(accepted: int, m: int, low_ratio: int | None) -> bool:
    """Say whether a round that accepted a of M tokens is low. `low_ratio` is in percent."""
    return 100 * accepted < low_ratio * m if low_ratio else accepted == 0


def after_round(counters: Counters, low: bool, terms: Terms, load: int) -> tuple[Counters, Action]:
    """Return the counters after a round and the action of its verdict. `load` is the verifier's, in percent."""
    if not low:
        g = counters.g + 1
        return Counters(0, g, 0 if g >= terms.low_rounds else counters.j), Action.CONTINUE
    counters = replace(counters, c=counters.c + 1, g=0)
    if counters.c < terms.low_rounds:
        return counters, Action.CONTINUE
    action, j = _next_rung(counters.j, terms, load)
    return Counters(0, 0, j), action


def may_self_decode(terms: Terms, load: int) -> bool:
    """Say whether self_decode is permitted at this load: not without self_load, nor with a self_max of 0 (D29)."""
    return terms.self_load is not None and load <= terms.self_load and terms.self_max != 0


def _next_rung(j: int, terms: Terms, load: int) -> tuple[Action, int]:
    """Return the first permitted entry at or after j and the position past it; fail when none remains."""
    for position, entry in enumerate(terms.fallback[j:], start=j + 1):
        if entry != Action.SELF_DECODE or may_self_decode(terms, load):
            return Action(entry), position
    return Action.FAIL, len(terms.fallback)
