"""The rows of rounds under way: held, written to the multi-level cache under a lease, let go (5.2, 6.2, D25).

Words: rows are *held* once sampled, and *written* once an object holds them and a lease keeps it; both end with the
round's verdict. One contiguous buffer is written, the very rows that were sampled from, without a copy. Giving a lease
back keeps nobody waiting: it is done beside what comes next, and a lease that cannot be given back ends by time.

Not here: sampling (`sdcp.engines`), and when rows are written and let go (`sdcp.machines.drafter_rounds`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from sdcp.ports import Cache, ObjectMissingError, StoreFullError, StoreUnavailableError
from sdcp.wire.rows import Rows

LEASE_MS = 30_000
RENEW_S = LEASE_MS / 3000
_RATE_WEIGHT = 0.2

CACHE_FAULTS = (ObjectMissingError, StoreFullError, StoreUnavailableError)


@dataclass(slots=True)
class _Written:
    """An object and the lease on it; `ref` None while it is not known."""

    lease: str
    ref: str | None = None


@dataclass(slots=True)
class _Held:
    rows: Rows
    written: _Written | None = None


class Artifacts:
    """The rows of all sessions of a drafter. Make and use it on one running event loop; `stop` it at the end."""

    def __init__(self, cache: Cache, *, lease_ms: int = LEASE_MS, renew_s: float = RENEW_S) -> None:
        self._cache = cache
        self._lease_ms = lease_ms
        self._renew_s = renew_s
        self._held: dict[tuple[bytes, int], _Held] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewing: asyncio.Task[None] | None = None
        self._mbps: float | None = None

    @property
    def mbps(self) -> int | None:
        """The bandwidth to the cache as last measured, in megabits per second; None before the first write."""
        return None if self._mbps is None else round(self._mbps)

    def __len__(self) -> int:
        return len(self._held)

    def start(self) -> None:
        """Begin to renew leases."""
        self._renewing = asyncio.get_running_loop().create_task(self._keep_renewing())

    async def stop(self) -> None:
        """Let everything go, and wait until it is gone."""
        if self._renewing is not None:
            self._renewing.cancel()
            with suppress(asyncio.CancelledError):
                await self._renewing
        for session, round_ in tuple(self._held):
            self.release(session, round_)
        while self._tasks:
            await asyncio.wait(self._tasks)

    def hold(self, session: bytes, round_: int, rows: Rows) -> None:
        """Keep the rows [M, V] that a round's tokens were sampled from."""
        self.release(session, round_)
        self._held[session, round_] = _Held(rows)

    async def write(self, session: bytes, round_: int, count: int) -> str:
        """Write the first `count` rows and lease them; return the object's URI. Raises one of CACHE_FAULTS.

        What was written for the round before is let go.
        """
        held = self._held[session, round_]
        self._let_go(held)
        written = held.written = _Written(f"q{secrets.token_urlsafe(16)}")
        data = np.ascontiguousarray(held.rows[:count], dtype="<f4").data.cast("B")
        try:
            began = perf_counter()
            written.ref = await self._cache.create(data)
            self._measure(len(data), perf_counter() - began)
            await self._cache.lease(written.lease, [written.ref], self._lease_ms)
        except BaseException:  # a cancelled wait too: what is there already must not stay
            self._let_go(held)
            raise
        if held.written is not written:  # the round ended meanwhile
            self._spawn(self._drop(written))
        return written.ref

    def release(self, session: bytes, round_: int) -> None:
        """The round is over: forget its rows, and give lease and object back."""
        held = self._held.pop((session, round_), None)
        if held is not None:
            self._let_go(held)

    def release_all(self, session: bytes) -> None:
        """The session is over."""
        for round_ in [each for owner, each in self._held if owner == session]:
            self.release(session, round_)

    def _let_go(self, held: _Held) -> None:
        written, held.written = held.written, None
        if written is not None and written.ref is not None:
            self._spawn(self._drop(written))

    async def _drop(self, written: _Written) -> None:
        assert written.ref is not None
        with suppress(StoreUnavailableError):
            await self._cache.release(written.lease)
            await self._cache.delete(written.ref)

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(self._renew_s)
            await asyncio.gather(*(self._renew(held.written) for held in tuple(self._held.values()) if held.written))

    async def _renew(self, written: _Written) -> None:
        """A lease that is lost is not mended: the verifier says so, and the rows are written again (6.3 step 5)."""
        if written.ref is not None:
            with suppress(*CACHE_FAULTS):
                await self._cache.lease(written.lease, [written.ref], self._lease_ms)

    def _measure(self, octets: int, seconds: float) -> None:
        mbps = octets * 8 / 1e6 / max(seconds, 1e-6)
        self._mbps = mbps if self._mbps is None else self._mbps + _RATE_WEIGHT * (mbps - self._mbps)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
