"""A router session that keeps a manifest: what waits for what, and how the next life goes on (D45)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sdcp import errors
from sdcp.machines import effects as fx
from sdcp.machines import inputs
from sdcp.machines.manifest_log import TIMER
from sdcp.machines.router_steps import REMINDER
from sdcp.messages.contract import Action, Sampling
from sdcp.messages.manifest import ACCEPTED, SENT, AssignedRecord, PolicyRecord, TakenRecord
from sdcp.messages.record import FenceRecord
from sdcp.messages.request import Location
from sdcp.messages.session import Policy, State
from tests.unit.machines.kept_bench import KeptBench, Stored
from tests.unit.machines.router_bench import D1, D2, PROMPT, SESSION, V1, V2

HOT, COLD = Sampling(temperature_milli=1500), Sampling(temperature_milli=100)


def running() -> KeptBench:
    bench = KeptBench()
    bench.start()
    bench.done.clear()
    return bench


# ---- what waits for what ---------------------------------------------------------------------------------------------


@pytest.mark.decision("D45-request-first")
def test_nothing_goes_to_a_verifier_before_the_request_is_durable() -> None:
    bench = KeptBench()
    bench.ask(inputs.RequestSubmitted)
    append = bench.take(fx.AppendManifest)
    bench.run()
    assert bench.all_done(fx.ChooseVerifier)
    assert not bench.all_done(fx.SendOpen)
    bench.give(bench.perform(append))
    assert bench.all_done(fx.SendOpen)


@pytest.mark.decision("D45-answers-wait")
def test_the_front_end_is_told_where_its_session_is_served_when_that_is_durable() -> None:
    bench = KeptBench()
    asked = bench.ask(inputs.RequestSubmitted)
    bench.run(until=fx.SendOpen)
    bench.run(until=fx.AppendManifest)
    assert bench.waits(asked)
    bench.run()
    assert bench.answer_to(asked) == Location(session=SESSION, epoch=1, verifier=V1)
    assert bench.stored.kinds() == ["request", "opened", "assigned"]


@pytest.mark.decision("D45-answers-wait")
def test_the_end_of_a_session_is_told_when_it_is_durable() -> None:
    bench = running()
    waiting = bench.locate(1)
    told = bench.tell(bench.event(Action.FINISH))
    assert bench.waits(waiting)
    assert bench.waits(told)
    bench.run()
    assert bench.answer_to(waiting) == Location(session=SESSION, epoch=1, verifier=V1, ended=Action.FINISH)
    assert bench.answer_to(told) is None
    assert bench.stored.kinds()[-1] == "end"


@pytest.mark.decision("D45-drafters-do-not-wait")
def test_verifier_and_drafter_do_not_wait_until_it_is_durable_who_they_are() -> None:
    bench = KeptBench()
    bench.ask(inputs.RequestSubmitted)
    bench.run(until=fx.SendOpen)
    bench.run(until=fx.AppendManifest)
    held = bench.take(fx.AppendManifest)
    bench.run()
    assert bench.all_done(fx.SendAssignment)
    assert bench.stored.kinds() == ["request"]
    bench.give(bench.perform(held))
    bench.run()
    assert bench.stored.kinds() == ["request", "opened", "assigned"]


@pytest.mark.decision("D45-drafters-do-not-wait")
def test_nor_does_a_front_end_wait_for_the_record_of_an_assignment() -> None:
    bench = KeptBench()
    bench.ask(inputs.RequestSubmitted)
    bench.run(until=fx.SendAssignment)
    bench.run(until=fx.AppendManifest)
    assert bench.stored.kinds() == ["request", "opened"]
    assert bench.answer_to(bench.locate(None)) == Location(session=SESSION, epoch=1, verifier=V1)


@pytest.mark.decision("D45-policies")
def test_a_change_of_the_profile_is_kept_before_it_is_sent_and_before_it_is_answered() -> None:
    bench = running()
    asked = bench.change(HOT)
    assert not bench.all_done(fx.SendPolicy)
    bench.run(until=fx.SendPolicy)
    sent = bench.stored.told().sent
    assert sent is not None
    assert (sent.stage, sent.from_round, sent.sampling) == (SENT, 1, HOT)
    policy = bench.take(fx.SendPolicy)
    bench.give(bench.perform(policy))
    assert bench.waits(asked)
    bench.run()
    assert bench.answer_to(asked) == policy.message
    told = bench.stored.told()
    assert (told.sent, told.accepted) == (None, [(policy.message, 0)])


@pytest.mark.decision("D45-policies")
def test_a_change_that_was_refused_is_not_told_to_anybody_again() -> None:
    bench = running()
    asked = bench.change(HOT, from_round=3)
    bench.run(until=fx.SendPolicy)
    bench.give(inputs.VerifierRefused(errors.InvalidContent("no"), bench.take(fx.SendPolicy)))
    assert bench.waits(asked)
    bench.run()
    assert isinstance(bench.answer_to(asked), errors.InvalidContent)
    assert bench.stored.told().sent is None
    assert bench.stored.told().accepted == []


def test_a_change_that_waits_for_its_record_is_not_sent_when_the_verifier_is_lost_meanwhile() -> None:
    bench = running()
    bench.change(HOT)
    append = bench.take(fx.AppendManifest)
    bench.give(inputs.VerifierLost())
    bench.give(bench.perform(append))
    assert not bench.all_done(fx.SendPolicy)
    bench.verifiers = [V2]
    bench.run()
    assert [each.verifier for each in bench.all_done(fx.SendPolicy)] == [V2]


@pytest.mark.decision("D45-answers-wait")
def test_a_withdrawal_is_kept_before_it_is_answered() -> None:
    bench = running()
    asked = bench.ask(inputs.RequestWithdrawn)
    assert bench.waits(asked)
    bench.run()
    assert bench.answer_to(asked) is None
    assert bench.stored.kinds()[-2:] == ["withdrawn", "end"]
    again = bench.ask(inputs.RequestWithdrawn)
    assert bench.answer_to(again) is None


@pytest.mark.decision("D45-rounds")
def test_rounds_and_reminders_write_nothing() -> None:
    bench = running()
    for token in range(1, 9):
        bench.commit(token)
        bench.fire(REMINDER)
        bench.run()
    assert bench.stored.kinds() == ["request", "opened", "assigned"]
    assert bench.stored.version == 3


# ---- lost answers, and other lives -----------------------------------------------------------------------------------


@pytest.mark.decision("D45-tag")
@pytest.mark.parametrize("done", [True, False])
def test_a_record_whose_append_was_not_answered_is_looked_for_and_kept_once(done: bool) -> None:
    bench = KeptBench()
    bench.ask(inputs.RequestSubmitted)
    bench.unanswered(done=done)
    bench.fire(TIMER)
    bench.run()
    assert bench.stored.kinds() == ["request", "opened", "assigned"]
    assert bench.session.drafter == D1


def test_an_append_without_an_answer_is_followed_by_longer_and_longer_waits() -> None:
    bench = KeptBench()
    bench.ask(inputs.RequestSubmitted)
    bench.unanswered(done=False)
    for _ in range(9):
        bench.fire(TIMER)
        bench.unanswered(fx.ReadManifest, done=False)
    waits = [each.delay_ms for each in bench.all_done(fx.SetTimer) if each.name == TIMER]
    assert waits == [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]


@pytest.mark.decision("D45-looks")
@pytest.mark.parametrize("wakes", [inputs.TimerFired(REMINDER), inputs.VerifierLost(), inputs.RequestWithdrawn(7)])
def test_an_old_life_that_wakes_up_finds_the_new_one_and_lets_go(wakes: object) -> None:
    """Not a verifier hears of it, and the commit log neither."""
    old = running()
    new = old.next_life().take_up()
    log = [*new.log]
    old.give(wakes)
    old.run()
    assert isinstance(old.done[-1], fx.LetGo)
    assert not old.all_done(fx.SendDrafter)
    assert not old.all_done(fx.AppendLog)
    assert new.log == log
    assert old.give(inputs.VerifierLost()) == []
    assert old.kept.lost


@pytest.mark.decision("D45-tag")
def test_an_old_life_does_not_write_into_the_manifest_of_the_new_one() -> None:
    old = running()
    old.next_life().take_up()
    kinds = old.stored.kinds()
    asked = old.change(HOT)
    old.run()
    assert isinstance(old.done[-1], fx.LetGo)
    assert old.waits(asked)  # whoever performs the effects refuses it
    assert old.stored.kinds() == kinds


@pytest.mark.decision("D45-late")
def test_the_last_append_of_a_dead_life_may_come_after_the_manifest_was_read() -> None:
    old = running()
    old.change(HOT)
    late = old.take(fx.AppendManifest)
    new = old.next_life()
    old.perform(late)
    new.take_up()
    assert not new.kept.lost
    assert new.stored.kinds() == ["request", "opened", "assigned", "policy", "taken", "policy", "policy"]
    assert [each.message.sampling for each in new.all_done(fx.SendPolicy)] == [HOT]


def test_what_is_no_record_in_the_manifest_ends_the_taking_up() -> None:
    old = running()
    new = old.next_life()
    old.stored.append(b"\x00", old.stored.etag)
    new.take_up()
    assert isinstance(new.done[-1], fx.LetGo)


def test_two_lives_that_take_up_at_once_do_not_both_have_the_session() -> None:
    old = running()
    one, other = old.next_life(2), old.next_life(3)
    one.take_up()
    other.take_up()
    assert not other.kept.lost
    one.fire(REMINDER)
    one.run()
    assert one.kept.lost


@pytest.mark.decision("D45-vanished")
def test_a_manifest_that_has_vanished_keeps_nothing_up() -> None:
    bench = running()
    bench.stored.octets, bench.stored.version = b"", 0
    bench.fire(REMINDER)
    bench.run()
    assert bench.all_done(fx.SendDrafter)
    asked = bench.change(HOT)
    bench.run()
    assert isinstance(bench.answer_to(asked), Policy)
    bench.give(inputs.VerifierLost())
    bench.run()
    assert bench.log == [FenceRecord(epoch=2)]
    assert bench.stored.kinds() == []


def test_the_answer_to_another_effect_than_the_last_one_changes_nothing() -> None:
    bench = KeptBench()
    bench.ask(inputs.RequestSubmitted)
    append = bench.take(fx.AppendManifest)
    stray = replace(append)
    assert bench.give(inputs.ManifestAnswered(inputs.LogAppended('"m9"', 0), stray)) == []


# ---- the next life ---------------------------------------------------------------------------------------------------


@pytest.mark.decision("D45-fence-or-remind")
def test_a_session_that_runs_is_taken_up_without_anybody_noticing() -> None:
    old = running()
    put = old.session._put
    old.commit(11, 12)
    new = old.next_life().take_up()
    assert [each.message for each in new.all_done(fx.SendDrafter)] == [put]
    assert [each.drafter for each in new.all_done(fx.SendAssignment)] == [D1]
    assert new.log == old.log  # no fence
    assert new.answer_to(new.locate(None)) == Location(session=SESSION, epoch=1, verifier=V1)


@pytest.mark.decision("D45-fence-or-remind")
def test_a_verifier_that_has_lost_the_session_too_is_fenced_and_the_session_resumed() -> None:
    old = running()
    old.commit(11, 12)
    new = old.next_life()
    new.verifiers = [V2]
    new.give(inputs.TakenUp())
    new.run(until=fx.SendDrafter)
    new.give(inputs.VerifierRefused(errors.UnknownResource("no such session"), new.take(fx.SendDrafter)))
    new.run()
    assert new.log[-1] == FenceRecord(epoch=2)
    (opened,) = new.all_done(fx.SendOpen)
    assert opened.verifier == V2
    assert opened.message.resume is not None
    assert new.objects[opened.message.resume.committed_tokens] == (11, 12)


@pytest.mark.decision("D45-fence-or-remind")
@pytest.mark.parametrize("records", [1, 2])
def test_a_session_that_may_be_open_anywhere_is_fenced_first(records: int) -> None:
    """It may be at a verifier, or have a drafter, of which nothing was written down."""
    old = running()
    old.commit(11)
    old.stored = old.stored.cut(records)
    new = old.next_life().take_up()
    assert new.names()[:6] == ["AppendManifest", "ReadLog", "ReadManifest", "AppendLog", "ReadLog", "StoreTokens"]
    assert new.log[-1] == FenceRecord(epoch=2)
    assert new.session.epoch == 2
    assert new.stored.kinds()[records:] == ["taken", "opened", "assigned"]


def test_every_manifest_that_there_ever_was_leads_to_a_running_session() -> None:
    old = running()
    old.change(HOT)
    old.run()
    old.give(inputs.VerifierLost())
    old.verifiers = [V2]
    old.run()
    old.change(COLD)
    old.run()
    kinds = old.stored.kinds()
    assert kinds.count("policy") == 5
    for records in range(1, len(kinds) + 1):
        whole, old.stored = old.stored, old.stored.cut(records)
        new = old.next_life()
        old.stored = whole
        new.log = [*old.log]
        assert set(new.stored.told().objects) <= set(new.objects)
        new.take_up()
        assert new.session.drafter == D1
        assert new.session.ended is None


@pytest.mark.decision("D45-policies")
def test_the_next_life_knows_the_profiles_in_force_pending_and_sent() -> None:
    old = running()
    old.change(HOT)
    old.run()
    old.change(COLD, from_round=9)
    old.run(until=fx.SendPolicy)
    new = old.next_life()
    new.verifiers = [V2]
    new.give(inputs.TakenUp())
    new.run(until=fx.SendDrafter)
    new.give(inputs.VerifierLost())
    new.run()
    told = [(each.message.from_round, each.message.sampling) for each in new.all_done(fx.SendPolicy)]
    assert told == [(1, HOT), (9, COLD)]
    assert new.all_done(fx.SendAssignment)[-1].message.sampling == COLD


@pytest.mark.decision("D34", "D45-answers-wait")
def test_a_request_that_was_withdrawn_is_fenced_and_ended_by_the_next_life() -> None:
    old = running()
    old.ask(inputs.RequestWithdrawn)
    old.run(until=fx.ReadLog)
    old.run(until=fx.AppendLog)
    old.stored = old.stored.cut(4)
    assert old.stored.kinds()[-1] == "withdrawn"
    old.log.clear()
    new = old.next_life().take_up()
    assert new.session.ended is Action.FAIL
    assert new.log == [FenceRecord(epoch=2)]
    assert not new.all_done(fx.SendOpen)


@pytest.mark.decision("D45-ended")
def test_a_session_that_has_ended_still_gives_all_its_tokens() -> None:
    old = running()
    old.commit(11, 12)
    old.tell(old.event(Action.FINISH))
    old.run()
    new = old.next_life()
    assert new.session.take_up(new.stored.told()) == []
    asked = new.locate(1)
    assert new.session.ended is Action.FINISH
    assert new.session.handle(inputs.RequestSubmitted(1)) == [
        fx.Reply(1, Location(session=SESSION, epoch=1, verifier=V1, ended=Action.FINISH))
    ]
    (read,) = new.session.handle(inputs.LocationRequested(asked, 1, 0))
    (reply,) = new.session.handle(new.perform(read))
    assert reply.message.tokens == (11, 12)


@pytest.mark.decision("D45-ended")
def test_a_session_that_ended_before_it_was_open_anywhere_stays_refused() -> None:
    old = KeptBench(verifier_wait_ms=0)
    old.verifiers = [None]
    old.ask(inputs.RequestSubmitted)
    old.run()
    assert old.stored.kinds() == ["request", "end"]
    new = old.next_life()
    new.session.take_up(new.stored.told())
    (refusal,) = new.session.handle(inputs.RequestSubmitted(1))
    assert isinstance(refusal.error, errors.SessionClosed)


def test_an_event_that_ends_a_session_is_taken_by_the_next_life() -> None:
    old = running()
    old.commit(*range(20))
    old.state = State.FINISHED
    new = old.next_life()
    new.give(inputs.TakenUp())
    told = new.tell(old.event(Action.FINISH))  # before it was taken up
    assert new.waits(told)
    new.run()
    assert new.answer_to(told) is None
    assert new.session.ended is Action.FINISH
    assert new.stored.kinds()[-1] == "end"


@pytest.mark.decision("D45-fence-or-remind")
def test_the_objects_of_the_session_are_known_and_used_again() -> None:
    old = KeptBench(inline_prompt=1)
    old.start()
    old.commit(11)
    old.give(inputs.VerifierLost())
    old.verifiers, old.drafters = [V2], [D2]
    old.run()
    told = old.stored.told()
    assert [old.objects[ref] for ref in told.objects] == [PROMPT, (11,)]
    new = old.next_life().take_up()
    (put,) = new.all_done(fx.SendDrafter)
    assert (put.message.prompt, put.message.committed_tokens) == tuple(told.objects)
    assert put.message == old.session._put
    new.change(HOT)  # too late: asks by the open, word for word
    new.run(until=fx.SendPolicy)
    new.give(inputs.VerifierRefused(errors.Conflict("not above the current round"), new.take(fx.SendPolicy)))
    assert new.take(fx.SendOpen).message == old.session._open


def test_records_are_numbered_on_over_the_lives() -> None:
    old = running()
    new = old.next_life().take_up()
    new.change(HOT)
    new.run()
    assert new.stored.told().last == len(new.stored.kinds())
    assert new.stored.told().life == bytes([2]) * 16
    assert isinstance(new.stored.told().assigned, AssignedRecord)


def test_records_of_a_policy_that_is_not_the_one_sent_leave_that_alone() -> None:
    told = Stored().told()
    sent = PolicyRecord(stage=SENT, after=0, from_round=5, sampling=HOT)
    other = PolicyRecord(stage=ACCEPTED, after=0, from_round=1, sampling=COLD)
    records: list[Any] = [sent, other, TakenRecord(router="r", life=bytes(16))]
    told.take(b"".join(replace(each, epoch=number).encode() for number, each in enumerate(records, start=1)))
    assert told.sent is not None
    assert replace(told.sent, epoch=0) == sent
