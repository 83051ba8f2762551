"""The target distribution: 4.1, D22."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from sdcp.messages.contract import Sampling
from sdcp.rules import profile
from sdcp.rules.profile import argmax, target_distribution

TIED_LOGITS = st.lists(
    st.sampled_from([-math.inf, -3.0, -1.0, 0.0, 0.5, 2.0]) | st.floats(-9, 9), min_size=1, max_size=12
)
SAMPLINGS = st.builds(
    Sampling,
    temperature_milli=st.none() | st.sampled_from([0, 1, 300, 1000, 2500]),
    top_k=st.none() | st.integers(0, 14),
    top_p_milli=st.none() | st.integers(0, 1000),
)


def plain_twin(logits: list[float], sampling: Sampling) -> list[float]:
    """D22 word by word, with lists and sums of Python."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    temperature = (1000 if sampling.temperature_milli is None else sampling.temperature_milli) / 1000
    if temperature == 0:
        return [float(token == order[0]) for token in range(len(logits))]
    weights = {token: math.exp((logits[token] - logits[order[0]]) / temperature) for token in order}
    if sampling.top_k:
        weights = {token: weights[token] for token in order[: sampling.top_k]}
    weights = _normalized(weights)
    if sampling.top_p_milli is not None and sampling.top_p_milli < 1000:
        weights = _normalized(_shortest_prefix(weights, sampling.top_p_milli / 1000))
    return [weights.get(token, 0.0) for token in range(len(logits))]


def _normalized(weights: dict[int, float]) -> dict[int, float]:
    total = math.fsum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


def _shortest_prefix(weights: dict[int, float], least: float) -> dict[int, float]:
    kept: dict[int, float] = {}
    for token, weight in weights.items():
        kept[token] = weight
        assume(abs(sum(kept.values()) - least) > 1e-12)  # there, the order of float sums decides
        if sum(kept.values()) >= least:
            break
    return kept


@pytest.mark.requirement("S4.1-profile-order")
@pytest.mark.decision("D22-order")
@given(TIED_LOGITS, SAMPLINGS)
@example([0.0, 0.0, 0.0], Sampling(top_k=2, top_p_milli=900))
def test_it_is_the_plain_twin(logits: list[float], sampling: Sampling) -> None:
    assume(max(logits) > -math.inf)
    p, expected = target_distribution(np.array(logits), sampling), plain_twin(logits, sampling)
    assert p.dtype == np.float64
    np.testing.assert_allclose(p, expected, rtol=1e-9, atol=1e-300)
    assert [value == 0 for value in p] == [value == 0 for value in expected]
    assert abs(p.sum() - 1) < 1e-12


@pytest.mark.decision("D22")
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40), SAMPLINGS, st.integers(1, 8))
def test_sorting_only_the_greatest_logits_changes_nothing(logits: list[int], sampling: Sampling, first: int) -> None:
    array = np.array(logits, dtype=np.float32)
    whole = target_distribution(array, sampling)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile, "FIRST_SORTED", first)
        assert (target_distribution(array, sampling) == whole).all()


@pytest.mark.decision("D22-order")
def test_top_p_looks_beyond_the_greatest_logits_where_they_do_not_suffice() -> None:
    flat = np.zeros(4 * profile.FIRST_SORTED, dtype=np.float32)
    p = target_distribution(flat, Sampling(top_p_milli=500))
    assert p.nonzero()[0].tolist() == list(range(2 * profile.FIRST_SORTED))


@pytest.mark.decision("D22-ties")
def test_top_k_keeps_exactly_k_and_of_equals_the_smaller_identifiers() -> None:
    assert target_distribution(np.array([1.0, 2.0, 2.0, 2.0]), Sampling(top_k=2)).tolist() == [0, 0.5, 0.5, 0]
    assert target_distribution(np.array([2.0, 1.0, 1.0, 1.0]), Sampling(top_k=3)).nonzero()[0].tolist() == [0, 1, 2]


@pytest.mark.decision("D22-absent", "D22-ties")
def test_top_p_keeps_the_shortest_prefix_whose_sum_reaches_it() -> None:
    logits = np.log([0.5, 0.25, 0.125, 0.125])
    for top_p_milli, kept in ((0, 1), (499, 1), (500, 1), (501, 2), (750, 2), (751, 3), (874, 3), (999, 4), (1000, 4)):
        p = target_distribution(logits, Sampling(top_p_milli=top_p_milli))
        assert np.count_nonzero(p) == kept, top_p_milli


@pytest.mark.decision("D22-absent")
def test_absent_zero_and_a_thousand_are_off() -> None:
    logits = np.array([0.3, -0.2, 1.0])
    plain = target_distribution(logits, Sampling())
    for off in (Sampling(temperature_milli=1000), Sampling(top_k=0), Sampling(top_k=3), Sampling(top_p_milli=1000)):
        assert (target_distribution(logits, off) == plain).all()


@pytest.mark.requirement("S4.1-temperature-zero")
def test_temperature_zero_takes_the_argmax_whatever_else_the_profile_says() -> None:
    for sampling in (Sampling(temperature_milli=0), Sampling(temperature_milli=0, top_k=1, top_p_milli=0)):
        assert target_distribution(np.array([1.0, 7.0, 7.0]), sampling).tolist() == [0, 1, 0]


def test_temperature_goes_before_top_p() -> None:
    """Cold enough, the first token alone reaches what takes two at temperature 1."""
    logits = np.array([1.0, 0.5, 0.0])
    assert np.count_nonzero(target_distribution(logits, Sampling(top_p_milli=700))) == 2
    assert np.count_nonzero(target_distribution(logits, Sampling(temperature_milli=200, top_p_milli=700))) == 1


@pytest.mark.decision("D22-order")
def test_low_precision_logits_are_computed_in_float64() -> None:
    logits = np.array([0.1, 0.2, 0.3], dtype=np.float16)
    assert (target_distribution(logits, Sampling()) == target_distribution(logits.astype(np.float64), Sampling())).all()


def test_extreme_temperatures_and_logits_do_not_overflow() -> None:
    with np.errstate(over="raise", invalid="raise"):
        for temperature in (1, 2**64 - 1):
            p = target_distribution(
                np.array([3e38, -3e38, 0], dtype=np.float32), Sampling(temperature_milli=temperature)
            )
            assert abs(p.sum() - 1) < 1e-12


@pytest.mark.decision("D22-argmax")
def test_argmax_takes_the_smallest_identifier_of_equals() -> None:
    assert argmax(np.array([0.0, 3.0, 3.0])) == 1
    assert argmax(np.array([-math.inf, -math.inf])) == 0


@pytest.mark.parametrize("where", range(3))
def test_logits_that_are_no_numbers_are_refused(where: int) -> None:
    logits = np.array([1.0, 2.0, 0.0])
    logits[where] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        argmax(logits)
    with pytest.raises(ValueError, match="NaN"):
        target_distribution(logits, Sampling())
    logits[where] = math.inf
    with pytest.raises(ValueError, match="infinity"):
        target_distribution(logits, Sampling())
    with pytest.raises(ValueError, match="forbid every token"):
        target_distribution(np.full(3, -math.inf), Sampling())
