"""Fence first, then read, then resume (6.8, 6.9, D19, D20, D21)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp import errors
from sdcp.machines import effects as fx
from sdcp.machines import inputs
from sdcp.messages.contract import Action, Sampling
from sdcp.messages.record import CommitRecord, FenceRecord
from sdcp.messages.request import Location
from sdcp.messages.session import State
from sdcp.rules.digest import extend_all
from tests.unit.machines.router_bench import D1, D2, LOG, SESSION, START, STOP, V1, V2, Bench

HOT, COLD = Sampling(temperature_milli=1500), Sampling(temperature_milli=100)
NO_ANSWER = inputs.VerifierUnanswered()


def running(*rounds: tuple[int, ...]) -> Bench:
    """A bench with a running session and these rounds committed."""
    bench = Bench()
    bench.start()
    for tokens in rounds:
        bench.commit(*tokens)
    bench.done.clear()
    bench.verifiers = [V2]
    return bench


@pytest.mark.requirement(
    "S6.9-fence-first", "S6.9-resume", "S6.9-reassigned-after-resume", "S6.8-fence-record", "S6.8-record-epoch"
)
@pytest.mark.decision("D19", "D20")
def test_a_lost_verifier_is_fenced_then_the_log_read_then_the_session_resumed() -> None:
    bench = running((11, 12), (13,))
    waiting = bench.locate(1)
    bench.give(inputs.VerifierLost())
    bench.run()
    assert bench.names()[1:] == [
        "ReadLog", "AppendLog", "ReadLog", "StoreTokens", "ChooseVerifier", "SendOpen",
        "ChooseDrafter", "SendDrafter", "SendAssignment",
    ]  # fmt: skip
    assert bench.log[-1] == FenceRecord(epoch=2)
    (opened,) = bench.all_done(fx.SendOpen)
    assert (opened.verifier, opened.message.epoch, opened.message.commit_log) == (V2, 2, LOG)
    resume = opened.message.resume
    assert resume is not None
    assert (resume.round, resume.committed, resume.digest) == (2, 3, bench.digest)
    assert bench.objects[resume.committed_tokens] == (11, 12, 13)
    put, assigned = bench.all_done(fx.SendDrafter)[-1], bench.all_done(fx.SendAssignment)[-1]
    assert (put.verifier, put.message.epoch) == (V2, 2)
    assert (assigned.message.epoch, assigned.message.verifier, assigned.message.committed) == (2, V2, 3)
    assert bench.objects[assigned.message.committed_tokens or ""] == (11, 12, 13)
    assert bench.answer_to(waiting) == Location(session=SESSION, epoch=2, verifier=V2)


@pytest.mark.requirement("S6.9-fence-first")
def test_what_the_old_verifier_commits_just_before_the_fence_is_not_lost() -> None:
    """Fence first, then read (docs/mlc.md): the read that counts comes after the fence."""
    bench = running((11,))
    bench.give(inputs.VerifierLost())
    bench.run(until=fx.AppendLog)
    bench.commit(12)  # between the router's first look and its fence: the append finds the log moved
    bench.run()
    resume = bench.all_done(fx.SendOpen)[0].message.resume
    assert resume is not None
    assert bench.objects[resume.committed_tokens] == (11, 12)
    assert [record.epoch for record in bench.log] == [1, 1, 2]


def test_a_log_that_keeps_moving_is_given_a_moment_now_and_then() -> None:
    bench = running()
    bench.give(inputs.VerifierLost())
    for _ in range(8):
        bench.run(until=fx.AppendLog)
        bench.take(fx.AppendLog)
        bench.give(inputs.LogMoved())
    assert bench.done[-1] == fx.SetTimer("fence", 200)
    bench.fire("fence")
    bench.run()
    assert bench.names()[-1] == "SendAssignment"


@pytest.mark.decision("D19")
def test_a_fence_without_an_answer_is_never_recognized_but_fenced_above() -> None:
    bench = running((11,))
    bench.give(inputs.VerifierLost())
    bench.run(until=fx.AppendLog)
    bench.perform(bench.take(fx.AppendLog))  # it is in the log, and nobody told us
    bench.give(inputs.LogUnanswered())
    bench.fire("fence")
    bench.run()
    assert [record.epoch for record in bench.log] == [1, 2, 3]
    assert bench.all_done(fx.SendOpen)[0].message.epoch == 3


@pytest.mark.decision("D19")
def test_the_fence_is_above_every_epoch_in_the_log() -> None:
    bench = running((11,))
    bench.log.append(FenceRecord(epoch=7))
    bench.give(inputs.VerifierLost())
    bench.run()
    assert bench.log[-1] == FenceRecord(epoch=8)
    assert bench.all_done(fx.SendOpen)[0].message.epoch == 8


def test_somebody_else_s_fence_above_ours_is_fenced_above() -> None:
    bench = running((11,))
    bench.give(inputs.VerifierLost())
    bench.run(until=fx.AppendLog)
    bench.give(bench.perform(bench.take(fx.AppendLog)))
    bench.log.append(FenceRecord(epoch=5))
    bench.run()
    assert bench.all_done(fx.SendOpen)[0].message.epoch == 6


def test_a_read_from_before_the_fence_does_not_pass_for_one_after_it() -> None:
    bench = running((11,))
    bench.give(inputs.DrafterLost())
    bench.run(until=fx.ReadLog)
    early = bench.perform(bench.take(fx.ReadLog))
    bench.give(inputs.VerifierLost())
    bench.run(until=fx.AppendLog)
    bench.commit(12)
    moved = bench.perform(bench.take(fx.AppendLog))
    bench.give(moved)
    bench.run(until=fx.AppendLog)
    bench.give(bench.perform(bench.take(fx.AppendLog)))
    bench.give(early)
    bench.run()
    resume = bench.all_done(fx.SendOpen)[0].message.resume
    assert resume is not None
    assert resume.committed == 2


@pytest.mark.decision("D20-void")
def test_a_record_after_a_higher_fence_is_void_and_skipped() -> None:
    bench = running((11,))
    bench.log.append(FenceRecord(epoch=2))
    void = CommitRecord(epoch=1, round=2, tokens=(66,), committed=2, digest=extend_all(bench.digest, (66,)))
    bench.log.append(void)
    bench.give(inputs.VerifierLost())
    bench.run()
    resume = bench.all_done(fx.SendOpen)[0].message.resume
    assert resume is not None
    assert (resume.round, bench.objects[resume.committed_tokens]) == (1, (11,))
    assert bench.log[-1] == FenceRecord(epoch=3)


@pytest.mark.decision("D19")
def test_nothing_committed_yet_is_resumed_with_an_object_of_no_tokens() -> None:
    bench = running()
    bench.give(inputs.VerifierLost())
    bench.run()
    resume = bench.all_done(fx.SendOpen)[0].message.resume
    assert resume is not None
    assert (resume.round, resume.committed, resume.digest) == (0, 0, START)
    assert bench.objects[resume.committed_tokens] == ()
    assert bench.all_done(fx.SendAssignment)[0].message.committed_tokens is None


# ---- opens that go wrong ---------------------------------------------------------------------------------------------


@pytest.mark.decision("D19-unanswered")
def test_an_unanswered_open_is_repeated_at_the_same_verifier_only_then_fenced() -> None:
    bench = Bench(attempts=3)
    bench.ask(inputs.RequestSubmitted)
    for _ in range(3):
        bench.run(until=fx.SendOpen)
        bench.take(fx.SendOpen)
        bench.verifiers = [V2]
        bench.give(NO_ANSWER)
        bench.fire()
    assert {each.verifier for each in bench.all_done(fx.SendOpen)} == {V1}
    assert len({each.message for each in bench.all_done(fx.SendOpen)}) == 1
    bench.run()
    last = bench.all_done(fx.SendOpen)[-1]
    assert (last.verifier, last.message.epoch, bench.log) == (V2, 2, [FenceRecord(epoch=2)])


def test_a_5xx_that_is_no_503_counts_as_no_answer() -> None:
    bench = Bench()
    bench.ask(inputs.RequestSubmitted)
    bench.run(until=fx.SendOpen)
    bench.give(inputs.VerifierRefused(errors.InternalFault("bad gateway"), bench.take(fx.SendOpen)))
    bench.fire()
    assert bench.take(fx.SendOpen).verifier == V1


@pytest.mark.parametrize("error", [errors.Conflict("a commit record is there"), errors.StaleEpoch("epoch 4 is open")])
def test_an_open_that_contradicts_what_is_so_is_fenced_above(error: errors.ProblemError) -> None:
    bench = Bench()
    bench.ask(inputs.RequestSubmitted)
    bench.run(until=fx.SendOpen)
    bench.give(inputs.VerifierRefused(error, bench.take(fx.SendOpen)))
    bench.run()
    assert bench.all_done(fx.SendOpen)[-1].message.epoch == 2


@pytest.mark.requirement("S4.2-chain-start")
@pytest.mark.decision("D20-router")
def test_a_verifier_with_another_prefix_digest_is_not_trusted_with_the_session() -> None:
    bench = Bench()
    bench.verifiers = [V1, V2]
    submitted = bench.ask(inputs.RequestSubmitted)
    bench.run(until=fx.SendOpen)
    bench.give(inputs.StateReceived(bench.session_state(digest=bytes(32)), bench.take(fx.SendOpen)))
    assert bench.waits(submitted)
    bench.run()
    assert bench.answer_to(submitted) == Location(session=SESSION, epoch=2, verifier=V2)
    assert bench.all_done(fx.ChooseVerifier)[-1].but == {V1}


@pytest.mark.decision("D19-404")
def test_a_404_is_a_lost_verifier_even_at_the_same_uri() -> None:
    bench = running((11,))
    bench.verifiers = [V1]
    bench.locate(1)
    bench.give(inputs.VerifierRefused(errors.UnknownResource("no such session"), bench.take(fx.SendDrafter)))
    bench.run()
    (opened,) = bench.all_done(fx.SendOpen)
    assert (opened.verifier, opened.message.epoch) == (V1, 2)


def test_a_late_answer_of_the_old_verifier_changes_nothing() -> None:
    bench = running((11,))
    bench.give(inputs.DrafterLost())
    bench.run(until=fx.SendDrafter)
    old = bench.take(fx.SendDrafter)
    bench.give(inputs.VerifierLost())
    bench.run(until=fx.SendOpen)
    for late in (
        inputs.VerifierRefused(errors.UnknownResource("gone"), old),
        inputs.VerifierUnanswered(old),
        inputs.StateReceived(bench.session_state(epoch=1), old),
    ):
        assert bench.give(late) == []
    bench.run()
    assert bench.names()[-1] == "SendAssignment"


def test_a_session_that_fails_over_and_over_without_getting_on_is_ended() -> None:
    bench = Bench(failovers=3)
    bench.start()
    for _ in range(10):
        bench.give(inputs.VerifierLost())
        bench.run()
    assert bench.session.ended == Action.FAIL
    assert [record.epoch for record in bench.log] == [2, 3, 4, 5]  # the last fence ends it
    assert bench.names()[-1] == "EndSession"


def test_a_session_that_gets_on_is_failed_over_as_often_as_need_be() -> None:
    bench = Bench(failovers=3)
    bench.start()
    for token in range(10):
        bench.commit(token)
        bench.give(inputs.VerifierLost())
        bench.run()
    assert bench.session.ended is None
    assert bench.session.epoch == 11


# ---- sessions that have ended ----------------------------------------------------------------------------------------


@pytest.mark.decision("D19-ended")
def test_an_ended_session_is_never_failed_over() -> None:
    bench = running((11, STOP))
    bench.tell(bench.event(Action.FINISH))
    bench.done.clear()
    bench.give(inputs.VerifierLost())
    assert bench.done == []


@pytest.mark.decision("D19")
@pytest.mark.parametrize("state", [State.FINISHED, None])
def test_a_session_that_ended_without_a_word_is_opened_finished_and_gets_no_drafter(state: int | None) -> None:
    bench = running((11, STOP))
    bench.give(inputs.VerifierLost())
    bench.state = state
    waiting = bench.locate(1)
    bench.run()
    assert bench.answer_to(waiting) == Location(session=SESSION, epoch=2, verifier=V2)  # there the output is to be had
    assert bench.session.ended == Action.FINISH
    assert not bench.all_done(fx.ChooseDrafter)
    assert bench.answer_to(bench.tell(bench.event(Action.FINISH))) is None


def test_a_session_whose_last_record_says_fail_ends_as_failed() -> None:
    """D20: action 5 opens failed."""
    bench = running((11,))
    bench.commit(12, action=Action.FAIL)
    bench.give(inputs.VerifierLost())
    bench.run()
    assert bench.session.ended == Action.FAIL
    assert not bench.all_done(fx.ChooseDrafter)


def test_an_event_of_the_end_that_overtakes_the_answer_to_the_open_moves_the_session_there() -> None:
    bench = running((11, STOP))
    bench.give(inputs.VerifierLost())
    waiting = bench.locate(1)
    bench.run(until=fx.SendOpen)
    bench.tell(bench.event(Action.FINISH))
    assert bench.answer_to(waiting) == Location(session=SESSION, epoch=2, verifier=V2)  # there the output is to be had
    assert bench.session.ended == Action.FINISH


def test_a_log_that_is_no_chain_ends_the_session() -> None:
    bench = running((11,))
    bench.log.append(replace(bench.commit(12), round=9))
    bench.give(inputs.VerifierLost())
    bench.run()
    assert bench.session.ended == Action.FAIL
    assert not bench.all_done(fx.SendOpen)


# ---- policies over a failover (D21) ----------------------------------------------------------------------------------


@pytest.mark.decision("D21-after-resume")
def test_a_new_verifier_hears_the_profile_in_force_then_pending_ones_before_it_hears_of_a_drafter() -> None:
    bench = Bench()
    bench.start()
    bench.change(HOT)
    bench.run()
    bench.change(COLD, from_round=30)
    bench.run()
    bench.commit(11)
    bench.commit(12)
    bench.done.clear()
    bench.give(inputs.VerifierLost())
    bench.run()
    assert [(each.message.from_round, each.message.sampling) for each in bench.all_done(fx.SendPolicy)] == [
        (3, HOT),
        (30, COLD),
    ]
    assert bench.names()[-5:] == ["SendPolicy", "SendPolicy", "ChooseDrafter", "SendDrafter", "SendAssignment"]


@pytest.mark.decision("D21")
def test_a_profile_on_its_way_when_the_verifier_is_lost_reaches_the_next_one() -> None:
    bench = running((11,))
    asked = bench.change(HOT, from_round=4)
    bench.take(fx.SendPolicy)
    bench.give(inputs.VerifierLost())
    bench.run()
    assert bench.answer_to(asked).from_round == 4
    assert bench.all_done(fx.SendPolicy)[-1].verifier == V2


def test_an_unanswered_profile_is_not_refused_for_having_been_accepted() -> None:
    bench = running()
    asked = bench.change(HOT, from_round=1)
    bench.give(inputs.VerifierUnanswered(bench.take(fx.SendPolicy)))
    bench.fire()
    for _ in range(2):
        bench.commit(11)
    bench.give(inputs.VerifierRefused(errors.Conflict("too late"), bench.take(fx.SendPolicy)))
    bench.run()
    assert bench.answer_to(asked).from_round == 4


# ---- whatever happens, in whatever order -----------------------------------------------------------------------------

DISTURBANCES = st.sampled_from(
    ["perform", "perform", "perform", "lose answer", "verifier lost", "drafter lost", "timers", "commit", "switch"]
)


@given(st.lists(DISTURBANCES, max_size=60), st.booleans())
def test_in_every_interleaving_an_epoch_is_opened_once_behind_its_fence_and_nothing_committed_is_lost(
    steps: list[str], withdrawn: bool
) -> None:
    """6.9, D19: no epoch is opened at two verifiers, and each opens behind its fence, with all the log has."""
    bench = Bench(failovers=1000)
    bench.verifiers = [V1, V2] * 50
    bench.ask(inputs.RequestSubmitted)
    for step in steps:
        _disturb(bench, step)
    if withdrawn:
        bench.ask(inputs.RequestWithdrawn)
    for _ in range(40):
        bench.run()
        bench.fire("fence")
        bench.fire()
    opens = bench.all_done(fx.SendOpen)
    assert len({(each.message.epoch, each.verifier) for each in opens}) == len({each.message.epoch for each in opens})
    assert (bench.session.ended is not None) == withdrawn
    if not withdrawn:
        assert bench.all_done(fx.SendAssignment)[-1].message.epoch == bench.session.epoch
        assert bench.all_done(fx.SendAssignment)[-1].drafter == D1
    for each in opens:
        if each.message.resume is not None:
            fence = bench.log.index(FenceRecord(epoch=each.message.epoch))
            before = [record for record in bench.log[:fence] if isinstance(record, CommitRecord)]
            assert bench.objects[each.message.resume.committed_tokens] == sum((r.tokens for r in before), ())


def _disturb(bench: Bench, step: str) -> None:
    fences = [record.epoch for record in bench.log if isinstance(record, FenceRecord)]
    match step:
        case "perform" if bench.pending:
            answer = bench.perform(bench.pending.pop(0))
            if answer is not None:
                bench.give(answer)
        case "lose answer" if bench.pending:
            effect = bench.pending.pop(0)
            bench.perform(effect)
            bench.give(_no_answer(effect) or inputs.RequestCancelled(0))
        case "verifier lost":
            bench.give(inputs.VerifierLost())
        case "drafter lost":
            bench.give(inputs.DrafterLost())
        case "timers":
            bench.fire("fence")
            bench.fire()
        case "commit" if bench.session.epoch >= max(fences, default=0) and len(bench.tokens) < 15:
            bench.commit(11)  # the verifier of the session's epoch, as long as it is not fenced
        case "switch":
            bench.tell(bench.event(Action.SWITCH))


def _no_answer(effect: object) -> object | None:
    match effect:
        case fx.SendOpen() | fx.SendDrafter() | fx.SendPolicy():
            return inputs.VerifierUnanswered(effect)
        case fx.SendAssignment():
            return inputs.AssignmentRefused(None, effect)
        case fx.StoreTokens():
            return inputs.StoreFailed("no answer", effect)
        case fx.ReadLog() | fx.AppendLog():
            return inputs.LogUnanswered()
        case fx.ChooseVerifier():
            return inputs.VerifierChosen(None)
        case fx.ChooseDrafter():
            return inputs.DrafterChosen(None)
    return None


@pytest.mark.requirement("S6.5.2-switch-event", "S6.9-reassigned-after-resume")
def test_a_switch_whose_event_died_with_the_verifier_is_carried_out_all_the_same() -> None:
    """The log says so (D20): else the drafter that was to be left would be assigned again."""
    bench = running((11,))
    bench.commit(12, action=Action.SWITCH)
    bench.give(inputs.VerifierLost())
    bench.run()
    assert bench.all_done(fx.ChooseDrafter)[-1].but == {D1}


@pytest.mark.requirement("S6.5.2-switch-event", "S6.9-reassigned-after-resume")
def test_a_switch_that_was_carried_out_does_not_count_against_the_new_drafter() -> None:
    bench = running((11,))
    bench.commit(12, action=Action.SWITCH)
    bench.drafters = [D2]
    bench.tell(bench.event(Action.SWITCH))
    bench.run()
    bench.give(inputs.VerifierLost())
    bench.run()
    assert [each.drafter for each in bench.all_done(fx.SendAssignment)] == [D2, D2]
    assert bench.all_done(fx.ChooseDrafter)[-1].but == {D1}


@pytest.mark.requirement("S6.9-resume")
@pytest.mark.decision("D44-resume")
def test_the_new_verifier_is_given_the_kv_that_the_last_valid_record_with_one_names() -> None:
    bench = running((11, 12), (13,), (14,), (15,))
    bench.log[1], bench.log[2] = replace(bench.log[1], kv="first"), replace(bench.log[2], kv="second")
    bench.log += [FenceRecord(epoch=2), replace(bench.log[0], kv="void")]
    bench.give(inputs.VerifierLost())
    bench.run()
    (opened,) = bench.all_done(fx.SendOpen)
    assert opened.message.resume is not None
    assert opened.message.resume.target_kv == "second" == bench.session.kv


@pytest.mark.decision("D44-resume")
def test_a_log_that_names_no_kv_leaves_the_member_out() -> None:
    bench = running((11, 12))
    bench.give(inputs.VerifierLost())
    bench.run()
    (opened,) = bench.all_done(fx.SendOpen)
    assert opened.message.resume is not None
    assert opened.message.resume.target_kv is None
