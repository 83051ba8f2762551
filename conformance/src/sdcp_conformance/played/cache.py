"""The multi-level cache (docs/mlc.md) in memory, with a journal of who did what, and faults on demand.

A fault is a function `async (request, proceed) -> Response`; each one given to `on` is used for one request, in order.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from sdcp_conformance.encoding import decode, decode_sequence, encode
from sdcp_conformance.net.connection import Peer
from sdcp_conformance.net.server import NoAnswer, Request, Response
from sdcp_conformance.problems import MEDIA_TYPE, make

Proceed = Callable[[], Awaitable[Response]]
Fault = Callable[[Request, Proceed], Awaitable[Response]]
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass
class Log:
    """A commit log; `records` are its decoded items."""

    data: bytes = b""
    version: int = 0
    records: list[Any] = field(default_factory=list)

    @property
    def fence(self) -> int:
        """The highest epoch of a fence record; -1 without one."""
        return max((record["epoch"] for record in self.records if "round" not in record), default=-1)


@dataclass
class Lease:
    """Who holds what until when (monotonic seconds)."""

    owner: Peer
    names: frozenset[str]
    until: float


@dataclass(frozen=True)
class Done:
    """One request as the cache carried it out."""

    method: str
    kind: str
    name: str
    peer: Peer
    status: int
    body: bytes


class PlayedCache:
    """`base` is its base URI. Give `handle` to a server."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.objects: dict[str, bytes] = {}
        self.logs: dict[str, Log] = {}
        self.leases: dict[str, Lease] = {}
        self.journal: list[Done] = []
        self.on_append: Callable[[str, list[Any], Peer], None] = lambda name, records, peer: None
        self._faults: defaultdict[tuple[str, str], deque[Fault]] = defaultdict(deque)
        self._version = 0
        self._changed = asyncio.Condition()

    # -- for checks ---------------------------------------------------------------------------------------------------

    def name_of(self, ref: str) -> str:
        """The last segment of a URI of this cache."""
        return ref.rpartition("/")[2]

    def put(self, data: bytes, name: str) -> str:
        """Put an object there; return its URI."""
        self.objects[name] = data
        return f"{self.base}/objects/{name}"

    def get(self, ref: str) -> bytes | None:
        """The octets of an object that was put there by anybody."""
        return self.objects.get(self.name_of(ref))

    def leased(self, ref: str) -> bool:
        """Whether somebody holds a lease on the object now."""
        name, now = self.name_of(ref), time.monotonic()
        return any(name in lease.names and lease.until > now for lease in self.leases.values())

    def log(self, ref: str) -> Log:
        """The log at this URI; an empty one that nobody wrote yet counts."""
        return self.logs.setdefault(self.name_of(ref), Log())

    def append(self, ref: str, record: dict[str, Any]) -> None:
        """Append a record, whatever the log says."""
        log = self.log(ref)
        self._version += 1
        log.version, log.data = self._version, log.data + encode(record)
        log.records.append(record)

    def on(self, method: str, ref: str, *faults: Fault) -> None:
        """Use each fault for one request of this method for this object or log, before all is well again."""
        self._faults[method, self.name_of(ref)].extend(faults)

    async def until(self, happened: Callable[[], Any], limit_s: float) -> bool:
        """Wait until something is so, looking after every request."""
        try:
            async with asyncio.timeout(limit_s), self._changed:
                await self._changed.wait_for(happened)
        except TimeoutError:
            return False
        return True

    # -- requests -----------------------------------------------------------------------------------------------------

    async def handle(self, request: Request) -> Response:
        """Answer one request."""
        parts = request.path.removeprefix(_path(self.base)).strip("/").split("/")
        if len(parts) != 2 or parts[0] not in ("objects", "logs", "leases"):
            return problem(404, "there is no such resource")
        kind, name = parts
        faults = self._faults.get((request.method, name))

        async def proceed() -> Response:
            response = self._carry_out(request, kind, name)
            self.journal.append(Done(request.method, kind, name, request.peer, response.status, request.body))
            async with self._changed:
                self._changed.notify_all()
            return response

        return await (faults.popleft()(request, proceed) if faults else proceed())

    def _carry_out(self, request: Request, kind: str, name: str) -> Response:
        method = getattr(self, f"_{request.method.lower()}_{kind}", None)
        if method is None:
            return Response(405, (("allow", "GET, HEAD, PUT, PATCH, DELETE"), ("content-type", MEDIA_TYPE)), b"{}")
        response: Response = method(request, name)
        return response

    def _put_objects(self, request: Request, name: str) -> Response:
        if name in self.objects:
            same = self.objects[name] == request.body
            return Response(200, _tag(name)) if same else problem(412, "the object exists with other content")
        self.objects[name] = request.body
        return Response(201, _tag(name))

    def _get_objects(self, request: Request, name: str) -> Response:
        data = self.objects.get(name)
        if data is None:
            return problem(404, "there is no such object")
        return _octets(request, data, "application/octet-stream", _tag(name))

    _head_objects = _get_objects

    def _delete_objects(self, request: Request, name: str) -> Response:
        if self.leased(name):
            return problem(409, "the object is leased")
        self.objects.pop(name, None)
        return Response(204)

    def _get_logs(self, request: Request, name: str) -> Response:
        log = self.logs.get(name)
        if log is None or not log.version:
            return problem(404, "there is no such log")
        return _octets(request, log.data, "application/cbor-seq", _tag(log.version))

    _head_logs = _get_logs

    def _patch_logs(self, request: Request, name: str) -> Response:
        log = self.logs.setdefault(name, Log())
        expected = request.headers.get("if-match", "none")
        current = _tag(log.version)[0][1] if log.version else "none"
        if expected != current or ("if-none-match" in request.headers) != (current == "none"):
            return problem(412, "the log has moved")
        try:
            records = decode_sequence(request.body)
            epochs = [record["epoch"] for record in records]
        except (ValueError, KeyError, TypeError):
            return problem(400, "no CBOR sequence of records")
        self.on_append(name, records, request.peer)
        if any(epoch < log.fence for epoch in epochs) or _fences_too_low(log, records):
            return problem_type("sdcp-stale-epoch", "the log is fenced")
        self._version += 1
        log.version, log.data, log.records = self._version, log.data + request.body, log.records + records
        return Response(201 if current == "none" else 204, _tag(log.version))

    def _put_leases(self, request: Request, name: str) -> Response:
        try:
            lease = decode(request.body)
            names, ttl_ms = frozenset(lease["objects"]), int(lease["ttl_ms"])
        except (ValueError, KeyError, TypeError):
            return problem(400, "no lease")
        if missing := names - self.objects.keys():
            return problem(404, f"not there: {min(missing)}")
        self.leases[name] = Lease(request.peer, names, time.monotonic() + ttl_ms / 1000)
        return Response(204)

    def _delete_leases(self, request: Request, name: str) -> Response:
        self.leases.pop(name, None)
        return Response(204)


def problem(status: int, detail: str) -> Response:
    """A refusal without a type."""
    body = f'{{"type":"about:blank","status":{status},"detail":"{detail}"}}'.encode()
    return Response(status, (("content-type", MEDIA_TYPE),), body)


def problem_type(suffix: str, detail: str = "The conformance kit says so.", **members: Any) -> Response:
    """A refusal with a type of Table 2."""
    status, body = make(suffix, detail, **members)
    return Response(status, (("content-type", MEDIA_TYPE),), body)


# -- faults -----------------------------------------------------------------------------------------------------------


def lost_answer() -> Fault:
    """It is done, and the stream is reset instead of answered."""

    async def fault(_: Request, proceed: Proceed) -> Response:
        await proceed()
        raise NoAnswer

    return fault


def lost_request() -> Fault:
    """It is not done, and the stream is reset instead of answered."""

    async def fault(_: Request, proceed: Proceed) -> Response:
        raise NoAnswer

    return fault


def answered(status: int, *headers: tuple[str, str], body: bytes = b"") -> Fault:
    """It is not done, and answered so."""

    async def fault(_: Request, proceed: Proceed) -> Response:
        return problem(status, "as the check wants") if not headers and not body else Response(status, headers, body)

    return fault


async def as_always(_: Request, proceed: Proceed) -> Response:
    """It is done at once: for those that come before the one that is meant."""
    return await proceed()


class Hold:
    """A fault that holds one request: it is done once it is released. `patience_s`: how long it may take to come."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._came, self._gate = asyncio.Event(), asyncio.Event()

    async def __call__(self, _: Request, proceed: Proceed) -> Response:
        """Play the fault."""
        self._came.set()
        await self._gate.wait()
        return await proceed()

    async def reached(self) -> None:
        """Wait until the request has come."""
        async with asyncio.timeout(self._patience_s):
            await self._came.wait()

    def release(self) -> None:
        """Let it be done."""
        self._gate.set()


def _fences_too_low(log: Log, records: list[Any]) -> bool:
    highest = max((record["epoch"] for record in log.records), default=-1)
    return any("round" not in record and record["epoch"] <= highest for record in records)


def _tag(version: object) -> tuple[tuple[str, str], ...]:
    return (("etag", f'"{version}"'),)


def _path(base: str) -> str:
    return "/" + base.removeprefix("https://").partition("/")[2]


def _octets(request: Request, data: bytes, media: str, tag: tuple[tuple[str, str], ...]) -> Response:
    headers = (("content-type", media), *tag)
    if request.method == "HEAD":
        return Response(200, headers)
    match = _RANGE.fullmatch(request.headers.get("range", ""))
    if match is None:
        return Response(200, headers, data)
    start, stop = int(match[1]), int(match[2]) + 1 if match[2] else len(data)
    if start >= len(data):
        return Response(416, (("content-range", f"bytes */{len(data)}"), ("content-type", MEDIA_TYPE), *tag), b"{}")
    part = data[start:stop]
    content_range = f"bytes {start}-{start + len(part) - 1}/{len(data)}"
    return Response(206, (*headers, ("content-range", content_range)), part)
