"""Commit logs as anybody finds them: their records, and the files in which the durable store keeps them (6.8, D20).

The first octet of an input says what the rest is: records for the readers without or with the digest chain, one segment
of a journal, all files of a journal, or damage to a journal that was sound (`fuzz.targets.journals`).

What must hold for records: MalformedBody, or for a broken chain InvalidContent, and nothing else; what is whole is
served before a torn tail, and reading goes on from there; void records are skipped; a log that the store takes has no
void records, and its readers see the store's fence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate
from random import Random

from fuzz.attempts import attempt
from fuzz.cbor_mutator import Octets, mutate_sequence
from fuzz.seeds import CONTRACT, START, commit_records, log_bodies
from fuzz.targets import journals
from sdcp.errors import InvalidContent, MalformedBody
from sdcp.machines.reader import Entry, LogReader, replayed_verdict
from sdcp.machines.recorded import Recorded
from sdcp.machines.verifier_account import Account
from sdcp.messages.output import Output
from sdcp.messages.record import CommitRecord, FenceRecord
from sdcp.ports import LogFencedError
from sdcp.rules.digest import extend_all
from sdcp.stores.records import NO_RECORDS, advance
from sdcp.wire import cbor

SESSION = bytes(16)


def one(data: bytes) -> None:
    """Try one log."""
    kind = data[0] % len(_KINDS) if data else 0
    _KINDS[kind](data[1:])


# -- records without the chain -----------------------------------------------------------------------------------------


def _records(data: bytes) -> None:
    entries, reader, refusal = _read(data)
    assert reader.size == (entries[-1].start + _length(data, entries[-1].start) if entries else 0), "a wrong size"
    assert (reader.size < len(data)) == (refusal is not None), "octets passed over, or refused though all were read"
    _check_fences(entries, reader)
    _check_replays(data, entries)
    _check_portions(data, entries, reader)
    _check_store(data, entries, reader)
    _check_account(entries)


def _read(data: bytes, digest: bytes | None = None) -> tuple[list[Entry], LogReader, Exception | None]:
    entries: list[Entry] = []
    reader = LogReader(digest)
    _, refusal = attempt(lambda: entries.extend(reader.entries(data)), MalformedBody, InvalidContent)
    return _served(data, digest) if refusal else entries, reader, refusal


def _served(data: bytes, digest: bytes | None) -> list[Entry]:
    """What a reader yields before it refuses."""
    entries: list[Entry] = []

    def take() -> None:
        for entry in LogReader(digest).entries(data):
            entries.append(entry)  # noqa: PERF402 - `extend` would lose what came before the refusal

    attempt(take, MalformedBody, InvalidContent)
    return entries


def _length(data: bytes, start: int) -> int:
    return next(end for end, _ in cbor.decode_sequence(data[start:]))


def _check_fences(entries: list[Entry], reader: LogReader) -> None:
    """The plain law: a commit record counts unless a higher fence came before it."""
    fence, last = 0, None
    for entry in entries:
        if isinstance(entry.record, FenceRecord):
            fence = max(fence, entry.record.epoch)
            assert not entry.void, "a void fence"
            continue
        assert entry.void == (entry.record.epoch < fence), "void, and no higher fence before it; or not, and there is"
        last = last if entry.void else entry.record
    assert (reader.fence, reader.last) == (fence, last), "another fence or last record"


def _check_replays(data: bytes, entries: list[Entry]) -> None:
    for entry in entries[:8]:
        round_ = getattr(entry.record, "round", 1)
        verdict, _ = attempt(lambda: replayed_verdict(SESSION, round_, data[entry.start :]), ValueError)  # noqa: B023
        if verdict is not None:
            assert (verdict.round, verdict.emitted) == (round_, getattr(entry.record, "tokens", ())), "another round"
            assert verdict.decode(verdict.encode()) == verdict, "a verdict that cannot be sent"
    attempt(lambda: replayed_verdict(SESSION, 1, data), ValueError)


def _check_portions(data: bytes, entries: list[Entry], whole: LogReader) -> None:
    """Record by record, and again from a torn tail on, the reader finds the same."""
    reader = LogReader()
    ends = [entry.start for entry in entries[1:]] + [whole.size]
    for start, end in zip([0, *ends], ends, strict=False):
        attempt(lambda: reader.read(data[start : end - 1]), MalformedBody)  # noqa: B023
        assert reader.size == start, "a torn record counted"
        reader.read(data[start:end])
    assert (reader.size, reader.fence, reader.last) == (whole.size, whole.fence, whole.last), "portions differ"


def _check_store(data: bytes, entries: list[Entry], reader: LogReader) -> None:
    epochs, _ = attempt(lambda: advance(NO_RECORDS, data), MalformedBody, LogFencedError)
    if epochs is not None and reader.size == len(data):
        assert (epochs[0] or 0) == reader.fence, "the store sees another fence than the reader"
        assert not any(entry.void for entry in entries), "the store took a void record"
        assert epochs[1] == max(entry.record.epoch for entry in entries), "the store sees another epoch"


def _check_account(entries: list[Entry]) -> None:
    """Whatever a log says, the sums over it can be sent (D35)."""
    account = Account()
    for entry in entries:
        if isinstance(entry.record, CommitRecord) and not entry.void:
            account.add(entry.record)
    Output(
        session=SESSION,
        epoch=1,
        from_=0,
        tokens=(),
        final=False,
        passes=1,
        accepted=account.accepted,
        proposed=account.proposed,
    ).encode()


# -- records with the chain --------------------------------------------------------------------------------------------


def _chain(data: bytes) -> None:
    recorded = Recorded(CONTRACT, START)
    attempt(lambda: recorded.take(0, data, "e"), MalformedBody, InvalidContent)
    assert recorded.end <= len(data), "read beyond the end"
    lengths = [0, *accumulate(1 for _ in recorded.tokens)]
    assert [recorded.digest_at(n) for n in lengths[:40]] == [
        extend_all(START, recorded.tokens[:n]) for n in lengths[:40]
    ]
    assert recorded.digest == extend_all(START, recorded.tokens), "the digest is not that of the tokens"
    assert recorded.digest_at(len(recorded.tokens) + 1) is None, "a digest of tokens that are not there"
    assert recorded.ended in (None, 4, 5), "ended in a way that ends nothing"
    assert recorded.fence <= recorded.highest, "a fence above every epoch"
    before = (recorded.end, recorded.round, list(recorded.tokens), recorded.fence)
    attempt(lambda: recorded.take(0, data[: recorded.end], "f"), MalformedBody, InvalidContent)
    assert (recorded.end, recorded.round, recorded.tokens, recorded.fence) == before, "known records counted again"


_KINDS: tuple[Callable[[bytes], None], ...] = (
    _records,
    _chain,
    journals.segment,
    journals.files,
    journals.damage,
)


def mutate(data: bytes, luck: Random, octets: Octets) -> bytes:
    """Change records as CBOR, journals as frames; now and then octets."""
    if len(data) < 2 or luck.random() < 0.2:
        return octets(data, len(data) + 16)
    kind = data[0] % len(_KINDS)
    if kind < 2:
        return data[:1] + mutate_sequence(data[1:], luck, octets)
    return data[:1] + journals.mutate(kind - 2, data[1:], luck, octets)


def seeds() -> Iterable[bytes]:
    """Sound logs, fenced ones, and journals."""
    for body in log_bodies():
        yield b"\0" + body
        yield b"\1" + body
    yield b"\1" + b"".join(record.encode() for record in commit_records())
    for kind, body in journals.seeds():
        yield bytes([2 + kind]) + body
