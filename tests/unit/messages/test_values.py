"""The numbers of actions, ladder entries, roles and states are those of the draft and of D18: peers go by them."""

from __future__ import annotations

import pytest

from sdcp.errors import BadContract
from sdcp.messages import status
from sdcp.messages.contract import Action, Contract
from sdcp.messages.session import State

CONTRACT = {
    "target": bytes(32),
    "tokenizer": bytes(32),
    "rule": 1,
    "m_max": 4,
    "max_new": 10,
    "stop": [],
    "low_rounds": 1,
}


@pytest.mark.requirement("S4.1-actions")
def test_actions_have_the_numbers_of_the_draft() -> None:
    assert {action.name: action.value for action in Action} == {
        "CONTINUE": 0,
        "REDUCE": 1,
        "SWITCH": 2,
        "SELF_DECODE": 3,
        "FINISH": 4,
        "FAIL": 5,
    }


@pytest.mark.requirement("S4.1-actions", "S6.5.2-fallback-entries")
def test_the_ladder_takes_reduce_switch_self_decode_and_fail_alone() -> None:
    taken = []
    for entry in range(-1, 9):
        try:
            taken += Contract.parse(CONTRACT | {"fallback": [entry]}).fallback
        except BadContract:
            continue
    assert taken == [Action.REDUCE, Action.SWITCH, Action.SELF_DECODE, Action.FAIL]


@pytest.mark.requirement("S5.2-status")
def test_a_drafter_is_1_and_a_verifier_2() -> None:
    assert (status.DRAFTER, status.VERIFIER) == (1, 2)


@pytest.mark.decision("D18-values")
def test_states_have_the_numbers_of_the_decision() -> None:
    assert {state.name: state.value for state in State} == {
        "DRAFTING": 0,
        "WAITING": 2,
        "SELF_DECODING": 3,
        "FINISHED": 4,
        "FAILED": 5,
    }
