"""m_cap: 6.5.1, 6.5.2 reduce, D16."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp.messages.contract import Action
from sdcp.rules import limit


@pytest.mark.decision("D16-start")
@pytest.mark.parametrize(("m_init", "m_max", "m_cap"), [(0, 8, 1), (1, 8, 1), (5, 8, 5), (8, 8, 8), (2**60, 8, 8)])
def test_it_starts_at_m_init_within_its_bounds(m_init: int, m_max: int, m_cap: int) -> None:
    assert limit.start(m_init, m_max) == m_cap


@pytest.mark.requirement("S6.5.2-reduce")
def test_reduce_halves_it_rounding_down_but_not_below_one() -> None:
    assert [limit.after_round(m_cap, 9, Action.REDUCE, low=True) for m_cap in (9, 4, 3, 2, 1)] == [4, 2, 1, 1, 1]


@pytest.mark.requirement("S6.5.1-restored-gradually")
@pytest.mark.decision("D16-moves")
def test_a_round_that_is_not_low_raises_it_by_one_up_to_m_max_while_load_permits() -> None:
    assert [limit.after_round(m_cap, 4, Action.CONTINUE, low=False) for m_cap in (1, 3, 4)] == [2, 4, 4]
    assert limit.after_round(2, 4, Action.CONTINUE, low=False, load_permits=False) == 2


@pytest.mark.parametrize("action", [Action.CONTINUE, Action.SWITCH, Action.SELF_DECODE, Action.FAIL])
def test_a_low_round_that_reduces_nothing_leaves_it(action: Action) -> None:
    assert limit.after_round(3, 8, action, low=True) == 3


@pytest.mark.requirement("S6.5.1-m-cap-range")
@given(
    st.integers(0, 200), st.integers(1, 64), st.lists(st.tuples(st.sampled_from(Action), st.booleans(), st.booleans()))
)
def test_it_never_leaves_its_range(m_init: int, m_max: int, rounds: list[tuple[Action, bool, bool]]) -> None:
    m_cap = limit.start(m_init, m_max)
    for action, low, load_permits in rounds:
        assert 1 <= m_cap <= m_max
        m_cap = limit.after_round(m_cap, m_max, action, low, load_permits=load_permits)
    assert 1 <= m_cap <= m_max
