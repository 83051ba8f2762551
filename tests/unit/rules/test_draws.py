"""Random values and drawing: 6.4, D23, D24, D27."""

from __future__ import annotations

import hashlib
import hmac
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp.rules.draws import ACCEPTANCE, ADDITIONAL, Luck, draw, seeded_luck, uniform

SESSION = bytes(range(16))
BELOW_ONE = float(np.nextafter(1, 0))


@pytest.mark.requirement("S6.4-seed-derivation", "S6.4-seed-purpose", "S6.4-seed-53-bits")
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(1, 65), st.sampled_from([0, 1]))
def test_a_seeded_value_is_the_first_53_bits_of_the_hmac(seed: int, round: int, i: int, purpose: int) -> None:
    text = b"SDCP-VERIFY-1\0" + SESSION + round.to_bytes(4, "big") + i.to_bytes(4, "big") + bytes([purpose])
    bits = f"{int.from_bytes(hmac.new(seed.to_bytes(8, 'big'), text, hashlib.sha256).digest(), 'big'):0256b}"[:53]
    value = uniform(seed, SESSION, round, i, purpose)
    assert Fraction(value) == Fraction(int(bits, 2), 2**53)
    assert 0 <= value < 1


@pytest.mark.decision("D24-position")
def test_positions_count_from_one_and_the_additional_token_is_at_a_plus_one() -> None:
    luck = seeded_luck(7, SESSION, 3, 2)
    assert luck.acceptance == tuple(uniform(7, SESSION, 3, i, ACCEPTANCE) for i in (1, 2))
    assert luck.additional == tuple(uniform(7, SESSION, 3, a + 1, ADDITIONAL) for a in (0, 1, 2))


@pytest.mark.decision("D24-self-decoded", "D29")
def test_a_self_decoding_round_has_one_value_of_its_own() -> None:
    assert seeded_luck(7, SESSION, 3, 0).values == (uniform(7, SESSION, 3, 1, ADDITIONAL),)


def test_values_differ_by_seed_session_round_position_and_purpose() -> None:
    places = [(1, SESSION, 1, 1, 0), (2, SESSION, 1, 1, 0), (1, SESSION[::-1], 1, 1, 0), (1, SESSION, 2, 1, 0)]
    places += [(1, SESSION, 1, 2, 0), (1, SESSION, 1, 1, 1)]
    assert len({uniform(*place) for place in places}) == len(places)


@pytest.mark.parametrize("place", [(2**64, 0), (-1, 0), (0, 2**32)])
def test_what_has_no_octets_in_the_derivation_is_a_value_error(place: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="no random value"):
        uniform(place[0], SESSION, place[1], 1, 0)


@pytest.mark.decision("D27-fixed")
@given(st.integers(0, 64))
def test_the_flat_form_of_a_round_is_all_its_values(m: int) -> None:
    luck = seeded_luck(1, SESSION, 9, m)
    assert len(luck.values) == 2 * m + 1
    assert Luck.of(luck.values, m) == luck


@pytest.mark.decision("D27")
def test_without_a_seed_one_additional_value_stands_for_every_position() -> None:
    assert Luck.of((0.1, 0.2, 0.3), 2) == Luck((0.1, 0.2), (0.3, 0.3, 0.3))
    assert Luck.of((0.3,), 0) == Luck((), (0.3,))


@pytest.mark.parametrize(("count", "m"), [(0, 0), (2, 0), (1, 1), (2, 2), (4, 2), (6, 2)])
def test_another_number_of_values_is_no_luck(count: int, m: int) -> None:
    with pytest.raises(ValueError, match="not those of a round"):
        Luck.of((0.5,) * count, m)


@pytest.mark.decision("D23-draw")
def test_the_token_is_the_smallest_whose_cumulative_weight_exceeds_u_times_the_total() -> None:
    weights = np.array([0.0, 1.0, 0.0, 2.0, 1.0, 0.0])
    drawn = [draw(weights, u) for u in (0.0, 0.2499, 0.25, 0.7499, 0.75, BELOW_ONE)]
    assert drawn == [1, 1, 3, 3, 4, 4]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(any), st.integers(0, 2**40 - 1))
def test_drawing_is_the_plain_twin(weights: list[int], bits: int) -> None:
    """u has so few bits that u times the total is exact in float64."""
    reached, token = 0, -1
    while reached * 2**40 <= bits * sum(weights):
        token += 1
        reached += weights[token]
    assert draw(np.array(weights, dtype=np.float64), bits / 2**40) == token


@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=8).filter(any), st.floats(0, BELOW_ONE))
def test_a_token_of_weight_zero_is_never_drawn(weights: list[float], u: float) -> None:
    assert weights[draw(np.array(weights), u)] > 0


@pytest.mark.decision("D23-draw")
def test_rounding_past_the_end_takes_the_last_token_of_positive_weight() -> None:
    """The smallest double times the largest u rounds up to the total, which no cumulative weight exceeds."""
    assert draw(np.array([0.0, 5e-324, 0.0]), 0.75) == 1


@pytest.mark.parametrize("weights", [[0.0, 0.0], [float("nan"), 1.0]])
def test_nothing_to_draw_from_is_a_value_error(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        draw(np.array(weights), 0.5)
