"""How a role hands sealed segments to a cache on its own host, and gets them, instead of octets over TLS (D40).

A ticket, had over mutual TLS, opens a channel: a Unix socket over which segments travel as descriptors. Whatever stands
in the way (another host, another user, no such system, a cache that was restarted) is answered with None: the caller
goes by TLS, and the channel is tried again after `RETRY_S`, or at once if it had been open.

Not here: what the cache does (`sdcp.roles.host_memory`), and TLS (`sdcp.stores.remote`).
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count

from sdcp.errors import ProblemError
from sdcp.messages.host_memory import DELETE, GET, LEASE, PUT, RELEASE, SegmentReply, SegmentRequest, Ticket
from sdcp.ports import StoreUnavailableError
from sdcp.stores.datagrams import Datagrams, same_user
from sdcp.stores.sealed import AVAILABLE, Sealed, SpareSegments, fill

SHARED_FROM = 64 << 10
"""Octets from which objects are shared: smaller ones gain little, and each takes a descriptor of the cache."""

IN_FLIGHT = 32
"""Requests of one channel that may be without a reply; a cache reads no further than that."""

RETRY_S = 30.0
_OPENING_S = 1.0
_MAX_LEASED = 32  # names; longer requests go by TLS, where there is room for them
_BIG = 8 << 20  # octets that are copied in a thread: the event loop has other sessions

Answered = tuple[SegmentReply, int | None]


class HostMemory:
    """The segments of one cache. `take_ticket` asks for a ticket; None: the cache gives none.

    Use it on one event loop; `close` it at the end.
    """

    def __init__(
        self,
        take_ticket: Callable[[], Awaitable[Ticket | None]],
        *,
        deadline_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`deadline_s` is how long a reply may take."""
        self._take_ticket = take_ticket
        self._deadline_s = deadline_s
        self._clock = clock
        self._not_before = float("-inf")
        self._opening = asyncio.Lock()
        self._channel: _Channel | None = None
        self._spares = SpareSegments()
        self._closed = False

    async def put(self, name: str, data: memoryview) -> SegmentReply | None:
        """Create object `name`; None: it is not known whether that was done. StoreUnavailableError: not in time."""
        channel = await self._open()
        if channel is None:
            return None
        try:
            segment = await asyncio.to_thread(self._filled, data) if len(data) > _BIG else self._filled(data)
        except OSError:  # no memory, or no descriptor
            return None
        with segment:
            answered = await channel.ask(SegmentRequest(id=0, do=PUT, name=name, size=segment.size), segment.fd)
        self._spares.prepare(len(data))
        return None if answered is None else _without_segment(answered)

    async def get(self, name: str, at_most: int) -> tuple[SegmentReply, memoryview | None] | None:
        """Object `name` of at most `at_most` octets: the reply, and a read-only view if its status is 200.

        None: ask by TLS. StoreUnavailableError: not in time.
        """
        channel = await self._open()
        if channel is None:
            return None
        answered = await channel.ask(SegmentRequest(id=0, do=GET, name=name, size=at_most))
        if answered is None:
            return None
        reply, fd = answered
        if (fd is None) == (reply.status == 200):  # an answer without its segment, or a segment without its answer
            if fd is not None:
                os.close(fd)
            return None
        if fd is None:
            return reply, None
        try:
            segment = Sealed.received(fd, min(reply.size or 0, at_most))
        except (ValueError, OSError):  # not what our cache sends, so nothing of it is believed
            os.close(fd)
            return None
        with segment, suppress(OSError):  # no room for a mapping
            return reply, segment.view()
        return None

    async def lease(self, lease: str, objects: Sequence[str], ttl_ms: int) -> int | None:
        """Take or renew a lease: the status; None: ask by TLS. StoreUnavailableError: not in time."""
        if len(objects) > _MAX_LEASED:
            return None
        return await self._status(SegmentRequest(id=0, do=LEASE, name=lease, objects=tuple(objects), ttl_ms=ttl_ms))

    async def release(self, lease: str) -> int | None:
        """Release a lease; as `lease`."""
        return await self._status(SegmentRequest(id=0, do=RELEASE, name=lease))

    async def delete(self, name: str) -> int | None:
        """Delete an object; as `lease`."""
        return await self._status(SegmentRequest(id=0, do=DELETE, name=name))

    def close(self) -> None:
        """Close the channel; idempotent."""
        self._closed = True
        self._spares.close()
        if self._channel is not None:
            self._channel.close()

    def _filled(self, data: memoryview) -> Sealed:
        return fill(self._spares.take(), data)

    async def _status(self, request: SegmentRequest) -> int | None:
        """Ask over a channel that is open; none is opened for what is small."""
        answered = await self._channel.ask(request) if self._channel is not None else None
        return None if answered is None else _without_segment(answered).status

    async def _open(self) -> _Channel | None:
        """The channel, opened if it is not; one caller opens it, and others wait for what comes of it."""
        if not self._ready():
            async with self._opening:
                if not self._ready() and AVAILABLE and not self._closed and self._clock() >= self._not_before:
                    self._not_before = self._clock() + RETRY_S
                    self._channel = await self._opened()
                    if self._channel is not None:
                        self._not_before = float("-inf")
        return self._channel if self._ready() else None

    def _ready(self) -> bool:
        return self._channel is not None and not self._channel.closed

    async def _opened(self) -> _Channel | None:
        with suppress(StoreUnavailableError, ProblemError, OSError, TimeoutError):
            async with asyncio.timeout(_OPENING_S):
                ticket = await self._take_ticket()
                if ticket is not None:
                    return await _Channel.connect(ticket, self._deadline_s)
        return None


class _Channel:
    """An open connection, and the requests on it that have no reply yet."""

    def __init__(self, connection: socket.socket, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._waiting: dict[int, asyncio.Future[Answered | None]] = {}
        self._numbers = count(1)
        self._room = asyncio.Semaphore(IN_FLIGHT)
        self._datagrams = Datagrams(connection, self._received, self._ended)

    @classmethod
    async def connect(cls, ticket: Ticket, deadline_s: float) -> _Channel:
        """Connect and be admitted. OSError; StoreUnavailableError when the ticket is not taken."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            connection.connect(ticket.path)
            if not same_user(connection):
                raise StoreUnavailableError(f"{ticket.path} is another user's")
        except BaseException:
            connection.close()
            raise
        channel = cls(connection, deadline_s)
        try:
            answered = await channel._sent(0, ticket.ticket, None)
            if answered is None or _without_segment(answered).status != 204:
                raise StoreUnavailableError(f"{ticket.path} did not take our ticket")
        except BaseException:
            channel.close()
            raise
        return channel

    @property
    def closed(self) -> bool:
        return self._datagrams.closed

    async def ask(self, request: SegmentRequest, fd: int | None = None) -> Answered | None:
        """The reply and the descriptor beside it, which is the caller's; None: the channel ended before it came.

        The request is numbered here. StoreUnavailableError: not in time.
        """
        number = next(self._numbers)
        request = replace(request, id=number)
        try:
            async with asyncio.timeout(self._deadline_s), self._room:
                return await self._sent(number, request.encode(), fd)
        except TimeoutError:
            self.close()  # whatever the cache does: nobody else shall wait for it
            what = f"{request.do} {request.name}"
            raise StoreUnavailableError(f"{what}: the cache did not answer in {self._deadline_s:g} s") from None

    def close(self) -> None:
        self._datagrams.close()

    async def _sent(self, number: int, datagram: bytes, fd: int | None) -> Answered | None:
        reply = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            return await reply if self._datagrams.send(datagram, fd) else None
        except asyncio.CancelledError:
            answered = reply.result() if reply.done() and not reply.cancelled() else None
            if answered is not None:  # it came at the same moment, and nobody else will close its descriptor
                _without_segment(answered)
            raise
        finally:
            del self._waiting[number]

    def _received(self, datagram: bytes, fd: int | None) -> None:
        try:
            reply = SegmentReply.decode(datagram)
        except ProblemError:
            reply = None
        waiting = self._waiting.get(reply.id) if reply is not None else None
        if reply is not None and waiting is not None and not waiting.done():
            waiting.set_result((reply, fd))
        elif fd is not None:  # whoever asked has gone
            os.close(fd)

    def _ended(self) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(None)


def _without_segment(answered: Answered) -> SegmentReply:
    reply, fd = answered
    if fd is not None:
        os.close(fd)
    return reply
