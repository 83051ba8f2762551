"""What appended records do to a log's fence and epoch (6.8, D20, docs/mlc.md). Pure: no store, no files.

Only what the fence needs is read of a record: that it is a map, its epoch, and whether it is a commit record, which is
one that has a `round`. Everything else in it is the business of those who write and read logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sdcp.errors import MalformedBody
from sdcp.messages.fields import U64_MAX
from sdcp.ports import LogFencedError
from sdcp.wire import cbor

Epochs = tuple[int | None, int]
"""The highest fence (None: no fence yet) and the highest epoch of any record (-1: no record yet) of a log."""

NO_RECORDS: Epochs = (None, -1)


def advance(epochs: Epochs, data: bytes) -> Epochs:
    """Return fence and epoch after the records in `data`, in order.

    LogFencedError: a commit record below the highest fence, or a fence that is not above every epoch before it.
    MalformedBody: not a CBOR sequence of at least one record, or one that ends inside a record.
    """
    return follow(epochs, _records(data))


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


def _records(data: bytes) -> Iterator[tuple[int, bool]]:
    for _, value in cbor.decode_sequence(data):
        epoch = value.get("epoch") if isinstance(value, dict) else None
        if type(epoch) is not int or not 0 <= epoch <= U64_MAX:
            raise MalformedBody("each record must be a map whose `epoch` is an unsigned integer")
        yield epoch, isinstance(value, dict) and "round" in value
