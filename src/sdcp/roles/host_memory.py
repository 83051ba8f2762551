"""The cache's end of host memory: tickets, the Unix socket, and what travels over it (D40).

Who may: a process of the cache's own user or root's (the folder's mode, and SO_PEERCRED) that presents a ticket which
the cache gave over mutual TLS; from then on the connection is that certificate's, for `MAX_AGE_S`. A ticket is good
once, for `TICKET_S`. Bounded: connections of one peer and in all, requests under way on one, and so descriptors.

Not here: what a request does (`sdcp.roles.cache`), and the other end (`sdcp.stores.host_memory`).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
import socket
import stat
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from sdcp.errors import BodyTooLarge, InternalFault, InvalidContent, Overloaded, ProblemError, UnknownResource
from sdcp.http.identity import Peer
from sdcp.messages.host_memory import PUT, TICKET_OCTETS, SegmentReply, SegmentRequest, Ticket
from sdcp.stores.datagrams import Datagrams, same_user
from sdcp.stores.host_memory import IN_FLIGHT
from sdcp.stores.sealed import AVAILABLE, Sealed
from sdcp.stores.store import NAME
from sdcp.wire.problem import MAX_DETAIL

TICKET_S = 10.0
MAX_AGE_S = 3600.0
MAX_CONNECTIONS = 256
MAX_PER_PEER = 16
_PAUSE_S = 1.0  # of accepting, when no descriptor is left
_MAX_PATH = 100  # octets; the kernel takes 107

Perform = Callable[[Peer, SegmentRequest, Sealed | None], Awaitable[tuple[int, Sealed | None]]]
"""Do what a peer asks; return status and segment for the reply, which closes it. Owns the segment it is given."""

logger = logging.getLogger("sdcp.roles")


class HostMemory:
    """Segments for the processes of this host. `start` it on an event loop and `close` it at the end."""

    def __init__(
        self, folder: Path, perform: Perform, *, largest: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`folder` is where the socket lies, if its path is short enough; `largest` segment is taken, in octets."""
        self._folder = folder
        self._perform = perform
        self._largest = largest
        self._clock = clock
        self._tickets: dict[bytes, tuple[Peer, float]] = {}
        self._listening: socket.socket | None = None
        self._path = ""
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Listen; where this host or its user cannot have such a socket, say so in the log and do without."""
        if not AVAILABLE:
            return
        try:
            self._path = str(_private(self._folder) / "socket")
            self._listening = _listen(self._path)
        except OSError as fault:
            logger.warning("no host memory, objects go by TLS alone: %s", fault)
            return
        self._accept_from_now_on()

    def ticket(self, peer: Peer) -> Ticket:
        """Give a ticket to a peer that is known by its certificate. UnknownResource; Overloaded."""
        if self._listening is None:
            raise UnknownResource("this cache shares no memory with processes of its host")
        self._tickets = {ticket: kept for ticket, kept in self._tickets.items() if kept[1] > self._clock()}
        if sum(owner.name == peer.name for owner, _ in self._tickets.values()) >= MAX_PER_PEER:
            raise Overloaded("you have tickets that you did not use; use one, or wait until they have expired")
        ticket = secrets.token_bytes(TICKET_OCTETS)
        self._tickets[ticket] = (peer, self._clock() + TICKET_S)
        return Ticket(path=self._path, ticket=ticket)

    def admit(self, ticket: bytes) -> Peer | None:
        """Whose ticket this is; None: nobody's, or used, or expired, or its owner has connections enough."""
        peer, until = self._tickets.pop(ticket, (None, 0.0))
        if peer is None or until <= self._clock():
            return None
        theirs = sum(each.peer is not None and each.peer.name == peer.name for each in self._connections)
        return peer if theirs < MAX_PER_PEER else None

    def begin(self, connection: _Connection, request: SegmentRequest, fd: int | None) -> None:
        """Answer a request beside what else goes on."""
        task = asyncio.get_running_loop().create_task(self._answer(connection, request, fd))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def forget(self, connection: _Connection) -> None:
        """The connection has ended."""
        self._connections.discard(connection)

    async def close(self) -> None:
        """Take nothing new, and finish what is under way."""
        self._tickets.clear()
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening.fileno())
            self._listening.close()
            self._listening = None
            with suppress(OSError):
                os.unlink(self._path)
        for connection in self._connections:
            connection.stop_reading()
        while self._tasks:
            await asyncio.wait(self._tasks)
        for connection in tuple(self._connections):
            connection.close()

    # -- connections --------------------------------------------------------------------------------------------------

    def _accept_from_now_on(self) -> None:
        if self._listening is not None:
            asyncio.get_running_loop().add_reader(self._listening.fileno(), self._accept)

    def _accept(self) -> None:
        assert self._listening is not None
        try:
            accepted, _ = self._listening.accept()
        except OSError as fault:
            if fault.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._listening.fileno())
                loop.call_later(_PAUSE_S, self._accept_from_now_on)
            return
        if len(self._connections) >= MAX_CONNECTIONS or not same_user(accepted):
            accepted.close()
            return
        connection = _Connection(self, accepted, self._clock)
        self._connections.add(connection)
        asyncio.get_running_loop().call_later(TICKET_S, connection.close_stranger)

    # -- requests -----------------------------------------------------------------------------------------------------

    async def _answer(self, connection: _Connection, request: SegmentRequest, fd: int | None) -> None:
        segment: Sealed | None = None
        try:
            status, segment = await self._performed(connection, request, fd)
            reply = SegmentReply(id=request.id, status=status, size=segment.size if segment is not None else None)
        except ProblemError as refusal:
            reply = SegmentReply(id=request.id, status=refusal.status, detail=refusal.detail[:MAX_DETAIL])
        except Exception:
            logger.exception("host memory: %s %s", request.do, request.name)
            reply = SegmentReply(id=request.id, status=InternalFault.status, detail="the cache failed; see its log")
        connection.answer(reply, segment)
        if segment is not None:
            segment.close()

    async def _performed(
        self, connection: _Connection, request: SegmentRequest, fd: int | None
    ) -> tuple[int, Sealed | None]:
        assert connection.peer is not None
        segment = self._checked(request, fd) if fd is not None else None
        if not NAME.fullmatch(request.name):
            raise UnknownResource(f"{request.name!r} is no name of an object or a lease")
        return await self._perform(connection.peer, request, segment)

    def _checked(self, request: SegmentRequest, fd: int) -> Sealed:
        try:
            size = request.size or 0
            if size > self._largest:
                raise BodyTooLarge(f"the segment is longer than the {self._largest} octets that are taken")
            return Sealed.received(fd, size)
        except ValueError as fault:
            os.close(fd)
            raise InvalidContent(f"{fault}") from None
        except (ProblemError, OSError):
            os.close(fd)
            raise


class _Connection:
    """One process of this host: a stranger until its first datagram is a ticket, then `peer`."""

    def __init__(self, owner: HostMemory, accepted: socket.socket, clock: Callable[[], float]) -> None:
        self.peer: Peer | None = None
        self._owner = owner
        self._clock = clock
        self._until = float("inf")
        self._under_way = 0
        self._stopped = False
        self._datagrams = Datagrams(accepted, self._received, self._ended)

    def answer(self, reply: SegmentReply, segment: Sealed | None) -> None:
        """Send a reply, unless nobody is there any more."""
        self._datagrams.send(reply.encode(), None if segment is None else segment.fd)
        self._under_way -= 1
        if not self._stopped and self._under_way < IN_FLIGHT:
            self._datagrams.resume()

    def stop_reading(self) -> None:
        """Take no more requests; replies still go out."""
        self._stopped = True
        self._datagrams.pause()

    def close_stranger(self) -> None:
        """End the connection if it has presented no ticket in time."""
        if self.peer is None:
            self.close()

    def close(self) -> None:
        """End the connection."""
        self._datagrams.close()

    def _received(self, datagram: bytes, fd: int | None) -> None:
        if self.peer is None:
            self._present(datagram, fd)
            return
        try:
            request = SegmentRequest.decode(datagram)
        except ProblemError:
            request = None
        if request is None or (request.do == PUT) != (fd is not None) or self._clock() >= self._until:
            if fd is not None:
                os.close(fd)
            self.close()
            return
        self._under_way += 1
        if self._under_way >= IN_FLIGHT:
            self._datagrams.pause()
        self._owner.begin(self, request, fd)

    def _present(self, ticket: bytes, fd: int | None) -> None:
        if fd is not None:
            os.close(fd)
        else:
            self.peer = self._owner.admit(ticket)
        if self.peer is None:
            self.close()
            return
        self._until = self._clock() + MAX_AGE_S
        self._datagrams.send(SegmentReply(id=0, status=204).encode())

    def _ended(self) -> None:
        self._owner.forget(self)


def _private(folder: Path) -> Path:
    """Make `folder`, or one for it in the user's runtime folder if its path is too long. OSError."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if len(os.fsencode(folder)) > _MAX_PATH and runtime:
        folder = Path(runtime) / f"sdcp-{sha256(os.fsencode(folder)).hexdigest()[:16]}"
    if len(os.fsencode(folder)) > _MAX_PATH:
        raise OSError(f"the path of {folder} is too long for a socket; set XDG_RUNTIME_DIR")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise OSError(f"{folder} must be a folder that only this user can enter (mode 0700)")
    return folder


def _listen(path: str) -> socket.socket:
    """A socket at `path`, which nobody else uses: the store's lock is ours, so what lies there is a dead one."""
    Path(path).unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        listening.bind(path)
        listening.listen(MAX_CONNECTIONS)
    except OSError:
        listening.close()
        raise
    return listening
