"""Alpha, t_d and t_v as a drafter session learns them, and the M that follows (6.2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp.machines.drafter_estimate import START_TOKENS, TOKEN_WEIGHT, Estimate, Line
from sdcp.rules.length import choose_length

ROUNDS = st.lists(st.integers(1, 8).flatmap(lambda m: st.tuples(st.integers(0, m), st.just(m))), max_size=30)


def plain_alpha(alpha: float, rounds: list[tuple[int, int]]) -> float:
    """Token by token: accepted ones count 1, the first rejected one 0, those behind it were never judged."""
    judged = 0
    for accepted, proposed in rounds:
        for position in range(proposed):
            if position > accepted:
                break
            judged += 1
            alpha += max(TOKEN_WEIGHT, 1 / (START_TOKENS + judged)) * ((1.0 if position < accepted else 0.0) - alpha)
    return alpha


@pytest.mark.requirement("S6.2-length-terms")
@given(ROUNDS)
def test_alpha_is_an_exponentially_weighted_average_over_judged_tokens(rounds: list[tuple[int, int]]) -> None:
    estimate = Estimate(0.6)
    for accepted, proposed in rounds:
        estimate.judged(accepted, proposed, 1.0)
    assert estimate.alpha == pytest.approx(plain_alpha(0.6, rounds), abs=1e-9)
    assert 0 <= estimate.alpha <= 1


@pytest.mark.requirement("S6.2-choice-local")
@pytest.mark.parametrize("known", [(), ("drafted",), ("judged",)])
def test_until_both_times_are_known_all_that_is_allowed_is_proposed(known: tuple[str, ...]) -> None:
    estimate = Estimate()
    if "drafted" in known:
        estimate.drafted(500.0)
    if "judged" in known:
        estimate.judged(0, 1, 1.0)
    assert estimate.length(7) == 7


@pytest.mark.requirement("S6.2-length-rule", "S6.2-length-maximizes", "S6.2-length-terms")
@given(st.floats(0.01, 50), st.floats(0.0, 50), st.floats(0.01, 200), st.integers(1, 64))
def test_m_is_the_recommended_one_for_the_measured_times(
    token_ms: float, write_ms: float, elapsed_ms: float, limit: int
) -> None:
    estimate = Estimate(0.7)
    estimate.drafted(token_ms)
    estimate.written(write_ms * 4, 4)
    estimate.judged(2, 3, elapsed_ms)
    assert estimate.length(limit) == choose_length(estimate.alpha, token_ms + write_ms, elapsed_ms, limit)
    assert 1 <= estimate.length(limit) <= limit


@pytest.mark.requirement("S6.2-loaded-proposes-fewer")
def test_a_drafter_that_gets_slower_proposes_fewer_and_recovers() -> None:
    estimate = Estimate(0.9)
    estimate.judged(4, 4, 50.0)
    lengths = []
    for token_ms in [1.0] * 20 + [80.0] * 20 + [1.0] * 40:
        estimate.drafted(token_ms)
        estimate.judged(4, 4, 50.0)
        lengths.append(estimate.length(8))
    assert lengths[19] == lengths[-1] == 8
    assert lengths[39] == 1


def test_more_accepted_than_proposed_is_no_more_than_all() -> None:
    """A verifier that miscounts does not push the probability over 1."""
    estimate = Estimate()
    estimate.judged(99, 4, 1.0)
    assert estimate.alpha <= 1


@pytest.mark.decision("D38-slope")
@given(st.floats(25, 200), st.floats(0, 20), st.lists(st.integers(1, 8), min_size=2, max_size=60))
def test_what_a_token_more_costs_the_verifier_is_learnt(base: float, slope: float, lengths: list[int]) -> None:
    line = Line()
    for m in [*lengths, 2, 8, 2, 8]:
        line.add(m, base + slope * m)
    assert line.slope == pytest.approx(slope, abs=1e-6)
    assert line.at_nothing == pytest.approx(base, abs=1e-4)


@pytest.mark.decision("D38-slope")
def test_where_tokens_are_dear_to_verify_fewer_are_proposed() -> None:
    cheap, dear = Estimate(0.6), Estimate(0.6)
    for m in (1, 8, 2, 6):
        for estimate, slope in ((cheap, 0.0), (dear, 30.0)):
            estimate.drafted(0.1)
            estimate.judged(m // 2, m, 40.0 + slope * m)
    assert dear.length(8) < cheap.length(8)


@pytest.mark.decision("D38")
def test_rounds_of_one_length_say_nothing_of_the_slope() -> None:
    line = Line()
    for elapsed_ms in (40.0, 80.0, 20.0):
        line.add(4, elapsed_ms)
    assert line.slope == 0.0
    assert Line().at_nothing == 0.0
