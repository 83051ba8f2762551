"""What a played role received: each message is taken by the check that waits for it, and answered by it.

An `Incoming` is one request of the subject that waits for its answer. A `Mailbox` keeps them in order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from sdcp_conformance.encoding import decode, encode
from sdcp_conformance.net.server import DropConnection, NoAnswer, Request, Response
from sdcp_conformance.outcome import ensure
from sdcp_conformance.played.cache import problem, problem_type
from sdcp_conformance.watch import SDCP_CBOR


class Incoming:
    """One request of the subject; `message` is its decoded body, None when it has none or is no CBOR.

    `at`: when it came, in monotonic seconds.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.at = time.monotonic()
        self.message: Any = None
        if request.body:
            try:
                self.message = decode(request.body)
            except ValueError:
                self.message = None
        self._response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    @property
    def answered(self) -> bool:
        """Whether it has its answer."""
        return self._response.done()

    @property
    def gone(self) -> bool:
        """Whether the subject no longer waits for the answer."""
        return self.request.gone.is_set()

    def respond(self, status: int, message: Any = None) -> None:
        """Answer with a message, encoded as CBOR, or with no content."""
        if message is None:
            self._set(Response(status))
        else:
            self._set(Response(status, (("content-type", SDCP_CBOR),), encode(message)))

    def respond_raw(self, response: Response) -> None:
        """Answer with any response."""
        self._set(response)

    def refuse(self, kind: str | int, detail: str = "The conformance kit says so.", **members: Any) -> None:
        """Answer with a type of Table 2, or with a bare status."""
        self._set(problem_type(kind, detail, **members) if isinstance(kind, str) else problem(kind, detail))

    def drop(self, *, connection: bool = False) -> None:
        """Reset the stream instead of answering, or cut the whole connection off."""
        if not self._response.done():
            self._response.set_exception(DropConnection() if connection else NoAnswer())

    async def response(self) -> Response:
        """What the server sends."""
        return await self._response

    def _set(self, response: Response) -> None:
        if not self._response.done():
            self._response.set_result(response)


class Mailbox:
    """Messages of one kind for one owner. `what` names them in failures. `auto` answers each at once when set.

    `meanwhile` says what else happened, for failures.
    """

    def __init__(self, what: str, patience_s: float) -> None:
        self.what = what
        self.all: list[Incoming] = []
        self.auto: Callable[[Incoming], None] | None = None
        self._patience_s = patience_s
        self.meanwhile: Callable[[], str] = str
        self._taken = 0
        self._more = asyncio.Event()

    def deliver(self, incoming: Incoming) -> None:
        """A request has come."""
        self.all.append(incoming)
        self._more.set()
        if self.auto is not None:
            self.auto(incoming)

    async def comes_within(self, limit_s: float) -> bool:
        """Whether one that nobody took comes in this time; it is not taken."""
        try:
            async with asyncio.timeout(limit_s):
                while self._taken >= len(self.all):
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            return False
        return True

    async def take(self, limit_s: float | None = None) -> Incoming:
        """The next one that nobody took. Fails the check when none comes in time."""
        limit_s = limit_s or self._patience_s
        if not await self.comes_within(limit_s):
            ensure(False, f"expected {self.what} within {limit_s:g} s, none came{self.meanwhile()}")
        self._taken += 1
        return self.all[self._taken - 1]

    async def none_within(self, limit_s: float, because: str = "") -> None:
        """Fail when another one comes within this time."""
        if not await self.comes_within(limit_s):
            return
        incoming = await self.take()
        ensure(False, f"expected no {self.what} {because}, came {incoming.message!r:.200}")

    @property
    def unanswered(self) -> int:
        """How many still wait for an answer."""
        return sum(not incoming.answered for incoming in self.all)

    def drop_all(self) -> None:
        """Leave whatever still waits without an answer."""
        for incoming in self.all:
            incoming.drop()
