"""The watch finds what it is there to find: each invariant, broken once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sdcp.errors import StaleBase
from sdcp.machines.effects import Refuse, Reply
from sdcp.messages.contract import Action, Contract
from sdcp.messages.output import Output
from sdcp.messages.record import CommitRecord, FenceRecord
from sdcp.messages.round import Verdict
from sdcp.messages.session import SessionState
from sdcp.rules.digest import contract_digest, extend_all, prefix_digest
from sdcp.testing.checks import Broken, Watch

SESSION = b"s" * 16
PROMPT = (1, 2)
CONTRACT = Contract(
    target=b"T" * 32,
    tokenizer=b"t" * 32,
    rule=1,
    m_max=4,
    max_new=6,
    stop=(9,),
    low_rounds=1,
    fallback=(Action.FAIL,),
)
START = prefix_digest(contract_digest(CONTRACT.to_plain()), PROMPT)


def record(round: int, tokens: tuple[int, ...], before: tuple[int, ...] = (), **members: object) -> CommitRecord:
    good = CommitRecord(
        epoch=1,
        round=round,
        tokens=tokens,
        committed=len(before) + len(tokens),
        digest=extend_all(START, before + tokens),
        accepted=1,
        action=Action.CONTINUE,
        m_cap=4,
        low=0,
        load=0,
        g=1,
        j=0,
    )
    return replace(good, **members)  # type: ignore[arg-type]


FIRST = record(1, (5, 6))


def watch(*records: CommitRecord | FenceRecord, enforces_fences: bool = True) -> Watch:
    made = Watch(CONTRACT, PROMPT, (5, 6, 7, 8, 9), enforces_fences=enforces_fences)
    for each in records:
        made.appended(each.encode())
    return made


def verdict(**members: object) -> Verdict:
    good = Verdict(
        session=SESSION,
        epoch=1,
        round=1,
        accepted=1,
        emitted=(5, 6),
        committed=2,
        digest=FIRST.digest,
        action=Action.CONTINUE,
        m_cap=4,
        low=0,
        load=0,
    )
    return replace(good, **members)  # type: ignore[arg-type]


def output(*tokens: int, start: int = 0) -> Output:
    return Output(session=SESSION, epoch=1, from_=start, tokens=tokens, final=False)


def test_what_is_right_passes() -> None:
    good = watch(FIRST, FenceRecord(epoch=2), record(2, (7,), (5, 6), epoch=2))
    assert (good.tokens, good.fence, sorted(good.records)) == ([5, 6, 7], 2, [1, 2])
    good.leaves(Reply(1, verdict()))
    good.leaves(Reply(1, verdict()))
    good.leaves(Reply(2, output(6, 7, start=1)))
    good.leaves(Reply(3, output(start=9)))
    good.leaves(Reply(4, None))
    good.leaves(Refuse(5, StaleBase("behind")))


@pytest.mark.parametrize(
    "second",
    [
        record(3, (7,), (5, 6)),  # a round is missing
        record(1, (7,), (5, 6)),  # a round for the second time
        record(2, (7,), (5, 6), committed=4),
        record(2, (7,), (5, 5)),  # the chain is cut
        record(2, (8,), (5, 6)),  # not what plain decoding says
        record(2, (7,), (5, 6), epoch=2),  # no fence of this epoch
        record(2, (7, 8, 9, 1), (5, 6)),  # past the stop token
    ],
)
def test_records_that_do_not_follow_break_it(second: CommitRecord) -> None:
    with pytest.raises(Broken):
        watch(FIRST, second)


@pytest.mark.decision("D35", "D39")
def test_accounts_that_forget_an_earlier_epoch_break_it() -> None:
    second = record(2, (7,), (5, 6), epoch=2, proposed=3, accepted=0)
    made = watch(replace(FIRST, proposed=2), FenceRecord(epoch=2), second)
    made.leaves(Reply(1, replace(output(5), passes=1, proposed=2, accepted=1)))
    made.leaves(Reply(2, replace(output(5), passes=2, proposed=5, accepted=1)))
    for passes, proposed in ((2, 3), (1, 5), (3, 5)):
        with pytest.raises(Broken, match="D35"):
            made.leaves(Reply(3, replace(output(5), passes=passes, proposed=proposed, accepted=1)))


def test_more_than_max_new_breaks_it() -> None:
    made = Watch(CONTRACT, PROMPT)
    with pytest.raises(Broken, match="max_new"):
        made.appended(record(1, (1,) * 7).encode())


def test_a_record_behind_a_fence_breaks_it_where_the_store_should_have_refused_it() -> None:
    late = record(2, (7,), (5, 6))
    with pytest.raises(Broken, match="fence"):
        watch(FIRST, FenceRecord(epoch=2), late)
    void = watch(FIRST, FenceRecord(epoch=2), late, enforces_fences=False)
    assert (void.tokens, void.void) == ([5, 6], 1)
    with pytest.raises(Broken, match="durable"):
        void.leaves(Reply(1, verdict(round=2)))


def test_a_fence_that_is_not_above_the_last_breaks_it() -> None:
    with pytest.raises(Broken, match="fence"):
        watch(FenceRecord(epoch=3), FenceRecord(epoch=3))


@pytest.mark.parametrize(
    "early",
    [
        verdict(round=2),
        verdict(emitted=(5, 7)),
        verdict(accepted=0),
        verdict(epoch=2),
        verdict(action=Action.REDUCE),
        output(5, 6, 7),
        output(6),
        output(7, start=2),
        SessionState(session=SESSION, epoch=1, round=1, committed=3, digest=START),
        SessionState(session=SESSION, epoch=1, round=1, committed=2, digest=START),
    ],
)
def test_whatever_says_more_than_the_log_holds_breaks_it(early: Verdict | Output | SessionState) -> None:
    with pytest.raises(Broken):
        watch(FIRST).leaves(Reply(1, early))


@pytest.mark.parametrize("other", [lambda: verdict(load=7), lambda: verdict(m_cap=5), lambda: verdict(m_cap=0)])
def test_a_round_has_one_verdict_within_its_limits(other: Callable[[], Verdict]) -> None:
    made = watch(FIRST)
    made.leaves(Reply(1, verdict()))
    with pytest.raises(Broken):
        made.leaves(Reply(2, other()))


def test_a_state_inside_a_refusal_counts_too() -> None:
    state = SessionState(session=SESSION, epoch=1, round=1, committed=2, digest=START)
    with pytest.raises(Broken, match="session-state"):
        watch(FIRST).leaves(Refuse(1, StaleBase("behind"), state))
