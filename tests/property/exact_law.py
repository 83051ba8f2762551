"""The law of output under rule 2 as fractions, by enumeration: nothing is sampled.

Target and drafter are tables of fractions: row t is the distribution after token t, the reference model's form, and row
0 also begins. The uniforms of a round are cut into the cells on which its outcome is constant (seen at both ends of
each cell), so the probability of every output is a fraction. Who decides is given as a `Judge`: the rule itself, or an
engine that scores by its own table.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sdcp.messages.contract import Sampling
from sdcp.rules.acceptance import Outcome, accept_speculative, truncate
from sdcp.rules.draws import Luck

Row = tuple[Fraction, ...]
Table = tuple[Row, ...]
Law = dict[tuple[int, ...], Fraction]
Judge = Callable[[int, tuple[int, ...], NDArray[np.float32], Luck, int], Outcome]
"""Judge(last, tokens, q rows [M, V], luck, room): the outcome for tokens proposed after `last`."""

Cell = tuple[Fraction, Fraction]
WHOLE: Cell = (Fraction(0), Fraction(1))
UNBOUNDED = 1 << 20


def log_table(weights: Sequence[Sequence[Any]]) -> NDArray[np.float64]:
    """Logits [V, V] of a table of weights, which need not sum to 1; zero forbids a token."""
    with np.errstate(divide="ignore"):
        return np.log(np.array([[float(weight) for weight in row] for row in weights]))


def rule_judge(logits: NDArray[np.float64], profile: Sampling) -> Judge:
    """The rule as `sdcp.rules` has it."""

    def judge(last: int, tokens: tuple[int, ...], q: NDArray[np.float32], luck: Luck, room: int) -> Outcome:
        return accept_speculative(logits[[last, *tokens]], tokens, q, profile, luck, room=room)

    return judge


@dataclass
class World:
    """A target with the law `p` after its profile, what is published for drafted tokens, and who decides.

    `edge` is how near the ends of a cell are looked at: nearer than the logits' own error would be looking too closely.
    """

    p: Table
    published: Table
    judge: Judge
    edge: float = 1e-9
    _known: dict[Any, list[tuple[tuple[int, ...], Fraction]]] = field(default_factory=dict)

    def verdicts(self, last: int, tokens: tuple[int, ...], room: int) -> list[tuple[tuple[int, ...], Fraction]]:
        """What is emitted for one proposal, before truncation, with the measure of the uniforms that lead there."""
        key = (last, tokens, room)
        if key not in self._known:
            self._known[key] = [*self._verdicts(*key)]
        return self._known[key]

    def _verdicts(self, last: int, tokens: tuple[int, ...], room: int) -> Iterator[tuple[tuple[int, ...], Fraction]]:
        after = [last, *tokens]
        q = np.array([[float(chance) for chance in self.published[token]] for token in after[:-1]], dtype=np.float32)
        for cells in itertools.product(*self._tests(after, room)):
            measure = _product(high - low for low, high in cells)
            if not measure:
                continue
            first = self._decide(last, tokens, q, cells, WHOLE, room, same=False)
            if first.additional is None:
                yield first.emitted(tokens), measure
                continue
            weights = self._weights(after, first.accepted, len(tokens))
            for low, high in itertools.pairwise(itertools.accumulate(weights, initial=Fraction(0))):
                if low < high:
                    cell = (low / sum(weights), high / sum(weights))
                    outcome = self._decide(last, tokens, q, cells, cell, room, same=True)
                    assert outcome.accepted == first.accepted
                    yield outcome.emitted(tokens), measure * (high - low) / sum(weights)

    def _tests(self, after: Sequence[int], room: int) -> Iterator[list[Cell]]:
        """The two cells of each acceptance test; positions beyond the room are not tested (D14)."""
        for index, (before, token) in enumerate(itertools.pairwise(after)):
            ratio = min(Fraction(1), self.p[before][token] / self.published[before][token])
            yield [WHOLE] if index >= room else [(Fraction(0), ratio), (ratio, Fraction(1))]

    def _weights(self, after: Sequence[int], accepted: int, m: int) -> list[Fraction]:
        own = self.p[after[accepted]]
        if accepted == m:
            return list(own)
        left = [
            max(Fraction(0), mine - theirs) for mine, theirs in zip(own, self.published[after[accepted]], strict=True)
        ]
        return left if any(left) else list(own)

    def _decide(
        self,
        last: int,
        tokens: tuple[int, ...],
        q: NDArray[np.float32],
        cells: tuple[Cell, ...],
        additional: Cell,
        room: int,
        *,
        same: bool,
    ) -> Outcome:
        """The outcome at both ends of all cells, which must be one."""
        ends = [
            Luck(
                tuple(abs(float(cell[end]) - sign * self.edge) for cell in cells),
                (abs(float(additional[end]) - sign * self.edge),) * (len(tokens) + 1),
            )
            for end, sign in ((0, -1), (1, 1))
        ]
        low, high = [self.judge(last, tokens, q, luck, room) for luck in ends]
        assert low.accepted == high.accepted
        assert not same or low == high
        return low


def target_law(p: Table, length: int, last: int = 0, stop: Collection[int] = ()) -> Law:
    """The law of the next `length` tokens of plain decoding after `last`, or fewer up to a stop token."""
    law: Law = {(): Fraction(1)}
    for _ in range(length):
        longer: Law = defaultdict(Fraction)
        for output, weight in law.items():
            if output and output[-1] in stop:
                longer[output] += weight
                continue
            for token, chance in enumerate(p[output[-1] if output else last]):
                if chance:
                    longer[*output, token] += weight * chance
        law = dict(longer)
    return law


def output_law(world: World, q: Table, lengths: Callable[[int], int], max_new: int, stop: Collection[int] = ()) -> Law:
    """The law of the whole output, round after round; `lengths(n)` is M of the round that begins at n tokens."""
    done: Law = defaultdict(Fraction)
    begun: list[tuple[tuple[int, ...], Fraction]] = [((), Fraction(1))]
    while begun:
        law: Law = defaultdict(Fraction)
        for output, weight in begun:
            for emitted, chance in _round(world, q, output, lengths(len(output)), max_new):
                kept, finished = truncate(emitted, stop, len(output), max_new)
                (done if finished else law)[output + kept] += weight * chance
        begun = [*law.items()]
    return dict(done)


def _round(
    world: World, q: Table, output: tuple[int, ...], m: int, max_new: int
) -> Iterator[tuple[tuple[int, ...], Fraction]]:
    last = output[-1] if output else 0
    for tokens, drafted in target_law(q, m, last).items():
        for emitted, chance in world.verdicts(last, tokens, max_new - len(output)):
            yield emitted, drafted * chance


def round_law(world: World, q: Table, m: int) -> Law:
    """The law of m + 1 tokens: one round of m tokens drafted from q, gone on by the target where it is shorter."""
    law: Law = defaultdict(Fraction)
    for tokens, drafted in target_law(q, m).items():
        for emitted, weight in world.verdicts(0, tokens, UNBOUNDED):
            for rest, chance in target_law(world.p, m + 1 - len(emitted), emitted[-1]).items():
                law[emitted + rest] += drafted * weight * chance
    return {output: weight for output, weight in law.items() if weight}


def _product(factors: Iterator[Fraction]) -> Fraction:
    result = Fraction(1)
    for factor in factors:
        result *= factor
    return result
