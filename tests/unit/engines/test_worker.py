"""The worker: continuous batching, D27, isolation of faults, closing, load. Engines wait for the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from sdcp.engines.worker import WINDOW_S, DraftWorker, Worker, _Busy
from sdcp.errors import Overloaded
from sdcp.messages.contract import Sampling
from sdcp.ports import DraftJob, DraftResult, PrefillJob, VerifyJob, VerifyResult
from sdcp.wire.kv_object import KvBlock


def verify_job(session: int, token: int = 0) -> VerifyJob:
    return VerifyJob(bytes([session]), [1], 1, (token,), 1, Sampling(), (), None, 9)


def prefill_job(session: int, length: int = 10) -> PrefillJob:
    return PrefillJob(bytes([session]), [0] * length, length)


class Gated:
    """A target whose passes wait for `gate`; it writes down what it did. Token 13 makes a pass fail."""

    vocabulary, context, model, tokenizer = 4, None, bytes(32), bytes(32)
    takes_empty_prompt, capacity = True, 9

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.started = threading.Event()
        self.log: list[Any] = []
        self.left: dict[bytes, int] = {}
        self.lost = False

    def verify(self, jobs: Sequence[VerifyJob]) -> list[VerifyResult]:
        self._pass("verify", jobs)
        if any(13 in job.tokens for job in jobs):
            raise RuntimeError("broken")
        return [] if self.lost else [VerifyResult(1, job.tokens[0]) for job in jobs]

    def prefill(self, jobs: Sequence[PrefillJob], budget: int) -> list[bool]:
        self._pass("prefill", jobs)
        if any(job.session == b"\x0d" for job in jobs):
            raise Overloaded("full")
        for job in jobs:
            taken = min(budget, self.left.get(job.session, job.length))
            self.left[job.session] = self.left.get(job.session, job.length) - taken
            budget -= taken
        return [self.left[job.session] == 0 for job in jobs]

    def held_kv(self, session: bytes, prefix: Sequence[int], length: int, *, empty_prompt: bool = False) -> int:
        self.log.append(("held", session[0]))
        return length

    def export_kv(self, session: bytes, prefix: Sequence[int], length: int) -> KvBlock | None:
        self.log.append(("export", session[0]))
        return None

    def import_kv(
        self, session: bytes, prefix: Sequence[int], length: int, block: KvBlock, *, empty_prompt: bool = False
    ) -> int:
        self.log.append(("import", session[0], empty_prompt))
        if length == 13:
            raise ValueError("does not fit")
        return length

    def close(self, session: bytes) -> None:
        self.log.append(("close", session[0]))

    def _pass(self, kind: str, jobs: Sequence[Any]) -> None:
        self.started.set()
        assert self.gate.wait(10)
        self.log.append((kind, [job.session[0] for job in jobs]))


@pytest.fixture
def engine() -> Gated:
    return Gated()


@pytest.fixture
async def worker(engine: Gated) -> AsyncIterator[Worker]:
    made = Worker(engine, prefill_budget=4)
    yield made
    engine.gate.set()
    await made.stop()


async def working(engine: Gated) -> None:
    """Wait until a pass has begun."""
    assert await asyncio.to_thread(engine.started.wait, 10)


async def start(engine: Gated, worker: Worker) -> asyncio.Task[VerifyResult]:
    """Occupy the engine with a round of session 1."""
    task = asyncio.create_task(worker.verify(verify_job(1, 1)))
    await working(engine)
    return task


@pytest.mark.requirement("S6.3-batching")
async def test_what_waits_rides_in_the_next_pass(engine: Gated, worker: Worker):
    first = await start(engine, worker)
    others = [asyncio.create_task(worker.verify(verify_job(n, n))) for n in (2, 3)]
    await asyncio.sleep(0)
    engine.gate.set()
    assert [(await each).additional for each in (first, *others)] == [1, 2, 3]
    assert engine.log == [("verify", [1]), ("verify", [2, 3])]


async def test_cancelling_the_wait_does_not_end_the_round(engine: Gated, worker: Worker):
    """D27, for the round that runs and for one that waits."""
    running = await start(engine, worker)
    waiting = asyncio.create_task(worker.verify(verify_job(2)))
    await asyncio.sleep(0)
    running.cancel()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    engine.gate.set()
    await worker.stop()
    assert engine.log == [("verify", [1]), ("verify", [2])]


async def test_after_the_end_there_is_nothing_to_close(engine: Gated, worker: Worker):
    """A verifier's timers may come after its drain."""
    engine.gate.set()
    await worker.verify(verify_job(1))
    await worker.stop()
    worker.close(b"\x01")
    begun = asyncio.all_tasks() - {asyncio.current_task()}
    assert [*filter(None, await asyncio.gather(*begun, return_exceptions=True))] == []


async def test_a_cancelled_prefill_is_dropped(engine: Gated, worker: Worker):
    await start(engine, worker)
    prefill = asyncio.create_task(worker.prefill(prefill_job(2)))
    await asyncio.sleep(0)
    prefill.cancel()
    with pytest.raises(asyncio.CancelledError):
        await prefill
    engine.gate.set()
    await worker.stop()
    assert engine.log == [("verify", [1])]


async def test_a_prefill_cancelled_in_its_chunk_gets_no_other(engine: Gated, worker: Worker):
    prefill = asyncio.create_task(worker.prefill(prefill_job(2)))
    await working(engine)
    prefill.cancel()
    with pytest.raises(asyncio.CancelledError):
        await prefill
    engine.gate.set()
    await worker.stop()
    assert engine.log == [("prefill", [2])]


BLOCK = KvBlock("", 3, {})


async def test_kv_is_given_and_taken_between_two_passes(engine: Gated, worker: Worker):
    first = await start(engine, worker)
    calls = [
        asyncio.create_task(worker.held_kv(b"\x03", [1, 2, 3], 3)),
        asyncio.create_task(worker.import_kv(b"\x03", [1, 2, 3], 3, BLOCK, empty_prompt=True)),
        asyncio.create_task(worker.export_kv(b"\x01", [1], 1)),
    ]
    second = asyncio.create_task(worker.verify(verify_job(2)))
    await asyncio.sleep(0)
    worker.close(b"\x03")
    engine.gate.set()
    assert await asyncio.gather(*calls) == [3, 3, None]
    await asyncio.gather(first, second)
    between = [("held", 3), ("import", 3, True), ("export", 1)]
    assert engine.log == [("verify", [1]), *between, ("close", 3), ("verify", [2])]


async def test_kv_that_does_not_fit_harms_nobody(engine: Gated, worker: Worker):
    engine.gate.set()
    with pytest.raises(ValueError, match="does not fit"):
        await worker.import_kv(b"\x03", [1] * 13, 13, BLOCK)
    assert (await worker.verify(verify_job(2))).accepted == 1


async def test_stopping_lets_kv_that_is_on_its_way_arrive(engine: Gated, worker: Worker):
    await start(engine, worker)
    export = asyncio.create_task(worker.export_kv(b"\x01", [1], 1))
    await asyncio.sleep(0)
    engine.gate.set()
    await worker.stop()
    assert await export is None
    assert engine.log == [("verify", [1]), ("export", 1)]


async def test_prefill_goes_in_chunks_between_rounds(engine: Gated, worker: Worker):
    first = await start(engine, worker)
    prefill = asyncio.create_task(worker.prefill(prefill_job(2, length=8)))
    second = asyncio.create_task(worker.verify(verify_job(1)))
    await asyncio.sleep(0)
    engine.gate.set()
    await asyncio.gather(first, second, prefill)
    assert engine.log == [("verify", [1]), ("prefill", [2]), ("verify", [1]), ("prefill", [2])]


async def test_only_the_job_at_fault_fails_and_the_worker_lives_on(engine: Gated, worker: Worker):
    await start(engine, worker)
    tasks = [asyncio.create_task(worker.verify(verify_job(n, token))) for n, token in [(2, 5), (3, 13), (4, 6)]]
    await asyncio.sleep(0)
    engine.gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [getattr(each, "additional", repr(each)) for each in results] == [5, "RuntimeError('broken')", 6]
    assert (await worker.verify(verify_job(5, 7))).additional == 7
    assert worker.snapshot()["failures"] == 1


async def test_an_engine_that_loses_a_job_or_fails_to_close_does_not_stop_the_worker(engine: Gated, worker: Worker):
    engine.gate.set()
    engine.close = lambda session: 1 / 0  # type: ignore[assignment, method-assign, return-value]
    worker.close(b"\x01")
    engine.lost = True
    with pytest.raises(RuntimeError, match="0 results for 1 jobs"):
        await worker.verify(verify_job(1))
    engine.lost = False
    assert (await worker.verify(verify_job(1, 7))).additional == 7


async def test_a_prefill_is_told_why_it_was_refused(engine: Gated, worker: Worker):
    engine.gate.set()
    with pytest.raises(Overloaded):
        await worker.prefill(prefill_job(13))


async def test_close_comes_after_the_last_waiting_job_of_the_session(engine: Gated, worker: Worker):
    first = await start(engine, worker)
    second = asyncio.create_task(worker.verify(verify_job(1)))
    await asyncio.sleep(0)
    worker.close(b"\x01")
    worker.close(b"\x02")
    engine.gate.set()
    await asyncio.gather(first, second)
    await worker.stop()
    assert engine.log == [("verify", [1]), ("close", 2), ("verify", [1]), ("close", 1)]


async def test_snapshot_counts(engine: Gated, worker: Worker):
    engine.gate.set()
    await worker.verify(verify_job(1))
    await worker.prefill(prefill_job(2, length=8))
    counted = worker.snapshot()
    assert {key: counted[key] for key in ("rounds", "round_passes", "round_tokens", "prefill_passes")} == {
        "rounds": 1,
        "round_passes": 1,
        "round_tokens": 2,
        "prefill_passes": 2,
    }


async def test_load_is_full_while_a_batch_waits(engine: Gated):
    worker = Worker(engine, most_jobs=1)
    await start(engine, worker)
    waiting = asyncio.create_task(worker.verify(verify_job(2)))
    await asyncio.sleep(0)
    assert worker.load() == 100
    engine.gate.set()
    await waiting
    await worker.stop()


def test_busy_share_looks_back_one_window():
    now = [0.0]
    busy = _Busy(lambda: now[0])
    assert busy.share() == 0
    now[0] = WINDOW_S
    busy.begin()
    now[0] = 1.5 * WINDOW_S
    assert busy.share() == 0.5
    busy.end()
    now[0] = 2 * WINDOW_S
    assert busy.share() == 0.5
    now[0] = 9 * WINDOW_S
    assert busy.share() == 0


class Echo:
    """A drafter that proposes the session's number."""

    vocabulary, context, model, tokenizer = 4, None, bytes(32), bytes(32)

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.closed: list[bytes] = []

    def draft(self, jobs: Sequence[DraftJob]) -> list[DraftResult]:
        self.batches.append(len(jobs))
        return [DraftResult((job.session[0],) * job.count, None) for job in jobs]

    def close(self, session: bytes) -> None:
        self.closed.append(session)


async def test_drafts_of_concurrent_sessions_ride_together():
    engine = Echo()
    worker = DraftWorker(engine)
    jobs = [DraftJob(bytes([n]), [1], 1, 2, 1, Sampling()) for n in range(3)]
    drafted = await asyncio.gather(*(worker.draft(job) for job in jobs))
    assert [result.tokens for result, _ in drafted] == [(0, 0), (1, 1), (2, 2)]
    assert all(elapsed_ms >= 0 for _, elapsed_ms in drafted)
    assert engine.batches == [3]
    worker.close(b"\x01")
    await worker.stop()
    assert engine.closed == [b"\x01"]
    assert worker.snapshot()["rounds"] == 3
    assert 0 <= worker.load() <= 100
