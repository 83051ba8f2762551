"""The registered acceptance rules: how many proposed tokens stand, and the token that follows (6.4, D14, D22 to D25).

Words: x proposed tokens, p target distribution, q draft distribution, a accepted tokens; `room` is how many tokens may
still be committed, max_new - n. `accepted` is what the rule yields; truncation comes after it and does not change it.

Every function is pure: logits, rows and luck come in, an outcome comes out. Logits are read one position at a time
through `scores[index]` (an array [M+1, V], or an object that scores when asked), so nothing after the first rejection
is looked at. The rows have passed `sdcp.wire.rows.check_rows` before any luck was fixed (6.3 step 5).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sdcp.messages.contract import Sampling
from sdcp.rules.draws import Luck, draw
from sdcp.rules.profile import Distribution, Logits, argmax, target_distribution
from sdcp.wire.rows import Rows

GREEDY, SPECULATIVE = 1, 2
"""Registered numbers (10.2.2)."""


class Scores(Protocol):
    """Logits [V] of position index + 1 after the committed prefix; a numpy array [M+1, V] is one."""

    def __getitem__(self, index: int, /) -> Any:
        """Return the logits of one position, index from 0 to M."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """a, and the additional token; None when the accepted tokens fill the room (D14)."""

    accepted: int
    additional: int | None

    def emitted(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Return the accepted ones of the proposed tokens and the additional token, before truncation."""
        kept = tuple(tokens[: self.accepted])
        return kept if self.additional is None else (*kept, self.additional)


def accept_greedy(scores: Scores, tokens: Sequence[int], *, room: int | None = None) -> Outcome:
    """Rule 1: accept x[i] while it is the argmax; the additional token is the argmax that follows."""
    limit = _limit(tokens, room)
    for index, token in enumerate(tokens[:limit]):
        best = argmax(scores[index])
        if token != best:
            return Outcome(index, best)
    return Outcome(limit, argmax(scores[limit]) if _has_room(limit, room) else None)


def accept_speculative(
    scores: Scores,
    tokens: Sequence[int],
    q: Rows,
    sampling: Sampling,
    luck: Luck,
    *,
    room: int | None = None,
) -> Outcome:
    """Rule 2: accept x[i] if r < min(1, p(x)/q(x)), else draw from the residual max(0, p - q). `q` is [M, V]."""
    limit = _limit(tokens, room)
    for index, token in enumerate(tokens[:limit]):
        p = target_distribution(scores[index], sampling)
        if not luck.acceptance[index] < p[token] / np.float64(q[index, token]):
            return Outcome(index, draw(residual(p, q[index]), luck.additional[index]))
    if not _has_room(limit, room):
        return Outcome(limit, None)
    return Outcome(limit, draw(target_distribution(scores[limit], sampling), luck.additional[limit]))


def residual(p: Distribution, q: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return max(0, p - q) [V], not normalized; p itself where rounding left nothing (D23)."""
    left: NDArray[np.float64] = np.maximum(0.0, p - q)
    return left if left.any() else p


def _limit(tokens: Sequence[int], room: int | None) -> int:
    """Positions to evaluate: those beyond the room need not be (D14)."""
    return len(tokens) if room is None else min(len(tokens), room)


def _has_room(accepted: int, room: int | None) -> bool:
    return room is None or accepted < room


# -- the registry (10.2.2) ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rule:
    """A registered rule. `accept` is given all that any rule may need: see the function of that name below."""

    name: str
    needs_rows: bool
    accept: Callable[[Scores, Sequence[int], Rows | None, Sampling, Sequence[float], int | None], Outcome]


def _greedy(
    scores: Scores, tokens: Sequence[int], q: Rows | None, sampling: Sampling, luck: Sequence[float], room: int | None
) -> Outcome:
    return accept_greedy(scores, tokens, room=room)


def _speculative(
    scores: Scores, tokens: Sequence[int], q: Rows | None, sampling: Sampling, luck: Sequence[float], room: int | None
) -> Outcome:
    if q is None:
        if tokens:
            raise ValueError("rule 2 needs the draft rows of the proposed tokens")
        q = np.empty((0, 0), dtype=np.float32)
    return accept_speculative(scores, tokens, q, sampling, Luck.of(luck, len(tokens)), room=room)


RULES: dict[int, Rule] = {
    GREEDY: Rule("greedy", needs_rows=False, accept=_greedy),
    SPECULATIVE: Rule("speculative sampling", needs_rows=True, accept=_speculative),
}
"""A contract whose rule is not a key here is refused (D6)."""


def accept(
    rule: int,
    scores: Scores,
    tokens: Sequence[int],
    q: Rows | None,
    sampling: Sampling,
    luck: Sequence[float],
    *,
    room: int | None = None,
) -> Outcome:
    """Apply a registered rule to M proposed tokens: what the worker that scored them does (6.3 step 7).

    scores: logits of M + 1 positions. q: float32 [M, V], or None under rule 1. luck: the flat form of `Luck`, or ()
    under rule 1. ValueError when the rule lacks what it needs.
    """
    return RULES[rule].accept(scores, tokens, q, sampling, luck, room)


def self_decode(rule: int, logits: Logits, sampling: Sampling, luck: Sequence[float]) -> int:
    """Return the token of a self-decoding round: the argmax under rule 1, a draw under rule 2 (D29).

    It is a round without proposed tokens: `luck` is () or one uniform.
    """
    token = accept(rule, (logits,), (), None, sampling, luck).additional
    assert token is not None  # without a room there is always an additional token
    return token


def truncate(
    emitted: Sequence[int], stop: Collection[int], committed: int, max_new: int
) -> tuple[tuple[int, ...], bool]:
    """Cut after the first stop token and at max_new (6.3 step 7); return what is left and whether that finishes.

    `committed` is n before this round. A stop token not below V is legal and never matches (D5).
    """
    kept = tuple(emitted[: max_new - committed])
    for index, token in enumerate(kept):
        if token in stop:
            return kept[: index + 1], True
    return kept, committed + len(kept) == max_new
