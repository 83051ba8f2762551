"""The law of rule 2, exactly: with the rows that the drafter sampled from, output has the target's distribution (6.4).

Nothing is sampled here. Target and drafter are tables of fractions; the uniforms of a round are cut into the cells on
which the outcome is constant (seen at both ends of each cell), so the probability of every output is a fraction, and
must equal the target's own.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sdcp.messages.contract import Sampling
from sdcp.rules.acceptance import Outcome, accept_speculative
from sdcp.rules.draws import Luck

Row = tuple[Fraction, ...]
Table = tuple[Row, ...]
"""Row t is the distribution after token t, the reference model's form; row 0 also begins."""
Law = dict[tuple[int, ...], Fraction]

EDGE = 1e-9
PARTS = 16
"""Probabilities are sixteenths: exact in binary32, so the published row is the row sampled from."""


def rows(width: int, *, positive: bool = False) -> st.SearchStrategy[Row]:
    """A distribution over `width` tokens in sixteenths, with zeros unless `positive`."""
    least = 1 if positive else 0
    cuts = st.lists(st.integers(0, PARTS - least * width), min_size=width - 1, max_size=width - 1).map(sorted)
    return cuts.map(
        lambda cut: tuple(
            Fraction(high - low + least, PARTS) for low, high in itertools.pairwise([0, *cut, PARTS - least * width])
        )
    )


def tables(width: int, *, positive: bool = False) -> st.SearchStrategy[Table]:
    return st.tuples(*[rows(width, positive=positive)] * width)


def target_law(p: Table, length: int, last: int = 0) -> Law:
    """The law of the `length` tokens that the target lets follow `last`."""
    law: Law = {(): Fraction(1)}
    for _ in range(length):
        law = {
            (*output, token): weight * chance
            for output, weight in law.items()
            for token, chance in enumerate(p[output[-1] if output else last])
            if chance
        }
    return law


def round_law(p: Table, q: Table, published: Table, m: int) -> Law:
    """The law of m + 1 tokens: one round of m tokens drafted from q, gone on by the target where it is shorter."""
    law: Law = defaultdict(Fraction)
    for tokens, drafted in target_law(q, m).items():
        for emitted, weight in verdicts(p, published, tokens):
            for rest, chance in target_law(p, m + 1 - len(emitted), emitted[-1]).items():
                law[emitted + rest] += drafted * weight * chance
    return {output: weight for output, weight in law.items() if weight}


def verdicts(p: Table, published: Table, tokens: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Fraction]]:
    """What the rule emits for one proposal, with the measure of the uniforms that lead there."""
    m, after = len(tokens), [0, *tokens]
    decide = decision(p, published, tokens)
    ratios = [min(Fraction(1), p[after[i]][tokens[i]] / published[after[i]][tokens[i]]) for i in range(m)]
    for cells in itertools.product(*[[(Fraction(0), ratio), (ratio, Fraction(1))] for ratio in ratios]):
        measure = product(high - low for low, high in cells)
        if not measure:
            continue
        accepted = decide(cells, (Fraction(0), Fraction(1)), same=False).accepted
        weights = additional_weights(p, published, after, accepted, m)
        for low, high in itertools.pairwise(itertools.accumulate(weights, initial=Fraction(0))):
            if low < high:
                outcome = decide(cells, (low / sum(weights), high / sum(weights)), same=True)
                yield outcome.emitted(tokens), measure * (high - low) / sum(weights)


def additional_weights(p: Table, published: Table, after: list[int], accepted: int, m: int) -> list[Fraction]:
    own = p[after[accepted]]
    if accepted == m:
        return list(own)
    left = [max(Fraction(0), mine - theirs) for mine, theirs in zip(own, published[after[accepted]], strict=True)]
    return left if any(left) else list(own)


Cell = tuple[Fraction, Fraction]
Decide = Callable[..., Outcome]


def decision(p: Table, published: Table, tokens: tuple[int, ...]) -> Decide:
    """The rule as a function of cells: the outcome at both ends of all of them, which must be one."""
    after = [0, *tokens]
    with np.errstate(divide="ignore"):
        scores = np.log(np.array([[float(chance) for chance in p[token]] for token in after]))
    q = np.array([[float(chance) for chance in published[token]] for token in after[:-1]], dtype=np.float32)

    def decide(cells: tuple[Cell, ...], additional: Cell, *, same: bool) -> Outcome:
        low = Luck(tuple(float(a) + EDGE for a, _ in cells), (float(additional[0]) + EDGE,) * (len(tokens) + 1))
        high = Luck(tuple(float(b) - EDGE for _, b in cells), (float(additional[1]) - EDGE,) * (len(tokens) + 1))
        outcomes = [accept_speculative(scores, tokens, q, Sampling(), luck) for luck in (low, high)]
        assert outcomes[0].accepted == outcomes[1].accepted
        assert not same or outcomes[0] == outcomes[1]
        return outcomes[0]

    return decide


def product(factors: Iterator[Fraction]) -> Fraction:
    result = Fraction(1)
    for factor in factors:
        result *= factor
    return result


@pytest.mark.requirement("S6.4-speculative-output", "S6.4-speculative-draw")
@given(st.sampled_from([(2, 3), (3, 2), (4, 1)]), st.data())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_output_has_exactly_the_law_of_the_target(shape: tuple[int, int], data: st.DataObject) -> None:
    width, m = shape
    p, q = data.draw(tables(width)), data.draw(tables(width))
    assert round_law(p, q, q, m) == target_law(p, m + 1)


P4: Table = tuple(
    tuple(Fraction(n, 16) for n in row) for row in ((8, 4, 3, 1), (1, 5, 5, 5), (0, 2, 6, 8), (16, 0, 0, 0))
)
Q4: Table = tuple(
    tuple(Fraction(n, 16) for n in row) for row in ((4, 8, 0, 4), (5, 5, 1, 5), (6, 2, 8, 0), (1, 1, 7, 7))
)


BEST: Table = tuple(tuple(Fraction(int(t == row.index(max(row)))) for t in range(4)) for row in Q4)
"""All on the most probable token of Q4."""


@pytest.mark.requirement("S6.4-speculative-output")
def test_the_law_holds_on_four_tokens_and_three_positions() -> None:
    assert round_law(P4, Q4, Q4, 3) == target_law(P4, 4)


@pytest.mark.requirement("S6.4-speculative-output")
@pytest.mark.decision("D31-included")
def test_a_drafter_that_takes_its_best_token_is_exact_when_it_says_so() -> None:
    """A greedy or lookup drafter samples from a row of one token, and publishes that row."""
    assert round_law(P4, BEST, BEST, 2) == target_law(P4, 3)


@pytest.mark.requirement("S5.2-sampled-from-row")
def test_rows_that_the_tokens_were_not_sampled_from_bias_the_output() -> None:
    """Why a drafter publishes the very row: here it takes its best token but publishes its soft distribution."""
    biased = round_law(P4, BEST, Q4, 1)
    assert sum(biased.values()) == 1
    assert biased != target_law(P4, 2)
    first = [sum(weight for output, weight in biased.items() if output[0] == token) for token in range(4)]
    # p = 8/16 4/16 3/16 1/16; token 1 is always proposed, accepted by 4/8, else the residual 4/7, 0, 3/7, 0 is drawn
    assert first == [Fraction(2, 7), Fraction(1, 2), Fraction(3, 14), 0]


@pytest.mark.decision("D31")
@given(tables(3, positive=True), tables(3, positive=True))
@settings(max_examples=20, deadline=None)
def test_other_rows_than_sampled_from_change_the_law_of_the_first_token_as_the_formula_says(p: Table, q: Table) -> None:
    """Published: the target's own rows, so everything is accepted; the output then has the drafter's law."""
    assert round_law(p, q, p, 1) == {(x, y): q[0][x] * p[x][y] for x in range(3) for y in range(3)}
