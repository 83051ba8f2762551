"""Records of a manifest: told apart by `kind`, unknown kinds skipped, and fit for the law of a log's epochs (D45)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp.errors import MalformedBody
from sdcp.messages.manifest import _KINDS as KINDS
from sdcp.messages.manifest import EndRecord, WithdrawnRecord, parse_manifest_record
from sdcp.stores.records import NO_RECORDS, advance
from sdcp.wire import cbor
from tests.unit.messages.samples import MESSAGES

RECORD = st.sampled_from(list(KINDS.values())).flatmap(lambda cls: MESSAGES[cls])


@given(RECORD)
def test_a_record_is_known_again_by_its_kind(record: Any) -> None:
    assert parse_manifest_record(cbor.decode(record.encode())) == record


@pytest.mark.decision("D45-records")
@given(st.lists(RECORD, min_size=1, max_size=6))
def test_a_cache_takes_any_records_of_a_manifest_for_commit_records(records: list[Any]) -> None:
    data = b"".join(record.encode() for record in records)
    assert advance(NO_RECORDS, data) == (None, max(record.epoch for record in records))


def test_a_record_of_a_kind_that_is_not_known_is_nothing() -> None:
    assert parse_manifest_record({"epoch": 1, "round": 0, "kind": "later"}) is None


@pytest.mark.parametrize("value", [{"epoch": 1, "round": 0}, {"kind": 7}, [], {"kind": "end", "epoch": 1, "round": 0}])
def test_what_is_no_record_is_refused(value: Any) -> None:
    with pytest.raises(MalformedBody):
        parse_manifest_record(value)


def test_a_record_of_one_kind_is_not_read_as_another() -> None:
    plain = WithdrawnRecord(epoch=1, round=2).to_plain()
    with pytest.raises(MalformedBody, match="'kind'"):
        EndRecord.parse({**plain, "ended": 4, "committed": 0})
