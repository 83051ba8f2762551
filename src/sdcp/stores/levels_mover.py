"""What moves objects between the disk of a cache and the network below it, beside all requests (D41).

One task does all of it while there is something to do: it lists what the network holds once after the start, removes
what is gone there, and moves down, a few objects at a time, until the disk is at ease. When the network fails, the task
ends and begins again after a pause that grows: nothing waits for it, and requests go on in the levels above.

Everything here runs on one event loop; `wake` may be called from any thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from sdcp.errors import Conflict
from sdcp.ports import StoreFullError, StoreUnavailableError
from sdcp.stores.levels_network import NetworkLevel
from sdcp.stores.store import ObjectInfo

MOST = 4
OCTETS = 64 << 20
"""Under way at once: at most so many objects, of so many octets, or one."""
_PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0)
log = logging.getLogger("sdcp.stores")


class Movable(Protocol):
    """The levels above the network, as the mover asks them."""

    def adopt(self, found: list[tuple[ObjectInfo, float]]) -> None:
        """Enter what the network was found to hold; doom what it holds in vain."""
        ...

    async def adopted_all(self) -> None:
        """The network has been listed to the end."""
        ...

    def next_down(self, most: int, octets: int) -> list[ObjectInfo]:
        """Objects to move down now, none when the disk is at ease. Each is `moved_down` or `stays` later."""
        ...

    def make_network_room(self, info: ObjectInfo) -> list[ObjectInfo] | None:
        """Take out of the network level what must go for an object; return it. None: what is left is leased."""
        ...

    async def read_to_move(self, info: ObjectInfo) -> bytes | None:
        """An object's octets on disk; None when it is gone."""
        ...

    async def was_removed(self, info: ObjectInfo) -> None:
        """The network holds nothing of a doomed object any more."""
        ...

    def moved_down(self, info: ObjectInfo) -> bool:
        """The network holds it now. False: it is wanted no more, and the network's copy must go."""
        ...

    def stays(self, info: ObjectInfo) -> None:
        """It could not be moved now."""
        ...

    def never_again(self, info: ObjectInfo) -> None:
        """It is not to be moved down, if there is still such an object."""
        ...


class _NoRoomError(Exception):
    """What the network level holds is leased, up to its limit."""


class Mover:
    """The task over one `NetworkLevel`. Made on the event loop that it runs on."""

    def __init__(
        self,
        above: Movable,
        network: NetworkLevel,
        doomed: Iterable[ObjectInfo] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`doomed` is to be removed from the network first."""
        self._above = above
        self._network = network
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._not_before = 0.0
        self._failures = 0
        self._closed = False
        self.listed = False
        self._doomed: dict[ObjectInfo, None] = dict.fromkeys(doomed)
        self._doubtful: set[ObjectInfo] = set()  # whose last put got no answer

    @property
    def doomed_octets(self) -> int:
        """Octets of objects that the network still holds in vain."""
        return sum(info.size for info in tuple(self._doomed))

    @property
    def failing(self) -> bool:
        """Whether the last thing asked of the network failed."""
        return self._failures > 0

    def may_hold(self, info: ObjectInfo) -> bool:
        """Whether the network may hold an object although nobody has said so: its last put got no answer."""
        return info in self._doubtful

    def is_doomed(self, info: ObjectInfo) -> bool:
        """Whether an object is to be removed."""
        return info in self._doomed

    def last_doomed(self) -> dict[str, int]:
        """The highest version that is to be removed, by name."""
        return {info.name: info.version for info in sorted(self._doomed, key=lambda info: info.version)}

    def doom(self, info: ObjectInfo) -> None:
        """An object is no more: remove it from the network too, some time soon. From any thread."""
        self._doubtful.discard(info)
        self._doomed[info] = None
        self.wake()

    def wake(self) -> None:
        """There may be something to do. From any thread."""
        if not self._closed:
            self._loop.call_soon_threadsafe(self._begin)

    async def settle(self, within_s: float | None = None) -> None:
        """Begin now if there is something to do, and wait until it is done or the network has failed."""
        self._begin()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=within_s)

    async def close(self) -> None:
        """Stop; what is under way is abandoned, and stays where it is."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _begin(self) -> None:
        self._again = True
        if not self._closed and self._task is None and self._clock() >= self._not_before:
            self._task = self._loop.create_task(self._run())
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            log.error("moving objects to the network level failed unexpectedly", exc_info=fault)

    async def _run(self) -> None:
        try:
            while self._again:
                self._again = False
                if not self.listed:
                    await self._list()
                await self._move_all()
        except _NoRoomError:
            log.info("the network level is full, and what it holds is leased: nothing moves down")
        except (StoreUnavailableError, StoreFullError) as fault:
            pause = _PAUSES_S[min(self._failures, len(_PAUSES_S) - 1)]
            self._failures += 1
            self._not_before = self._clock() + pause
            log.warning("the network level: %s; the next try is in %g s or later", fault, pause)
        else:
            self._failures = 0

    async def _list(self) -> None:
        """Enter what the network holds. A page that comes twice, after a failure, does no harm."""
        async for page in self._network.listing():
            self._above.adopt(page)
        self.listed = True
        await self._above.adopted_all()

    async def _move_all(self) -> None:
        await self._remove_doomed()
        while batch := self._above.next_down(MOST, OCTETS):
            outcomes = await asyncio.gather(*(self._move(info) for info in batch), return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome
            await self._remove_doomed()

    async def _move(self, info: ObjectInfo) -> None:
        moved = False
        try:
            await self._make_room(info)
            data = await self._above.read_to_move(info)
            if data is not None:
                await self._network.put(info, data)
                self._doubtful.discard(info)
                moved = True
        except (Conflict, ValueError) as refusal:
            self._above.never_again(info)
            log.error("object %r stays on disk, since the network level refuses it: %s", info.name, refusal)
        except StoreUnavailableError:
            self._doubtful.add(info)
            raise
        finally:
            if not moved:
                self._above.stays(info)
        if moved and not self._above.moved_down(info):
            self._doomed[info] = None

    async def _make_room(self, info: ObjectInfo) -> None:
        gone = self._above.make_network_room(info)
        if gone is None:
            raise _NoRoomError
        for each in gone:
            self._doomed[each] = None
        await self._remove_doomed()

    async def _remove_doomed(self) -> None:
        for info in tuple(self._doomed):
            try:
                await self._network.delete(info)
            except StoreUnavailableError:
                self._above.never_again(info)  # the deletion may be done late, and would hit a second copy
                raise
            self._doomed.pop(info, None)
            await self._above.was_removed(info)
