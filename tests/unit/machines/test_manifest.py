"""What the records of a manifest say together, and a prompt that is too long for one of them (D45)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp.errors import InvalidContent, MalformedBody
from sdcp.machines.manifest import MOST_TOKENS, Manifest, request_records
from sdcp.machines.manifest_log import ManifestLog
from sdcp.messages.contract import Sampling
from sdcp.messages.manifest import ACCEPTED, AssignedRecord, EndRecord, OpenedRecord, PolicyRecord, WithdrawnRecord
from sdcp.wire import cbor
from tests.unit.machines.kept_bench import FIRST, MANIFEST
from tests.unit.messages.samples import MESSAGES


def octets(*records: Any) -> bytes:
    return b"".join(replace(each, epoch=number).encode() for number, each in enumerate(records, start=1))


def told(data: bytes) -> Manifest:
    manifest = Manifest()
    manifest.take(data)
    return manifest


def with_prompt(length: int) -> Any:
    prompt = tuple(range(length))
    return replace(FIRST, request=replace(FIRST.request, prompt=prompt), prompt_length=length)


@pytest.mark.decision("D45-prompt")
@pytest.mark.parametrize("length", [0, 3, MOST_TOKENS, MOST_TOKENS + 1, 2 * MOST_TOKENS + 7])
def test_a_prompt_of_any_length_is_put_together_again(length: int) -> None:
    first = with_prompt(length)
    records = list(request_records(first))
    assert len(records) == max(1, -(-length // MOST_TOKENS))
    assert max(len(each.encode()) for each in records) < 1 << 20
    manifest = told(octets(*records))
    assert replace(manifest.first, epoch=0) == first
    assert manifest.request == first.request


@pytest.mark.decision("D45-prompt")
def test_a_long_prompt_is_appended_piece_by_piece() -> None:
    log = ManifestLog(MANIFEST)
    for record in request_records(with_prompt(2 * MOST_TOKENS)):
        log.write(record)
    (append,) = log.go()
    assert len(append.data) < 1 << 20
    assert not told(append.data).whole


def test_a_manifest_without_a_whole_request_is_nothing_to_go_on_from() -> None:
    first, *_ = request_records(with_prompt(MOST_TOKENS + 1))
    for manifest in (told(b""), told(octets(first)), told(octets(WithdrawnRecord()))):
        assert not manifest.whole
        with pytest.raises(InvalidContent):
            _ = manifest.first


@given(st.lists(st.sampled_from(list(MESSAGES)).flatmap(lambda cls: MESSAGES[cls]), max_size=8), st.data())
def test_a_manifest_says_the_same_read_at_once_or_in_pieces(records: list[Any], data: st.DataObject) -> None:
    kept = [FIRST, *(each for each in records if hasattr(each, "kind") and type(each) is not type(FIRST))]
    whole = octets(*(each for each in kept if type(each).__module__ == "sdcp.messages.manifest"))
    ends = [0, *(end for end, _ in cbor.decode_sequence(whole))]
    cut = data.draw(st.sampled_from(ends))
    pieces = told(whole[:cut])
    pieces.take(whole[cut:])
    at_once = told(whole)
    assert vars(pieces) == vars(at_once)
    assert (pieces.size, pieces.last) == (len(whole), len(ends) - 1)


def test_what_is_of_a_kind_not_known_is_counted_and_skipped() -> None:
    later = cbor.encode({"epoch": 2, "kind": "later"})
    manifest = told(octets(FIRST) + later + replace(EndRecord(ended=4, committed=0), epoch=3).encode())
    assert (manifest.last, manifest.whole, manifest.end is not None) == (3, True, True)


@pytest.mark.parametrize("opened", [[], [OpenedRecord(serving=2, verifier="https://v/")]])
def test_a_drafter_of_no_epoch_that_was_opened_last_is_not_gone_on_with(opened: list[Any]) -> None:
    assigned = AssignedRecord(
        serving=1, after=0, verifier="https://v/", drafter="https://d/", committed=0, digest=bytes(32), m_init=4
    )
    assert told(octets(FIRST, *opened, assigned)).assigned is None
    same = OpenedRecord(serving=1, verifier="https://v/")
    assert told(octets(FIRST, *opened, same, assigned)).assigned is not None


def test_what_is_no_manifest_is_refused() -> None:
    with pytest.raises(InvalidContent):
        told(octets(FIRST, FIRST))
    with pytest.raises(MalformedBody):
        told(cbor.encode({"epoch": 1}))


@pytest.mark.parametrize("number", [0, 1, 3, 2**64 - 1])
def test_a_record_that_does_not_follow_the_one_before_it_is_refused(number: int) -> None:
    """Records are missing, then, or come twice: what is left may say what never was."""
    manifest = Manifest()
    with pytest.raises(InvalidContent, match=f"Record 2 of the manifest has the number {number}"):
        manifest.take(octets(FIRST) + replace(WithdrawnRecord(), epoch=number).encode())
    assert (manifest.last, manifest.withdrawn) == (1, False)


def test_a_policy_before_any_request_belongs_to_no_session() -> None:
    policy = PolicyRecord(stage=ACCEPTED, after=0, from_round=1, sampling=Sampling())
    manifest = told(octets(policy))
    assert not manifest.whole
    assert [each.session for each, _ in manifest.accepted] == [b""]
