"""What appended records do to a log's fence and epoch (6.8, D20, docs/mlc.md). Pure: no store, no files.

Only what the fence needs is read of a record: that it is a map, its epoch, and whether it is a commit record, which is
one that has a `round`. Everything else in it is the business of those who write and read logs.

Records as our roles encode them are recognized by one regular expression, which takes a seventh of the time of the
decoder. It says yes only to what the decoder takes; whatever it does not recognize, the decoder judges.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import fields

from sdcp.errors import MalformedBody
from sdcp.messages.fields import U64_MAX
from sdcp.messages.record import CommitRecord
from sdcp.ports import LogFencedError
from sdcp.wire import cbor

Epochs = tuple[int | None, int]
"""The highest fence (None: no fence yet) and the highest epoch of any record (-1: no record yet) of a log."""

NO_RECORDS: Epochs = (None, -1)


def _record_pattern() -> re.Pattern[bytes]:
    """A map of members of a commit record, in the order of their encoded keys, `epoch` among them.

    Group 1 is the head of the map, then one group for each member, absent (None) or not. That as many members are there
    as the head says is left to whoever matches.
    """
    uint = rb"(?:[\x00-\x17]|\x18.|\x19.{2}|\x1a.{4}|\x1b.{8})"
    arrays = b"|".join(re.escape(bytes((0x80 + size,))) + uint + b"{%d}" % size for size in range(24))
    value = rb"(?:%b|\x58\x20.{32}|%b)" % (uint, arrays)
    members = []
    for key in sorted(cbor.encode(each.name) for each in fields(CommitRecord)):
        is_epoch = key == cbor.encode("epoch")
        members.append(re.escape(key) + b"(" + uint + b")" if is_epoch else b"(" + re.escape(key) + value + b")?")
    return re.compile(rb"([\xa1-\xb7])" + b"".join(members), re.DOTALL)


_RECORD = _record_pattern()
_KEYS = sorted((each.name for each in fields(CommitRecord)), key=lambda name: (len(name), name))  # as they are encoded
_EPOCH, _ROUND = _KEYS.index("epoch") + 1, _KEYS.index("round") + 1  # among the groups, after the head


def advance(epochs: Epochs, data: bytes) -> Epochs:
    """Return fence and epoch after the records in `data`, in order.

    LogFencedError: a commit record below the highest fence, or a fence that is not above every epoch before it.
    MalformedBody: not a CBOR sequence of at least one record, or one that ends inside a record.
    """
    return follow(epochs, epochs_of(data))


def epochs_of(data: bytes) -> Iterable[tuple[int, bool]]:
    """Of each record its epoch, and whether it is a commit record. MalformedBody, at the latest when iterated."""
    return _recognized(data) or _records(data)


def follow(epochs: Epochs, records: Iterable[tuple[int, bool]]) -> Epochs:
    """The same for records that are read already: of each its epoch, and whether it is a commit record."""
    fence, highest = epochs
    empty = True
    for epoch, commits in records:
        empty = False
        if commits and fence is not None and epoch < fence:
            raise LogFencedError(f"the log is fenced at epoch {fence}; a record of epoch {epoch} is refused")
        if not commits and epoch <= highest:
            raise LogFencedError(f"the log holds epoch {highest}; a fence of epoch {epoch} is not above it")
        fence = fence if commits else epoch
        highest = max(highest, epoch)
    if empty:
        raise MalformedBody("the body holds no record; append at least one")
    return fence, highest


def _recognized(data: bytes) -> list[tuple[int, bool]] | None:
    """Epoch and kind of each record, when all of them are as our roles encode them; else None."""
    records: list[tuple[int, bool]] = []
    at, size = 0, len(data)
    while at < size:
        match = _RECORD.match(data, at)
        if match is None:
            return None
        groups = match.groups()
        if len(groups) - groups.count(None) - 1 != groups[0][0] - 0xA0:
            return None
        epoch = groups[_EPOCH]
        records.append((epoch[0] if len(epoch) == 1 else int.from_bytes(epoch[1:], "big"), groups[_ROUND] is not None))
        at = match.end()
    return records


def _records(data: bytes) -> Iterator[tuple[int, bool]]:
    for _, value in cbor.decode_sequence(data):
        epoch = value.get("epoch") if isinstance(value, dict) else None
        if type(epoch) is not int or not 0 <= epoch <= U64_MAX:
            raise MalformedBody("each record must be a map whose `epoch` is an unsigned integer")
        yield epoch, isinstance(value, dict) and "round" in value
