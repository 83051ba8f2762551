"""Either end of an HTTP/2 connection in memory: a transport that goes nowhere, and a turn of the loop at a time.

The loop's clock stands still, so that an input does the same whenever it is tried; time passes where a target says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from sdcp.http.identity import ROLE_URN, ROLES


class StillLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only by `later`."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 1000.0

    def time(self) -> float:
        """Seconds that passed."""
        return self._now

    def later(self, seconds: float) -> None:
        """Time passes."""
        self._now += seconds


class Tls:
    """What the connections ask of TLS; the certificate carries every role."""

    names = (("URI", "https://127.0.0.1:7001/"), *(("URI", ROLE_URN + role) for role in sorted(ROLES)))

    def version(self) -> str:
        """The only one."""
        return "TLSv1.3"

    def selected_alpn_protocol(self) -> str:
        """The only one."""
        return "h2"

    def getpeercert(self, binary_form: bool = False) -> Any:
        """The peer's certificate."""
        return b"der" if binary_form else {"subjectAltName": self.names}


class Wire(asyncio.Transport):
    """A transport that goes nowhere. It tells the protocol to pause only when the target says so."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__({"ssl_object": Tls()})
        self.sent = bytearray()
        self.closing = False
        self.protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep what is sent."""
        self.sent += data

    def is_closing(self) -> bool:
        """Whether either side has closed."""
        return self.closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        """End it at the next turn, as asyncio's own transports do."""
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        """The same."""
        self.close()


async def turns(count: int) -> None:
    """Let the loop turn so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


_loop: StillLoop | None = None


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario to its end; what is left behind, or failed unseen, is a finding."""
    global _loop
    loop = _loop = _loop or StillLoop()
    asyncio.set_event_loop(loop)
    unseen: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unseen.append(context))
    loop.run_until_complete(scenario)
    loop.run_until_complete(turns(1))
    left = asyncio.all_tasks(loop)
    assert not unseen, f"failed unseen: {unseen}"
    assert not left, f"tasks left behind: {left}"
