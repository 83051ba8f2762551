"""A router session when an answer is not the one hoped for, step by step (6.8, 6.9, D19, D20, D33)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sdcp import errors
from sdcp.machines import effects as fx
from sdcp.machines import inputs
from sdcp.machines.fencing import TIMER as FENCE_TIMER
from sdcp.machines.recorded import MOST_MISSING
from sdcp.messages.contract import Action
from sdcp.messages.record import FenceRecord
from sdcp.messages.request import Location
from sdcp.messages.session import State
from tests.unit.machines.router_bench import CONTRACT, LOG, SESSION, V1, V2, Bench
from tests.unit.machines.test_router_failover import HOT, running

BROKEN = inputs.LogRead(0, b"\xff", '"9"')


# ---- the verifier's refusals -----------------------------------------------------------------------------------------


def putting() -> tuple[Bench, fx.SendDrafter]:
    """PUT drafter is on its way."""
    bench = Bench()
    bench.ask(inputs.RequestSubmitted)
    bench.run(until=fx.SendDrafter)
    return bench, bench.take(fx.SendDrafter)


@pytest.mark.parametrize("error", [errors.InternalFault("a proxy's"), errors.ProblemError("a status of its own")])
def test_a_5xx_is_no_answer_and_the_same_is_sent_again(error: errors.ProblemError) -> None:
    bench, put = putting()
    bench.give(inputs.VerifierRefused(error, put))
    assert bench.pending == []
    bench.fire()
    assert bench.take(fx.SendDrafter) is put


def test_a_verifier_that_is_overloaded_is_asked_again_for_as_long_as_a_drafter_is_waited_for() -> None:
    bench = Bench(drafter_wait_ms=1_000, retry_ms=200)
    bench.ask(inputs.RequestSubmitted)
    bench.run(until=fx.SendDrafter)
    for _ in range(5):
        bench.give(inputs.VerifierRefused(errors.Overloaded("later"), bench.take(fx.SendDrafter)))
        bench.fire()
    bench.give(inputs.VerifierRefused(errors.Overloaded("later"), bench.take(fx.SendDrafter)))
    bench.run()
    assert bench.log == [FenceRecord(epoch=2)]  # given up, and nothing can be committed any more
    assert bench.session.ended is Action.FAIL


def test_a_session_that_has_ended_at_its_verifier_waits_for_the_event_that_says_how() -> None:
    bench, put = putting()
    change = bench.change(HOT)
    bench.give(inputs.VerifierRefused(errors.SessionClosed("finished"), put))
    assert isinstance(bench.answer_to(change), errors.SessionClosed)
    assert bench.session.ended is None
    bench.fire("reminder")
    assert bench.pending == []  # there is nobody to be reminded
    bench.tell(bench.event(Action.FINISH))
    assert bench.session.ended is Action.FINISH


@pytest.mark.decision("D19-404")
def test_a_refusal_that_makes_no_sense_loses_the_verifier_the_session() -> None:
    bench, put = putting()
    bench.verifiers = [V2]
    bench.give(inputs.VerifierRefused(errors.Forbidden("not for routers"), put))
    bench.run()
    assert bench.session.verifier == V2
    assert bench.session.epoch == 2
    choices = bench.all_done(fx.ChooseVerifier)
    assert choices[-1].but == frozenset({V1})


@pytest.mark.decision("D33-request")
def test_whoever_asks_after_a_refused_submission_is_told_the_same() -> None:
    bench = Bench()
    bench.ask(inputs.RequestSubmitted)
    bench.run(until=fx.SendOpen)
    refusal = errors.BadContract("rule 3")
    bench.give(inputs.VerifierRefused(refusal, bench.take(fx.SendOpen)))
    assert bench.answer_to(bench.locate(None)) is refusal


# ---- waiting front ends ----------------------------------------------------------------------------------------------


@pytest.mark.decision("D33-location")
def test_a_wait_that_runs_out_before_there_is_a_verifier_is_refused_for_now_and_only_once() -> None:
    bench = Bench()
    bench.ask(inputs.RequestSubmitted)
    waiting, other = bench.locate(None), bench.locate(None)
    bench.give(inputs.TimerFired(f"location {waiting}"))
    assert isinstance(bench.answer_to(waiting), errors.Overloaded)
    assert bench.give(inputs.TimerFired(f"location {waiting}")) == []
    bench.run()
    assert bench.answer_to(other) == Location(session=SESSION, epoch=1, verifier=V1)


def test_a_front_end_that_goes_away_after_its_answer_ends_no_wait() -> None:
    bench = Bench()
    submitted = bench.start()
    assert bench.give(inputs.RequestCancelled(submitted)) == []


# ---- the log ---------------------------------------------------------------------------------------------------------


def catching_up() -> Bench:
    """A switch has come, and the log is being read before another drafter is chosen."""
    bench = running((11, 12))
    bench.tell(bench.event(Action.SWITCH))
    return bench


def reading() -> Bench:
    """PUT drafter was answered from further on than the router knew, and the log is being read for the tokens."""
    bench = Bench()
    bench.ask(inputs.RequestSubmitted)
    bench.run(until=fx.SendDrafter)
    bench.commit(11, 12)
    bench.give(inputs.StateReceived(bench.session_state(), bench.take(fx.SendDrafter)))
    return bench


@pytest.mark.decision("D20-void")
@pytest.mark.parametrize("begin", [catching_up, reading])
def test_a_higher_fence_than_ours_is_fenced_above(begin: Callable[[], Bench]) -> None:
    bench = begin()
    bench.log.append(FenceRecord(epoch=7))
    bench.run()
    assert FenceRecord(epoch=8) in bench.log
    assert bench.session.epoch == 8


@pytest.mark.decision("D20-log")
@pytest.mark.parametrize("begin", [catching_up, reading])
def test_a_log_that_is_no_chain_of_records_ends_the_session(begin: Callable[[], Bench]) -> None:
    bench = begin()
    end = bench.take(fx.ReadLog).start
    bench.give(replace(BROKEN, start=end))
    while any(isinstance(each, fx.ReadLog) for each in bench.pending):  # it cannot be fenced either
        bench.give(replace(BROKEN, start=bench.take(fx.ReadLog).start))
    assert bench.session.ended is Action.FAIL


def test_a_log_that_holds_another_prefix_than_the_verifier_says_is_believed_and_not_the_verifier() -> None:
    bench = Bench()
    bench.ask(inputs.RequestSubmitted)
    bench.run(until=fx.SendDrafter)
    bench.commit(11, 12)
    lie = bench.session_state(digest=b"?" * 32)
    bench.verifiers = [V2]
    bench.give(inputs.StateReceived(lie, bench.take(fx.SendDrafter)))
    bench.run()
    assert (bench.session.epoch, bench.session.verifier) == (2, V2)
    resumed = bench.all_done(fx.SendOpen)[-1].message.resume
    assert (resumed.committed, resumed.digest) == (2, bench.digest)


def test_of_a_log_that_has_gone_on_the_drafter_gets_what_the_verifier_said() -> None:
    bench = Bench()
    bench.ask(inputs.RequestSubmitted)
    bench.run(until=fx.SendDrafter)
    bench.commit(11, 12)
    state = bench.session_state()
    bench.commit(13)
    bench.give(inputs.StateReceived(state, bench.take(fx.SendDrafter)))
    bench.run()
    assigned = bench.all_done(fx.SendAssignment)[0].message
    assert (assigned.round, assigned.committed, assigned.digest) == (1, 2, state.digest)
    assert bench.objects[assigned.committed_tokens] == (11, 12)


def test_a_log_that_does_not_show_yet_what_the_verifier_says_is_read_again() -> None:
    bench = Bench()
    bench.ask(inputs.RequestSubmitted)
    bench.run(until=fx.SendDrafter)
    record = bench.commit(11, 12)
    bench.log.remove(record)
    bench.give(inputs.StateReceived(bench.session_state(), bench.take(fx.SendDrafter)))
    bench.run()
    assert not bench.all_done(fx.SendAssignment)
    bench.log.append(record)
    bench.fire()
    bench.run()
    assert bench.all_done(fx.SendAssignment)[0].message.committed == 2


def test_the_output_of_an_ended_session_is_refused_when_its_log_is_none() -> None:
    bench = running((11,))
    bench.tell(bench.event(Action.FINISH))
    request = bench.locate(1)
    end = bench.take(fx.ReadLog).start
    bench.give(replace(BROKEN, start=end))
    assert isinstance(bench.answer_to(request), errors.MalformedBody)


@pytest.mark.decision("D20-log")
def test_a_session_whose_log_never_answers_is_ended_in_the_end() -> None:
    bench = Bench(drafter_wait_ms=1_000, retry_ms=200)
    bench.start()
    bench.give(inputs.VerifierLost())
    for _ in range(5):
        bench.take(fx.ReadLog)
        bench.give(inputs.LogUnanswered())
        bench.fire(FENCE_TIMER)
    assert bench.session.ended is Action.FAIL


@pytest.mark.decision("D47-session")
@pytest.mark.parametrize("until", [fx.ReadLog, fx.AppendLog])
def test_a_session_whose_log_has_lost_octets_is_ended_at_once(until: type) -> None:
    bench = running((11,))
    bench.give(inputs.VerifierLost())
    bench.run(until=until)
    bench.take(until)
    bench.give(inputs.LogUnanswered("octets 7 to 9 are gone"))
    assert bench.session.ended is Action.FAIL
    assert isinstance(bench.session.refusal, errors.InvalidContent)


@pytest.mark.decision("D47-session")
def test_a_session_whose_log_has_lost_octets_is_ended_when_a_drafter_is_to_begin() -> None:
    bench = running((11,))
    bench.give(inputs.DrafterLost())
    bench.run(until=fx.ReadLog)
    bench.take(fx.ReadLog)
    bench.give(inputs.LogUnanswered("octets 7 to 9 are gone"))
    bench.run(until=fx.ReadLog)
    bench.take(fx.ReadLog)
    bench.give(inputs.LogUnanswered("octets 7 to 9 are gone"))
    assert bench.session.ended is Action.FAIL


@pytest.mark.decision("D47-session")
def test_a_session_whose_log_has_vanished_is_ended_and_not_begun_anew() -> None:
    bench = running((11,))
    bench.give(inputs.DrafterLost())
    bench.run()  # so the router has read the log
    bench.log.clear()
    bench.give(inputs.VerifierLost())
    for _ in range(MOST_MISSING - 1):
        bench.run()
        assert bench.session.ended is None, "one answer may be of an old state"
        bench.fire(FENCE_TIMER)
    bench.run()
    assert bench.session.ended is Action.FAIL
    assert bench.log == []


def test_a_log_that_was_missing_for_a_moment_is_gone_on_with() -> None:
    bench = running((11,))
    bench.give(inputs.DrafterLost())
    bench.run()
    log, bench.log = bench.log, []
    bench.give(inputs.VerifierLost())
    bench.run()
    bench.log = log
    bench.fire(FENCE_TIMER)
    bench.run()
    assert bench.session.ended is None
    assert bench.session.epoch == 2


@pytest.mark.decision("D47-session")
def test_who_asks_for_output_that_is_lost_is_told_so() -> None:
    bench = running((11,))
    bench.give(inputs.DrafterLost())
    bench.run()
    bench.tell(bench.event(Action.FINISH))
    request = bench.locate(1)
    bench.take(fx.ReadLog)
    bench.give(inputs.LogUnanswered("octets 7 to 9 are gone"))
    assert isinstance(bench.answer_to(request), errors.InvalidContent)


def test_a_fence_that_the_log_does_not_show_is_looked_for_again_after_a_moment() -> None:
    bench = running((11,))
    bench.give(inputs.VerifierLost())
    bench.run(until=fx.AppendLog)
    bench.take(fx.AppendLog)
    bench.give(inputs.LogAppended('"9"', 0))  # and it is not there
    effect = bench.take(fx.ReadLog)
    assert bench.give(bench.perform(effect)) == [fx.SetTimer(FENCE_TIMER, 200)]


def test_a_late_answer_of_the_log_does_not_pass_for_that_of_the_fence() -> None:
    bench = running((11,))
    bench.give(inputs.VerifierLost())
    for late in (inputs.LogAppended('"9"', 0), inputs.LogMoved(), inputs.LogFenced()):
        assert bench.give(late) == []  # it is looking, and has not appended
    bench.run(until=fx.AppendLog)
    assert bench.give(inputs.LogRead(0, b"", None)) == []  # a read from before
    bench.run()
    assert FenceRecord(epoch=2) in bench.log
    assert bench.all_done(fx.ReadLog)[0].ref == LOG


# ---- tokens of a resumed session ------------------------------------------------------------------------------------


def test_a_drafter_that_is_lost_while_none_is_assigned_changes_nothing() -> None:
    bench = Bench()
    bench.ask(inputs.RequestSubmitted)
    bench.run(until=fx.ChooseDrafter)
    assert bench.give(inputs.DrafterLost()) == []
    bench.run()
    assert bench.session.drafter is not None


def test_an_event_that_ends_the_session_while_nobody_has_it_names_no_place() -> None:
    bench = Bench(CONTRACT)
    submitted = bench.ask(inputs.RequestSubmitted)
    bench.tell(bench.event(Action.FAIL))
    assert isinstance(bench.answer_to(submitted), errors.SessionClosed)


@pytest.mark.decision("D18-values")
@pytest.mark.parametrize(("state", "ended"), [(State.FINISHED, Action.FINISH), (State.FAILED, Action.FAIL)])
def test_a_session_that_has_ended_when_its_drafter_is_put_gets_none(state: State, ended: Action) -> None:
    bench, put = putting()
    bench.give(inputs.StateReceived(bench.session_state(state=state), put))
    assert bench.session.ended is ended
    assert not bench.all_done(fx.SendAssignment)


@pytest.mark.decision("D17-drafter-again")
def test_an_event_from_before_the_drafter_was_put_asks_for_no_other() -> None:
    bench = Bench()
    bench.ask(inputs.RequestSubmitted)
    bench.run(until=fx.SendAssignment)
    bench.tell(bench.event(Action.SELF_DECODE))
    bench.run()
    assert bench.names().count("SendDrafter") == 1


def test_a_choice_that_nobody_waits_for_any_more_changes_nothing() -> None:
    bench = Bench()
    bench.start()
    assert bench.give(inputs.DrafterChosen("https://d9")) == []
    bench.drafters = [None]
    bench.give(inputs.DrafterLost())
    bench.run()
    assert bench.give(inputs.DrafterChosen("https://d9")) == []  # in a moment it asks again


@pytest.mark.decision("D34-fenced", "D34-nothing-more")
def test_a_withdrawal_during_a_fence_waits_for_it_and_opens_nothing() -> None:
    bench = running((11,))
    bench.give(inputs.VerifierLost())
    bench.ask(inputs.RequestWithdrawn)
    bench.run()
    assert bench.session.ended is Action.FAIL
    assert bench.log[-1] == FenceRecord(epoch=2)
    assert not bench.all_done(fx.SendOpen)


@pytest.mark.decision("D17-drafter-again")
def test_an_event_while_a_drafter_is_chosen_asks_for_no_other() -> None:
    bench = Bench()
    bench.ask(inputs.RequestSubmitted)
    bench.run(until=fx.ChooseDrafter)
    bench.tell(bench.event(Action.SELF_DECODE))
    bench.run()
    assert bench.names().count("SendDrafter") == 1


@pytest.mark.decision("D18-values")
def test_a_put_that_was_taken_for_a_repeat_in_a_later_round_chooses_again() -> None:
    bench, put = putting()
    bench.commit(11)
    state = bench.session_state(state=State.WAITING)
    bench.give(inputs.StateReceived(state, put))
    assert bench.names()[-1] == "ReadLog"
    bench.run()
    assert bench.all_done(fx.SendDrafter)[-1].message.round == 1
