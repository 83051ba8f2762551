"""Status reports: every router hears from us at intervals shorter than ttl_ms (6.1, D7).

Each router has a task of its own, so that one that hangs keeps the others from nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from sdcp.http.identity import ROUTER
from sdcp.http.resources import url
from sdcp.messages.status import Status
from sdcp.roles.peers import Peers, RefusedError, UnansweredError

logger = logging.getLogger("sdcp.roles")

REPORTS_PER_TTL = 3
"""A report may be lost, and the next one late, before we are taken for dead."""


class StatusReporter:
    """Reports what `status()` says to all `routers`, from `start` to `stop`."""

    def __init__(self, peers: Peers, routers: Sequence[str], status: Callable[[], Status]) -> None:
        self._peers = peers
        self._routers = tuple(routers)
        self._status = status
        self._failing: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to report, at once and then again and again."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._keep_reporting(router)) for router in self._routers]

    async def report(self) -> None:
        """Report once to every router, now."""
        await asyncio.gather(*(self._report(router) for router in self._routers))

    async def stop(self) -> None:
        """Report no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep_reporting(self, router: str) -> None:
        while True:
            interval_s = self._status().ttl_ms / 1000 / REPORTS_PER_TTL
            began = asyncio.get_running_loop().time()
            await self._report(router, interval_s)
            await asyncio.sleep(max(0.0, began + interval_s - asyncio.get_running_loop().time()))

    async def _report(self, router: str, deadline_s: float = 1.0) -> None:
        status = self._status()
        target = url(router, "instances/{instance}/status", status.instance)
        try:
            await self._peers.tell("PUT", target, status, role=ROUTER, deadline_s=deadline_s)
        except (RefusedError, UnansweredError) as fault:
            self._note(router, str(fault))
        else:
            self._note(router, None)

    def _note(self, router: str, fault: str | None) -> None:
        """Say it once when a router cannot be told, and once when it can again."""
        if fault is not None and router not in self._failing:
            self._failing.add(router)
            logger.warning("status reports do not reach %s: %s", router, fault)
        elif fault is None and router in self._failing:
            self._failing.discard(router)
            logger.info("status reports reach %s again", router)
