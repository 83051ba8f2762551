"""The network under the disk of a cache: what goes there, what comes back, what it must let go (D41, docs/mlc.md).

The disk is *uneasy* when more than HIGH of it is taken by logs and by objects that lie nowhere below; then the least
recently used of them are copied down, until it is at LOW. The copies on disk stay until their room is needed. When the
network is full, what is unleased and used longest ago is evicted, unless it was used later than what would come.

Not here: the task that does it (`sdcp.stores.levels_mover`), and what is asked over the wire (`levels_network`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from sdcp.ports import ObjectMissingError
from sdcp.stores.levels_mover import Mover
from sdcp.stores.levels_network import NetworkLevel
from sdcp.stores.levels_room import Room
from sdcp.stores.object_files import GoneFiles
from sdcp.stores.segment import log
from sdcp.stores.store import ObjectInfo

HIGH, LOW = 7 / 8, 3 / 4
_PATIENCE_S = 5.0
"""How long a put that finds no room waits for the network to take something."""


class Above(Protocol):
    """What the levels above do for this one."""

    async def read_to_move(self, info: ObjectInfo) -> bytes | None:
        """Octets on disk of an object in `moving`; None when it is gone."""
        ...


class Below:
    """The network level of one store, with its mover. Made on the event loop."""

    def __init__(
        self,
        above: Above,
        room: Room,
        network: NetworkLevel,
        gone: GoneFiles,
        *,
        first_version: int,
        clock: Callable[[], float],
        listed: Callable[[], Awaitable[None]],
    ) -> None:
        """`first_version`: no object before this run has it or a higher one. `listed` is awaited after the listing."""
        self.mover = Mover(self, network, gone.found(), clock=clock)
        self._gone = gone
        self._unrecorded: deque[ObjectInfo] = deque()
        self._above = above
        self._room = room
        self._levels = room.levels
        self._table = room.levels.table
        self._network = network
        self._lock = room.lock
        self._first_version = first_version
        self._clock = clock
        self._when_listed = listed
        self._moving_down = False
        self._wanted = 0  # octets that somebody waits to have room for on disk
        self._coming: dict[ObjectInfo, None] = {}
        self._immovable: set[ObjectInfo] = set()
        self._foreign = 0
        self._levels.network_keeps = network.keeps
        self.mover.wake()

    # -- for the levels above -----------------------------------------------------------------------------------------

    def is_known(self, name: str) -> bool:
        """Whether it can be told if there is an object of this name. Under the lock."""
        return self.mover.listed or self._table.look(name) is not None

    async def get(self, info: ObjectInfo) -> bytes | None:
        """An object's octets from the network; None when it has them no more. StoreUnavailableError."""
        try:
            return await self._network.get(info)
        except ObjectMissingError:
            return None

    def gone(self, info: ObjectInfo, *, was_there: bool) -> None:
        """See `levels_room.Network.gone`."""
        self._immovable.discard(info)
        # Before the listing nobody knows what the network has under this name: it must not come back for the object.
        if was_there or not self.mover.listed or info in self._coming or self.mover.may_hold(info):
            self._unrecorded.append(info)
            self.mover.doom(info)

    def record_gone(self) -> None:
        """See `levels_room.Network.record_gone`."""
        while self._unrecorded:
            with suppress(IndexError):  # another thread was faster
                info = self._unrecorded.popleft()
                if self.mover.is_doomed(info):
                    self._note(info)

    def _note(self, info: ObjectInfo) -> None:
        try:
            self._gone.write(info)
            if not self.mover.is_doomed(info):  # it was removed meanwhile
                self._gone.remove(info)
        except OSError as fault:
            log.warning("object %r may come back from the network after a kill: %s", info.name, fault.strerror)

    def look_after(self) -> None:
        """Move something down, some time soon, if the disk is uneasy. From any thread."""
        with self._lock:
            uneasy = self._is_uneasy(HIGH)
        if uneasy:
            self.mover.wake()

    async def relieve(self, octets: int) -> bool:
        """Wait until the network has taken what makes room for so many octets on disk; False when it fails."""
        if self.mover.failing:
            return False
        self._wanted += octets
        try:
            await self.mover.settle(_PATIENCE_S)
        finally:
            self._wanted -= octets
        return not self.mover.failing

    async def close(self) -> None:
        """Stop moving; the network level is closed."""
        await self.mover.close()
        await self._network.close()

    # -- for the mover ------------------------------------------------------------------------------------------------

    def adopt(self, found: list[tuple[ObjectInfo, float]]) -> None:
        """See `Movable.adopt`."""
        with self._lock:
            gone = self.mover.last_doomed()
            for info, age_s in found:
                self._adopt(info, age_s, gone.get(info.name, -1))
        self._room.threads.submit(self.record_gone)

    def _adopt(self, info: ObjectInfo, age_s: float, last_gone: int) -> None:
        known = self._table.look(info.name)
        if known == info:
            if info.name not in self._levels.network:
                self._levels.add_to_network(info)
        elif info.version >= self._first_version:
            self._foreign += 1
        elif known is not None or info.version <= last_gone:
            if not self.mover.is_doomed(info):
                self._unrecorded.append(info)
            self.mover.doom(info)
        else:
            now = self._clock()
            self._table.add_oldest(info, now - age_s, now)
            self._levels.add_to_network(info, oldest=True)

    async def adopted_all(self) -> None:
        """See `Movable.adopted_all`."""
        if self._foreign:
            log.warning(
                "the network level holds %d objects that this cache, with this folder, cannot have put there; they are "
                "not used. A cache needs a network URI of its own; remove them if its folder was lost",
                self._foreign,
            )
        await self._when_listed()

    def next_down(self, most: int, octets: int) -> list[ObjectInfo]:
        """See `Movable.next_down`."""
        with self._lock:
            self._moving_down = self._is_uneasy(LOW if self._moving_down else HIGH)
            if not self._moving_down:
                return []
            chosen = self._levels.to_move_to_network(self._stays_up, most, min(octets, self._beyond(LOW)))
            self._room.moving.update(info.name for info in chosen)
        return chosen

    def make_network_room(self, info: ObjectInfo) -> list[ObjectInfo] | None:
        """See `Movable.make_network_room`."""
        network = self._levels.network
        with self._lock:
            used = network.size + network.coming + self.mover.doomed_octets
            over = 0 if network.limit is None else used + info.size - network.limit
            if self._table.look(info.name) != info:
                return []
            names = self._levels.to_free_network(over, info.name)
            if names is None:
                return None
            gone = [each for name in names if (each := self._table.look(name)) is not None]
            for each in gone:
                if self._room.evict(each, network):
                    self._room.threads.submit(self._room.files.remove, each)
            self._room.threads.submit(self.record_gone)
            self._coming[info] = None
            network.coming += info.size
        return gone

    async def read_to_move(self, info: ObjectInfo) -> bytes | None:
        """See `Movable.read_to_move`."""
        return await self._above.read_to_move(info)

    async def was_removed(self, info: ObjectInfo) -> None:
        """See `Movable.was_removed`."""
        await asyncio.get_running_loop().run_in_executor(self._room.threads, self._gone.remove, info)

    def moved_down(self, info: ObjectInfo) -> bool:
        """See `Movable.moved_down`."""
        with self._lock:
            self._arrived(info)
            if self._table.look(info.name) != info:
                return False
            self._levels.add_to_network(info)
            self._levels.disk.counts.demotions += 1
            return True

    def stays(self, info: ObjectInfo) -> None:
        """See `Movable.stays`."""
        with self._lock:
            self._arrived(info)

    def never_again(self, info: ObjectInfo) -> None:
        """See `Movable.never_again`."""
        with self._lock:
            if self._table.look(info.name) == info:
                self._immovable.add(info)

    def _arrived(self, info: ObjectInfo) -> None:
        if info in self._coming:
            del self._coming[info]
            self._levels.network.coming -= info.size
        self._room.moving.discard(info.name)

    # -- under the lock -----------------------------------------------------------------------------------------------

    def _stays_up(self, info: ObjectInfo) -> bool:
        return (
            info.name in self._room.moving
            or info in self._immovable
            or not self._network.takes(info)
            or (not self._network.keeps and self._table.is_leased(info.name))
        )

    def _is_uneasy(self, share: float) -> bool:
        return self._beyond(share) > 0

    def _beyond(self, share: float) -> int:
        """Octets that lie nowhere below, beyond a share of the disk or beyond what leaves room for who waits."""
        taken = self._levels.only_on_disk.size + self._levels.disk.coming + self._room.beside()
        limit = self._levels.disk.limit or 0
        return taken - min(int(limit * share), limit - self._wanted)
