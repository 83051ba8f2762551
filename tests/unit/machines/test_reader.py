"""Reading commit logs: which records count (6.8, D20)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp.errors import MalformedBody
from sdcp.machines.reader import BrokenLog, LogReader, replayed_verdict, verdict_of
from sdcp.messages.contract import Action
from sdcp.messages.record import CommitRecord, FenceRecord
from sdcp.rules.digest import extend_all

START = b"0" * 32


def commit(epoch: int, round: int, *tokens: int, before: tuple[int, ...] = (), **members: object) -> CommitRecord:
    output = before + tokens
    return CommitRecord(
        epoch=epoch,
        round=round,
        tokens=tokens,
        committed=len(output),
        digest=extend_all(START, output),
        **members,  # type: ignore[arg-type]
    )


def encoded(*records: CommitRecord | FenceRecord) -> bytes:
    return b"".join(record.encode() for record in records)


@pytest.mark.requirement("S6.8-fence-refuses-older")
@pytest.mark.decision("D20-void")
def test_a_commit_record_after_a_higher_fence_is_void_and_skipped() -> None:
    first, void, second = commit(1, 1, 4), commit(1, 2, 5, before=(4,)), commit(2, 2, 6, before=(4,))
    reader = LogReader(START)
    entries = list(reader.entries(encoded(first, FenceRecord(epoch=2), void, second)))
    assert [entry.void for entry in entries] == [False, False, True, False]
    assert (reader.last, reader.fence) == (second, 2)


def test_offsets_are_where_each_record_starts() -> None:
    records = [commit(1, 1, 4), FenceRecord(epoch=2), commit(2, 2, 5, before=(4,))]
    data = encoded(*records)
    for entry in LogReader().entries(data):
        assert data[entry.start :].startswith(entry.record.encode())


@given(st.data())
def test_reading_in_portions_is_reading_at_once(data: st.DataObject) -> None:
    records = [commit(1, 1, 4), FenceRecord(epoch=3), commit(2, 2, 7, before=(4,)), commit(3, 2, 5, before=(4,))]
    whole, portions = LogReader(START), LogReader(START)
    whole.read(encoded(*records))
    cut = data.draw(st.integers(0, len(records)))
    portions.read(encoded(*records[:cut]))
    portions.read(encoded(*records[cut:]))
    assert (portions.size, portions.fence, portions.last) == (whole.size, whole.fence, whole.last)


@pytest.mark.requirement("S4.2-chain-step")
@pytest.mark.parametrize(
    "second",
    [
        commit(1, 3, 5, before=(4,)),  # a round is missing
        commit(1, 2, 5, before=(4, 4)),  # n is not the sum
        commit(1, 2, 5, before=(6,)),  # another chain
    ],
)
def test_with_d0_a_log_whose_records_do_not_follow_is_broken(second: CommitRecord) -> None:
    with pytest.raises(BrokenLog):
        LogReader(START).read(encoded(commit(1, 1, 4), second))


@pytest.mark.decision("D5", "D20")
def test_with_d0_a_token_that_has_no_four_octets_breaks_the_log_and_nothing_else() -> None:
    record = CommitRecord(epoch=1, round=1, tokens=(2**32,), committed=1, digest=START)
    with pytest.raises(BrokenLog, match="2\\^32"):
        LogReader(START).read(encoded(record))
    LogReader().read(encoded(record))  # who does not follow the chain does not care


def test_half_a_record_is_refused_and_what_precedes_it_was_read() -> None:
    reader = LogReader()
    with pytest.raises(MalformedBody):
        reader.read(encoded(commit(1, 1, 4), commit(1, 2, 5))[:-1])
    assert reader.last == commit(1, 1, 4)


VERDICT = {"accepted": 0, "action": Action.REDUCE, "m_cap": 3, "low": 1, "load": 7}


@pytest.mark.requirement("S6.3-idempotency")
def test_a_verdict_is_replayed_from_the_log_that_follows_it() -> None:
    record = commit(2, 5, 4, **VERDICT)
    verdict = replayed_verdict(b"s" * 16, 5, encoded(record, commit(2, 6, 5))[:-3])
    assert verdict == verdict_of(b"s" * 16, record)
    assert (verdict.round, verdict.emitted, verdict.action, verdict.m_cap) == (5, (4,), Action.REDUCE, 3)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        encoded(FenceRecord(epoch=2)),
        encoded(commit(2, 6, 4, **VERDICT)),
        encoded(commit(2, 5, 4)),  # a self-decoding round has no verdict (D29)
        encoded(commit(2, 5, 4, **VERDICT))[:-2],
    ],
)
def test_no_verdict_is_made_of_anything_else(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"record|round"):
        replayed_verdict(b"s" * 16, 5, data)
