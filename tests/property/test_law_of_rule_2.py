"""The law of rule 2, exactly: with the rows that the drafter sampled from, output has the target's distribution (6.4).

Nothing is sampled here (`exact_law`): the probability of every output is a fraction, and must equal the target's own,
under every sampling profile, over rounds of any length, cut by stop tokens and max_new, by the rule and by the engines.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sdcp.messages.contract import Sampling
from sdcp.ports import VerifyJob
from sdcp.rules.acceptance import Outcome
from sdcp.rules.draws import Luck
from sdcp.testing.engines import bigram
from tests.property.exact_law import Judge, Row, Table, World, log_table, output_law, round_law, rule_judge, target_law

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


def sixteenths(*rows: tuple[int, ...]) -> Table:
    return tuple(tuple(Fraction(part, PARTS) for part in row) for row in rows)


def plain(p: Table, published: Table) -> World:
    """The default profile, which leaves p as the table has it."""
    return World(p, published, rule_judge(log_table(p), Sampling()))


# ---- one round -------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.4-speculative-output", "S6.4-speculative-draw")
@given(st.sampled_from([(2, 3), (3, 2), (4, 1)]), st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_output_has_exactly_the_law_of_the_target(shape: tuple[int, int], data: st.DataObject) -> None:
    width, m = shape
    p, q = data.draw(tables(width)), data.draw(tables(width))
    assert round_law(plain(p, q), q, m) == target_law(p, m + 1)


P4 = sixteenths((8, 4, 3, 1), (1, 5, 5, 5), (0, 2, 6, 8), (16, 0, 0, 0))
Q4 = sixteenths((4, 8, 0, 4), (5, 5, 1, 5), (6, 2, 8, 0), (1, 1, 7, 7))
BEST: Table = tuple(tuple(Fraction(int(t == row.index(max(row)))) for t in range(4)) for row in Q4)
"""All on the most probable token of Q4."""
APART = sixteenths((8, 8, 0, 0), (8, 8, 0, 0), (8, 8, 0, 0), (8, 8, 0, 0))
OTHERS = sixteenths((0, 0, 8, 8), (0, 0, 8, 8), (0, 0, 8, 8), (0, 0, 8, 8))


@pytest.mark.requirement("S6.4-speculative-output")
@pytest.mark.parametrize(
    ("p", "q"),
    [
        (P4, Q4),
        (P4, P4),  # q = p: all is accepted, and a residual has nothing
        (Q4, BEST),  # q has one token
        (BEST, Q4),  # p has one token
        (APART, OTHERS),  # p = 0 wherever q is not: all is refused
    ],
    ids=["differ", "equal", "certain drafter", "certain target", "apart"],
)
def test_the_law_holds_on_four_tokens_and_three_positions(p: Table, q: Table) -> None:
    assert round_law(plain(p, q), q, 3) == target_law(p, 4)


@pytest.mark.requirement("S6.4-speculative-output")
@pytest.mark.decision("D31-included")
def test_a_drafter_that_takes_its_best_token_is_exact_when_it_says_so() -> None:
    """A greedy or lookup drafter samples from a row of one token, and publishes that row."""
    assert round_law(plain(P4, BEST), BEST, 2) == target_law(P4, 3)


@pytest.mark.requirement("S5.2-sampled-from-row")
def test_rows_that_the_tokens_were_not_sampled_from_bias_the_output() -> None:
    """Why a drafter publishes the very row: here it takes its best token but publishes its soft distribution."""
    biased = round_law(plain(P4, Q4), BEST, 1)
    assert sum(biased.values()) == 1
    assert biased != target_law(P4, 2)
    first = [sum(weight for output, weight in biased.items() if output[0] == token) for token in range(4)]
    # p = 8/16 4/16 3/16 1/16; token 1 is always proposed, accepted by 4/8, else the residual 4/7, 0, 3/7, 0 is drawn
    assert first == [Fraction(2, 7), Fraction(1, 2), Fraction(3, 14), 0]


@pytest.mark.decision("D31-one-sample")
@given(tables(3, positive=True), tables(3, positive=True))
@settings(max_examples=20, deadline=None)
def test_other_rows_than_sampled_from_change_the_law_of_the_first_token_as_the_formula_says(p: Table, q: Table) -> None:
    """Published: the target's own rows, so everything is accepted; the output then has the drafter's law."""
    assert round_law(plain(p, p), q, 1) == {(x, y): q[0][x] * p[x][y] for x in range(3) for y in range(3)}


# ---- whole outputs ---------------------------------------------------------------------------------------------------

LENGTHS: dict[str, Callable[[int], int]] = {
    "always 2": lambda n: 2,
    "always 3": lambda n: 3,
    "by position": lambda n: 1 + n % 3,
}


@pytest.mark.requirement("S6.3-truncation", "S6.4-speculative-output")
@pytest.mark.decision("D14-beyond-max-new")
@pytest.mark.parametrize("stop", [(), (1,), (0, 2)], ids=str)
@pytest.mark.parametrize("max_new", [1, 2, 4])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_truncation_and_the_number_proposed_do_not_bias(lengths: str, max_new: int, stop: tuple[int, ...]) -> None:
    p, q = sixteenths((8, 5, 3), (1, 10, 5), (0, 9, 7)), sixteenths((4, 8, 4), (6, 0, 10), (5, 5, 6))
    law = output_law(plain(p, q), q, LENGTHS[lengths], max_new, stop)
    assert law == target_law(p, max_new, stop=stop)


@pytest.mark.requirement("S6.3-truncation")
@given(tables(3), tables(3), st.integers(1, 3), st.sets(st.integers(0, 3), max_size=2))
@settings(max_examples=25, deadline=None)
def test_nor_does_any_other_table_or_stop_token(p: Table, q: Table, m: int, stop: set[int]) -> None:
    law = output_law(plain(p, q), q, lambda n: m, 3, stop)
    assert law == target_law(p, 3, stop=stop)


# ---- sampling profiles -----------------------------------------------------------------------------------------------

TEMPERATURES = (None, 0, 500, 1000, 2000)
TOP_K = (None, 0, 1, 2, 4, 5)
TOP_P = (None, 0, 1, 500, 999, 1000)
PROFILES = [
    Sampling(temperature_milli=temperature, top_k=top_k, top_p_milli=top_p)
    for temperature, top_k, top_p in itertools.product(TEMPERATURES, TOP_K, TOP_P)
]
Roots = tuple[tuple[int, ...], ...]


def shaped(roots: tuple[int, ...], profile: Sampling) -> Row:
    """The distribution of weights that are squares of `roots`, as D22 says, in fractions.

    A temperature of 2 takes the root, one of a half the square, so all stays exact. Temperature 0: the argmax.
    """
    order = sorted(range(len(roots)), key=lambda token: (-roots[token], token))
    if profile.temperature_milli == 0:
        return tuple(Fraction(int(token == order[0])) for token in range(len(roots)))
    power = 2000 // (profile.temperature_milli or 1000)
    kept = order[: profile.top_k or len(roots)]
    weights = {token: Fraction(roots[token] ** power) for token in kept}
    sums = [*itertools.accumulate(weights[token] / sum(weights.values()) for token in kept)]
    least = Fraction(1000 if profile.top_p_milli is None else profile.top_p_milli, 1000)
    if least < 1:
        kept = kept[: 1 + sum(reached < least for reached in sums)]
    total = sum(weights[token] for token in kept)
    return tuple(weights[token] / total if token in kept else Fraction(0) for token in range(len(roots)))


def is_decided(roots: Roots, profile: Sampling) -> bool:
    """Whether no sum of top-p is so near its bound that only rounding says on which side it lies."""
    least, bare = Fraction(profile.top_p_milli or 0, 1000), Sampling(temperature_milli=profile.temperature_milli)
    for row in roots:
        p = shaped(row, Sampling(temperature_milli=bare.temperature_milli, top_k=profile.top_k))
        sums = itertools.accumulate(sorted(p, reverse=True))
        if any(abs(reached - least) < Fraction(1, 10**6) for reached in sums):
            return False
    return True


def some_roots(luck: Random, width: int = 4) -> Roots:
    """Small numbers, with equal ones and zeros among them."""
    return tuple((luck.randint(1, 5), *(luck.randint(0, 5) for _ in range(width - 1))) for _ in range(width))


def some_rows(luck: Random, width: int = 4) -> Table:
    cuts = [sorted(luck.randint(0, PARTS) for _ in range(width - 1)) for _ in range(width)]
    return sixteenths(*(tuple(high - low for low, high in itertools.pairwise([0, *cut, PARTS])) for cut in cuts))


def shaped_world(roots: Roots, q: Table, profile: Sampling) -> World:
    p = tuple(shaped(row, profile) for row in roots)
    squares = [[root * root for root in row] for row in roots]
    return World(p, q, rule_judge(log_table(squares), profile))


@pytest.mark.requirement("S6.4-speculative-output", "S4.1-sampling")
@pytest.mark.decision("D22-order")
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_law_is_that_of_the_profile(temperature: int | None) -> None:
    luck, tried = Random(temperature), 0
    for profile in [each for each in PROFILES if each.temperature_milli == temperature]:
        roots, q = some_roots(luck), some_rows(luck)
        if is_decided(roots, profile):
            world = shaped_world(roots, q, profile)
            assert round_law(world, q, 2) == target_law(world.p, 3), profile
            tried += 1
    assert tried > 25


@pytest.mark.decision("D22-ties")
def test_equal_logits_are_cut_at_the_smaller_identifier() -> None:
    roots, q = ((3, 3, 3, 3),) * 4, Q4
    for profile, kept in ((Sampling(top_k=2), (0, 1)), (Sampling(top_p_milli=499), (0, 1)), (Sampling(top_k=1), (0,))):
        world = shaped_world(roots, q, profile)
        assert [token for token in range(4) if world.p[0][token]] == [*kept]
        assert round_law(world, q, 3) == target_law(world.p, 4)


# ---- the edges of the acceptance test --------------------------------------------------------------------------------

HALVES: Row = (Fraction(1, 2), Fraction(1, 2), Fraction(0), Fraction(0))


@pytest.mark.requirement("S6.4-speculative-accept", "S6.4-speculative-residual")
@pytest.mark.parametrize("q", [(2, 6, 4, 4), (6, 2, 4, 4), (8, 8, 0, 0), (12, 4, 0, 0), (9, 7, 0, 0), (16, 0, 0, 0)])
@pytest.mark.parametrize("token", range(4))
def test_r_below_p_over_q_accepts_and_r_equal_to_it_does_not(q: tuple[int, ...], token: int) -> None:
    """p is exact here: the ratio of two binary fractions, rounded once, is the bound itself."""
    if not q[token]:
        return
    judge = rule_judge(log_table((HALVES,) * 4), Sampling())
    row = np.array([q], dtype=np.float32) / PARTS
    ratio = float(HALVES[token]) / float(row[0, token])

    def accepts(r: float) -> bool:
        return judge(0, (token,), row, Luck((r,), (0.0, 0.0)), 9).accepted == 1

    assert accepts(0.0) == (ratio > 0)  # r = 0: below any ratio but zero
    assert accepts(np.nextafter(1.0, 0.0)) == (ratio >= 1)
    if 0 < ratio < 1:
        assert accepts(np.nextafter(ratio, 0.0))
        assert not accepts(ratio)


@pytest.mark.decision("D23-residual")
def test_where_the_row_leaves_nothing_the_target_s_own_distribution_is_drawn_from() -> None:
    """A published row may sum to a little over 1 (D25): it can then be nowhere below p, and yet refuse a token."""
    judge = rule_judge(log_table((HALVES,) * 4), Sampling())
    row = np.array([[0.50004, 0.50004, 0, 0]], dtype=np.float32)
    for u, drawn in ((0.0, 0), (0.4999, 0), (0.5001, 1), (0.9999, 1)):
        assert judge(0, (0,), row, Luck((0.99995,), (u, u)), 9) == Outcome(0, drawn)


# ---- engines ---------------------------------------------------------------------------------------------------------


ROOTS: Roots = ((4, 3, 1, 0), (1, 2, 2, 3), (5, 1, 1, 1), (0, 0, 0, 2))
FEW_PROFILES = (
    Sampling(),
    Sampling(temperature_milli=0),
    Sampling(temperature_milli=500, top_k=3),
    Sampling(top_p_milli=700),
)


def check_law(judge: Judge, profile: Sampling) -> None:
    """An engine that scores by the squares of ROOTS, in binary32, has the law of its target."""
    world = World(tuple(shaped(row, profile) for row in ROOTS), Q4, judge, edge=1e-6)
    assert is_decided(ROOTS, profile)
    assert round_law(world, Q4, 2) == target_law(world.p, 3)
    assert output_law(world, Q4, lambda n: 3, 3, (1,)) == target_law(world.p, 3, stop=(1,))


def bigram_judge(folder: Path, roots: Roots, profile: Sampling) -> Judge:
    """The reference model's own verification."""
    squares = [[root * root for root in row] for row in roots]
    target = bigram(folder / "law", log_table(squares).astype(np.float32))

    def decide(last: int, tokens: tuple[int, ...], q: np.ndarray, luck: Luck, room: int) -> Outcome:
        job = VerifyJob(b"law", [7, last], 2, tokens, 2, profile, luck.values, q, room)
        [result] = target.verify([job])
        return Outcome(result.accepted, result.additional)

    return decide


@pytest.mark.requirement("S6.4-speculative-output")
@pytest.mark.parametrize("profile", FEW_PROFILES, ids=str)
def test_the_reference_model_keeps_the_law(tmp_path: Path, profile: Sampling) -> None:
    check_law(bigram_judge(tmp_path, ROOTS, profile), profile)
