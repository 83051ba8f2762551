"""Reading a commit log: which of its records count (6.8, D20).

Words: a *fence* record carries only an epoch; a commit record that follows a fence of higher epoch is *void*, and every
reader skips it; the rest are *valid*. Reading is incremental: feed the octets from `size` onwards, in any portions of
whole records. Not here: fetching the octets, and what a writer makes of them (`commit_log`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sdcp.errors import InvalidContent, MalformedBody
from sdcp.messages.contract import Action
from sdcp.messages.record import CommitRecord, FenceRecord, Record, parse_record
from sdcp.messages.round import Verdict
from sdcp.rules.digest import extend_all
from sdcp.wire import cbor


class BrokenLog(InvalidContent):
    """The valid records of a log do not follow each other: a round is missing, or the digest chain is cut."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One record, the octet at which it starts, and whether it is void."""

    start: int
    record: Record
    void: bool = False


class LogReader:
    """What a log says so far. `size`: octets read; `fence`: highest fence, 0 for none; `last`: last valid record.

    Given d[0] as `digest`, it also checks that valid records have consecutive rounds and extend the chain (4.2).
    """

    __slots__ = ("_digest", "fence", "last", "size")

    def __init__(self, digest: bytes | None = None) -> None:
        self.size = 0
        self.fence = 0
        self.last: CommitRecord | None = None
        self._digest = digest

    def entries(self, data: bytes) -> Iterator[Entry]:
        """Yield the records of the octets that follow `size`; void ones too, marked.

        Raises MalformedBody for what is no sequence of whole records, BrokenLog for a broken chain.
        """
        origin = start = self.size
        for end, value in cbor.decode_sequence(data):
            entry = self._take(start, parse_record(value))
            self.size = start = origin + end
            yield entry

    def read(self, data: bytes) -> None:
        """Take note of the octets that follow `size`, for `fence` and `last` alone. Raises as `entries`."""
        for _ in self.entries(data):
            pass

    def _take(self, start: int, record: Record) -> Entry:
        if isinstance(record, FenceRecord):
            self.fence = max(self.fence, record.epoch)
            return Entry(start, record)
        if record.epoch < self.fence:
            return Entry(start, record, void=True)
        if self._digest is not None:
            self._follow(self._digest, record)
        self.last = record
        return Entry(start, record)

    def _follow(self, digest: bytes, record: CommitRecord) -> None:
        round, committed = (self.last.round, self.last.committed) if self.last else (0, 0)
        if record.round != round + 1 or record.committed != committed + len(record.tokens):
            raise BrokenLog(f"The log's record of round {record.round} does not follow round {round}.")
        try:
            self._digest = extend_all(digest, record.tokens)
        except ValueError:
            raise BrokenLog(f"The log's record of round {record.round} has a token not below 2^32 (D5).") from None
        if record.digest != self._digest:
            raise BrokenLog(f"The log's record of round {record.round} does not extend the digest chain.")


def verdict_of(session: bytes, record: CommitRecord) -> Verdict:
    """Return the verdict that a commit record of ours holds (6.3 step 3, D20).

    ValueError for a record of a self-decoding round, or of a writer that does not record verdicts.
    """
    if record.accepted is None or record.m_cap is None or record.low is None or record.load is None:
        raise ValueError(f"round {record.round} has no verdict in the log")
    return Verdict(
        session=session,
        epoch=record.epoch,
        round=record.round,
        accepted=record.accepted,
        emitted=record.tokens,
        committed=record.committed,
        digest=record.digest,
        action=Action.CONTINUE if record.action is None else record.action,
        m_cap=record.m_cap,
        low=record.low,
        load=record.load,
    )


def replayed_verdict(session: bytes, round: int, data: bytes) -> Verdict:
    """Return the verdict of `round` from log octets that start with its record (answers ReplayVerdict).

    ValueError when they do not; the octets may end inside a later record.
    """
    try:
        _, value = next(cbor.decode_sequence(data))
        record = parse_record(value)
    except (MalformedBody, StopIteration):
        raise ValueError("the log has no record at this place") from None
    if not isinstance(record, CommitRecord) or record.round != round:
        raise ValueError(f"the log has another record where round {round} is expected")
    return verdict_of(session, record)
