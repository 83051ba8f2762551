"""Leases on objects in a store that speaks S3, which knows none itself (docs/decisions.md, D42).

    leases/{lease}           owner, names and ttl; it was taken when the store wrote it, so the store's clock counts
    leased/{object}/{lease}  a marker: this lease may hold the object
    leased/{object}/.{…}     a tombstone: somebody is deleting the object
    clock                    written to learn what time the store has

Who takes a lease writes it and its markers, and then looks for tombstones, and then for the objects. Who deletes an
object writes a tombstone, looks for leases, deletes the object, and takes the tombstone away. So of the two, one sees
the other at the least. It takes a store that lists what was written: S3 does.

What a process leaves that ends half way is without effect, and `sweep` removes it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from sdcp.errors import Forbidden, MalformedBody
from sdcp.ports import Entry, ObjectMissingError, StoreUnavailableError
from sdcp.stores.s3_bucket import Bucket, Key
from sdcp.wire import cbor

_LONGEST = 1 << 20
_SECOND = 1.0
"""A clock that tells whole seconds: a lease lasts so much longer, never shorter."""

LEFT_OVER_S = 60.0
"""How old something must be to be swept: nobody is at it any more."""


@dataclass(frozen=True, slots=True)
class Held:
    """A lease: whose, on what, and until when by the store's clock, in seconds since 1970."""

    owner: str
    names: tuple[str, ...]
    ttl_ms: int
    since: float = 0.0

    @property
    def until(self) -> float:
        """When it ends."""
        return self.since + self.ttl_ms / 1000 + _SECOND

    def encode(self) -> bytes:
        """As it is kept."""
        return cbor.encode({"objects": list(self.names), "owner": self.owner, "ttl_ms": self.ttl_ms})


class Leases:
    """The leases of one bucket's folder, as `owner` takes and sees them."""

    def __init__(self, bucket: Bucket, owner: str) -> None:
        self._bucket = bucket
        self._owner = owner

    async def take(self, lease: str, names: Sequence[str], ttl_ms: int) -> None:
        """Take or renew a lease on exactly these objects, or leave all as it is: ObjectMissingError, Forbidden."""
        wanted = Held(self._owner, tuple(dict.fromkeys(names)), ttl_ms)
        before = None
        if not await self._bucket.create(_lease(lease), wanted.encode()):
            before = await self._ours(lease)
            both = tuple(dict.fromkeys((*(before.names if before else ()), *wanted.names)))
            await self._bucket.put(_lease(lease), Held(self._owner, both, ttl_ms).encode())
        known = before.names if before else ()
        new = [name for name in wanted.names if name not in known]
        await asyncio.gather(*(self._bucket.put(_marker(name, lease), b"") for name in wanted.names))
        going = await asyncio.gather(*map(self._is_going, wanted.names))
        missing = [name for name, is_going in zip(wanted.names, going, strict=True) if is_going]
        if missing:
            await self._set(lease, before, without=new)
            raise ObjectMissingError(f"no lease was taken, since there is no object {', '.join(map(repr, missing))}")
        if set(known) - set(wanted.names):
            await self._set(lease, wanted, without=[name for name in known if name not in wanted.names])

    async def release(self, lease: str) -> None:
        """Release a lease; idempotent. Forbidden when it is another's."""
        held = await self._ours(lease)
        if held is not None:
            await self._set(lease, None, without=held.names)

    async def delete(self, name: str) -> None:
        """Delete an object, unless a lease holds it."""
        tombstone = f"leased/{name}/.{secrets.token_urlsafe(16)}"
        await self._bucket.put(tombstone, b"")
        markers = await self._bucket.keys(f"leased/{name}")
        now = next((key.at.timestamp() for key in markers if key.path == tombstone), None)
        if now is None:
            raise StoreUnavailableError("the store does not list what was written just now")
        if await self._is_held(name, markers, now):
            await self._bucket.delete([tombstone])
            return
        await self._bucket.delete([f"objects/{name}"])
        await self._bucket.delete([tombstone])  # last: nobody takes a lease on what is about to go

    async def sweep(self) -> None:
        """Remove leases whose time is over, markers without a lease, and what was being deleted by who has ended."""
        now = await self.now()
        live = await self.live(now - LEFT_OVER_S)
        over = [key.path for key in await self._bucket.keys("leases") if _last(key) not in live and _is_old(key, now)]
        await self._bucket.delete(over)
        marks = [key for key in await self._bucket.keys("leased") if _is_old(key, now)]
        await self._bucket.delete(key.path for key in marks if not _is_tombstone(key) and _last(key) not in live)
        for key in filter(_is_tombstone, marks):
            await self.delete(_object(key))
            await self._bucket.delete([key.path])

    async def live(self, now: float) -> dict[str, Held]:
        """The leases that have not ended at `now`, by name."""
        names = [_last(key) for key in await self._bucket.keys("leases")]
        found = await asyncio.gather(*map(self._held, names))
        return {name: held for name, held in zip(names, found, strict=True) if held is not None and held.until >= now}

    async def now(self) -> float:
        """The time by the store's clock, in seconds since 1970."""
        await self._bucket.put("clock", b"")
        clock = await self._bucket.head("clock")
        if clock is None:
            raise StoreUnavailableError("the store does not have what was written just now")
        return clock.at.timestamp()

    async def _is_going(self, name: str) -> bool:
        """Whether the object is gone, or about to be."""
        if any(map(_is_tombstone, await self._bucket.keys(f"leased/{name}"))):
            return True
        return await self._bucket.head(f"objects/{name}") is None  # after it: a tombstone goes after its object

    async def _is_held(self, name: str, markers: Sequence[Key], now: float) -> bool:
        leases = [_last(key) for key in markers if not _is_tombstone(key)]
        held = await asyncio.gather(*map(self._held, leases))
        return any(each is not None and name in each.names and each.until >= now for each in held)

    async def _set(self, lease: str, held: Held | None, *, without: Sequence[str]) -> None:
        """Let the lease be `held`, or end, and take the markers of `without` away."""
        if held is None:
            await self._bucket.delete([_lease(lease)])
        else:
            await self._bucket.put(_lease(lease), held.encode())
        await self._bucket.delete(_marker(name, lease) for name in without)

    async def _ours(self, lease: str) -> Held | None:
        held = await self._held(lease)
        if held is not None and held.owner != self._owner:
            raise Forbidden("this lease belongs to another owner; take one under a name of your own")
        return held

    async def _held(self, lease: str) -> Held | None:
        found = await self._bucket.get(_lease(lease), at_most=_LONGEST)
        if found is None:
            return None
        key, octets = found
        try:
            value = cbor.decode(bytes(octets))
            match value:
                case {"objects": [*names], "owner": str(owner), "ttl_ms": int(ttl_ms)}:
                    return Held(owner, tuple(map(str, names)), ttl_ms, key.at.timestamp())
        except MalformedBody:
            pass
        raise StoreUnavailableError(f"{key.path} is no lease of ours")


def entry(name: str, held: Held, now: float) -> Entry:
    """A lease as `Cache.listing` shows it."""
    return Entry(
        name=name,
        size=0,
        owner=held.owner,
        age_s=max(0.0, now - held.since),
        expires_s=held.until - now,
        objects=held.names,
    )


def held_by(leases: dict[str, Held]) -> set[str]:
    """The objects that they hold."""
    return set(chain.from_iterable(held.names for held in leases.values()))


def _lease(lease: str) -> str:
    return f"leases/{lease}"


def _marker(name: str, lease: str) -> str:
    return f"leased/{name}/{lease}"


def _last(key: Key) -> str:
    return key.path.rpartition("/")[2]


def _object(key: Key) -> str:
    return key.path.split("/")[1]


def _is_tombstone(key: Key) -> bool:
    return _last(key).startswith(".")


def _is_old(key: Key, now: float) -> bool:
    return now - key.at.timestamp() > LEFT_OVER_S
