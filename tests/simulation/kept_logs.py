"""The stores of the product as `sdcp.testing.interleavings` wants them, each behind its own port and shells.

A log in a store cannot be set back. So each history of appends is carried out in a log of its own, from its beginning,
through `sdcp.roles.logs`, and then read from every place at which a record begins. A store's entity tags differ from
log to log; here the one after the n-th append that was taken is called "n".
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from urllib.parse import urlsplit

from sdcp.errors import ProblemError
from sdcp.http.client import Answer as HttpAnswer
from sdcp.http.exchange import Request
from sdcp.http.identity import Peer
from sdcp.http.problems import problem_response
from sdcp.machines.effects import AppendLog, ReadLog
from sdcp.machines.inputs import LogAppended, LogRead, LogUnanswered
from sdcp.ports import Cache
from sdcp.roles.cache import CacheRole
from sdcp.roles.logs import append_log, read_log
from sdcp.testing.log_stores import Answer


@dataclass(slots=True)
class Live:
    """A log of the store, and the tags that it has had."""

    ref: str
    tags: list[str] = field(default_factory=list)

    def tag(self, ordinal: str | None) -> str | None:
        return None if ordinal is None else self.tags[int(ordinal) - 1]


@dataclass(slots=True, eq=False)
class KeptLog:
    """A log after a history of appends, and the answer to each. `live`: a log of the store that is still there."""

    history: tuple[tuple[AppendLog, type[Answer]], ...]
    reads: dict[int, bytes]
    taken: int
    live: Live | None
    following: dict[AppendLog, tuple[Answer, KeptLog]] = field(default_factory=dict)

    @property
    def octets(self) -> bytes:
        return self.reads[0]

    @property
    def etag(self) -> str | None:
        return str(self.taken) if self.taken else None


class KeptLogs:
    """`LogStore` over a cache. `histories` counts those carried out; `contents`: what each log of the store holds."""

    def __init__(self, cache: Cache, runner: asyncio.Runner) -> None:
        self.enforces_fences = cache.enforces_fences(cache.ref_of("logs", "any"))
        self._cache = cache
        self._run = runner.run
        self._names = count(1)
        self.histories = 0
        self.contents: dict[str, bytes] = {}

    def begin(self) -> KeptLog:
        return KeptLog((), {0: b""}, 0, None)

    def append(self, place: KeptLog, effect: AppendLog) -> tuple[Answer, KeptLog]:
        if effect not in place.following:
            self._run(self._follow(place, effect))
        return place.following[effect]

    def read(self, place: KeptLog, effect: ReadLog) -> LogRead:
        return LogRead(effect.start, place.reads[effect.start], place.etag)

    def prepare(self, wanted: Sequence[tuple[KeptLog, AppendLog]]) -> None:
        new = {(id(place), effect): place for place, effect in wanted if effect not in place.following}
        if new:
            self._run(self._follow_all((place, effect) for (_, effect), place in new.items()))

    async def _follow_all(self, wanted: Iterable[tuple[KeptLog, AppendLog]]) -> None:
        await asyncio.gather(*(self._follow(place, effect) for place, effect in wanted))

    async def _follow(self, place: KeptLog, effect: AppendLog) -> None:
        live, place.live = place.live or Live(self._cache.ref_of("logs", f"log-{next(self._names)}")), None
        if not live.tags and place.taken:
            for earlier, answered in place.history:
                answer = await self._append(live, earlier)
                assert type(answer) is answered, "the same history has another answer now"
        answer = await self._append(live, effect)
        taken = place.taken + isinstance(answer, LogAppended)
        assert taken == len(live.tags)
        history = (*place.history, (effect, type(answer)))
        size = len(effect.data) if isinstance(answer, LogAppended) else 0
        reads = await self._read_all(live, {*place.reads, len(place.octets) + size})
        place.following[effect] = answer, KeptLog(history, reads, taken, live)
        self.histories += 1
        self.contents[live.ref] = reads[0]

    async def _append(self, live: Live, effect: AppendLog) -> Answer:
        """Append; what comes back has the tag as its ordinal."""
        real = AppendLog(live.ref, effect.data, live.tag(effect.etag))
        answer = await append_log(self._cache, real)
        if not isinstance(answer, LogAppended):
            assert not isinstance(answer, LogUnanswered)
            return answer
        assert answer.etag not in live.tags, "an entity tag came twice (docs/mlc.md)"
        live.tags.append(answer.etag)
        return LogAppended(str(len(live.tags)), answer.load)

    async def _read_all(self, live: Live, starts: Iterable[int]) -> dict[int, bytes]:
        """Read the log from each of these octets; the tag must be that of the last append that was taken."""
        reads = {}
        for start in sorted(starts):
            found = await read_log(self._cache, ReadLog(live.ref, start))
            assert isinstance(found, LogRead)
            assert found.etag == (live.tags[-1] if live.tags else None)
            reads[start] = found.data
        return reads


# ---- a cache role without a network ----------------------------------------------------------------------------------


class HandedOver:
    """Takes the place of `sdcp.http.client.Client`: hands each request to the role's handler, in this process."""

    def __init__(self, role: CacheRole) -> None:
        self._role = role
        self._peer = Peer(frozenset({"https://verifier.test"}), frozenset(), frozenset(), frozenset({"verifier"}))

    async def request(
        self, method: str, url: str, *, headers: Iterable[tuple[str, str]] = (), body: bytes | None = None, **_: object
    ) -> HttpAnswer:
        parts = urlsplit(url)
        fields: Mapping[str, str] = dict(headers)
        request = Request(method, parts.path, parts.query, parts.netloc, fields, self._peer, Whole(body or b""))
        try:
            response = await self._role.handle(request)
        except ProblemError as error:
            response = problem_response(error)
        assert isinstance(response.body, bytes | memoryview)
        return HttpAnswer(response.status, dict(response.headers), bytes(response.body), self._peer)


class Whole:
    """A body that is there at once."""

    def __init__(self, octets: bytes) -> None:
        self._octets = octets

    async def next_chunk(self) -> bytes | None:
        octets, self._octets = self._octets, b""
        return octets or None

    async def read(self, limit: int, too_large: object) -> bytes:
        return self._octets
