"""Writing a commit log through lost answers, other writers and fences (6.8, D27, docs/mlc.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp.machines.commit_log import RETRY_FIRST_MS, RETRY_MOST_MS, TIMER, CommitLog, Fenced, Recorded
from sdcp.machines.effects import AppendLog, ReadLog, SetTimer
from sdcp.machines.inputs import LogAppended, LogFenced, LogMoved, LogRead, LogUnanswered, TimerFired
from sdcp.machines.reader import LogReader
from sdcp.messages.record import CommitRecord, FenceRecord
from tests.unit.machines.test_reader import commit
from tests.unit.machines.verifier_world import LOG, Log

OURS = commit(2, 2, 5, before=(4,))


def writer(log: Log) -> CommitLog:
    """A writer of epoch 2 that has read the log so far."""
    return CommitLog(LOG, 2, log.read(), log.etag, enforces_fences=log.enforces)


def started(*, enforces: bool = True) -> tuple[Log, CommitLog]:
    log = Log(enforces=enforces)
    log.put(commit(1, 1, 4), FenceRecord(epoch=2))
    return log, writer(log)


def reread(log: Log, commit_log: CommitLog, step: Any) -> Any:
    """Answer the one ReadLog of a step."""
    [effect], outcome = step
    assert isinstance(effect, ReadLog)
    assert outcome is None
    return commit_log.handle(LogRead(effect.start, log.data[effect.start :], log.etag))


@pytest.mark.requirement("S6.8-conditional-append", "S6.8-record-epoch", "S6.8-commit-record-follows")
def test_an_append_is_conditional_on_what_was_read_last() -> None:
    log, commit_log = started()
    assert commit_log.append(OURS) == ([AppendLog(LOG, OURS.encode(), log.etag)], None)
    start = len(log.data)
    appended = log.append(AppendLog(LOG, OURS.encode(), log.etag))
    assert commit_log.handle(appended) == ([], Recorded(start, 0))
    next_record = commit(2, 3, 6, before=(4, 5))
    assert commit_log.append(next_record) == ([AppendLog(LOG, next_record.encode(), log.etag)], None)


def test_the_first_record_of_all_wants_no_log_there() -> None:
    commit_log = CommitLog(LOG, 1, LogReader(), None)
    assert commit_log.append(commit(1, 1, 4))[0] == [AppendLog(LOG, commit(1, 1, 4).encode(), None)]
    assert commit_log.handle(LogAppended('"1"', 5)) == ([], Recorded(0, 5))


@pytest.mark.parametrize(
    ("until", "fitting"),
    [
        ([], {LogAppended, LogMoved, LogFenced, LogUnanswered}),
        ([LogMoved()], {LogRead, LogUnanswered}),
        ([LogUnanswered()], {TimerFired}),
        ([LogFenced()], set()),
    ],
)
def test_an_answer_to_another_effect_than_the_one_outstanding_changes_nothing(
    until: list[Any], fitting: set[type]
) -> None:
    answers = [
        LogAppended('"9"', 0),
        LogMoved(),
        LogFenced(),
        LogUnanswered(),
        LogRead(0, b"", None),
        TimerFired(TIMER),
    ]
    for answer in answers:
        log, commit_log = started()
        commit_log.append(OURS)
        for each in until:
            commit_log.handle(each)
        if type(answer) not in fitting:
            before = commit_log.awaited
            assert commit_log.handle(answer) == ([], None)
            assert commit_log.awaited is before
            if before is not None:  # and the append is still seen to its end
                log.append(AppendLog(LOG, OURS.encode(), log.etag))
                assert _to_its_end(log, commit_log) == Recorded(len(log.data) - len(OURS.encode()), None)


def _to_its_end(log: Log, commit_log: CommitLog) -> Any:
    outcome = None
    while outcome is None:
        match commit_log.awaited:
            case AppendLog() as effect:
                _, outcome = commit_log.handle(log.append(effect))
            case ReadLog(start=start):
                _, outcome = commit_log.handle(LogRead(start, log.data[start:], log.etag))
            case _:
                _, outcome = commit_log.handle(TimerFired(TIMER))
    return outcome


@pytest.mark.requirement("S6.3-fenced-append", "S6.8-fence-refuses-older")
def test_a_refusal_by_the_store_is_final() -> None:
    _, commit_log = started()
    commit_log.append(OURS)
    assert commit_log.handle(LogFenced()) == ([], Fenced())


@pytest.mark.decision("D27")
def test_an_unanswered_append_that_was_done_is_recognized() -> None:
    log, commit_log = started()
    commit_log.append(OURS)
    start = len(log.data)
    log.put(OURS)
    assert commit_log.handle(LogUnanswered()) == ([SetTimer(TIMER, RETRY_FIRST_MS)], None)
    assert reread(log, commit_log, commit_log.handle(TimerFired(TIMER))) == ([], Recorded(start, None))


@pytest.mark.decision("D27-same-values")
def test_an_unanswered_append_that_was_not_done_is_repeated_the_same() -> None:
    log, commit_log = started()
    sent = commit_log.append(OURS)
    commit_log.handle(LogUnanswered())
    assert reread(log, commit_log, commit_log.handle(TimerFired(TIMER))) == sent


@pytest.mark.decision("D47-session")
@pytest.mark.parametrize("reading", [False, True])
def test_a_log_that_has_lost_octets_is_not_tried_again(reading: bool) -> None:
    _, commit_log = started()
    commit_log.append(OURS)
    if reading:
        commit_log.handle(LogMoved())
    assert commit_log.handle(LogUnanswered("octets 7 to 9 are gone")) == ([], Fenced())


@pytest.mark.decision("D27-same-values")
def test_it_is_never_given_up_only_tried_less_often() -> None:
    log, commit_log = started()
    commit_log.append(OURS)
    delays = []
    for _ in range(12):
        [timer], outcome = commit_log.handle(LogUnanswered())
        assert isinstance(timer, SetTimer)
        assert outcome is None
        delays.append(timer.delay_ms)
        commit_log.handle(TimerFired(TIMER))  # reads, and gets no answer either
    assert delays == sorted(delays)
    assert (delays[0], delays[-1]) == (RETRY_FIRST_MS, RETRY_MOST_MS)
    commit_log.handle(LogUnanswered())
    reread(log, commit_log, commit_log.handle(TimerFired(TIMER)))
    commit_log.handle(LogAppended('"9"', 0))
    commit_log.append(commit(2, 3, 6, before=(4, 5)))
    assert commit_log.handle(LogUnanswered())[0] == [SetTimer(TIMER, RETRY_FIRST_MS)]  # begins anew


@pytest.mark.decision("D20-void")
def test_a_log_moved_by_void_records_alone_is_appended_to_again() -> None:
    log, commit_log = started(enforces=False)
    commit_log.append(OURS)
    log.put(commit(1, 2, 7, before=(4,)))  # an old verifier at a store that cannot refuse it
    [again], outcome = reread(log, commit_log, commit_log.handle(LogMoved()))
    assert again == AppendLog(LOG, OURS.encode(), log.etag)
    assert outcome is None
    start = len(log.data)
    log.put(OURS)
    assert reread(log, commit_log, commit_log.handle(LogAppended(log.etag or "", 3))) == ([], Recorded(start, 3))


@pytest.mark.parametrize(
    "others",
    [
        [FenceRecord(epoch=3)],
        [FenceRecord(epoch=3), OURS],  # ours came too late: void
        [commit(2, 2, 6, before=(4,))],  # our epoch, and not sent by us
        [commit(2, 2, 6, before=(4,)), OURS],
        [replace(OURS, m_cap=3)],  # the same tokens and another verdict: of a process that died and sent it before
        [FenceRecord(epoch=3), commit(3, 2, 6, before=(4,))],
    ],
)
@pytest.mark.requirement("S6.8-read-back")
@pytest.mark.parametrize("answer", [LogMoved(), LogUnanswered()])
def test_what_else_can_stand_in_the_log_stops_the_writer(answer: Any, others: list[CommitRecord | FenceRecord]) -> None:
    log, commit_log = started()
    commit_log.append(OURS)
    log.put(*others)
    step = commit_log.handle(answer)
    step = commit_log.handle(TimerFired(TIMER)) if isinstance(answer, LogUnanswered) else step
    assert reread(log, commit_log, step) == ([], Fenced())


def test_a_fence_after_our_record_leaves_it_valid_and_stops_the_next() -> None:
    log, commit_log = started(enforces=False)
    commit_log.append(OURS)
    start = len(log.data)
    log.put(OURS, FenceRecord(epoch=3))
    assert reread(log, commit_log, commit_log.handle(LogMoved())) == ([], Recorded(start, None))
    assert commit_log.append(commit(2, 3, 6, before=(4, 5))) == ([], Fenced())


@pytest.mark.requirement("S6.8-read-back")
@pytest.mark.parametrize("answer", [LogAppended('"9"', None), LogMoved(), LogUnanswered()])
def test_our_record_counts_although_the_next_verifier_has_gone_on_from_it(answer: Any) -> None:
    log, commit_log = started(enforces=False)
    commit_log.append(OURS)
    start = len(log.data)
    log.put(OURS, FenceRecord(epoch=3), commit(3, 3, 6, before=(4, 5)))
    step = commit_log.handle(answer)
    step = commit_log.handle(TimerFired(TIMER)) if isinstance(answer, LogUnanswered) else step
    assert reread(log, commit_log, step) == ([], Recorded(start, None))
    assert commit_log.append(commit(2, 3, 7, before=(4, 5))) == ([], Fenced())


def test_our_record_does_not_count_for_us_when_another_process_has_gone_on_from_it() -> None:
    log, commit_log = started()
    commit_log.append(OURS)
    log.put(OURS, commit(2, 3, 6, before=(4, 5)))
    assert reread(log, commit_log, commit_log.handle(LogMoved())) == ([], Fenced())


@pytest.mark.requirement("S6.8-fence-refuses-older")
@pytest.mark.parametrize("appended", [True, False], ids=["it came before the fence", "it never came"])
def test_a_refusal_is_looked_into_when_an_earlier_copy_may_have_come(appended: bool) -> None:
    log, commit_log = started()
    commit_log.append(OURS)
    commit_log.handle(LogUnanswered())
    assert reread(log, commit_log, commit_log.handle(TimerFired(TIMER)))[0], "it is not there yet, and is sent again"
    start = len(log.data)
    log.put(*([OURS] if appended else []), FenceRecord(epoch=3))
    expected = Recorded(start, None) if appended else Fenced()
    assert reread(log, commit_log, commit_log.handle(LogFenced())) == ([], expected)


@pytest.mark.requirement("S6.8-read-back")
def test_without_fences_in_the_store_every_append_is_read_back() -> None:
    log, commit_log = started(enforces=False)
    commit_log.append(OURS)
    log.put(FenceRecord(epoch=3), OURS)  # a store that let it pass
    assert reread(log, commit_log, commit_log.handle(LogAppended('"x"', 0))) == ([], Fenced())


@pytest.mark.parametrize("read", [LogRead(0, b"", None), LogRead(0, b"\xff", '"7"'), LogRead(0, b"\x01", '"7"')])
def test_a_log_that_vanished_or_cannot_be_read_counts_as_fenced(read: LogRead) -> None:
    _, commit_log = started()
    commit_log.append(OURS)
    commit_log.handle(LogMoved())
    assert commit_log.handle(read) == ([], Fenced())


@pytest.mark.parametrize("late", [LogAppended('"1"', 0), LogMoved(), LogFenced(), LogUnanswered(), TimerFired(TIMER)])
def test_late_answers_change_nothing(late: Any) -> None:
    _, commit_log = started()
    assert commit_log.handle(late) == ([], None)


def test_one_record_at_a_time() -> None:
    _, commit_log = started()
    commit_log.append(OURS)
    with pytest.raises(RuntimeError):
        commit_log.append(OURS)


@given(st.data())
@pytest.mark.requirement("S6.8-fence-refuses-older", "S6.3-append-before-release")
def test_whatever_happens_recorded_means_valid_in_the_log(data: st.DataObject) -> None:
    """Lost answers, delayed appends, stale writers and fences in any order, with and without fences in the store."""
    log, commit_log = started(enforces=data.draw(st.booleans()))
    output, recorded, pending = (4,), 0, [*commit_log.append(OURS)[0]]
    in_flight: list[AppendLog] = []
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(["effect", "effect", "effect", "lost", "stale", "fence", "flight"])):
            case "fence" if data.draw(st.booleans()):
                log.put(FenceRecord(epoch=max(3, log.fence)))
            case "stale" if not log.enforces:
                log.put(commit(1, 2, 7, before=(4,)))
            case "flight" if in_flight:
                log.append(in_flight.pop())  # a request that was given up arrives after all
            case "lost" if pending and not isinstance(pending[0], SetTimer):
                effect = pending.pop(0)
                if isinstance(effect, AppendLog):
                    in_flight.append(effect)
                step = commit_log.handle(LogUnanswered())
                pending, outcome = [*step[0]], step[1]
                assert outcome is None
            case "effect" if pending:
                step = commit_log.handle(_perform(log, pending.pop(0)))
                pending, outcome = [*step[0]], step[1]
                if isinstance(outcome, Fenced):
                    break
                if isinstance(outcome, Recorded):
                    recorded += 1
                    output += (5,)
                    assert log.tokens[: len(output)] == output
                    step = commit_log.append(commit(2, recorded + 2, 5, before=output))
                    pending, outcome = [*step[0]], step[1]
                    if isinstance(outcome, Fenced):
                        break
    assert len({record.round for record in log.records()}) == len(log.records())  # nothing twice


def _perform(log: Log, effect: Any) -> Any:
    match effect:
        case AppendLog():
            return log.append(effect)
        case ReadLog():
            return LogRead(effect.start, log.data[effect.start :], log.etag)
        case _:
            return TimerFired(effect.name)
