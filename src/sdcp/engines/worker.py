"""An engine off the event loop: one thread, continuous batching, timings (6.3, 6.5, D27).

What waits when the engine is free rides in its next pass; `sdcp.machines.batcher` chooses. All state lives on the event
loop, the thread only runs passes, so nothing is locked. A round that was handed in runs to its end whatever becomes of
its waiter (D27); a prefill whose waiter is gone is dropped. When a pass of several jobs raises, each of them is tried
alone with the same values, so only the one at fault fails; the worker lives on.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from sdcp.machines.batcher import Batch, Batcher, Ticket
from sdcp.ports import Drafter, DraftJob, DraftResult, PrefillJob, Target, VerifyJob, VerifyResult
from sdcp.wire.kv_object import KvBlock

Job: TypeAlias = PrefillJob | VerifyJob | DraftJob
Result = TypeVar("Result")
Answer = TypeVar("Answer")

WINDOW_S = 3.0
"""The load looks back this long."""


class Worker:
    """The target of a verifier. Make and use it on one running event loop; `stop` it before the loop ends.

    most_jobs, most_tokens: bounds of one scoring pass. prefill_budget: tokens of one prefill chunk, which is also how
    long a round may have to wait for a prefill.
    """

    def __init__(
        self, target: Target, *, most_jobs: int = 64, most_tokens: int = 512, prefill_budget: int = 128
    ) -> None:
        self.target = target
        self._most_jobs = most_jobs
        self._lane: _Lane[VerifyResult] = _Lane(
            Batcher(most_jobs, most_tokens),
            target.verify,
            lambda jobs: target.prefill(jobs, prefill_budget),
            target.close,
        )

    async def prefill(self, job: PrefillJob) -> None:
        """Wait until the engine holds the prefix; raises what the engine raised (Overloaded, InvalidContent)."""
        await self._lane.prefill(job)

    async def verify(self, job: VerifyJob) -> VerifyResult:
        """Score and judge a round. Cancelling ends the wait, not the round (D27)."""
        result, _ = await self._lane.round(job, len(job.tokens) + 1)
        return result

    async def held_kv(self, session: bytes, prefix: Sequence[int], length: int, *, empty_prompt: bool = False) -> int:
        """Ask between two passes how much need not be computed (`Target.held_kv`); raises what the engine raises."""
        return await self._lane.between(lambda: self.target.held_kv(session, prefix, length, empty_prompt=empty_prompt))

    async def export_kv(self, session: bytes, prefix: Sequence[int], length: int) -> KvBlock | None:
        """Copy KV out between two passes (`Target.export_kv`)."""
        return await self._lane.between(lambda: self.target.export_kv(session, prefix, length))

    async def import_kv(
        self, session: bytes, prefix: Sequence[int], length: int, block: KvBlock, *, empty_prompt: bool = False
    ) -> int:
        """Take KV up between two passes; raises what the engine raises (`Target.import_kv`)."""
        return await self._lane.between(
            lambda: self.target.import_kv(session, prefix, length, block, empty_prompt=empty_prompt)
        )

    def close(self, session: bytes) -> None:
        """Give the session's KV back once no job of it waits."""
        self._lane.close(session)

    def load(self) -> int:
        """Return the load in percent: the busy share of the last seconds, or the queue in batches if that is more."""
        queue = self._lane.waiting / self._most_jobs
        return round(100 * min(1.0, max(self._lane.busy_share(), queue)))

    def snapshot(self) -> dict[str, float]:
        """Return counts and times since the start, for metrics."""
        return self._lane.snapshot()

    async def stop(self) -> None:
        """Let what waits finish, then end the thread."""
        await self._lane.stop()


class DraftWorker:
    """The drafter of a drafter role: concurrent sessions ride in one pass."""

    def __init__(self, drafter: Drafter, *, most_jobs: int = 64) -> None:
        self.drafter = drafter
        self._lane: _Lane[DraftResult] = _Lane(
            Batcher(most_jobs, most_tokens=1 << 20), drafter.draft, _no_prefill, drafter.close
        )

    async def draft(self, job: DraftJob) -> tuple[DraftResult, float]:
        """Draft for a session; return the result and t_d, the milliseconds of one position of its pass (6.2).

        A pass is as long as its longest job, so a short job in long company is not taken for slow; the wait for the
        pass is not in it.
        """
        return await self._lane.round(job, job.count)

    def close(self, session: bytes) -> None:
        """Give the session's KV back once no job of it waits."""
        self._lane.close(session)

    def load(self) -> int:
        """Return the busy share of the last seconds in percent."""
        return round(100 * self._lane.busy_share())

    def snapshot(self) -> dict[str, float]:
        """Return counts and times since the start, for metrics."""
        return self._lane.snapshot()

    async def stop(self) -> None:
        """Let what waits finish, then end the thread."""
        await self._lane.stop()


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A job, its ticket and whom its result is for."""

    ticket: Ticket
    job: Job
    future: asyncio.Future[Any]


class _Lane(Generic[Result]):
    """The queue, the thread and the clock of one engine."""

    def __init__(
        self,
        batcher: Batcher,
        rounds: Callable[[Sequence[Any]], Sequence[Result]],
        prefills: Callable[[Sequence[Any]], Sequence[bool]],
        close: Callable[[bytes], None],
    ) -> None:
        self._batcher = batcher
        self._rounds, self._prefills, self._close = rounds, prefills, close
        self._numbers = itertools.count()
        self._waiting: dict[int, _Waiting] = {}
        self._closing: set[bytes] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._between: set[asyncio.Future[Any]] = set()
        self._driver: asyncio.Task[None] | None = None
        self._stopped = False
        self._busy = _Busy(time.monotonic)
        self._counts = {"rounds": 0, "round_passes": 0, "round_tokens": 0, "prefill_passes": 0, "failures": 0}
        self._times_ms = {"round_ms": 0.0, "prefill_ms": 0.0}

    @property
    def waiting(self) -> int:
        """How many rounds and prefills wait for a pass."""
        return len(self._batcher)

    async def round(self, job: VerifyJob | DraftJob, size: int) -> tuple[Result, float]:
        """Wait for a round; it runs even when the wait is cancelled. Tells the ms of one position of its pass, too."""
        waiting = self._enrol(job, size)
        self._batcher.add_round(waiting.ticket)
        self._wake()
        served: tuple[Result, float] = await asyncio.shield(waiting.future)
        return served

    async def prefill(self, job: PrefillJob) -> None:
        """Wait for a prefill; a cancelled one is dropped at the next chunk."""
        waiting = self._enrol(job, job.length)
        self._batcher.add_prefill(waiting.ticket)
        self._wake()
        try:
            await waiting.future
        finally:
            if self._batcher.withdraw_prefill(waiting.ticket.number):
                del self._waiting[waiting.ticket.number]

    def close(self, session: bytes) -> None:
        """Close the session between passes, after its last waiting job; once stopped, there is nothing to close."""
        if self._stopped:
            return
        self._closing.add(session)
        self._wake()

    async def between(self, call: Callable[[], Answer]) -> Answer:
        """Run a call in the engine's thread: after the pass that runs and before any handed in later.

        Cancelling ends the wait, and the call if it has not begun; a session closed afterwards is closed after it.
        """
        future = asyncio.get_running_loop().run_in_executor(self._thread, call)
        self._between.add(future)
        future.add_done_callback(self._between.discard)
        return await future

    def busy_share(self) -> float:
        """Return the share of the last seconds that the engine worked, from 0 to 1."""
        return self._busy.share()

    def snapshot(self) -> dict[str, float]:
        """Return counts, times in ms, and what waits now."""
        queue = {"rounds_waiting": self._batcher.rounds, "prefills_waiting": self._batcher.prefills}
        return {**self._counts, **self._times_ms, **queue}

    async def stop(self) -> None:
        """Finish what waits and end the thread."""
        self._stopped = True
        if self._driver is not None:
            await self._driver
        await asyncio.gather(*self._between, return_exceptions=True)
        self._thread.shutdown()

    def _enrol(self, job: Job, size: int) -> _Waiting:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_note_exception)
        waiting = _Waiting(Ticket(next(self._numbers), job.session, size), job, future)
        self._waiting[waiting.ticket.number] = waiting
        return waiting

    def _wake(self) -> None:
        """Start driving the engine unless that is under way: at most one task, hence one pass at a time."""
        if self._driver is None or self._driver.done():
            self._driver = asyncio.get_running_loop().create_task(self._drive())

    async def _drive(self) -> None:
        """Run passes until nothing waits. No await between the last look at the queue and the end."""
        while True:
            due = self._due_closes()
            batch = self._batcher.take()
            if batch is None and not due:
                return
            await self._pass(batch, due)

    async def _pass(self, batch: Batch | None, due: set[bytes]) -> None:
        served = [self._waiting[ticket.number] for ticket in batch.tickets] if batch else []
        call = self._prefills if batch and batch.prefill else self._rounds
        self._busy.begin()
        try:
            loop = asyncio.get_running_loop()
            results, elapsed_ms = await loop.run_in_executor(self._thread, self._work, call, served, due)
        finally:
            self._busy.end()
        if batch:
            self._count(batch, elapsed_ms)
            position_ms = elapsed_ms / max(1, *(ticket.size for ticket in batch.tickets))
            for waiting, result in zip(served, results, strict=True):
                self._deliver(waiting, result, batch.prefill, position_ms)

    def _work(
        self, call: Callable[[Sequence[Any]], Sequence[Any]], served: list[_Waiting], due: set[bytes]
    ) -> tuple[Sequence[Any], float]:
        """Run in the thread: close what is due, then one pass."""
        for session in due:
            with contextlib.suppress(Exception):  # whatever it still holds, no pass needs it
                self._close(session)
        start = time.perf_counter()
        results = _isolated(call, [waiting.job for waiting in served]) if served else []
        return results, 1000 * (time.perf_counter() - start)

    def _deliver(self, waiting: _Waiting, result: Any, prefill: bool, position_ms: float) -> None:
        """Hand a result over; a prefill that is not complete waits for its next chunk."""
        if prefill and result is False and not waiting.future.done():
            self._batcher.add_prefill(waiting.ticket)
            return
        del self._waiting[waiting.ticket.number]
        self._counts["failures"] += isinstance(result, Exception)
        if waiting.future.done():
            return
        if isinstance(result, Exception):
            waiting.future.set_exception(result)
        else:
            waiting.future.set_result((result, position_ms))

    def _due_closes(self) -> set[bytes]:
        due = {session for session in self._closing if not self._batcher.holds(session)}
        self._closing -= due
        return due

    def _count(self, batch: Batch, elapsed_ms: float) -> None:
        kind = "prefill" if batch.prefill else "round"
        self._counts[f"{kind}_passes"] += 1
        self._times_ms[f"{kind}_ms"] += elapsed_ms
        if not batch.prefill:
            self._counts["rounds"] += len(batch.tickets)
            self._counts["round_tokens"] += sum(ticket.size for ticket in batch.tickets)


class _Busy:
    """How long the engine worked within the last WINDOW_S seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._born = clock()
        self._since: float | None = None
        self._spans: deque[tuple[float, float]] = deque()

    def begin(self) -> None:
        self._since = self._clock()

    def end(self) -> None:
        if self._since is not None:
            self._spans.append((self._since, self._clock()))
            self._since = None
            self._forget()

    def share(self) -> float:
        now = self._clock()
        start = max(now - WINDOW_S, self._born)
        spans = [*self._spans, (self._since, now)] if self._since is not None else self._spans
        worked = sum(max(0.0, until - max(since, start)) for since, until in spans)
        return min(1.0, worked / max(now - start, 1e-9))

    def _forget(self) -> None:
        while self._spans and self._spans[0][1] < self._clock() - WINDOW_S:
            self._spans.popleft()


def _isolated(call: Callable[[Sequence[Any]], Sequence[Any]], jobs: list[Job]) -> Sequence[Any]:
    """Call with all jobs; if that raises, with each alone. A result may be the exception that a job raised."""
    try:
        results = call(jobs)
        if len(results) != len(jobs):
            raise RuntimeError(f"the engine gave {len(results)} results for {len(jobs)} jobs")
        return results
    except Exception as error:
        if len(jobs) == 1:
            return [error]
        return [_isolated(call, [job])[0] for job in jobs]


def _note_exception(future: asyncio.Future[Any]) -> None:
    """Mark an exception as seen: the waiter of a round may be gone (D27)."""
    if not future.cancelled():
        future.exception()


def _no_prefill(jobs: Sequence[Any]) -> Sequence[bool]:
    raise AssertionError("drafters compute the KV of a prefix while they draft")
