"""GET output: long polls, indices, the end (6.7, D8, D30, D35)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sdcp import errors
from sdcp.machines.effects import CancelTimer, SetTimer
from sdcp.machines.history import History
from sdcp.machines.inputs import RequestCancelled, Superseded
from sdcp.messages.contract import Action
from sdcp.messages.record import FenceRecord
from tests.unit.machines.verifier_world import CONTRACT, OTHER, PROMPT, Client, Log, World, of, successor


@pytest.mark.requirement("S6.7-from-index", "S6.7-stable-indices", "S6.7-epoch-carried")
def test_committed_tokens_are_answered_from_their_index() -> None:
    world = World().started()
    world.play(world.right(2), world.wrong)
    tokens = world.log.tokens
    assert len(tokens) == 4
    for start in range(4):
        output = world.read(world.output(start, wait_ms=1000))
        assert (output.epoch, output.from_, output.tokens) == (1, start, tokens[start:])
        assert (output.final, output.finish) == (False, None)


@pytest.mark.requirement("S6.7-long-poll")
@pytest.mark.decision("D8-beyond")
def test_a_reader_waits_for_a_token_at_its_index_and_no_other() -> None:
    world = World().started()
    near, far = world.output(0, wait_ms=700), world.output(3, wait_ms=900)
    assert sorted(world.timers.values()) == [700, 900]
    world.play(world.right(1))
    assert len(world.read(near).tokens) == 2
    assert far not in world.answers
    assert list(world.timers.values()) == [900]
    world.play(world.right(1))
    assert world.read(far).tokens == world.log.tokens[3:]
    assert not world.timers


@pytest.mark.decision("D8-wait")
def test_a_wait_that_is_over_gets_an_empty_answer() -> None:
    world = World().started()
    request = world.output(0, wait_ms=700)
    world.fire(next(iter(world.timers)))
    assert (world.read(request).tokens, world.read(request).final) == ((), False)


@pytest.mark.decision("D8-wait")
def test_wait_zero_is_answered_at_once() -> None:
    world = World().started()
    assert world.read(world.output(5)).tokens == ()
    assert not world.timers


@pytest.mark.requirement("S6.7-final")
@pytest.mark.decision("D8-beyond")
def test_the_end_is_shown_with_the_last_tokens_and_ever_after() -> None:
    world = World(contract=replace(CONTRACT, max_new=3)).started()
    waiting, beyond = world.output(0, wait_ms=500), world.output(7, wait_ms=500)
    world.play(world.right(2))
    for request in (waiting, world.output(0, wait_ms=500)):
        output = world.read(request)
        assert (output.tokens, output.final, output.finish) == (world.log.tokens, True, Action.FINISH)
    for request in (beyond, world.output(7, wait_ms=500)):
        output = world.read(request)
        assert (output.from_, output.tokens, output.final) == (7, (), True)
    assert not world.timers


def test_a_reader_that_went_away_is_forgotten() -> None:
    world = World().started()
    request = world.output(0, wait_ms=500)
    effects = world.handle(RequestCancelled(request))
    assert [type(effect) for effect in effects] == [CancelTimer]
    world.play(world.right(1))
    assert request not in world.answers


def test_a_timer_that_fires_late_changes_nothing() -> None:
    world = World().started()
    world.output(0, wait_ms=500)
    name = next(iter(world.timers))
    world.handle(RequestCancelled(world.requests))
    world.timers[name] = 0
    assert world.fire(name) == []


@pytest.mark.decision("D9a-output")
def test_the_assigned_drafter_may_read_and_no_other_drafter() -> None:
    world = World().started()
    assert world.read(world.output(client=Client())).tokens == ()
    assert isinstance(world.refusal(world.output(client=Client((OTHER,)))), errors.NotAssigned)
    world.assign(OTHER)
    assert isinstance(world.refusal(world.output(client=Client())), errors.NotAssigned)


@pytest.mark.decision("D30-stale-epoch")
def test_readers_of_a_fenced_session_are_sent_to_the_router() -> None:
    world = World().started()
    waiting = world.output(0, wait_ms=500)
    world.handle(Superseded())
    assert isinstance(world.refusal(waiting), errors.StaleEpoch)
    assert isinstance(world.refusal(world.output()), errors.StaleEpoch)
    assert not world.timers


@pytest.mark.decision("D35-totals")
def test_every_output_has_the_accounts_of_the_session() -> None:
    world = World().started()
    output = world.read(world.output())
    assert (output.passes, output.proposed, output.accepted) == (0, 0, 0)
    world.play(world.right(3), world.wrong)
    output = world.read(world.output())
    assert (output.passes, output.proposed, output.accepted) == (2, 4, 3)


def figures(world: World) -> tuple[int | None, int | None, int | None]:
    output = world.read(world.output())
    return output.passes, output.proposed, output.accepted


@pytest.mark.decision("D35-totals", "D39-proposed")
def test_the_accounts_go_on_after_every_failover() -> None:
    world = World().started()
    world.play(world.right(3), world.wrong)
    for epoch in (2, 3):  # each with one more round: three proposed, two accepted
        world = World(log=world.log)
        world.open(world.resume(epoch))
        last = epoch - 1
        assert figures(world) == (1 + last, 1 + 3 * last, 1 + 2 * last)
        world.assign()
        world.play((*world.right(2), successor(world.right(3)[-1])))
    assert figures(world) == (4, 10, 7)


@pytest.mark.decision("D35", "D39-without")
@pytest.mark.parametrize("kept", [("proposed",), ("accepted",), ()])
def test_a_record_that_does_not_tell_both_counts_nothing(kept: tuple[str, ...]) -> None:
    world = World().started()
    world.play(world.right(3), world.wrong)
    ours, last = world.log.records()
    bare = {name: None for name in ("proposed", "accepted") if name not in kept}
    log = Log()
    log.put(replace(ours, **bare), last)
    world = World(log=log)
    world.open(world.resume())
    assert figures(world) == (2, 1, 0)


@pytest.mark.decision("D35", "D39-proposed")
def test_a_void_record_is_not_in_the_accounts() -> None:
    world = World(log=Log(enforces=False)).started()
    world.play(world.right(3))
    stale = world.log.records()[0]
    world.log.put(FenceRecord(epoch=2), replace(stale, round=2))
    world = World(log=world.log)
    world.open(world.resumed(2))
    assert figures(world) == (1, 3, 3)


@pytest.mark.decision("D29", "D39")
def test_a_self_decoding_round_is_a_pass_that_proposed_nothing() -> None:
    contract = replace(CONTRACT, low_rounds=1, fallback=(Action.SELF_DECODE,), self_load=50, self_max=1)
    world = World(contract=contract).started()
    world.play(world.wrong)
    judged, decoded = world.log.records()
    assert (judged.proposed, judged.accepted) == (1, 0)
    assert (decoded.proposed, decoded.accepted) == (None, None)
    assert figures(world) == (2, 1, 0)


def test_a_poll_sets_one_timer_and_says_how_long() -> None:
    world = World().started()
    before = len(world.seen)
    world.output(0, wait_ms=1234)
    [timer] = of(world.seen[before:], SetTimer)
    assert timer.delay_ms == 1234


def test_history_is_append_only_and_shared() -> None:
    history = History(PROMPT, (7,))
    view, length = history, len(history)
    history.append_all((8, 2**32 - 1))
    assert view[:length] == [*PROMPT, 7]
    assert (history.prompt_length, history.committed) == (3, 3)
    assert (history.output(1), history.output(9), history[-1]) == ((8, 2**32 - 1), (), 2**32 - 1)
    with pytest.raises(OverflowError):
        history.append_all((2**32,))  # D5
