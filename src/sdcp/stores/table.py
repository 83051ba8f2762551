"""The objects and leases of a store, without their octets: what is there, what may go, what must stay (docs/mlc.md).

Plain and synchronous; whoever owns the table guards it. Time comes in as `now`, in seconds on a monotonic clock. The
order of use is the order of the dict: least recently used first. A lease holds an object by being counted in its entry,
so that eviction and deletion ask one number. What no lease holds is in a second order, by when it was put, read or held
last: what is old there is found without looking at anything else.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from sdcp.errors import Conflict, Forbidden
from sdcp.ports import Entry, ObjectMissingError
from sdcp.stores.store import ObjectInfo


@dataclass(slots=True)
class _Object:
    """An object in the table: when it was put, its last use, which is a number that rises, and its leases."""

    info: ObjectInfo
    since: float
    used: int
    leases: int = 0


@dataclass(slots=True)
class Held:
    """A lease: who took it, what it holds, and when it ends."""

    owner: str
    names: tuple[str, ...]
    deadline: float
    ttl_ms: int


class Table:
    """Objects by name in order of use, and leases by name in order of their end. `size` is the sum of all octets."""

    def __init__(self) -> None:
        self.size = 0
        self.leased_size = 0
        self.leases: dict[str, Held] = {}
        self._objects: OrderedDict[str, _Object] = OrderedDict()
        self._free: OrderedDict[str, float] = OrderedDict()  # what no lease holds, since when nobody has used it
        self._uses = count(1)
        self._ends: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._objects)

    # -- objects ------------------------------------------------------------------------------------------------------

    def look(self, name: str) -> ObjectInfo | None:
        """What is known of an object; not a use of it."""
        entry = self._objects.get(name)
        return entry.info if entry else None

    def use(self, name: str, now: float) -> ObjectInfo:
        """The same, and make it the most recently used. ObjectMissingError."""
        entry = self._objects.get(name)
        if entry is None:
            raise ObjectMissingError(f"there is no object {name!r}, or it was evicted")
        self._objects.move_to_end(name)
        entry.used = next(self._uses)
        self.keep(name, now)
        return entry.info

    def keep(self, name: str, now: float) -> None:
        """Count an object as used for `idle`, and for nothing else: it was put once more."""
        if name in self._free:
            self._free[name] = now
            self._free.move_to_end(name)

    def add(self, info: ObjectInfo, now: float) -> None:
        """Enter a new object, put at `now`, most recently used."""
        self._enter(info, now, now)

    def add_old(self, info: ObjectInfo, since: float, now: float) -> None:
        """Enter an object that was put at `since`, most recently used: at `now` for all that anybody knows."""
        self._enter(info, since, now)

    def remove(self, name: str) -> ObjectInfo:
        """Take an object out; Conflict while a lease holds it, ObjectMissingError."""
        entry = self._objects.get(name)
        if entry is None:
            raise ObjectMissingError(f"there is no object {name!r}, or it was evicted")
        if entry.leases:
            raise Conflict(f"object {name!r} is leased; delete it when its leases have ended")
        return self._drop(name)

    def lose(self, name: str) -> None:
        """Take an object out whose octets are lost, leased or not."""
        entry = self._objects.get(name)
        if entry is None:
            return
        if entry.leases:
            self.leased_size -= entry.info.size
            for held in self.leases.values():  # so that none of them is counted against a later object of this name
                held.names = tuple(each for each in held.names if each != name)
        self._drop(name)

    def add_oldest(self, info: ObjectInfo, since: float, now: float) -> None:
        """The same, as the least recently used."""
        self._enter(info, since, now)
        self._objects[info.name].used = 0
        self._objects.move_to_end(info.name, last=False)

    def was_used_before(self, name: str, other: str) -> bool:
        """Whether the last use of an object was before the last use of the other; both are in the table."""
        return self._objects[name].used < self._objects[other].used

    def is_leased(self, name: str) -> bool:
        """Whether a lease holds the object."""
        kept = self._objects.get(name)
        return kept is not None and kept.leases > 0

    def leased(self) -> set[str]:
        """Names of all objects that a lease holds."""
        return {name for held in self.leases.values() for name in held.names}

    def drop(self, name: str) -> None:
        """Take an object out that no lease holds."""
        self._drop(name)

    def evict(self, octets: int) -> list[ObjectInfo]:
        """Take out unleased objects, least recently used first, of at least so many octets or else none at all."""
        victims: list[ObjectInfo] = []
        for info in self._unleased():
            if octets <= 0:
                break
            victims.append(info)
            octets -= info.size
        if octets > 0:
            return []
        return [self._drop(info.name) for info in victims]

    def idle(self, before: float, most: int) -> list[ObjectInfo]:
        """Take out objects, `most` of them, that no lease has held and nobody has used since `before`, oldest first."""
        gone: list[ObjectInfo] = []
        while self._free and len(gone) < most:
            name, used = next(iter(self._free.items()))
            if used > before:
                break
            gone.append(self._drop(name))
        return gone

    def _enter(self, info: ObjectInfo, since: float, now: float) -> None:
        self._objects[info.name] = _Object(info, since, next(self._uses))
        self._free[info.name] = now
        self.size += info.size

    def _unleased(self) -> Iterator[ObjectInfo]:
        return (entry.info for entry in self._objects.values() if not entry.leases)

    def _drop(self, name: str) -> ObjectInfo:
        info = self._objects.pop(name).info
        self._free.pop(name, None)
        self.size -= info.size
        return info

    # -- leases -------------------------------------------------------------------------------------------------------

    def take(self, lease: str, owner: str, names: Sequence[str], ttl_ms: int, now: float) -> Held:
        """Take or renew a lease on exactly `names`, or on none of them. ObjectMissingError, Forbidden."""
        before = self.leases.get(lease)
        if before is not None and before.owner != owner:
            raise Forbidden("this lease belongs to another certificate; take one under a name of your own")
        missing = [name for name in names if name not in self._objects]
        if missing:
            raise ObjectMissingError(f"no lease was taken, since there is no object {', '.join(map(repr, missing))}")
        held = Held(owner, tuple(dict.fromkeys(names)), now + ttl_ms / 1000, ttl_ms)
        self._count(held.names, 1, now)  # before the old ones are let go: an object in both is never without a lease
        if before is not None:
            self._count(before.names, -1, now)
        self.leases[lease] = held
        heapq.heappush(self._ends, (held.deadline, lease))
        return held

    def release(self, lease: str, owner: str, now: float) -> bool:
        """Let a lease go; tell whether it was there. Forbidden when it is another's."""
        held = self.leases.get(lease)
        if held is None:
            return False
        if held.owner != owner:
            raise Forbidden("this lease belongs to another certificate")
        self._end(lease, now)
        return True

    def expire(self, now: float) -> list[str]:
        """Let go every lease whose time has passed; return their names."""
        ended = []
        while self._ends and self._ends[0][0] <= now:
            deadline, lease = heapq.heappop(self._ends)
            held = self.leases.get(lease)
            if held is not None and held.deadline == deadline:  # else renewed or released since
                self._end(lease, now)
                ended.append(lease)
        return ended

    # -- listings -----------------------------------------------------------------------------------------------------

    def list_objects(self, prefix: str, after: str, limit: int, now: float, level: Callable[[str], str]) -> list[Entry]:
        """Objects as `Store.listing` shows them; `level` tells of a name where its octets are."""
        return [
            Entry(
                name,
                kept.info.size,
                kept.info.version,
                kept.info.owner,
                age_s=now - kept.since,
                leased=kept.leases > 0,
                level=level(name),
            )
            for name in page(self._objects, prefix, after, limit)
            for kept in (self._objects[name],)
        ]

    def list_leases(self, prefix: str, after: str, limit: int, now: float) -> list[Entry]:
        """Leases as `Store.listing` shows them."""
        return [
            Entry(
                name,
                0,
                owner=held.owner,
                age_s=now - (held.deadline - held.ttl_ms / 1000),
                expires_s=held.deadline - now,
                objects=held.names,
            )
            for name in page(self.leases, prefix, after, limit)
            for held in (self.leases[name],)
        ]

    def _end(self, lease: str, now: float) -> None:
        self._count(self.leases.pop(lease).names, -1, now)

    def _count(self, names: Iterable[str], by: int, now: float) -> None:
        for name in names:
            entry = self._objects[name]
            was_leased = entry.leases > 0
            entry.leases += by
            if entry.leases:
                self._free.pop(name, None)
            else:
                self._free[name] = now
            self.leased_size += entry.info.size * ((entry.leases > 0) - was_leased)


def page(names: Iterable[str], prefix: str, after: str, limit: int) -> list[str]:
    """The first `limit` of the names that begin with `prefix` and come after `after`, in order."""
    return heapq.nsmallest(limit, (name for name in names if name > after and name.startswith(prefix)))
