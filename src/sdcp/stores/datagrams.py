"""Datagrams over a Unix socket, each with at most one descriptor beside it (unix(7), SCM_RIGHTS), on the event loop.

Not here: what they say (`sdcp.messages.host_memory`), and what the descriptors are of (`sdcp.stores.sealed`).
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
import struct
from collections.abc import Callable

MAX_DATAGRAM = 16 << 10
_AT_ONCE = 16  # datagrams read before others of the event loop have their turn
_ROOM = socket.CMSG_LEN(array.array("i").itemsize) if hasattr(socket, "CMSG_LEN") else 0
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


class Datagrams:
    """One end of a connection. It ends for good when the other end closes it, breaks its form, or does not read."""

    def __init__(
        self, connection: socket.socket, received: Callable[[bytes, int | None], None], ended: Callable[[], None]
    ) -> None:
        """Own `connection` (SOCK_SEQPACKET) and begin to read.

        `received` gets each datagram and owns the descriptor beside it; `ended` is called once, last.
        """
        connection.setblocking(False)
        self._socket = connection
        self._received = received
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._reading = False
        self.resume()

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self._socket.fileno() < 0

    def send(self, datagram: bytes, fd: int | None = None) -> bool:
        """Send at once; False: the connection has ended, perhaps just now, since the other end does not read."""
        if self.closed:
            return False
        beside = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        try:
            self._socket.sendmsg([datagram], beside)
        except OSError:
            self.close()
            return False
        return True

    def pause(self) -> None:
        """Read no more until `resume`: what the other end sends waits, until it has to wait too."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._socket.fileno())

    def resume(self) -> None:
        """Go on reading."""
        if not self._reading and not self.closed:
            self._reading = True
            self._loop.add_reader(self._socket.fileno(), self._read)

    def close(self) -> None:
        """End the connection; idempotent."""
        if self.closed:
            return
        self.pause()
        self._socket.close()
        self._ended()

    def _read(self) -> None:
        for _ in range(_AT_ONCE):
            if not self._reading or not self._read_one():
                return

    def _read_one(self) -> bool:
        """Read one datagram; False: there is none now, or none any more."""
        try:
            datagram, beside, flags, _ = self._socket.recvmsg(MAX_DATAGRAM, _ROOM, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except OSError:
            self.close()
            return False
        fds = _descriptors(beside)
        if not datagram or len(fds) > 1 or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            for fd in fds:
                os.close(fd)
            self.close()
            return False
        self._received(datagram, fds[0] if fds else None)
        return True


def same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end is of this process's user, or root's (SO_PEERCRED)."""
    octets = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(octets)[1] in (os.geteuid(), 0)


def _descriptors(beside: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, octets in beside:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(octets[: len(octets) - len(octets) % fds.itemsize])
    return fds.tolist()
