"""Fence and epoch of a log, record by record (6.8, docs/mlc.md)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp.errors import MalformedBody
from sdcp.messages.record import CommitRecord, FenceRecord
from sdcp.ports import LogFencedError
from sdcp.stores.records import NO_RECORDS, _recognized, _records, advance, follow
from sdcp.wire import cbor
from tests.unit.stores.samples import commit, fence

RECORDS = st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=12)


def _plain(records: list[tuple[bool, int]]) -> bool:
    """Whether all may be appended in turn, said as docs/mlc.md says it."""
    for index, (is_fence, epoch) in enumerate(records):
        before = records[:index]
        if is_fence and any(epoch <= other for _, other in before):
            return False
        if not is_fence and any(epoch < other for fences, other in before if fences):
            return False
    return True


@given(RECORDS, st.integers(0, 12))
def test_one_append_or_many_are_judged_alike_and_as_the_text_says(records, cut):
    encoded = [fence(epoch) if is_fence else commit(epoch) for is_fence, epoch in records]
    parts = [part for part in (b"".join(encoded[:cut]), b"".join(encoded[cut:])) if part]
    epochs, allowed = NO_RECORDS, True
    try:
        for part in parts:
            epochs = advance(epochs, part)
    except LogFencedError:
        allowed = False
    assert allowed == _plain(records)
    if allowed:
        assert epochs[0] == max((epoch for is_fence, epoch in records if is_fence), default=None)
        assert epochs[1] == max(epoch for _, epoch in records)


def test_a_refused_append_says_what_is_in_its_way():
    with pytest.raises(LogFencedError, match="fenced at epoch 4"):
        advance((4, 4), commit(3))
    with pytest.raises(LogFencedError, match="holds epoch 4"):
        advance((2, 4), fence(3))


def _strictly(data: bytes) -> tuple[object, str]:
    """What the decoder alone makes of an append."""
    try:
        return follow(NO_RECORDS, _records(data)), ""
    except (MalformedBody, LogFencedError) as refusal:
        return type(refusal), str(refusal)


def _as_it_is(data: bytes) -> tuple[object, str]:
    try:
        return advance(NO_RECORDS, data), ""
    except (MalformedBody, LogFencedError) as refusal:
        return type(refusal), str(refusal)


UINT = st.one_of(
    st.sampled_from([0, 1, 23, 24, 255, 256, 2**16, 2**32, 2**64 - 1]), st.integers(0, 2**64 - 1), st.integers(0, 30)
)
OUR_RECORDS = st.one_of(
    st.builds(FenceRecord, epoch=UINT),
    st.builds(
        CommitRecord,
        epoch=UINT,
        round=UINT,
        tokens=st.lists(UINT, max_size=30).map(tuple),
        committed=UINT,
        digest=st.binary(min_size=32, max_size=32),
        proposed=st.none() | UINT,
        accepted=st.none() | UINT,
        m_cap=st.none() | UINT,
        low=st.none() | UINT,
        load=st.none() | st.integers(0, 100),
        g=st.none() | UINT,
        j=st.none() | UINT,
    ),
).map(lambda record: record.encode())
OTHER_MAPS = st.dictionaries(
    st.sampled_from(["epoch", "round", "g", "tokens", "other"]) | st.text(max_size=3),
    st.one_of(
        UINT,
        st.integers(-(2**64), 2**64 - 1),
        st.binary(max_size=40),
        st.text(max_size=5),
        st.lists(UINT, max_size=3),
        st.none(),
    ),
    max_size=6,
).map(cbor.encode)
_HEADS = st.sampled_from(
    [0x17, 0x18, 0x19, 0x1A, 0x1B, 0x58, 0x80, 0x97, 0x98, 0x9F, 0xA0, 0xA1, 0xA2, 0xB7, 0xBF, 0xFF]
)


@given(st.data())
def test_what_is_recognized_is_what_the_decoder_makes_of_it(data):
    """Records of ours and of others, whole, cut short, and with octets changed, put in and taken out."""
    octets = bytearray(b"".join(data.draw(st.lists(OUR_RECORDS | OTHER_MAPS | st.binary(max_size=8), max_size=3))))
    for _ in range(data.draw(st.integers(0, 3)) if octets else 0):
        at = data.draw(st.integers(0, len(octets)))
        kept = data.draw(st.integers(0, 2))
        octets[at : at + kept] = bytes(data.draw(st.lists(_HEADS | st.integers(0, 255), max_size=2)))
    mutated = bytes(octets[: data.draw(st.integers(0, len(octets)))] if data.draw(st.booleans()) else octets)
    assert _as_it_is(mutated) == _strictly(mutated)


def test_every_octet_of_a_record_changed_to_every_other_and_every_end():
    record = CommitRecord(
        epoch=300, round=1, tokens=(1, 70_000), committed=2, digest=bytes(32), g=2**40, j=1, low=0, load=50, m_cap=4
    ).encode()
    for at in range(len(record)):
        assert _as_it_is(record[:at]) == _strictly(record[:at])
        for value in range(256):
            changed = record[:at] + bytes((value,)) + record[at + 1 :]
            assert _as_it_is(changed) == _strictly(changed)


def test_our_records_are_recognized():
    """Else every append costs the decoder, and nothing but its time tells."""
    record = CommitRecord(
        epoch=1, round=2, tokens=tuple(range(20)), committed=3, digest=bytes(32), proposed=5, accepted=5, action=1
    )
    assert _recognized(record.encode() + FenceRecord(epoch=2**33).encode()) == [(1, True), (2**33, False)]
