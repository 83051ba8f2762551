"""How a router that has just begun finds the sessions of its earlier life, and goes on with them (D45).

All of them one after another, some at a time, the one whose manifest was written last first; and at once the one that
a front end asks for. Meanwhile new requests are served as ever.

Not here: how a session goes on (`sdcp.machines.router_taking_up`), and where manifests are (`sdcp.roles.manifests`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from sdcp.machines.inputs import TakenUp
from sdcp.machines.manifest_log import ManifestLog
from sdcp.machines.router import Patience, RouterSession
from sdcp.machines.router_kept import KeptSession
from sdcp.messages.contract import Action
from sdcp.messages.manifest import EndRecord
from sdcp.ports import Entry, StoreUnavailableError
from sdcp.roles.manifests import Found, Manifests
from sdcp.roles.routing import Equipment, RoutingSession

logger = logging.getLogger("sdcp.roles")

T = TypeVar("T")

PAUSE_S = 0.5
"""Between two tries while the cache does not answer."""

SETTLE_S = 10.0
"""So long a session may take to go on before another one is taken up beside it."""


class TakingUp:
    """`under_way`: whether there may be sessions that were not found yet.

    `hold` takes a session into the router's care, or returns the one that it has for the same request.
    """

    def __init__(
        self,
        manifests: Manifests,
        equipment: Equipment,
        patience: Patience,
        hold: Callable[[RoutingSession], RoutingSession],
        retention_ms: float,
    ) -> None:
        """`retention_ms`: how long a session that has ended is still known."""
        self.under_way = True
        self._manifests = manifests
        self._equipment = equipment
        self._patience = patience
        self._hold = hold
        self._retention_ms = retention_ms
        self._count = 0
        self._failing = False

    async def all(self, at_once: int) -> None:
        """Take up every session that is found, `at_once` at the same time."""
        entries = iter(await self._patiently(self._manifests.all))
        await asyncio.gather(*(self._some(entries) for _ in range(at_once)))
        self.under_way = False
        if self._count:
            logger.info("sessions of an earlier life taken up: %d", self._count)

    async def one(self, request: bytes) -> RoutingSession | None:
        """Take up the session of this request, if there is one. StoreUnavailableError.

        Of several the one that a verifier has opened: what nobody was told of may have been written late.
        """
        held = None
        for each in sorted(await self._manifests.find(request), key=lambda each: each.manifest.opened is None):
            held = await self._take_up(each) or held
        return held

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask the cache again and again until it answers."""
        while True:
            try:
                found = await ask()
            except StoreUnavailableError as fault:
                self._note(fault)
                await asyncio.sleep(PAUSE_S)
            else:
                self._note(None)
                return found

    def _note(self, fault: StoreUnavailableError | None) -> None:
        """Say it once when the cache does not answer, and once when it does again."""
        if fault is not None and not self._failing:
            logger.warning("sessions of an earlier life cannot be taken up yet: %s", fault)
        elif fault is None and self._failing:
            logger.info("the cache answers again; sessions are taken up")
        self._failing = fault is not None

    async def _some(self, entries: Iterator[Entry]) -> None:
        for entry in entries:
            try:
                await self._take_up_entry(entry)
            except Exception as fault:  # a bug of ours; the next session may fare better
                self._equipment.report("taking up a session failed", fault)

    async def _take_up_entry(self, entry: Entry) -> None:
        found = await self._patiently(lambda: self._manifests.read(entry))
        if found is None:
            held = None
        elif found.manifest.opened is None and found.manifest.end is None:
            held = await self._patiently(lambda: self.one(found.manifest.request.request))
        else:
            held = await self._take_up(found)
        if held is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S):
                    await held.settled()

    async def _take_up(self, found: Found) -> RoutingSession | None:
        """Go on with a session. None: it has ended long ago, or is not ours to go on with."""
        manifest = found.manifest
        if manifest.end is not None and 1000 * (found.age_s or 0.0) > self._retention_ms:
            return None
        made = self._made(found)
        if made is None:
            return None
        held = self._hold(made)
        if held is not made:
            if manifest.opened is None and manifest.end is None and held.machine.session != made.machine.session:
                end = EndRecord(ended=Action.FAIL, committed=0)
                await self._manifests.close(found, end)  # its request came again before this was written
        elif manifest.end is None:
            self._count += 1
            self._equipment.metrics.count("sessions_taken_up")
            held.tell(TakenUp())
            await held.renew()
        return held

    def _made(self, found: Found) -> RoutingSession | None:
        first = found.manifest.first
        if not self._equipment.cache.allows_log(first.commit_log):
            logger.warning("%s is under no cache prefix that is configured; its session is left", first.commit_log)
            return None
        try:
            machine = RouterSession(
                first.session, first.contract, first.request.prompt, first.commit_log, self._patience
            )
        except ValueError as fault:
            logger.warning("the manifest %s names a prompt that no session can have: %s", found.ref, fault)
            return None
        if found.manifest.end is not None:
            machine.take_up(found.manifest)
            held = RoutingSession(first.request, first.owner, machine, self._equipment)
            held.ended_ms = self._equipment.now_ms()
            return held
        log = ManifestLog(found.ref, found.manifest, found.etag)
        kept = KeptSession(machine, log, [self._manifests.taken()], found.manifest)
        return RoutingSession(first.request, first.owner, kept, self._equipment, found.manifest.objects)
