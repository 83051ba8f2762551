"""A cache that forgets, denies and alters: see the threat model in `lying`. It invents no record of a log."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import replace

from sdcp.machines.effects import AppendLog, FetchRows, FetchTokens, ReadLog
from sdcp.machines.inputs import (
    LogAppended,
    LogFenced,
    LogMoved,
    LogRead,
    LogUnanswered,
    RowsObtained,
    RowsRefused,
    TokensFetched,
    TokensUnavailable,
)
from sdcp.testing.lying import Script
from sdcp.testing.store import Rows, Store
from sdcp.wire import cbor

REMEMBERED = 64
"""So many states of a log can come back."""


class LyingStore(Store):
    """`served(tokens, ref, octets)` is called with the rows that a verifier is given for a proposal."""

    def __init__(
        self,
        script: Script,
        *,
        enforces_fences: bool,
        appended: Callable[[bytes], None],
        served: Callable[[tuple[int, ...], str, bytes], None] | None = None,
    ) -> None:
        super().__init__(enforces_fences=enforces_fences, appended=appended)
        self._script = script
        self._served = served
        self._token_arrays: set[str] = set()
        self._states: dict[str, deque[tuple[int, str | None]]] = defaultdict(lambda: deque([(0, None)], REMEMBERED))

    # ---- logs --------------------------------------------------------------------------------------------------------

    def append(self, effect: AppendLog, load: int = 0) -> LogAppended | LogMoved | LogFenced | LogUnanswered:  # type: ignore[override]
        """Carry out AppendLog, and say so or not."""
        answer = super().append(effect, load)
        if isinstance(answer, LogAppended):
            log = self.logs[effect.ref]
            self._states[effect.ref].append((len(log.octets), log.etag))
            if self._script.lies("unsaid"):
                return LogUnanswered()
        return answer

    def read(self, effect: ReadLog) -> LogRead:
        """Carry out ReadLog, with the log as it is or as it was; `garble` leaves the last record half."""
        answer = super().read(effect)
        if self._script.lies("old"):
            size, etag = self._script.luck.choice(self._states[effect.ref])
            answer = replace(answer, data=answer.data[: max(0, size - effect.start)], etag=etag)
        if answer.data and self._script.lies("garble"):
            answer = replace(answer, data=answer.data[:-1])
        return answer

    # ---- objects -----------------------------------------------------------------------------------------------------

    def put_tokens(self, tokens: tuple[int, ...]) -> str:
        """Create an object of one token array (D20)."""
        ref = super().put_tokens(tokens)
        self._token_arrays.add(ref)
        return ref

    def evict(self, *, tokens: bool) -> None:
        """Lose some object: one of tokens, or another."""
        those = [ref for ref in self.objects if (ref in self._token_arrays) == tokens]
        if those:
            self.delete(self._script.luck.choice(those))

    def fetch_tokens(self, effect: FetchTokens) -> TokensFetched | TokensUnavailable:
        """Carry out FetchTokens, with the object or another.

        Not before something is committed: until then another prompt is refused as the front end's to mend (422).
        """
        data = self.objects.get(effect.ref)
        if data is None or not self.logs or not self._script.lies("altered"):
            return super().fetch_tokens(effect)
        other = self.put(self._other_tokens(data))
        answer = super().fetch_tokens(replace(effect, ref=other))
        self.delete(other)
        return replace(answer, ref=effect.ref)

    def _other_tokens(self, data: bytes) -> bytes:
        value, luck = cbor.decode(data), self._script.luck
        if not isinstance(value, list) or luck.random() < 0.2:
            return cbor.encode(luck.choice((None, {}, [1 << 40], [*range(300)])))
        if value and luck.random() < 0.5:
            value.pop(luck.randrange(len(value)))
        else:
            value.insert(luck.randint(0, len(value)), luck.randrange(64))
        return cbor.encode(value)

    def fetch_rows(self, effect: FetchRows, width: int, keep: dict[int, Rows]) -> RowsObtained | RowsRefused:
        """Carry out FetchRows, with the object or another."""
        data = self.objects.get(effect.ref)
        if data is None:
            return super().fetch_rows(effect, width, keep)
        if data and self._script.lies("altered"):
            data = self._other_octets(data)
        other = self.put(data)
        answer = super().fetch_rows(replace(effect, ref=other), width, keep)
        self.delete(other)
        if self._served is not None:
            self._served(effect.tokens, effect.ref, data)
        return answer

    def _other_octets(self, data: bytes) -> bytes:
        luck = self._script.luck
        if luck.random() < 0.4:
            return data[: luck.randrange(len(data))]
        place = luck.randrange(len(data))
        return data[:place] + bytes([luck.randrange(256)]) + data[place + 1 :]
