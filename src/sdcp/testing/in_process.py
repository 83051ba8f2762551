"""A fake network between real roles of one process: requests go from client to handler without sockets or TLS.

Every certificate is believed to be what `reside` says. A process is killed by `kill`: from then on nobody reaches it,
nothing that it sends arrives, and all its tasks are cancelled, so that what a dying process would have sent is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextvars import ContextVar
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakSet

from sdcp.errors import InternalFault, ProblemError
from sdcp.http.call import CallBody
from sdcp.http.client import Answer
from sdcp.http.exchange import Handler, Request, Response
from sdcp.http.faults import AnswerTooLarge, DeadlineExceeded, NotTrusted, Unreachable
from sdcp.http.identity import Peer, normalize_uri
from sdcp.http.problems import problem_response

DEADLINE_S = 30.0

_LIFE: ContextVar[Life | None] = ContextVar("life", default=None)
CALLER: ContextVar[Life] = ContextVar("caller")
"""Whose request is being handled."""


class Life:
    """One process, from its start to its end."""

    def __init__(self, base_uri: str, role: str) -> None:
        self.base_uri = base_uri
        self.peer = Peer(frozenset({normalize_uri(base_uri)}), frozenset(), frozenset(), frozenset({role}), base_uri)
        self.alive = True
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()


class InProcess:
    """The network. Make it on the running loop: it counts the loop's tasks to the lives that begin them."""

    def __init__(self) -> None:
        self._handlers: dict[str, tuple[Handler, Life]] = {}
        self._answered = asyncio.Event()
        asyncio.get_running_loop().set_task_factory(_counted)

    def client(self, life: Life) -> InProcessClient:
        """What `sdcp.http.client.Client` is to a role of this life."""
        return InProcessClient(self, life)

    def reside(self, life: Life, handler: Handler) -> None:
        """From now on requests to its base URI are its own."""
        self._handlers[urlsplit(life.base_uri).netloc] = handler, life

    async def live(self, life: Life, work: Coroutine[Any, Any, Any]) -> Any:
        """Run `work` as a part of that life."""
        token = _LIFE.set(life)
        try:
            return await work
        finally:
            _LIFE.reset(token)

    async def kill(self, life: Life) -> None:
        """End a process without a word."""
        life.alive = False
        self._handlers.pop(urlsplit(life.base_uri).netloc, None)
        tasks = [task for task in life.tasks if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def next_answer(self) -> None:
        """Wait until another request has been answered; roles report status all the time."""
        self._answered.clear()
        await self._answered.wait()

    async def call(self, caller: Life, request: Request, expect_role: str | None) -> Response:
        """One request and its answer. Raises Unreachable when either end is dead, then or meanwhile."""
        handler, callee = self._handlers.get(request.authority, (None, None))
        if handler is None or callee is None or not caller.alive:
            raise Unreachable(f"{request.authority} cannot be reached", maybe_processed=False)
        if expect_role is not None and expect_role not in callee.peer.roles:
            raise NotTrusted(f"{request.authority} does not bear the role {expect_role}", maybe_processed=False)
        task = asyncio.get_running_loop().create_task(_handled(caller, callee, handler, request))
        callee.tasks.add(task)
        try:
            response: Response = await task
        except asyncio.CancelledError:
            if callee.alive:  # the caller does not want the answer any more: its stream is reset
                raise
            raise Unreachable(f"{request.authority} is gone", maybe_processed=True) from None
        finally:
            task.cancel()
        if not (callee.alive and caller.alive):
            raise Unreachable(f"{request.authority} is gone", maybe_processed=True)
        self._answered.set()
        return response


class InProcessClient:
    """Requests of one life; `request` and `close` as of `sdcp.http.client.Client`."""

    def __init__(self, network: InProcess, life: Life) -> None:
        self._network = network
        self._life = life

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Iterable[tuple[str, str]] = (),
        body: CallBody | None = None,
        deadline_s: float | None = None,
        idempotent: bool = False,
        max_bytes: int | None = None,
        objects: bool = False,
        expect_role: str | None = None,
    ) -> Answer:
        """See `Client.request`; nothing is tried again."""
        parts = urlsplit(url)
        assert body is None or isinstance(body, bytes | memoryview)
        request = Request(
            method, parts.path, parts.query, parts.netloc, dict(headers), self._life.peer, _Body(bytes(body or b""))
        )
        try:
            async with asyncio.timeout(DEADLINE_S if deadline_s is None else deadline_s):
                response = await self._network.call(self._life, request, expect_role)
                content = await _whole(response)
        except TimeoutError:
            raise DeadlineExceeded(f"{method} {url}: time is up", maybe_processed=True) from None
        if max_bytes is not None and len(content) > max_bytes:
            raise AnswerTooLarge(f"{method} {url}: more than {max_bytes} octets", maybe_processed=True)
        return Answer(response.status, dict(response.headers), content, self._life.peer)

    async def close(self) -> None:
        """Nothing is open."""


class _Body:
    """The body of a request, whole from the start."""

    def __init__(self, octets: bytes) -> None:
        self._octets = octets

    async def next_chunk(self) -> bytes | None:
        octets, self._octets = self._octets, b""
        return octets or None

    async def read(self, limit: int, too_large: Callable[[int], Exception]) -> bytes:
        if len(self._octets) > limit:
            raise too_large(limit)
        octets, self._octets = self._octets, b""
        return octets


async def _handled(caller: Life, callee: Life, handler: Handler, request: Request) -> Response:
    _LIFE.set(callee)
    CALLER.set(caller)
    try:
        return await handler(request)
    except ProblemError as refusal:
        return problem_response(refusal)
    except Exception as fault:
        return problem_response(InternalFault(f"{type(fault).__name__}: {fault}"))


async def _whole(response: Response) -> bytes:
    if isinstance(response.body, AsyncIterator):
        return b"".join([chunk async for chunk in response.body])
    return bytes(response.body)


def _counted(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    """Make a task, and count it to the life that began it."""
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
    life = _LIFE.get()
    if life is not None:
        life.tasks.add(task)
        if not life.alive:
            task.cancel()
    return task
