"""A cache behind `sdcp cache`, or behind anything that speaks docs/mlc.md, over mutual TLS.

Only URIs under the configured prefix are asked for, redirects are not followed, and an answer is read no further than
its caller allows (D11). Objects travel on a connection of their own, so that a round's append never waits behind
somebody's rows.

What is repeated when an answer is lost: reads, leases, deletions, and the creation of an object, which names its octets
once and for all. An append never is: its writer reads the log and knows (docs/mlc.md, lost answer).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from urllib.parse import urlencode, urlsplit

from sdcp.errors import BodyTooLarge, ConfigurationError, Conflict, MalformedBody, ProblemError
from sdcp.http.client import Answer, Client
from sdcp.http.codings import CODED_FROM, ZSTD, code, decoded, pays
from sdcp.http.faults import AnswerTooLarge, TransportError
from sdcp.http.identity import CACHE, normalize_uri
from sdcp.http.resources import CBOR, CBOR_SEQ, OCTETS, url
from sdcp.messages.host_memory import Ticket
from sdcp.messages.lease import Lease
from sdcp.messages.listing import MOST_ENTRIES, ListedEntry, Listing
from sdcp.ports import (
    Entry,
    Kind,
    LogDamagedError,
    LogFencedError,
    LogMovedError,
    LogSlice,
    NoListingError,
    ObjectMissingError,
    StoreFullError,
    StoreUnavailableError,
)
from sdcp.stores.host_memory import SHARED_FROM, HostMemory
from sdcp.stores.naming import fresh_name
from sdcp.stores.store import NAME
from sdcp.wire.problem import decode_intact, decode_problem

MAX_LOG = 64 << 20
_MAX_LISTING = 8 << 20
_MAX_PROBLEM = 64 << 10
_KNOWN_LOGS = 10_000  # whose URLs are kept
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/\d+")


class RemoteCache:
    """`sdcp.ports.Cache` over HTTP, of one cache. `client` is shared, and closed by who made it."""

    def __init__(
        self,
        client: Client,
        prefix: str,
        *,
        deadline_s: float = 5.0,
        expect_role: str | None = CACHE,
        host_memory: bool = True,
    ) -> None:
        """`prefix` is the cache's base URI; `deadline_s` covers each call with all its tries.

        `expect_role` is the role that the server's certificate must bear; `host_memory`: use that of a cache of this
        host. Raises ConfigurationError.
        """
        self._client = client
        self._deadline_s = deadline_s
        self._expect_role = expect_role
        self._prefix = _prefix(prefix)
        self._host_memory = HostMemory(self._take_ticket, deadline_s=deadline_s) if host_memory else None
        self._codes = True  # until the cache says that it takes no coding
        self._log_urls: dict[str, str] = {}

    async def close(self) -> None:
        """See `Cache.close`: give back what is shared with a cache of this host; idempotent."""
        if self._host_memory is not None:
            self._host_memory.close()

    def allows(self, ref: str) -> bool:
        """See `Cache.allows`."""
        return self._split(ref, "objects") is not None

    def allows_log(self, ref: str) -> bool:
        """See `Cache.allows_log`."""
        return self._split(ref, "logs") is not None

    # -- objects ------------------------------------------------------------------------------------------------------

    async def fetch(self, ref: str, *, at_most: int) -> bytes | memoryview:
        """See `Cache.fetch`. What is returned is one buffer, never copied after it was put together."""
        name = self._required(ref, "objects")
        shared = await self._fetch_shared(ref, name, at_most)
        if shared is not None:
            return shared
        target = self.ref_of("objects", name)
        limit = max(at_most, _MAX_PROBLEM)  # a refusal may be longer than the object would be
        fields = [("accept", OCTETS)]
        if at_most >= CODED_FROM:
            fields.append(("accept-encoding", ZSTD))
        answer = await self._call("GET", target, fields, idempotent=True, objects=True, max_bytes=limit)
        if answer.status == 404:
            raise ObjectMissingError(f"{ref} is absent or was evicted")
        if answer.status != 200:
            raise _unavailable(ref, answer)
        body = await self._decoded(ref, answer, at_most)
        if len(body) > at_most:
            raise ValueError(f"{ref} has {len(body)} octets, and at most {at_most} are read")
        return body

    async def create(self, data: bytes | memoryview, *, name: str | None = None) -> str:
        """See `Cache.create`."""
        name = name or fresh_name()
        target = self.ref_of("objects", name)
        if await self._create_shared(name, data):
            return target
        fields = [("content-type", OCTETS)]
        answer = await self._put_coded(target, fields, data) if self._codes and pays(data) else None
        if answer is None:
            answer = await self._call("PUT", target, fields, data, idempotent=True, objects=True)
        if answer.status in (413, 507):
            raise StoreFullError(_detail(answer))
        if answer.status == 412:
            raise Conflict(_detail(answer))
        if answer.status not in (200, 201):
            raise _unavailable(target, answer)
        return target

    async def _fetch_shared(self, ref: str, name: str, at_most: int) -> memoryview | None:
        """What lies in memory of this host; None: ask by TLS."""
        if self._host_memory is None or at_most < SHARED_FROM:
            return None
        found = await self._host_memory.get(name, at_most)
        if found is None:
            return None
        reply, view = found
        if reply.status == 404:
            raise ObjectMissingError(f"{ref} is absent or was evicted")
        if reply.status == 413:
            raise ValueError(f"{ref} does not fit: {reply.detail}")
        return view

    async def _create_shared(self, name: str, data: bytes | memoryview) -> bool:
        """Create an object in memory of this host; False: it was not, or that is not known."""
        octets = memoryview(data).cast("B")
        if self._host_memory is None or len(octets) < SHARED_FROM:
            return False
        reply = await self._host_memory.put(name, octets)
        return reply is not None and reply.status in (200, 201)  # TLS words a refusal better, and is refused as soon

    async def _put_coded(self, target: str, fields: list[tuple[str, str]], data: bytes | memoryview) -> Answer | None:
        """Send in zstd; None: the cache takes no coding, and will not be asked again (D46)."""
        coded = await asyncio.to_thread(code, data)
        fields = [*fields, ("content-encoding", ZSTD)]
        answer = await self._call("PUT", target, fields, coded, idempotent=True, objects=True)
        if answer.status == 415:
            self._codes = False
            return None
        return answer

    async def _decoded(self, ref: str, answer: Answer, at_most: int) -> bytes:
        """The body without its content coding."""
        if "content-encoding" not in answer.headers:
            return answer.body
        try:
            return await asyncio.to_thread(decoded, answer.headers, answer.body, at_most)
        except BodyTooLarge as fault:
            raise ValueError(f"{ref}: {fault.detail}") from None
        except ProblemError as fault:
            raise StoreUnavailableError(f"{ref}: {fault.detail}") from None

    async def _take_ticket(self) -> Ticket | None:
        answer = await self._call("POST", url(self._prefix, "host-memory"), [("accept", CBOR)], idempotent=True)
        return Ticket.decode(answer.body) if answer.status == 200 else None

    async def delete(self, ref: str) -> None:
        """See `Cache.delete`."""
        name = self._required(ref, "objects")
        if self._host_memory is not None and await self._host_memory.delete(name) in (204, 404, 409):
            return
        answer = await self._call("DELETE", self.ref_of("objects", name), idempotent=True)
        if answer.status not in (204, 404, 409):
            raise _unavailable(ref, answer)

    # -- leases -------------------------------------------------------------------------------------------------------

    async def lease(self, lease: str, refs: Sequence[str], ttl_ms: int) -> None:
        """See `Cache.lease`."""
        names = [self._required(ref, "objects") for ref in refs]
        if self._host_memory is not None and await self._host_memory.lease(lease, names, ttl_ms) == 204:
            return
        target = self.ref_of("leases", lease)
        body = Lease(objects=tuple(names), ttl_ms=ttl_ms).encode()
        answer = await self._call("PUT", target, [("content-type", CBOR)], body, idempotent=True)
        if answer.status == 404:
            raise ObjectMissingError(_detail(answer))
        if answer.status == 507:
            raise StoreFullError(_detail(answer))
        if answer.status != 204:
            raise _unavailable(target, answer)

    async def release(self, lease: str) -> None:
        """See `Cache.release`."""
        if self._host_memory is not None and await self._host_memory.release(lease) == 204:
            return
        target = self.ref_of("leases", lease)
        answer = await self._call("DELETE", target, idempotent=True)
        if answer.status not in (204, 404):
            raise _unavailable(target, answer)

    # -- logs ---------------------------------------------------------------------------------------------------------

    def enforces_fences(self, ref: str) -> bool:
        """See `Cache.enforces_fences`: whoever speaks docs/mlc.md does."""
        return True

    async def append(self, ref: str, data: bytes, etag: str | None) -> str:
        """See `Cache.append`. Sent once: without an answer it is unknown whether it was done."""
        condition = ("if-none-match", "*") if etag is None else ("if-match", etag)
        answer = await self._call("PATCH", self._log_url(ref), [("content-type", CBOR_SEQ), condition], data)
        if answer.status == 412:
            raise LogMovedError(_detail(answer))
        if answer.status == 409:
            raise LogFencedError(_detail(answer))
        if answer.status == 507:
            raise StoreFullError(_detail(answer))
        if (intact := _intact(answer)) is not None:
            raise LogDamagedError(_detail(answer), intact)
        if answer.status not in (200, 201, 204) or "etag" not in answer.headers:
            raise _unavailable(ref, answer)
        return answer.headers["etag"]

    async def read_log(self, ref: str, start: int = 0, stop: int | None = None) -> LogSlice:
        """See `Cache.read_log`."""
        last = "" if stop is None else str(max(start, stop - 1))
        fields = [("accept", CBOR_SEQ)]
        if start or stop is not None:
            fields.append(("range", f"bytes={start}-{last}"))
        target = self._log_url(ref)
        answer = await self._call("GET", target, fields, idempotent=True, max_bytes=MAX_LOG)
        if answer.status == 404:
            return LogSlice(start, b"", None)
        if answer.status in (206, 416) and "etag" not in answer.headers:
            # A 416 need not say of which log it has no such part; a part of a damaged log has no tag: ask for all.
            answer = await self._call("GET", target, fields[:1], idempotent=True, max_bytes=MAX_LOG)
        if (intact := _intact(answer)) is not None:
            data = await self._read_intact(target, start, intact if stop is None else min(stop, intact))
            raise LogDamagedError(_detail(answer), intact, data)
        if answer.status not in (200, 206, 416) or "etag" not in answer.headers:
            raise _unavailable(ref, answer)
        length = None if stop is None else max(0, stop - start)
        return LogSlice(start, _from(ref, start, answer)[:length], answer.headers["etag"])

    async def _read_intact(self, target: str, start: int, stop: int) -> bytes:
        """Octets of a damaged log that precede the damage (D47)."""
        if start >= stop:
            return b""
        fields = [("accept", CBOR_SEQ), ("range", f"bytes={start}-{stop - 1}")]
        answer = await self._call("GET", target, fields, idempotent=True, max_bytes=MAX_LOG)
        if answer.status != 206 or answer.headers.get("content-range") != f"bytes {start}-{stop - 1}/*":
            raise _unavailable(target, answer)
        return answer.body

    # -- the whole ----------------------------------------------------------------------------------------------------

    def ref_of(self, kind: Kind, name: str) -> str:
        """See `Cache.ref_of`."""
        return url(self._prefix, f"{kind}/{{name}}", name)

    async def listing(self, kind: Kind, prefix: str = "", after: str = "", limit: int = MOST_ENTRIES) -> list[Entry]:
        """See `Cache.listing`. For routers alone; from caches that have it (docs/mlc.md)."""
        query = urlencode({"prefix": prefix, "after": after, "limit": limit})
        target = f"{url(self._prefix, kind)}?{query}"
        answer = await self._call("GET", target, [("accept", CBOR)], idempotent=True, max_bytes=_MAX_LISTING)
        if answer.status in (404, 405, 501):
            raise NoListingError(f"{self._prefix} does not list what it keeps (status {answer.status}).")
        if answer.status != 200:
            raise _unavailable(target, answer)
        try:
            return [_entry(each) for each in Listing.decode(answer.body).entries]
        except MalformedBody as fault:
            raise StoreUnavailableError(f"{target}: what came is no listing: {fault.detail}") from None

    async def sweep(self) -> None:
        """See `Cache.sweep`: the cache does it by itself."""

    # -- one call -----------------------------------------------------------------------------------------------------

    async def _call(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[str, str]] = (),
        body: bytes | memoryview | None = None,
        *,
        idempotent: bool = False,
        objects: bool = False,
        max_bytes: int | None = None,
    ) -> Answer:
        try:
            return await self._client.request(
                method,
                target,
                headers=headers,
                body=body,
                deadline_s=self._deadline_s,
                idempotent=idempotent,
                objects=objects,
                max_bytes=max_bytes,
                expect_role=self._expect_role,
            )
        except AnswerTooLarge as fault:
            raise ValueError(f"{target} is larger than the {max_bytes} octets that are read") from fault
        except TransportError as fault:
            raise StoreUnavailableError(str(fault)) from fault

    def _log_url(self, ref: str) -> str:
        """The URL of a log, which is used again and again. Raises ValueError for what is not allowed (D11)."""
        target = self._log_urls.get(ref)
        if target is None:
            if len(self._log_urls) >= _KNOWN_LOGS:
                self._log_urls.clear()
            target = self._log_urls[ref] = self.ref_of("logs", self._required(ref, "logs"))
        return target

    def _required(self, ref: str, kind: str) -> str:
        """The name in `ref`. Raises ValueError for what is not allowed (D11)."""
        name = self._split(ref, kind)
        if name is None:
            raise ValueError(f"{ref} is none of the {kind} under the configured cache prefix {self._prefix}")
        return name

    def _split(self, ref: str, kind: str) -> str | None:
        try:
            parent, _, name = normalize_uri(ref).rpartition("/")
        except ValueError:
            return None
        return name if parent == f"{self._prefix}/{kind}" and NAME.fullmatch(name) else None


def _prefix(prefix: str) -> str:
    try:
        normal = normalize_uri(prefix)
        there = urlsplit(normal).hostname and urlsplit(normal).port != 0
    except ValueError:
        there = normal = ""
    if not there or not normal.startswith("https://") or "?" in normal or "#" in normal:
        raise ConfigurationError(f"cache prefix {prefix!r} is not an https URI without query and fragment")
    return normal.rstrip("/")


def _from(ref: str, start: int, answer: Answer) -> bytes:
    """The octets from `start` on, whether the server took the range, ignored it, or has none of it."""
    if answer.status == 416:
        return b""
    if answer.status == 200:
        return answer.body[start:]
    match = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
    if match is None or int(match[1]) != start:
        raise StoreUnavailableError(f"{ref}: the server answered with another range than was asked for")
    return answer.body


def _entry(listed: ListedEntry) -> Entry:
    return Entry(
        name=listed.name,
        size=listed.size,
        version=listed.version,
        owner=listed.owner or "",
        age_s=_seconds(listed.age_ms),
        leased=bool(listed.leased),
        expires_s=_seconds(listed.expires_ms),
        objects=listed.objects or (),
        level=listed.level or "",
    )


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _intact(answer: Answer) -> int | None:
    return decode_intact(answer.headers.get("content-type"), answer.body) if answer.status == 500 else None


def _detail(answer: Answer) -> str:
    return decode_problem(answer.status, answer.headers.get("content-type"), answer.body).detail


def _unavailable(ref: str, answer: Answer) -> StoreUnavailableError:
    detail = _detail(answer) if answer.status >= 400 else "that is no answer to this request"
    return StoreUnavailableError(f"{ref}: status {answer.status}: {detail}")
