"""The choice of M: 6.2."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp.rules.length import choose_length, expected_tokens


@pytest.mark.requirement("S6.2-expected-tokens", "S6.2-length-rule")
@given(st.floats(0, 1), st.integers(1, 64))
def test_expected_tokens_is_the_formula_of_the_draft(alpha: float, m: int) -> None:
    exact = Fraction(alpha)
    expected = Fraction(m + 1) if exact == 1 else (1 - exact ** (m + 1)) / (1 - exact)
    assert abs(expected_tokens(alpha, m) - expected) < 1e-12 * (m + 1)


@pytest.mark.requirement("S6.2-length-maximizes", "S6.2-length-rule")
@given(
    st.integers(0, 20),
    st.integers(0, 50).map(lambda n: n / 32),
    st.integers(1, 50).map(lambda n: n / 32),
    st.integers(1, 64),
)
def test_the_choice_is_the_best_in_exact_arithmetic_and_the_smallest_of_equals(
    twentieths: int, t_d: float, t_v: float, limit: int
) -> None:
    alpha = twentieths / 20
    exact = Fraction(alpha)

    def rate(m: int) -> Fraction:
        return sum((exact**k for k in range(m + 1)), Fraction()) / (m * Fraction(t_d) + Fraction(t_v))

    chosen, best = choose_length(alpha, t_d, t_v, limit), max(rate(m) for m in range(1, limit + 1))
    assert 1 <= chosen <= limit
    assert rate(chosen) >= best * (1 - Fraction(1, 10**11))
    assert all(rate(m) < best for m in range(1, chosen))


@pytest.mark.requirement("S6.2-loaded-proposes-fewer")
def test_who_drafts_slowly_or_fails_often_proposes_fewer() -> None:
    lengths = [choose_length(0.8, t_d, 1.0, 64) for t_d in (0.01, 0.05, 0.2, 1.0)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1]
    lengths = [choose_length(alpha, 0.05, 1.0, 64) for alpha in (0.95, 0.7, 0.3, 0.0)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] == 1


@pytest.mark.parametrize(
    ("t_d", "t_v", "limit", "m"), [(1.0, 1.0, 9, 1), (0.1, 0.1, 64, 1), (0.0, 1.0, 9, 9), (0.0, 0.0, 9, 1)]
)
def test_equal_rates_and_times_of_zero(t_d: float, t_v: float, limit: int, m: int) -> None:
    """With certain acceptance and t_d = t_v all rates are one, whatever the floats say."""
    assert choose_length(1.0, t_d, t_v, limit) == m
