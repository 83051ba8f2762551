"""Log stores as `sdcp.testing.interleavings` wants them, which goes back and forth between moments (6.8, docs/mlc.md).

A `LogStore` can say what an append or a read gives at any `Place`: a log together with the history of all appends that
it was asked for, refused ones too. A store that cannot be copied carries out the history anew.

Here is that of the simulated worlds. Not here: the stores of the product, which tests put behind this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sdcp.machines.effects import AppendLog, ReadLog
from sdcp.machines.inputs import LogAppended, LogFenced, LogMoved, LogRead
from sdcp.testing.store import Log, Store

Answer = LogAppended | LogMoved | LogFenced


class Place(Protocol):
    """A log after a history of appends, as its store has it."""

    @property
    def octets(self) -> bytes:
        """All of the log."""
        ...

    @property
    def etag(self) -> str | None:
        """Its entity tag; the same history gives the same one."""
        ...


class LogStore(Protocol):
    """A store in which a log can be brought into the state of any history."""

    enforces_fences: bool

    def begin(self) -> Any:
        """The place of a log that nobody has asked for anything."""
        ...

    def append(self, place: Any, effect: AppendLog) -> tuple[Answer, Any]:
        """The answer to an append at a place, and the place after it."""
        ...

    def read(self, place: Any, effect: ReadLog) -> LogRead:
        """The answer to a read at a place."""
        ...

    def prepare(self, wanted: Sequence[tuple[Any, AppendLog]]) -> None:
        """Told what will be asked, so that it can be done together."""
        ...


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """A log of the world's store."""

    log: Log = field(default_factory=Log)

    @property
    def octets(self) -> bytes:
        """See `Place`."""
        return bytes(self.log.octets)

    @property
    def etag(self) -> str | None:
        """See `Place`."""
        return self.log.etag


class ModelStore:
    """The store of the simulated worlds (`sdcp.testing.store`), as a `LogStore`."""

    def __init__(self, *, enforces_fences: bool = True) -> None:
        self.enforces_fences = enforces_fences
        self._known: dict[tuple[bytes, str | None, AppendLog], tuple[Answer, ModelPlace]] = {}

    def begin(self) -> ModelPlace:
        """See `LogStore.begin`."""
        return ModelPlace()

    def append(self, place: ModelPlace, effect: AppendLog) -> tuple[Answer, ModelPlace]:
        """See `LogStore.append`."""
        known = self._known.get(key := (place.octets, place.etag, effect))
        if known is None:
            store, log = Store(enforces_fences=self.enforces_fences), place.log
            store.logs[effect.ref] = Log(bytearray(log.octets), log.version, log.epochs)
            known = self._known[key] = store.append(effect), ModelPlace(store.logs[effect.ref])
        return known

    def read(self, place: ModelPlace, effect: ReadLog) -> LogRead:
        """See `LogStore.read`."""
        return LogRead(effect.start, place.octets[effect.start :], place.etag)

    def prepare(self, wanted: Sequence[tuple[ModelPlace, AppendLog]]) -> None:
        """Nothing to prepare."""
