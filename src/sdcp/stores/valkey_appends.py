"""Appends on their way to a Valkey or Redis server: those that wait at the same time travel together (D43).

Where replicas must have them on their disks, reads of logs travel the same way: a writer that looks for its record must
not find what a failover would take back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import valkey.exceptions as faults

from sdcp.ports import StoreUnavailableError
from sdcp.stores.valkey_server import QUESTIONS, Argument, Server

_TOGETHER = 512  # appends that travel together


@dataclass(slots=True, eq=False)
class _Waiting:
    command: tuple[Argument, ...]
    answer: asyncio.Future[list[Any]]


class Appends:
    """Those that came while others travelled travel next, and share the server's sync.

    None is sent twice, but one for which the server did not know the script, and which therefore was not done.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._queue: list[_Waiting] = []
        self._travelling: asyncio.Task[None] | None = None

    async def append(self, *arguments: Argument) -> list[Any]:
        """Carry an operation of the script out; return its answer. StoreUnavailableError, StoreFullError."""
        waiting = _Waiting(self._server.script(*arguments), asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        if self._travelling is None:
            self._travelling = asyncio.create_task(self._travel())
        try:
            async with asyncio.timeout(self._server.deadline_s):
                return await waiting.answer  # cancelled at the deadline: if it was not sent by then, it will not be
        except TimeoutError as late:
            raise await self._server.translated(late) from None

    async def close(self) -> None:
        """Wait for nothing: those under way are unanswered."""
        if self._travelling is not None:
            self._travelling.cancel()
            with suppress(asyncio.CancelledError):
                await self._travelling

    async def _travel(self) -> None:
        batch: list[_Waiting] = []
        try:
            while self._queue:
                batch = [waiting for waiting in self._queue[:_TOGETHER] if not waiting.answer.done()]
                del self._queue[:_TOGETHER]
                await self._send(batch)
        finally:
            self._travelling = None
            for waiting in (*batch, *self._queue):
                if not waiting.answer.done():
                    waiting.answer.set_exception(StoreUnavailableError("the cache was closed"))
            self._queue.clear()

    async def _send(self, batch: Sequence[_Waiting]) -> None:
        pipeline = self._server.pipeline()
        for waiting in batch:
            pipeline.execute_command(*waiting.command)
        replicas = self._server.address.replicas
        if replicas:
            quarter_ms = int(self._server.deadline_s * 250)  # so that both answer before the deadline
            # Replicas tell what they have synced when asked, else once a second. WAIT ends when they have received the
            # records, so that WAITAOF asks them when they have synced them.
            pipeline.execute_command("WAIT", replicas, quarter_ms)
            pipeline.execute_command("WAITAOF", 1, replicas, quarter_ms)
        questions = QUESTIONS if self._server.check_due() else ()
        for question in questions:
            pipeline.execute_command(*question)
        try:
            async with asyncio.timeout(self._server.deadline_s):
                answers = await pipeline.execute(raise_on_error=False)
            if questions:
                self._server.check(*answers[-len(questions) :])
                del answers[-len(questions) :]
        except (faults.ValkeyError, OSError) as fault:
            answers = [fault] * len(batch)
        else:
            if replicas:
                answers = covered(answers[:-2], answers[-1], replicas)
        for waiting, answer in zip(batch, answers, strict=True):
            await self._answer(waiting, answer)

    async def _answer(self, waiting: _Waiting, answer: Any) -> None:
        if waiting.answer.done():
            return
        if isinstance(answer, faults.NoScriptError):
            with suppress(faults.ValkeyError, OSError):
                await self._server.load()
            self._queue.append(waiting)
        elif isinstance(answer, Exception):
            waiting.answer.set_exception(await self._server.translated(answer))
        else:
            waiting.answer.set_result(answer)


def covered(answers: Sequence[Any], synced: Any, replicas: int) -> list[Any]:
    """The answers, or faults when by WAITAOF (`synced`) too few replicas have on their disks what they rest on."""
    if not isinstance(synced, Exception) and synced[1] >= replicas:
        return list(answers)
    late = faults.ValkeyError(f"fewer than {replicas} replicas have the log on their disks in time")
    return [answer if isinstance(answer, Exception) else late for answer in answers]
