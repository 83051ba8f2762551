"""Steps 6 to 9 of 6.3: truncation, commit, verdict, and what can go wrong with the append (D14, D15, D27, D30)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp import errors
from sdcp.machines.commit_log import TIMER
from sdcp.machines.effects import AppendLog, CloseEngine, Refuse, Reply, SendEvent, Verify
from sdcp.machines.inputs import (
    EngineFailed,
    EventDelivered,
    LogAppended,
    LogFenced,
    LogMoved,
    LogUnanswered,
    RequestCancelled,
    Superseded,
    Verified,
)
from sdcp.messages.contract import Action
from sdcp.messages.record import FenceRecord
from sdcp.messages.session import State
from sdcp.rules.digest import extend_all
from tests.unit.machines.verifier_world import CONTRACT, OTHER, Log, World, greedy, of


def scored(*tokens: int, world: World | None = None) -> tuple[World, int]:
    """A round whose record is on its way."""
    world = world or World()
    world.started()
    world.hold = {AppendLog}
    return world, world.propose(*tokens)


@pytest.mark.requirement("S6.3-commit-updates", "S6.3-commit-record", "S5.2-verdict-committed", "S4.2-chain-step")
def test_verdict_and_record_say_what_was_committed() -> None:
    world = World(load=12).started()
    verdict = world.verdict(world.propose(4, 5, 7))
    assert (verdict.round, verdict.accepted, verdict.emitted, verdict.committed) == (1, 2, (4, 5, 6), 3)
    assert verdict.digest == extend_all(world.digest(), (4, 5, 6))
    assert (verdict.action, verdict.load, verdict.low) == (Action.CONTINUE, 12, 0)
    [record] = world.log.records()
    assert (record.epoch, record.round, record.tokens, record.committed) == (1, 1, (4, 5, 6), 3)
    assert record.digest == verdict.digest
    assert (record.accepted, record.action, record.load, record.g, record.j) == (2, Action.CONTINUE, 12, 1, 0)


@pytest.mark.requirement("S6.4-greedy-output")
@given(st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=8), max_size=8))
def test_whatever_is_proposed_the_output_is_greedy_decoding(rounds: list[list[int]]) -> None:
    world = World(contract=replace(CONTRACT, low_rounds=99)).started()
    for tokens in rounds:
        if not world.machine.ended and len(tokens) <= world.m_cap:
            world.verdict(world.propose(*tokens))
    assert world.log.tokens == greedy(3, len(world.log.tokens))


@pytest.mark.requirement("S6.3-append-before-release", "S6.7-only-recorded", "S1.3-sole-commit-authority")
def test_nothing_is_released_before_the_append_succeeded() -> None:
    world, request = scored(4)
    waiting = world.output(0, wait_ms=1000)
    assert world.read(world.output()).tokens == ()
    assert not {request, waiting} & set(world.answers)
    assert (world.state.round, world.state.committed) == (0, 0)
    effects = world.release()
    assert [type(effect) for effect in effects if isinstance(effect, Reply)] == [Reply, Reply]
    assert world.verdict(request).emitted == world.read(waiting).tokens == (4, 5)


@pytest.mark.requirement("S6.3-truncation")
@pytest.mark.decision("D14-accepted", "D15")
@pytest.mark.requirement("S5.2-verdict-accepted")
def test_truncation_at_a_stop_token_keeps_a_and_finishes() -> None:
    world = World(contract=replace(CONTRACT, stop=(5,), low_ratio=100)).started()
    verdict = world.verdict(world.propose(4, 5, 6))
    assert (verdict.accepted, verdict.emitted, verdict.action) == (3, (4, 5), Action.FINISH)
    assert world.state.state == State.FINISHED
    assert [event.kind for event in world.events] == [Action.FINISH]
    assert (world.events[0].committed, world.events[0].digest) == (2, verdict.digest)
    assert of(world.seen, CloseEngine)


@pytest.mark.requirement("S6.3-truncation", "S6.5.2-finish")
@pytest.mark.decision("D14-beyond-max-new")
def test_truncation_at_max_new_tells_the_engine_how_much_room_there_is() -> None:
    world = World(contract=replace(CONTRACT, max_new=3)).started()
    verdict = world.verdict(world.propose(4, 5, 6, 7, 0))
    assert of(world.seen, Verify)[0].room == 3
    assert (verdict.accepted, verdict.emitted, verdict.action) == (3, (4, 5, 6), Action.FINISH)


def test_an_additional_token_beyond_max_new_is_cut() -> None:
    """An engine that evaluates all positions says more than there is room for."""
    world = World(contract=replace(CONTRACT, max_new=2), hold={Verify}).started()
    request = world.propose(4, 5)
    world.release(Verified(1, 2, 6, 0))
    assert (world.verdict(request).accepted, world.verdict(request).emitted) == (2, (4, 5))


@pytest.mark.decision("D15-finish")
def test_finish_outranks_the_control_step_and_leaves_counters_and_limit_alone() -> None:
    world = World(contract=replace(CONTRACT, max_new=3, low_rounds=3)).started(m_init=5)
    first, last = world.play(world.wrong, world.wrong)[1], world.play(world.wrong)[0]
    assert (first.low, last.low, last.action) == (2, 2, Action.FINISH)
    assert (world.log.records()[-1].g, last.m_cap) == (0, 5)


# ---- the append (6.8) ------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.3-fenced-append", "S1.3-output-unaffected")
@pytest.mark.decision("D27-lost", "D30-stale-epoch")
def test_a_fenced_append_discards_the_round_and_stops_the_session() -> None:
    world, request = scored(4)
    waiting, assigning = world.output(0, wait_ms=1000), world.assign(OTHER)
    world.log.put(FenceRecord(epoch=2))
    effects = world.release()
    for each in (request, waiting, assigning):
        assert isinstance(world.refusal(each), errors.StaleEpoch)
    assert of(effects, CloseEngine)
    assert not of(effects, SendEvent)
    assert world.machine.ended
    assert world.machine.state is None
    for each in (world.propose(4), world.output(), world.assign(), world.policy(5), world.open()):
        assert isinstance(world.refusal(each), errors.StaleEpoch)


@pytest.mark.decision("D27")
@pytest.mark.parametrize("was_done", [True, False])
def test_an_unanswered_append_is_settled_by_reading_the_log(was_done: bool) -> None:
    world, request = scored(4)
    [effect] = world.held
    if was_done:
        world.log.append(effect)
    world.release(LogUnanswered())
    world.hold.clear()
    assert request not in world.answers
    assert list(world.timers) == [TIMER]
    world.fire(TIMER)
    assert world.verdict(request).emitted == (4, 5)
    assert [record.round for record in world.log.records()] == [1]
    assert world.play(world.right(1))[0].round == 2  # offsets and tags are right afterwards


@pytest.mark.requirement("S6.8-read-back")
def test_a_store_without_fences_is_read_after_each_append() -> None:
    world = World(log=Log(enforces=False)).started()
    world.play((4,), (6,))
    assert len(world.log.records()) == 2
    world.hold = {AppendLog}
    request = world.propose(*world.right(1))
    world.log.put(FenceRecord(epoch=2))
    world.release(LogMoved())
    assert isinstance(world.refusal(request), errors.StaleEpoch)


@pytest.mark.decision("D27-not-abandoned")
def test_nothing_short_of_a_fence_abandons_a_round_that_was_drawn() -> None:
    world = World(hold={Verify}).started()
    request = world.propose(4)
    for late in (RequestCancelled(request), LogFenced(), LogAppended('"9"', 0)):
        assert world.handle(late) == []
    assigned, policy = world.assign(OTHER), world.policy(2, temperature_milli=0)
    assert world.told(policy).round == 0
    assert assigned not in world.answers
    world.release()
    assert world.log.tokens == (4, 5)
    assert world.told(assigned).round == 1
    assert request not in world.answers


def test_late_answers_after_a_fence_change_nothing() -> None:
    world = World(hold={Verify}).started()
    request = world.propose(4)
    world.handle(Superseded())
    assert isinstance(world.refusal(request), errors.StaleEpoch)
    assert world.handle(Verified(1, 1, 5, 0)) == []
    assert world.handle(LogAppended('"1"', 0)) == []
    assert world.handle(Superseded()) == []
    assert not world.log.data


# ---- an engine that breaks -------------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.5.2-fail")
@pytest.mark.decision("D30-fail")
def test_a_broken_engine_fails_the_session_and_readers_learn_it_after_the_router() -> None:
    world = World(hold={Verify}).started()
    request, assigning, waiting = world.propose(4), world.assign(OTHER), world.output(0, wait_ms=1000)
    world.release(EngineFailed(1, "out of memory"))
    assert isinstance(world.refusal(request), errors.SessionClosed)
    assert isinstance(world.refusal(assigning), errors.SessionClosed)
    [event] = world.events
    assert (event.kind, world.state.state) == (Action.FAIL, State.FAILED)
    assert waiting not in world.answers
    assert not world.read(world.output()).final
    world.handle(EventDelivered(event))
    assert (world.read(waiting).final, world.read(waiting).finish) == (True, Action.FAIL)
    assert world.handle(EventDelivered(event)) == []
    assert not world.log.data


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_a_round_costs_eight_octets_beside_its_tokens() -> None:
    world = World(contract=replace(CONTRACT, max_new=60, low_rounds=100)).started()
    for _ in range(25):
        world.play(world.wrong())
    committed: Any = world.machine._serving._committed  # type: ignore[union-attr]
    assert committed._starts.itemsize * len(committed._starts) == 25 * 8
    assert [committed.stored(round).verdict is None for round in (1, 24, 25)] == [True, True, False]
    assert not of(world.seen, Refuse)
