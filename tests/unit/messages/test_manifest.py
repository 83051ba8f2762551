"""Records of a manifest: told apart by `kind`, unknown kinds skipped, and fit for the law of a log's epochs (D45)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp.errors import MalformedBody
from sdcp.messages.manifest import _KINDS as KINDS
from sdcp.messages.manifest import EndRecord, WithdrawnRecord, parse_manifest_record
from sdcp.ports import LogFencedError
from sdcp.stores.records import NO_RECORDS, advance
from sdcp.wire import cbor
from tests.unit.messages.samples import MESSAGES

RECORD = st.sampled_from(list(KINDS.values())).flatmap(lambda cls: MESSAGES[cls])


@given(RECORD)
def test_a_record_is_known_again_by_its_kind(record: Any) -> None:
    assert parse_manifest_record(cbor.decode(record.encode())) == record


@pytest.mark.decision("D45-records")
@given(st.lists(RECORD, min_size=2, max_size=6))
def test_a_cache_takes_the_records_of_a_manifest_for_fences_and_keeps_their_order(records: list[Any]) -> None:
    numbered = [replace(record, epoch=number) for number, record in enumerate(records, start=1)]
    epochs = advance(NO_RECORDS, b"".join(record.encode() for record in numbered))
    assert epochs == (len(records), len(records))
    for record in numbered:
        with pytest.raises(LogFencedError):
            advance(epochs, record.encode())


def test_a_record_of_a_kind_that_is_not_known_is_nothing() -> None:
    assert parse_manifest_record({"epoch": 3, "kind": "later"}) is None


@pytest.mark.parametrize(
    "value", [{"epoch": 1}, {"epoch": 1, "kind": 7}, [], {"kind": "withdrawn"}, {"kind": "end", "epoch": 1}]
)
def test_what_is_no_record_is_refused(value: Any) -> None:
    with pytest.raises(MalformedBody):
        parse_manifest_record(value)


def test_a_record_of_one_kind_is_not_read_as_another() -> None:
    plain = WithdrawnRecord(epoch=1).to_plain()
    with pytest.raises(MalformedBody, match="'kind'"):
        EndRecord.parse({**plain, "ended": 4, "committed": 0})
