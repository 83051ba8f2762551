"""Proposals that wait for a round are answered in the step in which the session leaves drafting (D12, D13)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sdcp import errors
from sdcp.machines.effects import FetchRows, SelfDecode, SendEvent, Verify
from sdcp.machines.inputs import EngineFailed, ProposalReceived, RowsRefused
from sdcp.messages.contract import Action
from sdcp.messages.session import State
from tests.unit.machines.verifier_world import CONTRACT, STATUS, Client, World


@pytest.mark.decision("D13-waiting")
@pytest.mark.parametrize(
    ("action", "state"), [(Action.SWITCH, State.WAITING), (Action.SELF_DECODE, State.SELF_DECODING)]
)
def test_whoever_waits_when_drafting_ends_is_given_the_verdict_that_ends_it(action: Action, state: State) -> None:
    contract = replace(CONTRACT, low_rounds=1, fallback=(action,), self_load=100)
    world = World(contract=contract, hold={Verify}).started()
    first, second = world.propose(*world.wrong()), world.propose(6)
    seen = world.release()
    assert world.verdict(first) == world.verdict(second)
    assert world.verdict(first).action == action
    if action == Action.SWITCH:
        assert world.state.state == state
        [event] = [effect for effect in seen if isinstance(effect, SendEvent)]
        assert seen.index(event) > max(seen.index(world.answers[each]) for each in (first, second))


@pytest.mark.decision("D13-waiting")
def test_whoever_waits_when_the_session_fails_is_told_that_it_is_closed() -> None:
    world = World(hold={Verify}).started()
    waiting = [world.propose(4), world.propose(4), world.propose(5)]
    world.release(EngineFailed(1, "out of memory"))
    assert {type(world.refusal(request)) for request in waiting} == {errors.SessionClosed}


@pytest.mark.decision("D13-waiting", "D28-during-verification")
def test_whoever_waits_when_another_drafter_takes_over_is_not_assigned_any_more() -> None:
    """Rows of the round are refused; the assignment that waited is applied before the next proposal is tried."""
    world = World(contract=replace(CONTRACT, rule=2), hold={FetchRows}).started()
    first, second = world.propose(4), world.propose(5)
    assigned = world.assign("https://drafter-2.example/")
    world.release(RowsRefused(1, errors.QUnavailable("evicted")))
    assert isinstance(world.refusal(first), errors.QUnavailable)
    assert isinstance(world.refusal(second), errors.NotAssigned)
    assert world.told(assigned).round == 0


@pytest.mark.decision("D12-identical")
def test_a_proposal_that_differs_in_its_status_alone_is_identical() -> None:
    """It shares the refusal of the first; one that differs in any other member is tried for itself."""
    world = World(contract=replace(CONTRACT, rule=2), hold={FetchRows}).started()
    first, alike = world.propose(4), world.propose(4, status=replace(STATUS, load=99, queue=7))
    other = world.propose(4, draft_kv="kv")
    world.release(RowsRefused(1, errors.QUnavailable("evicted")))
    assert [type(world.refusal(each)) for each in (first, alike)] == [errors.QUnavailable] * 2
    assert other not in world.answers
    assert world.held == [FetchRows(1, "rows", (4,))]


@pytest.mark.decision("D13-replay")
@pytest.mark.parametrize("action", [Action.SWITCH, Action.SELF_DECODE, Action.FAIL])
def test_whatever_ended_drafting_its_verdict_is_given_again(action: Action) -> None:
    contract = replace(CONTRACT, low_rounds=1, fallback=(action,), self_load=100)
    world = World(contract=contract, hold={SelfDecode}).started()
    sent = world.proposal(*world.wrong())
    verdict = world.verdict(world.ask(ProposalReceived, sent, Client()))
    assert verdict.action == action
    assert world.verdict(world.ask(ProposalReceived, sent, Client())) == verdict
