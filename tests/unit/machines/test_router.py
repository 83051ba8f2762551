"""A router session from submission to its end, as long as nothing breaks (6.1, 6.6, D17, D20, D21, D28, D33, D34)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp import errors
from sdcp.machines import effects as fx
from sdcp.machines import inputs
from sdcp.machines.profiles import Profiles
from sdcp.machines.router import Patience
from sdcp.machines.router_steps import REMINDER
from sdcp.messages.contract import Action, Sampling
from sdcp.messages.record import FenceRecord
from sdcp.messages.request import Location
from sdcp.messages.session import Policy, State
from tests.unit.machines.router_bench import CONTRACT, D1, D2, LOG, PROMPT, SESSION, START, STOP, V1, V2, Bench

HOT, COLD = Sampling(temperature_milli=1500), Sampling(temperature_milli=100)


# ---- submission ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement(
    "S6.1-open-epoch-1", "S6.1-verifier-informed-first", "S6.1-assignment-carries-state", "S4.1-contract-fixed"
)
def test_a_session_is_opened_then_its_verifier_informed_then_its_drafter_assigned() -> None:
    bench = Bench()
    submitted = bench.start()
    assert bench.names() == [
        "ChooseVerifier", "SendOpen", "ChooseDrafter", "SendDrafter", "SendAssignment",
    ]  # fmt: skip
    (opened,) = bench.all_done(fx.SendOpen)
    assert (opened.verifier, opened.message.epoch, opened.message.commit_log) == (V1, 1, LOG)
    assert (opened.message.prompt, opened.message.contract, opened.message.resume) == (PROMPT, CONTRACT, None)
    (put,), (assigned,) = bench.all_done(fx.SendDrafter), bench.all_done(fx.SendAssignment)
    assert (put.verifier, assigned.drafter) == (V1, D1)
    for message in put.message, assigned.message:
        assert (message.verifier, message.drafter, message.contract, message.prompt) == (V1, D1, CONTRACT, PROMPT)
        assert (message.round, message.committed, message.digest, message.committed_tokens) == (0, 0, START, None)
        assert message.m_init == Patience().m_init
    assert bench.answer_to(submitted) == Location(session=SESSION, epoch=1, verifier=V1)


@pytest.mark.decision("D33-request")
def test_the_location_is_told_before_there_is_a_drafter_and_to_everybody_who_asked() -> None:
    bench = Bench()
    first, second = bench.ask(inputs.RequestSubmitted), bench.ask(inputs.RequestSubmitted)
    bench.run(until=fx.SendOpen)
    third = bench.locate(None)
    assert bench.waits(first)
    bench.run(until=fx.ChooseDrafter)
    assert {bench.answer_to(each) for each in (first, second, third)} == {
        Location(session=SESSION, epoch=1, verifier=V1)
    }
    assert len(bench.all_done(fx.SendOpen)) == 1


@pytest.mark.decision("D20-router")
def test_a_long_prompt_travels_as_an_object() -> None:
    bench = Bench(inline_prompt=2)
    bench.start()
    (ref,) = bench.objects
    assert bench.objects[ref] == PROMPT
    assert bench.all_done(fx.SendOpen)[0].message.prompt == ref
    assert bench.all_done(fx.SendAssignment)[0].message.prompt == ref


def test_a_long_prompt_travels_in_the_message_when_the_cache_will_not_have_it() -> None:
    bench = Bench(inline_prompt=2)
    bench.ask(inputs.RequestSubmitted)
    bench.give(inputs.StoreFailed("full", bench.take(fx.StoreTokens)))
    bench.run()
    assert bench.all_done(fx.SendOpen)[0].message.prompt == PROMPT


@pytest.mark.decision("D33-refused")
@pytest.mark.parametrize("error", [errors.BadContract("P + max_new is over the context"), errors.InvalidContent("V")])
def test_a_verifier_s_refusal_of_the_contract_reaches_the_front_end(error: errors.ProblemError) -> None:
    bench = Bench()
    submitted = bench.ask(inputs.RequestSubmitted)
    bench.run(until=fx.SendOpen)
    bench.give(inputs.VerifierRefused(error, bench.take(fx.SendOpen)))
    assert bench.answer_to(submitted) is error
    assert bench.names()[-1] == "EndSession"
    assert bench.answer_to(bench.ask(inputs.RequestSubmitted)) is error
    assert not bench.all_done(fx.AppendLog)  # an answered refusal opened nothing, so there is nothing to fence


def test_another_verifier_is_tried_when_one_is_overloaded() -> None:
    bench = Bench()
    bench.verifiers = [V1, V2]
    submitted = bench.ask(inputs.RequestSubmitted)
    bench.run(until=fx.SendOpen)
    bench.give(inputs.VerifierRefused(errors.Overloaded("draining"), bench.take(fx.SendOpen)))
    assert bench.pending == [fx.ChooseVerifier(CONTRACT, frozenset({V1}))]
    bench.run()
    assert bench.answer_to(submitted).verifier == V2
    assert not bench.all_done(fx.AppendLog)


def test_without_a_verifier_the_request_waits_and_is_refused_in_the_end() -> None:
    bench = Bench(verifier_wait_ms=400, retry_ms=200)
    bench.verifiers = [None]
    submitted = bench.ask(inputs.RequestSubmitted)
    for _ in range(2):
        bench.run()
        assert bench.waits(submitted)
        bench.fire()
    bench.run()
    assert isinstance(bench.answer_to(submitted), errors.Overloaded)


def test_verifiers_that_keep_refusing_do_not_hold_a_request_for_ever() -> None:
    bench = Bench(verifier_wait_ms=400, retry_ms=200)
    bench.verifiers = [V1, None] * 5
    submitted, refusal = bench.ask(inputs.RequestSubmitted), errors.Overloaded("full")
    while bench.waits(submitted):
        bench.run(until=fx.SendOpen)
        if not bench.pending:
            bench.fire()
            continue
        bench.give(inputs.VerifierRefused(refusal, bench.take(fx.SendOpen)))
        assert len(bench.done) < 100
    assert bench.answer_to(submitted) is refusal


def test_max_new_0_is_finished_when_it_opens_and_gets_no_drafter() -> None:
    """D14."""
    bench = Bench(replace(CONTRACT, max_new=0))
    bench.state = State.FINISHED
    submitted = bench.start()
    assert not bench.all_done(fx.ChooseDrafter)
    assert bench.session.ended == Action.FINISH
    assert bench.answer_to(submitted).verifier == V1


# ---- drafters --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.9-drafter-expired", "S6.9-new-drafter-starts")
@pytest.mark.decision("D20-router", "D28")
@pytest.mark.requirement("S5.2-assignment-round")
def test_a_new_drafter_starts_from_the_committed_prefix_with_exactly_those_tokens() -> None:
    bench = Bench()
    bench.start()
    bench.commit(11, 12)
    bench.commit(13)
    bench.drafters = [D2]
    bench.give(inputs.DrafterLost())
    bench.run(until=fx.ChooseDrafter)
    assert bench.pending == [fx.ChooseDrafter(CONTRACT, frozenset({D1}))]
    bench.run()
    put, assigned = bench.all_done(fx.SendDrafter)[-1].message, bench.all_done(fx.SendAssignment)[-1].message
    for message in put, assigned:
        assert (message.drafter, message.round, message.committed, message.digest) == (D2, 2, 3, bench.digest)
        assert bench.objects[message.committed_tokens or ""] == (11, 12, 13)


@pytest.mark.requirement("S6.1-assignment-carries-state")
@pytest.mark.decision("D28-copied")
def test_what_was_committed_while_the_verifier_was_told_is_in_the_assignment() -> None:
    bench = Bench()
    bench.start()
    bench.commit(11)
    bench.give(inputs.DrafterLost())
    bench.run(until=fx.SendDrafter)
    bench.commit(12)  # the round that was under verification
    bench.run()
    put, assigned = bench.all_done(fx.SendDrafter)[-1].message, bench.all_done(fx.SendAssignment)[-1].message
    assert (put.round, bench.objects[put.committed_tokens or ""]) == (1, (11,))
    assert (assigned.round, bench.objects[assigned.committed_tokens or ""]) == (2, (11, 12))


@pytest.mark.decision("D28")
def test_the_same_drafter_again_is_no_repeat_of_the_put_before() -> None:
    """A session that decoded itself from the start gets the drafter back that it had: the verifier must take it in."""
    bench = Bench()
    bench.start()
    for token in range(3):
        bench.commit(token)
    bench.tell(bench.event(Action.SELF_DECODE))
    bench.run()
    first, second = bench.all_done(fx.SendDrafter)
    assert first.message.drafter == second.message.drafter
    assert first.message.encode() != second.message.encode()


def test_an_unreadable_log_is_read_again_before_the_drafter_is_assigned() -> None:
    bench = Bench()
    bench.start()
    bench.commit(11)
    bench.give(inputs.DrafterLost())
    bench.run(until=fx.ReadLog)
    bench.take(fx.ReadLog)
    bench.give(inputs.LogUnanswered())
    assert len(bench.all_done(fx.SendAssignment)) == 1
    bench.fire()
    bench.run()
    assert bench.all_done(fx.SendAssignment)[-1].message.committed == 1


def test_a_drafter_that_refuses_or_does_not_answer_is_passed_over() -> None:
    bench = Bench()
    bench.drafters = [D1, D2]
    bench.ask(inputs.RequestSubmitted)
    bench.run(until=fx.SendAssignment)
    bench.give(inputs.AssignmentRefused(errors.InvalidContent("model"), bench.take(fx.SendAssignment)))
    bench.run(until=fx.ChooseDrafter)
    assert bench.take(fx.ChooseDrafter).but == {D1}
    bench.give(inputs.DrafterChosen(D2))
    bench.run(until=fx.SendAssignment)
    bench.give(inputs.AssignmentRefused(None, bench.take(fx.SendAssignment)))
    bench.run(until=fx.ChooseDrafter)
    assert bench.take(fx.ChooseDrafter).but == {D1, D2}
    bench.give(inputs.DrafterChosen(D1))  # there are no others: not at once again
    assert bench.done[-1] == fx.SetTimer("retry", 200)
    bench.fire()
    assert bench.take(fx.ChooseDrafter).but == frozenset()


@pytest.mark.decision("D28")
def test_a_drafter_that_drafted_although_its_answer_was_lost_is_not_put_again_word_for_word() -> None:
    """The verifier would take that for a repeat and go on waiting for a drafter, and its event is done with."""
    bench = Bench()
    bench.ask(inputs.RequestSubmitted)
    bench.run(until=fx.SendAssignment)
    bench.commit(7, action=Action.SWITCH)
    bench.tell(bench.event(Action.SWITCH))
    bench.give(inputs.AssignmentRefused(None, bench.take(fx.SendAssignment)))
    bench.drafters = [D2, D1]
    bench.run()
    first, again = bench.all_done(fx.SendDrafter)
    assert (first.message.round, again.message.round) == (0, 1)


@pytest.mark.decision("D28")
def test_a_put_that_was_taken_for_a_repeat_is_sent_again_when_the_log_has_more() -> None:
    """The round was committed after the log was read and before the PUT arrived."""
    bench = Bench()
    bench.ask(inputs.RequestSubmitted)
    bench.run(until=fx.SendAssignment)
    bench.give(inputs.AssignmentRefused(None, bench.take(fx.SendAssignment)))
    bench.drafters = [D2]
    bench.run(until=fx.SendDrafter)
    bench.commit(7, action=Action.SWITCH)
    bench.state = State.WAITING
    bench.give(bench.perform(bench.take(fx.SendDrafter)))
    bench.run(until=fx.SendDrafter)
    assert bench.take(fx.SendDrafter).message.round == 1


def test_without_a_drafter_the_session_waits() -> None:
    bench = Bench()
    bench.drafters = [None]
    submitted = bench.start()
    assert bench.answer_to(submitted).epoch == 1
    for _ in range(3):
        assert bench.done[-1] == fx.SetTimer("retry", 200)
        bench.fire()
        bench.run()
    bench.drafters = [D1]
    bench.fire()
    bench.run()
    assert bench.names()[-1] == "SendAssignment"


# ---- events (D17) ----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.5.2-switch-event", "S6.5.2-self-decode-event")
@pytest.mark.decision("D17-drafter-again")
@pytest.mark.parametrize(
    ("kind", "but"), [(Action.SWITCH, {D1}), (Action.SELF_DECODE, set()), (Action.CONTINUE, set())]
)
def test_kinds_0_2_and_3_get_a_drafter_again_and_2_another(kind: Action, but: set[str]) -> None:
    bench = Bench()
    bench.start()
    bench.commit(11)
    told = bench.tell(bench.event(kind))
    assert bench.answer_to(told) is None
    bench.run(until=fx.ChooseDrafter)
    assert bench.pending == [fx.ChooseDrafter(CONTRACT, frozenset(but))]
    bench.run()
    assert bench.all_done(fx.SendAssignment)[-1].message.committed == 1


@pytest.mark.decision("D17-router")
def test_a_repeated_event_is_answered_and_done_only_once() -> None:
    bench = Bench()
    bench.start()
    bench.commit(11)
    event = bench.event(Action.SWITCH)
    bench.tell(event)
    assert bench.answer_to(bench.tell(event)) is None
    bench.run()
    assert bench.answer_to(bench.tell(event)) is None
    bench.run()
    assert len(bench.all_done(fx.SendDrafter)) == 2


def test_an_event_from_before_the_last_answer_to_put_drafter_changes_nothing() -> None:
    bench = Bench()
    bench.start()
    bench.commit(11)
    late = bench.event(Action.SWITCH)
    bench.commit(12)
    bench.give(inputs.DrafterLost())
    bench.run()
    assert bench.answer_to(bench.tell(late)) is None
    assert not bench.pending


def test_an_event_that_overtakes_the_drafter_s_own_answer_is_not_forgotten() -> None:
    """The drafter may have drafted, and failed, before its 204 has come through."""
    bench = Bench()
    bench.ask(inputs.RequestSubmitted)
    bench.run(until=fx.SendAssignment)
    sent = bench.take(fx.SendAssignment)
    bench.commit(11)
    bench.tell(bench.event(Action.SWITCH))
    assert not bench.pending
    bench.give(inputs.AssignmentTaken(sent))
    bench.run(until=fx.ChooseDrafter)
    assert bench.pending == [fx.ChooseDrafter(CONTRACT, frozenset({D1}))]


@pytest.mark.requirement("S6.5.2-finish", "S6.5.2-fail")
@pytest.mark.parametrize("kind", [Action.FINISH, Action.FAIL])
def test_kinds_4_and_5_end_the_session(kind: Action) -> None:
    bench = Bench()
    bench.start()
    waiting = bench.locate(1)
    bench.run()
    assert bench.answer_to(bench.tell(bench.event(kind))) is None
    assert bench.session.ended == kind
    assert bench.answer_to(waiting).ended == kind
    assert bench.names().count("EndSession") == 1
    assert bench.answer_to(bench.tell(bench.event(kind))) is None
    assert bench.names().count("EndSession") == 1


@pytest.mark.decision("D17-router")
def test_an_event_of_a_lower_epoch_is_answered_without_effect_and_one_of_a_higher_refused() -> None:
    bench = Bench()
    bench.start()
    bench.give(inputs.VerifierLost())
    bench.run()
    assert bench.answer_to(bench.tell(bench.event(Action.FAIL, epoch=1))) is None
    assert bench.session.ended is None
    assert isinstance(bench.answer_to(bench.tell(bench.event(Action.FAIL, epoch=3))), errors.StaleEpoch)
    assert bench.session.ended is None
    assert not bench.pending


# ---- policies (6.6) --------------------------------------------------------------------------------------------------


@pytest.mark.requirement(
    "S6.6-from-round",
    "S6.6-in-assignments",
    "S4.1-sampling-at-boundary",
    "S4.1-digest-once",
    "S4.1-contract-never-modified",
    "S5.2-assignment-sampling",
)
@pytest.mark.decision("D21-drafter")
def test_a_profile_goes_to_the_verifier_then_to_the_drafter_by_assignment_alone() -> None:
    bench = Bench()
    bench.start()
    asked = bench.change(HOT)
    bench.run()
    (sent,) = bench.all_done(fx.SendPolicy)
    assert (sent.verifier, sent.message) == (V1, Policy(session=SESSION, from_round=1, sampling=HOT))
    assert bench.answer_to(asked) == sent.message
    assert bench.names()[-2:] == ["SendPolicy", "SendAssignment"]
    assigned = bench.all_done(fx.SendAssignment)[-1].message
    assert (assigned.sampling, assigned.contract) == (HOT, CONTRACT)
    bench.commit(11)
    bench.tell(bench.event(Action.SWITCH))
    bench.run()
    assert bench.all_done(fx.SendDrafter)[-1].message.sampling == HOT
    assert bench.all_done(fx.SendAssignment)[-1].message.sampling == HOT


def test_a_profile_that_comes_too_late_is_sent_again_for_a_later_round() -> None:
    bench = Bench()
    bench.start()
    asked = bench.change(HOT)
    for _ in range(7):
        bench.commit(11)
    late = errors.Conflict("from_round is not greater than the current round")
    bench.give(inputs.VerifierRefused(late, bench.take(fx.SendPolicy)))
    again = bench.take(fx.SendOpen)
    assert again.message == bench.all_done(fx.SendOpen)[0].message  # word for word: the state, and nothing else (D19)
    bench.give(inputs.StateReceived(bench.session_state(), again))
    bench.run()
    assert bench.answer_to(asked).from_round == 9


def test_a_profile_for_a_round_that_is_over_is_refused_when_the_round_was_asked_for() -> None:
    bench = Bench()
    bench.start()
    asked = bench.change(HOT, from_round=1)
    late = errors.Conflict("from_round is not greater than the current round")
    bench.give(inputs.VerifierRefused(late, bench.take(fx.SendPolicy)))
    assert bench.answer_to(asked) is late
    bench.run()
    bench.commit(11)
    bench.tell(bench.event(Action.SWITCH))
    bench.run()
    assert bench.all_done(fx.SendAssignment)[-1].message.sampling is None


def test_profiles_asked_for_at_any_time_are_sent_in_order() -> None:
    bench = Bench()
    bench.ask(inputs.RequestSubmitted)
    bench.change(HOT)
    bench.run(until=fx.SendAssignment)
    bench.change(COLD, from_round=5)
    bench.run()
    assert [(each.message.from_round, each.message.sampling) for each in bench.all_done(fx.SendPolicy)] == [
        (1, HOT),
        (5, COLD),
    ]
    assert bench.all_done(fx.SendAssignment)[-1].message.sampling == COLD


def test_changes_that_no_verifier_answers_do_not_pile_up() -> None:
    bench = Bench()
    bench.start()
    for _ in range(64):
        bench.change(HOT)
    assert isinstance(bench.answer_to(bench.change(COLD)), errors.Overloaded)
    bench.run()
    assert len(bench.all_done(fx.SendPolicy)) == 64


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2)), max_size=30))
def test_profiles_that_no_later_round_can_have_are_forgotten(changes: list[tuple[int, int]]) -> None:
    """D21, against the plain twin that keeps everything; what is kept is bounded by what is pending."""
    profiles, received, round_ = Profiles(), [], 0
    for ahead, rounds in changes:
        policy = Policy(session=SESSION, from_round=round_ + ahead, sampling=Sampling(seed=len(received)))
        profiles.accept(policy, round_)
        received.append(policy)
        round_ += rounds
        told = profiles.after(SESSION, round_)
        for number in range(round_ + 1, round_ + 12):
            wanted = [each.sampling for each in received if each.from_round <= number][-1:]
            assert [each.sampling for each in told if each.from_round <= number][-1:] == wanted
        assert len(told) <= 10


def test_a_profile_is_taken_while_the_session_waits_for_a_drafter() -> None:
    bench = Bench()
    bench.drafters = [None, D1]
    bench.start()
    asked = bench.change(HOT)
    bench.run()
    assert bench.answer_to(asked).sampling == HOT
    assert bench.all_done(fx.SendAssignment)[-1].message.sampling == HOT


def test_a_session_that_has_ended_takes_no_profile() -> None:
    bench = Bench()
    bench.start()
    bench.tell(bench.event(Action.FINISH))
    assert isinstance(bench.answer_to(bench.change(HOT)), errors.SessionClosed)


# ---- withdrawal and locations (D33, D34) -----------------------------------------------------------------------------


@pytest.mark.decision("D34-fenced")
def test_a_withdrawn_session_is_fenced_and_opened_nowhere() -> None:
    bench = Bench()
    bench.start()
    bench.commit(11)
    assert bench.answer_to(bench.ask(inputs.RequestWithdrawn)) is None
    bench.run()
    assert bench.log[-1] == FenceRecord(epoch=2)
    assert bench.names()[-1] == "EndSession"
    assert len(bench.all_done(fx.SendOpen)) == 1
    assert bench.session.ended == Action.FAIL
    bench.ask(inputs.RequestWithdrawn)
    assert bench.names().count("EndSession") == 1


@pytest.mark.decision("D34-fenced")
@pytest.mark.parametrize("step", [fx.SendOpen, fx.SendDrafter, fx.SendAssignment])
def test_a_withdrawal_interrupts_whatever_is_under_way(step: type) -> None:
    bench = Bench()
    bench.ask(inputs.RequestSubmitted)
    bench.run(until=step)
    late = bench.pending.pop(0)
    bench.ask(inputs.RequestWithdrawn)
    answer = bench.perform(late)
    assert answer is not None
    bench.give(answer)  # the answer to what was interrupted changes nothing
    bench.run()
    assert (bench.log, bench.names()[-1]) == ([FenceRecord(epoch=2)], "EndSession")


def test_a_request_withdrawn_before_any_open_needs_no_fence() -> None:
    bench = Bench()
    bench.verifiers = [None]
    submitted = bench.start()
    bench.ask(inputs.RequestWithdrawn)
    assert isinstance(bench.answer_to(submitted), errors.SessionClosed)
    assert not bench.all_done(fx.AppendLog)
    assert bench.names()[-1] == "EndSession"


@pytest.mark.decision("D33-location")
def test_a_front_end_that_lost_its_verifier_makes_the_router_ask_it() -> None:
    bench = Bench()
    bench.start()
    waiting = bench.locate(1)
    probe = bench.take(fx.SendDrafter)
    assert probe.message == bench.all_done(fx.SendDrafter)[0].message  # byte for byte (D28)
    bench.give(inputs.StateReceived(bench.session_state(), probe))
    assert not bench.pending
    bench.fire(f"location {waiting}")
    assert bench.answer_to(waiting) == Location(session=SESSION, epoch=1, verifier=V1)


@pytest.mark.decision("D33-ended")
def test_the_tokens_of_an_ended_session_come_from_the_log_when_its_verifier_is_gone() -> None:
    bench = Bench()
    bench.start()
    bench.commit(11, STOP, action=Action.FINISH)
    bench.tell(bench.event(Action.FINISH))
    assert bench.answer_to(bench.locate(None)).tokens is None
    bench.give(inputs.VerifierLost())
    gone = bench.locate(1)
    bench.run()
    assert bench.answer_to(gone) == Location(
        session=SESSION, epoch=1, verifier=V1, ended=Action.FINISH, tokens=(11, STOP)
    )
    assert not bench.all_done(fx.AppendLog)


@pytest.mark.requirement("S6.7-from-index", "S6.7-final")
@pytest.mark.decision("D33-ended")
def test_a_log_read_before_the_last_round_is_not_taken_for_the_whole_output() -> None:
    """The answer to an older question comes first: nobody may be told that the output ends there."""
    bench = Bench()
    bench.start()
    bench.commit(11)
    older = inputs.LogRead(0, bench.octets(), bench.etag())
    bench.commit(STOP, action=Action.FINISH)
    bench.tell(bench.event(Action.FINISH))
    gone = bench.locate(1)
    bench.give(older)
    assert isinstance(bench.answer_to(gone), errors.Overloaded)
    again = bench.locate(1)
    bench.pending = bench.pending[-1:]
    bench.run()
    assert bench.answer_to(again).tokens == (11, STOP)


def test_a_front_end_that_went_away_is_not_answered() -> None:
    bench = Bench()
    bench.ask(inputs.RequestSubmitted)
    gone = bench.locate(None)
    bench.give(inputs.RequestCancelled(gone))
    bench.run()
    assert bench.waits(gone)


@pytest.mark.decision("D14", "D19")
def test_a_session_that_opened_finished_and_was_taken_for_lost_before_it_said_so_is_no_failure() -> None:
    bench = Bench()
    submitted = bench.ask(inputs.RequestSubmitted)
    bench.run(until=fx.SendOpen)
    bench.give(inputs.VerifierLost())
    bench.tell(bench.event(Action.FINISH))
    assert bench.answer_to(submitted).epoch == 1
    assert bench.session.ended is Action.FINISH
    assert bench.session.failure is None


# ---- assigning again -------------------------------------------------------------------------------------------------


@pytest.mark.decision("D37-repeated")
def test_the_drafter_of_a_running_session_is_assigned_again_and_replaced_if_it_will_not_have_it() -> None:
    bench = Bench()
    bench.start()
    assert fx.SetTimer(REMINDER, Patience().reminder_ms) in bench.done
    bench.give(inputs.TimerFired(REMINDER))
    bench.run()
    first, again = bench.all_done(fx.SendAssignment)
    assert again == first
    put, put_again = bench.all_done(fx.SendDrafter)
    assert put_again == put, "the verifier is told what it was told, and changes nothing (D28)"
    assert bench.names()[-2:] == ["SendDrafter", "SendAssignment"]
    bench.give(inputs.TimerFired(REMINDER))
    bench.run(until=fx.SendAssignment)
    bench.give(inputs.AssignmentRefused(None, bench.take(fx.SendAssignment)))
    bench.run(until=fx.ChooseDrafter)
    assert bench.take(fx.ChooseDrafter).but == {D1}


@pytest.mark.decision("D37-repeated")
def test_a_verifier_that_waits_for_a_drafter_unknown_to_the_router_gets_one_with_the_reminder() -> None:
    bench = Bench()
    bench.start()
    bench.commit(7, action=Action.SWITCH)
    bench.state = State.WAITING
    bench.give(inputs.TimerFired(REMINDER))
    bench.give(bench.perform(bench.take(fx.SendDrafter)))
    bench.state = State.DRAFTING
    bench.run()
    assert bench.all_done(fx.SendDrafter)[-1].message.round == 1
    assert len(bench.all_done(fx.SendAssignment)) == 2


@pytest.mark.decision("D37-repeated")
def test_a_drafter_that_does_not_get_on_from_where_it_was_assigned_is_assigned_where_the_session_stands() -> None:
    """It replays verdicts up to one that told it to stop, which an assignment since has made void (D13)."""
    bench = Bench()
    bench.start()
    bench.commit(7, action=Action.SELF_DECODE)
    for _ in range(2):
        bench.give(inputs.TimerFired(REMINDER))
        bench.run()
    assert [each.message.round for each in bench.all_done(fx.SendAssignment)] == [0, 0, 1]
    assert bench.objects[bench.all_done(fx.SendAssignment)[-1].message.committed_tokens] == (7,)
    assert [each.message.round for each in bench.all_done(fx.SendDrafter)] == [0, 0, 0]


@pytest.mark.decision("D19")
@pytest.mark.parametrize(("state", "ended"), [(State.FINISHED, Action.FINISH), (State.FAILED, Action.FAIL)])
def test_a_session_that_ended_unheard_ends_with_the_reminder(state: State, ended: Action) -> None:
    bench = Bench()
    bench.start()
    bench.state = state
    bench.give(inputs.TimerFired(REMINDER))
    bench.run()
    assert bench.session.ended is ended


@pytest.mark.decision("D37")
def test_an_ended_session_reminds_nobody() -> None:
    bench = Bench()
    bench.start()
    bench.give(inputs.EventReceived(0, bench.event(Action.FINISH)))
    assert fx.CancelTimer(REMINDER) in bench.done
    assert not bench.give(inputs.TimerFired(REMINDER))
