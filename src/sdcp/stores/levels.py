"""Which objects lie in which level of a cache, and which go when one is full (D41, docs/mlc.md).

Fastest first: process *memory*, *host* memory that the machine's processes map, local *disk*, and a *network*. An
object has copies in one level or more, and is gone when the last copy is. Every level keeps its names in order of use,
which goes by the object: a use of one copy is a use of all. What moves down is the least recently used.

Process memory only ever copies what a lower level holds. Host memory may hold the one copy there is. A copy on disk
stays when there is one in the network, until its room is needed: so room on disk is made without waiting for a network.

Plain and synchronous, no octet is read or written; whoever owns it guards it, together with its `Table`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Generic, TypeVar

from sdcp.stores.sealed import Sealed
from sdcp.stores.store import ObjectInfo
from sdcp.stores.table import Table

T = TypeVar("T")


@dataclass(slots=True)
class Counts:
    """What has happened at a level since the process began.

    hits, misses: reads that found the object here, or had to go on. evictions: objects whose last copy went from here.
    demotions: copies that left for a lower level. promotions: copies that came up from one because they were used.
    """

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    demotions: int = 0
    promotions: int = 0


class Level(Generic[T]):
    """One level: what it keeps of each object, by name, least recently used first."""

    def __init__(self, name: str, limit: int | None, most: int | None = None) -> None:
        """At most `limit` octets and `most` objects; None: as many as there are. `limit` 0: the level is not there."""
        self.name = name
        self.limit = limit
        self.size = 0
        self.coming = 0  # octets of objects on their way here, for which there is room
        self.counts = Counts()
        self._most = most
        self._kept: OrderedDict[str, tuple[int, T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, name: str) -> bool:
        return name in self._kept

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def get(self, name: str) -> T | None:
        """What is kept of an object, or None; not a use of it."""
        kept = self._kept.get(name)
        return None if kept is None else kept[1]

    def touch(self, name: str) -> None:
        """Make an object the most recently used, if it is here."""
        if name in self._kept:
            self._kept.move_to_end(name)

    def add(self, name: str, size: int, what: T, *, oldest: bool = False) -> None:
        """Keep an object that is not here yet, most recently used, or least with `oldest`."""
        self._kept[name] = size, what
        self.size += size
        if oldest:
            self._kept.move_to_end(name, last=False)

    def drop(self, name: str) -> bool:
        """Let go of an object; tell whether it was here."""
        kept = self._kept.pop(name, None)
        if kept is None:
            return False
        self.size -= kept[0]
        return True

    def fits(self, octets: int) -> bool:
        """Whether one more object of so many octets has room."""
        return (self.limit is None or self.size + self.coming + octets <= self.limit) and (
            self._most is None or len(self) < self._most
        )

    def is_over(self, share: float) -> bool:
        """Whether more than this share of the level is taken."""
        return (self.limit is not None and self.size + self.coming > self.limit * share) or (
            self._most is not None and len(self) > self._most * share
        )


class Levels:
    """The levels over one table. Every name in a level is in the table; every name in the table is in a level."""

    def __init__(
        self,
        table: Table,
        *,
        memory_bytes: int,
        host_bytes: int,
        host_objects: int | None,
        disk_bytes: int,
        network_bytes: int | None,
    ) -> None:
        """`network_bytes` None: no limit; 0: there is no network level."""
        self.table = table
        self.memory: Level[bytes] = Level("memory", memory_bytes)
        self.host: Level[Sealed] = Level("host", host_bytes, host_objects)
        self.disk: Level[None] = Level("disk", disk_bytes)
        self.network: Level[None] = Level("network", network_bytes)
        self.network_keeps = True  # if not, it may lose what is leased: then the disk keeps that too
        self.all = (self.memory, self.host, self.disk, self.network)
        # The disk once more, in two parts: without a copy in the network, and with one.
        self.only_on_disk: Level[None] = Level("disk", None)
        self.also_in_network: Level[None] = Level("disk", None)

    # -- copies -------------------------------------------------------------------------------------------------------

    def use(self, name: str, now: float) -> ObjectInfo:
        """What is known of an object, which is the most recently used from now on. ObjectMissingError."""
        info = self.table.use(name, now)
        for level in (*self.all, self.only_on_disk, self.also_in_network):
            level.touch(name)
        return info

    def where(self, name: str) -> str:
        """The fastest level that holds an object."""
        return next((level.name for level in self.all if name in level), "")

    def has_home(self, name: str) -> bool:
        """Whether there is a copy that stays until it is moved or removed: any but one in process memory."""
        return name in self.host or self.is_below_host(name)

    def is_below_host(self, name: str) -> bool:
        """Whether there is a copy on disk or in the network."""
        return name in self.disk or name in self.network

    def keep_in_memory(self, name: str, data: bytes) -> bool:
        """Copy an object into process memory, at the cost of other copies there; not if it is larger than all of it."""
        memory = self.memory
        if memory.limit is not None and len(data) > memory.limit:
            return False
        if name not in memory:
            while not memory.fits(len(data)):
                memory.drop(next(iter(memory)))
                memory.counts.demotions += 1
            memory.add(name, len(data), data)
        return True

    def add_to_disk(self, info: ObjectInfo) -> None:
        """Enter a copy on disk."""
        self.disk.add(info.name, info.size, None)
        self._divide(info.name)

    def drop_from_disk(self, name: str) -> bool:
        """Take out a copy on disk; tell whether there was one."""
        was_there = self.disk.drop(name)
        self._divide(name)
        return was_there

    def add_to_network(self, info: ObjectInfo, *, oldest: bool = False) -> None:
        """Enter a copy in the network."""
        self.network.add(info.name, info.size, None, oldest=oldest)
        self._divide(info.name)

    def drop_from_network(self, name: str) -> bool:
        """Take out a copy in the network; tell whether there was one."""
        was_there = self.network.drop(name)
        self._divide(name, oldest=True)  # the network lets go of what was used longest ago
        return was_there

    def forget(self, name: str) -> tuple[bool, bool]:
        """Take out all copies; tell whether there was one on disk, and in the network. The table is the caller's."""
        self.memory.drop(name)
        self.host.drop(name)
        return self.drop_from_disk(name), self.drop_from_network(name)

    def _divide(self, name: str, *, oldest: bool = False) -> None:
        """Put a name into the part of the disk where it belongs."""
        info = self.table.look(name)
        size = 0 if info is None else info.size
        doubled = name in self.network
        for part, belongs in ((self.only_on_disk, not doubled), (self.also_in_network, doubled)):
            if name not in self.disk or not belongs:
                part.drop(name)
            elif name not in part:
                part.add(name, size, None, oldest=oldest)

    # -- who goes -----------------------------------------------------------------------------------------------------

    def to_free_disk(
        self, octets: int, *, evict: bool, passed_over: Container[str]
    ) -> tuple[list[str], list[str]] | None:
        """Names whose copies on disk may go for the network's, and, with `evict`, names of objects that may go.

        Copies go before objects. None: there is not so much to free.
        """
        copies, octets = _first(
            (
                name
                for name in self.also_in_network
                if name not in passed_over and (self.network_keeps or not self.table.is_leased(name))
            ),
            octets,
            self._size,
        )
        unleased = (name for name in self.only_on_disk if evict and not self.table.is_leased(name))
        evicted, octets = _first(unleased, octets, self._size)
        return None if octets > 0 else (copies, evicted)

    def to_free_network(self, octets: int, coming: str) -> list[str] | None:
        """Names of objects in the network that may go for one that comes; None: there is not so much to free.

        Nothing leased; and what was used later than it only if it is leased.
        """
        leased = self.table.is_leased(coming)
        free = (
            name
            for name in self.network
            if not self.table.is_leased(name) and (leased or self.table.was_used_before(name, coming))
        )
        names, octets = _first(free, octets, self._size)
        return None if octets > 0 else names

    def to_leave_host(self, passed_over: set[str]) -> str | None:
        """The least recently used object of host memory, of those that are not to be passed over."""
        return next((name for name in self.host if name not in passed_over), None)

    def to_move_to_network(self, passed_over: Callable[[ObjectInfo], bool], most: int, octets: int) -> list[ObjectInfo]:
        """Objects on disk alone, least recently used first: at most `most`, of so many octets, but one in any case."""
        chosen: list[ObjectInfo] = []
        for name in self.only_on_disk:
            info = self.table.look(name)
            if info is None or passed_over(info):
                continue
            octets -= info.size
            if chosen and (octets < 0 or len(chosen) >= most):
                break
            chosen.append(info)
        return chosen

    def _size(self, name: str) -> int:
        info = self.table.look(name)
        return 0 if info is None else info.size

    # -- figures ------------------------------------------------------------------------------------------------------

    def figures(self) -> Mapping[str, Mapping[str, int]]:
        """By level: limit, octets, objects, octets under lease, and what was counted. Levels that are not there: none.

        A limit of -1 stands for none.
        """
        leased = self.table.leased()
        return {
            level.name: {
                "limit": -1 if level.limit is None else level.limit,
                "octets": level.size,
                "objects": len(level),
                "leased_octets": sum(self._size(name) for name in leased if name in level),
                **asdict(level.counts),
            }
            for level in self.all
            if level.limit != 0
        }


def _first(names: Iterator[str], octets: int, size: Callable[[str], int]) -> tuple[list[str], int]:
    """The first names that make up so many octets, and how many octets are still wanted."""
    chosen: list[str] = []
    if octets > 0:
        for name in names:
            chosen.append(name)
            octets -= size(name)
            if octets <= 0:
                break
    return chosen, octets
