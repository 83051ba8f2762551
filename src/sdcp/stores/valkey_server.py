"""Connections to a Valkey or Redis server that keeps what it acknowledges, and calls of the script that runs there.

Every new connection asks for the settings that decide whether the server keeps what it acknowledges
(`sdcp.stores.valkey_checks`), also after a reconnect, when another server may have the address; and they are asked for
again beside appends, when somebody may have changed them.

Not here: what the script does, and what its answers mean (`valkey.lua`, `sdcp.stores.valkey`).
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import time
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any, TypeAlias, TypeVar

import valkey.exceptions as faults
from valkey.asyncio import BlockingConnectionPool, Connection, SSLConnection, UnixDomainSocketConnection, Valkey
from valkey.asyncio.client import Pipeline
from valkey.asyncio.connection import AbstractConnection

from sdcp.ports import StoreFullError, StoreUnavailableError
from sdcp.stores.valkey_address import Address
from sdcp.stores.valkey_checks import SETTINGS, complaints, fields

T = TypeVar("T")
Argument: TypeAlias = bytes | memoryview | str | int

_SCRIPT = files("sdcp.stores").joinpath("valkey.lua").read_text(encoding="utf-8")
_SHA = hashlib.sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest()
_CONNECTIONS = 16
QUESTIONS: tuple[tuple[Argument, ...], ...] = ((b"INFO",), (b"CONFIG", b"GET", *SETTINGS))
"""What tells whether the server keeps what it acknowledges; as octets, which the client gives back as they come."""
RECHECK_S = 5.0
_PAUSE_S = 0.05  # before the first repetition; then twice as long each time
_PASSING = (faults.ConnectionError, faults.TimeoutError)  # lost, or not there yet: a repetition may be answered


class UnsafeServerError(faults.ValkeyError):
    """The server would not keep what it acknowledges, or it cannot be told whether it would."""


class Server:
    """One server, and the keys of one cache in it. `key`: what they begin with."""

    def __init__(self, address: Address, deadline_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`deadline_s` covers each call with all its tries."""
        self._clock = clock
        self._checked = clock()
        self.address = address
        self.deadline_s = deadline_s
        self.key = f"{{{address.prefix}}}:"  # in braces: one slot, wherever slots matter
        self._client = Valkey(connection_pool=_connections(address, deadline_s))

    async def close(self) -> None:
        """Give the connections back."""
        await self._client.aclose(close_connection_pool=True)

    def pipeline(self) -> Pipeline:
        """Commands that are sent together, each for itself."""
        return self._client.pipeline(transaction=False)

    def script(self, *arguments: Argument) -> tuple[Argument, ...]:
        """The command that carries an operation of the script out."""
        return ("EVALSHA", _SHA, 1, self.key, *arguments)

    async def load(self) -> None:
        """Give the script to a server that lost it. Raises as the client does."""
        await self._execute("SCRIPT", "LOAD", _SCRIPT)

    async def call(self, *arguments: Argument) -> list[Any]:
        """Carry an operation of the script out, repeating it while no answer comes; as `repeated`."""
        return await self.repeated(lambda: self._execute(*self.script(*arguments)))

    async def repeated(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call until there is an answer. StoreFullError.

        StoreUnavailableError at the deadline, or at once for what waiting does not mend.
        """
        lost: Exception | None = None
        pause = _PAUSE_S
        try:
            async with asyncio.timeout(self.deadline_s):
                while True:
                    try:
                        return await call()
                    except faults.NoScriptError:
                        await self.load()
                    except faults.AuthenticationError:
                        raise
                    except _PASSING as fault:
                        lost = fault
                        await asyncio.sleep(pause)
                        pause *= 2
        except TimeoutError as fault:
            raise await self.translated(lost or fault) from None
        except (faults.ValkeyError, OSError) as fault:
            raise await self.translated(fault) from None

    async def translated(self, fault: Exception) -> StoreFullError | StoreUnavailableError:
        """What a fault of a call means to a role."""
        where = self.address.where
        if isinstance(fault, faults.OutOfMemoryError):
            return StoreFullError(f"{where}: its memory is full, and nothing in it may go")
        if isinstance(fault, UnsafeServerError):
            return StoreUnavailableError(str(fault))
        if isinstance(fault, faults.ReadOnlyError):  # no longer the primary: the name may lead to another by now
            await self._client.connection_pool.disconnect(inuse_connections=False)
        if isinstance(fault, faults.AuthenticationError):
            told = str(fault).rstrip(".")
            return StoreUnavailableError(f"{where}: {told}; set SDCP_VALKEY_USER and SDCP_VALKEY_PASSWORD")
        if isinstance(fault, TimeoutError):
            return StoreUnavailableError(f"{where}: no answer within {self.deadline_s} s")
        return StoreUnavailableError(f"{where}: {str(fault) or type(fault).__name__}")

    def check_due(self) -> bool:
        """Whether the settings are to be asked for beside the next appends; then not again for a while."""
        now = self._clock()
        if now - self._checked < RECHECK_S:
            return False
        self._checked = now
        return True

    def check(self, info: Any, settings: Any) -> None:
        """Judge the answers to QUESTIONS. UnsafeServerError: the next appends ask again."""
        try:
            _check(self.address, info, settings)
        except UnsafeServerError:
            self._checked = float("-inf")
            raise

    async def _execute(self, *command: Argument) -> Any:
        return await self._client.execute_command(*command)  # type: ignore[no-untyped-call]


def _connections(address: Address, deadline_s: float) -> BlockingConnectionPool:
    """Connections each of which is checked before its use (UnsafeServerError), and none of which repeats a command."""

    async def connected(connection: AbstractConnection) -> None:
        try:
            await connection.on_connect()
            _check(address, *[await _asked(connection, *question) for question in QUESTIONS])
            await connection.send_command("SCRIPT", "LOAD", _SCRIPT)
            await connection.read_response()
        except BaseException:
            await connection.disconnect(nowait=True)  # else the pool would hand it out unchecked
            raise

    kind: type[AbstractConnection] = Connection
    where: dict[str, Any] = {"host": address.host, "port": address.port, "socket_keepalive": True}
    if address.scheme == "unix":
        kind, where = UnixDomainSocketConnection, {"path": address.path}
    elif address.scheme == "valkeys":
        kind = SSLConnection
        where |= {
            "ssl_check_hostname": True,
            "ssl_min_version": ssl.TLSVersion.TLSv1_2,
            "ssl_ca_certs": address.ca,
            "ssl_certfile": address.certificate,
            "ssl_keyfile": address.key,
        }
    return BlockingConnectionPool(
        max_connections=_CONNECTIONS,
        timeout=None,  # whoever calls has a deadline
        connection_class=kind,
        db=address.db,
        username=address.user,
        password=address.password,
        socket_timeout=deadline_s,
        retry=None,
        retry_on_error=[],
        valkey_connect_func=connected,
        **where,
    )


def _check(address: Address, info: Any, settings: Any) -> None:
    """Raise UnsafeServerError unless the server keeps what it acknowledges. A fault: it does not say."""
    known = b"" if info is None or isinstance(info, Exception) else info
    told = None if settings is None or isinstance(settings, Exception) else _pairs(settings)
    found = complaints(fields(known), told, address)
    if found:
        raise UnsafeServerError(f"{address.where} cannot keep commit logs: {'; '.join(found)}")


async def _asked(connection: AbstractConnection, *command: Argument) -> Any:
    """The answer, or None when the server does not give it to us."""
    await connection.send_command(*command)
    try:
        return await connection.read_response()
    except faults.ResponseError:
        return None


def _pairs(settings: list[bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in zip(settings[::2], settings[1::2], strict=True)}
