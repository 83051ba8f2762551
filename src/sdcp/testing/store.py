"""The multi-level cache of a world: immutable objects, and logs with conditional appends and fences (6.8, docs/mlc.md).

What an append does to a log's fence is `sdcp.stores.records`, the rule of every store here. With `enforces_fences`
False the log takes any conditional append, as a plain PUT with If-Match would, and verifiers have to read back (6.8).
Manifests are logs apart (D45), and nobody looks on.
Not here: leases, eviction, room, access rights, and loss, which is the network's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray

from sdcp.errors import InvalidContent, Overloaded, ProblemError, QUnavailable
from sdcp.machines.effects import AppendLog, AppendManifest, FetchRows, FetchTokens, ReadLog, ReadManifest
from sdcp.machines.inputs import (
    LogAppended,
    LogFenced,
    LogMoved,
    LogRead,
    RowsObtained,
    RowsRefused,
    TokensFetched,
    TokensUnavailable,
)
from sdcp.messages.record import CommitRecord
from sdcp.ports import LogFencedError
from sdcp.stores.records import NO_RECORDS, Epochs, advance, follow
from sdcp.testing.checks import records_in
from sdcp.wire import cbor
from sdcp.wire.rows import check_rows, decode_rows

Rows = NDArray[np.float32]


@dataclass(slots=True)
class Log:
    """One log. `version` counts appends; no log has version 0."""

    octets: bytearray = field(default_factory=bytearray)
    version: int = 0
    epochs: Epochs = NO_RECORDS

    @property
    def etag(self) -> str | None:
        """The entity tag, None before the first append."""
        return f'"{self.version}"' if self.version else None


class Store:
    """`appended` is called with what has become durable. `octets_read`, `octets_written`: totals over all logs."""

    def __init__(self, *, enforces_fences: bool = True, appended: Callable[[bytes], None] | None = None) -> None:
        self.enforces_fences = enforces_fences
        self.objects: dict[str, bytes] = {}
        self.logs: dict[str, Log] = {}
        self.manifests: dict[str, Log] = {}
        self.octets_read = 0
        self.octets_written = 0
        self._appended = appended
        self._names = count(1)

    # ---- logs --------------------------------------------------------------------------------------------------------

    def append(self, effect: AppendLog, load: int = 0) -> LogAppended | LogMoved | LogFenced:
        """Carry out AppendLog; `load` is the verifier's own. A stale epoch is told before a stale tag."""
        log = self.logs.setdefault(effect.ref, Log())
        epochs = log.epochs
        if self.enforces_fences:
            try:
                found = ((record.epoch, type(record) is CommitRecord) for _, record in records_in(effect.data))
                epochs = follow(epochs, found)
            except LogFencedError:
                return LogFenced()
        if effect.etag != log.etag:
            return LogMoved()
        log.epochs = epochs
        log.octets += effect.data
        log.version += 1
        self.octets_written += len(effect.data)
        if self._appended is not None:
            self._appended(effect.data)
        assert log.etag is not None  # it has just been appended to
        return LogAppended(log.etag, load)

    def read(self, effect: ReadLog) -> LogRead:
        """Carry out ReadLog."""
        log = self.logs.get(effect.ref, Log())
        data = self.octets(effect.ref, effect.start)
        return LogRead(effect.start, data, log.etag)

    def octets(self, ref: str, start: int) -> bytes:
        """Return a log's octets from `start` to its end."""
        data = bytes(memoryview(self.logs[ref].octets)[start:]) if ref in self.logs else b""
        self.octets_read += len(data)
        return data

    # ---- manifests (D45) ---------------------------------------------------------------------------------------------

    def append_manifest(self, effect: AppendManifest) -> LogAppended | LogMoved:
        """Carry out AppendManifest."""
        log = self.manifests.get(effect.ref, Log())
        if effect.etag != log.etag:
            return LogMoved()
        log.epochs = advance(log.epochs, effect.data)
        self.manifests[effect.ref] = log
        log.octets += effect.data
        log.version += 1
        assert log.etag is not None  # it has just been appended to
        return LogAppended(log.etag, 0)

    def read_manifest(self, effect: ReadManifest) -> LogRead:
        """Carry out ReadManifest."""
        log = self.manifests.get(effect.ref, Log())
        return LogRead(effect.start, bytes(log.octets[effect.start :]), log.etag)

    def all_manifests(self) -> dict[str, LogRead]:
        """Return every manifest whole, by its name, the oldest first."""
        return {ref: LogRead(0, bytes(log.octets), log.etag) for ref, log in self.manifests.items() if log.version}

    # ---- objects -----------------------------------------------------------------------------------------------------

    def put(self, data: bytes) -> str:
        """Create an object; return its URI."""
        ref = f"memory:/objects/{next(self._names)}"
        self.objects[ref] = data
        return ref

    def put_tokens(self, tokens: tuple[int, ...]) -> str:
        """Create an object of one token array (D20)."""
        return self.put(cbor.encode(list(tokens)))

    def delete(self, ref: str) -> None:
        """Delete an object; idempotent."""
        self.objects.pop(ref, None)

    def fetch_tokens(self, effect: FetchTokens) -> TokensFetched | TokensUnavailable:
        """Carry out FetchTokens."""
        data = self.objects.get(effect.ref)
        if data is None:
            return TokensUnavailable(effect.ref, Overloaded("The object is not there."))
        value = cbor.decode(data) if len(data) <= effect.at_most else None
        if not isinstance(value, list):
            return TokensUnavailable(effect.ref, InvalidContent("The object is no token array of that size."))
        return TokensFetched(effect.ref, tuple(value))

    def fetch_rows(self, effect: FetchRows, width: int, keep: dict[int, Rows]) -> RowsObtained | RowsRefused:
        """Carry out FetchRows over a vocabulary of `width`; good rows are kept under the round (D25)."""
        data = self.objects.get(effect.ref)
        if data is None:
            return RowsRefused(effect.round, QUnavailable("The rows are not there."))
        try:
            rows = decode_rows(data, len(effect.tokens), width)
            check_rows(rows, effect.tokens)
        except ProblemError as error:
            return RowsRefused(effect.round, error)
        keep[effect.round] = rows
        return RowsObtained(effect.round)
