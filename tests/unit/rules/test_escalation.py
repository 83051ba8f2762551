"""Low rounds and the ladder: 6.5.2, D15, D29."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp.messages.contract import Action
from sdcp.rules.escalation import Counters, after_round, is_low, may_self_decode


@dataclass(frozen=True)
class Terms:
    low_rounds: int = 2
    fallback: tuple[int, ...] = (1, 3, 2)
    self_load: int | None = 50
    self_max: int | None = None


LOW, GOOD = True, False


def run(
    terms: Terms, rounds: list[bool], load: int = 0, counters: Counters | None = None
) -> tuple[list[int], Counters]:
    counters, actions = counters or Counters(), []
    for low in rounds:
        counters, action = after_round(counters, low, terms, load)
        actions.append(int(action))
    return actions, counters


@pytest.mark.requirement("S6.5.2-low-round-no-ratio", "S4.1-low-ratio-default")
@pytest.mark.parametrize("low_ratio", [None, 0])
def test_without_a_ratio_only_a_round_that_accepts_nothing_is_low(low_ratio: int | None) -> None:
    assert is_low(0, 1, low_ratio)
    assert not is_low(1, 64, low_ratio)


@pytest.mark.requirement("S6.5.2-low-round")
@given(st.integers(1, 64), st.integers(0, 64), st.integers(1, 100))
def test_with_a_ratio_a_round_strictly_below_it_is_low(m: int, accepted: int, low_ratio: int) -> None:
    accepted = min(accepted, m)
    assert is_low(accepted, m, low_ratio) == (Fraction(accepted, m) < Fraction(low_ratio, 100))


@pytest.mark.requirement("S6.5.2-counters", "S6.5.2-after-low", "S6.5.2-after-not-low", "S6.5.2-otherwise-continue")
def test_low_rounds_must_be_consecutive() -> None:
    actions, counters = run(Terms(low_rounds=2), [LOW, GOOD, LOW, GOOD, LOW])
    assert actions == [0, 0, 0, 0, 0]
    assert counters == Counters(c=1, g=0, j=0)


@pytest.mark.requirement("S6.5.2-ladder-entry", "S6.5.2-c-reset", "S6.5.2-ladder-exhausted")
@pytest.mark.decision("D15-low")
def test_every_r_low_rounds_apply_the_next_entry_and_then_fail() -> None:
    actions, counters = run(Terms(low_rounds=2), [LOW] * 8)
    assert actions == [0, 1, 0, 3, 0, 2, 0, 5]
    assert counters == Counters(c=0, g=0, j=3)  # c is `low` in the verdict: 0 when an action was just applied


@pytest.mark.requirement("S6.5.2-ladder-restarts")
def test_r_good_rounds_in_a_row_start_the_ladder_again() -> None:
    actions, counters = run(Terms(low_rounds=2), [LOW, LOW, GOOD, LOW, LOW, GOOD, GOOD])
    assert actions == [0, 1, 0, 0, 3, 0, 0]
    assert counters == Counters(c=0, g=2, j=0)
    assert run(Terms(low_rounds=2), [LOW, LOW], counters=counters)[0] == [0, 1]


@pytest.mark.requirement("S6.5.2-ladder-skips", "S6.5.2-self-decode-permitted", "S6.5.2-load-decides")
def test_the_same_ladder_leads_elsewhere_on_a_busy_verifier() -> None:
    terms = Terms(low_rounds=1, fallback=(3, 2, 3))
    assert run(terms, [LOW] * 3, load=50) == ([3, 2, 3], Counters(j=3))
    assert run(terms, [LOW] * 2, load=51) == ([2, 5], Counters(j=3))


def test_j_advances_past_skipped_entries_also_when_none_remains() -> None:
    terms = Terms(low_rounds=1, fallback=(3, 3))
    assert run(terms, [LOW], load=51) == ([5], Counters(j=2))


@pytest.mark.decision("D29-self-max-0")
@pytest.mark.parametrize(
    ("terms", "load", "permitted"),
    [
        (Terms(self_load=None), 0, False),
        (Terms(self_load=0), 0, True),
        (Terms(self_load=0), 1, False),
        (Terms(self_load=100, self_max=1), 100, True),
        (Terms(self_load=100, self_max=0), 0, False),
    ],
)
def test_when_self_decode_is_permitted(terms: Terms, load: int, permitted: bool) -> None:
    assert may_self_decode(terms, load) is permitted
    assert after_round(Counters(c=9, j=1), LOW, terms, load)[1] == (Action.SELF_DECODE if permitted else Action.SWITCH)


@given(
    st.integers(1, 4),
    st.lists(st.sampled_from([1, 2, 3, 5]), min_size=1, max_size=4),
    st.lists(st.tuples(st.booleans(), st.integers(0, 100)), max_size=30),
)
def test_it_is_the_plain_twin(low_rounds: int, fallback: list[int], rounds: list[tuple[bool, int]]) -> None:
    terms, counters = Terms(low_rounds, tuple(fallback), self_load=40), Counters()
    c = g = j = 0
    for low, load in rounds:
        counters, action = after_round(counters, low, terms, load)
        expected = 0
        if low:
            c, g = c + 1, 0
            if c == low_rounds:
                while j < len(fallback) and fallback[j] == 3 and load > 40:
                    j += 1
                expected, j, c = (fallback[j], j + 1, 0) if j < len(fallback) else (5, j, 0)
        else:
            c, g = 0, g + 1
            if g == low_rounds:
                j = 0
        assert (action, counters) == (expected, Counters(c, g, j))
