"""All orders in which the requests of those who take leases and those who delete may reach the store (D42).

The store is the library's, in memory. A request waits until it is chosen; every choice is tried, by carrying everything
out again from the beginning for each (`each_order`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

import obstore
import pytest
from obstore.store import MemoryStore

from sdcp.errors import Forbidden
from sdcp.ports import ObjectMissingError
from sdcp.stores import s3_leases
from sdcp.stores.s3 import S3Cache
from sdcp.stores.s3_bucket import Bucket

T = TypeVar("T")
_TURNS = 20
"""Of the loop, in which whoever can go on goes on to its next request."""


class Ordered(Bucket):
    """A bucket whose requests wait until `carry_out` chooses them."""

    def __init__(self) -> None:
        self.memory = MemoryStore()
        super().__init__(self.memory, self.memory, deadline_s=60.0)
        self.waiting: list[tuple[Callable[[], object], asyncio.Future[object]]] = []
        self.in_order = False

    async def _ask(self, request: Callable[[], T]) -> T:
        if not self.in_order:
            return request()
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.waiting.append((request, done))
        return await done  # type: ignore[return-value]

    async def carry_out(
        self, choices: Iterator[int], calls: Sequence[Awaitable[object]]
    ) -> tuple[list[object], list[int]]:
        """Carry the calls out at once; how each ended, and among how many requests each choice was made."""
        self.in_order = True
        tasks = [asyncio.ensure_future(call) for call in calls]
        options = []
        while True:
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            if not self.waiting:
                break
            options.append(len(self.waiting))
            request, done = self.waiting.pop(next(choices))
            try:
                done.set_result(request())
            except Exception as fault:
                done.set_exception(fault)
        self.in_order = False
        return await asyncio.gather(*tasks, return_exceptions=True), options


class Place:
    """An object, a lease that its creator may have on it, and who contends for it."""

    def __init__(self) -> None:
        self.bucket = Ordered()
        self.drafter, self.verifier, self.router = (
            S3Cache(self.bucket, base="s3://bucket", owner=owner) for owner in ("drafter", "verifier", "router")
        )

    async def is_there(self, ref: str) -> bool:
        try:
            await self.drafter.fetch(ref, at_most=10)
        except ObjectMissingError:
            return False
        return True

    def keys(self) -> list[str]:
        return [meta["path"] for meta in obstore.list(self.bucket.memory).collect()]


async def each_order(trial: Callable[[Iterator[int]], Awaitable[list[int]]]) -> int:
    """Carry `trial` out once for every order of its requests; how many there are."""
    orders, waiting = 0, [[]]
    while waiting:
        begun: list[int] = waiting.pop()
        options = await trial(_then_first(begun))
        orders += 1
        for place in range(len(begun), len(options)):
            waiting += [[*begun, *[0] * (place - len(begun)), other] for other in range(1, options[place])]
    return orders


def _then_first(begun: list[int]) -> Iterator[int]:
    yield from begun
    while True:
        yield 0


@pytest.mark.decision("D42-leases")
async def test_of_who_takes_a_lease_and_who_deletes_one_sees_the_other():
    outcomes = set()

    async def trial(choices: Iterator[int]) -> list[int]:
        place = Place()
        ref = await place.drafter.create(b"x")
        (taken, deleted), options = await place.bucket.carry_out(
            choices, [place.verifier.lease("l", [ref], 60_000), place.drafter.delete(ref)]
        )
        assert deleted is None
        assert taken is None or isinstance(taken, ObjectMissingError)
        there = await place.is_there(ref)
        outcomes.add((taken is None, there))
        if taken is None:
            await place.router.delete(ref)
            assert await place.is_there(ref), "who has a lease has the object"
            await place.verifier.release("l")
        await place.router.delete(ref)
        assert place.keys() == [], "nothing is left of either"
        return options

    assert await each_order(trial) >= 125
    assert {(True, True), (False, False)} <= outcomes
    assert (True, False) not in outcomes


@pytest.mark.decision("D42-leases")
async def test_who_takes_a_lease_again_never_lets_go_between():
    """What is in the old lease and in the new one is held at every moment."""

    async def trial(choices: Iterator[int]) -> list[int]:
        place = Place()
        old, both = await place.drafter.create(b"1"), await place.drafter.create(b"2")
        await place.verifier.lease("l", [old, both], 60_000)
        (taken, _), options = await place.bucket.carry_out(
            choices, [place.verifier.lease("l", [both], 60_000), place.router.delete(both)]
        )
        assert await place.is_there(both)
        assert taken is None or isinstance(taken, ObjectMissingError)  # it saw the tombstone of one who then gave way
        await place.router.delete(old)
        assert await place.is_there(old) == (taken is not None), "it is as it was, or as it was wanted"
        return options

    assert await each_order(trial) > 200


@pytest.mark.decision("D42-leases")
async def test_an_object_goes_once_its_last_lease_has_gone():
    async def trial(choices: Iterator[int]) -> list[int]:
        place = Place()
        ref = await place.drafter.create(b"x")
        await place.verifier.lease("l", [ref], 60_000)
        _, options = await place.bucket.carry_out(choices, [place.verifier.release("l"), place.router.delete(ref)])
        await place.router.delete(ref)
        assert place.keys() == []
        return options

    assert await each_order(trial) > 20


async def test_of_two_owners_that_take_one_lease_one_has_it():
    async def trial(choices: Iterator[int]) -> list[int]:
        place = Place()
        ref = await place.drafter.create(b"x")
        outcomes, options = await place.bucket.carry_out(
            choices, [cache.lease("l", [ref], 60_000) for cache in (place.verifier, place.router)]
        )
        assert sorted(map(repr, map(type, outcomes))) == sorted([repr(type(None)), repr(Forbidden)])
        return options

    assert await each_order(trial) > 5


def _take(place: Place, ref: str) -> Awaitable[object]:
    return place.verifier.lease("l", [ref], 1)


def _delete(place: Place, ref: str) -> Awaitable[object]:
    return place.drafter.delete(ref)


def _release(place: Place, ref: str) -> Awaitable[object]:
    return place.verifier.release("l")


@pytest.mark.decision("D42-leases")
@pytest.mark.parametrize("what", ["take", "delete", "release"])
async def test_whoever_ends_half_way_leaves_what_can_be_swept(monkeypatch, what):
    """The process ends after each of its requests: the object is whole or gone, and nothing holds it for ever."""
    monkeypatch.setattr(s3_leases, "LEFT_OVER_S", -5.0)  # what it left is old by now
    step = 0
    while True:
        place = Place()
        ref = await place.drafter.create(b"x")
        if what == "release":
            await place.verifier.lease("l", [ref], 1)
        call = {"take": _take, "delete": _delete, "release": _release}[what](place, ref)
        if await _ended_after(place, call, step):
            break
        await place.router.sweep()
        await place.router.delete(ref)
        await place.router.sweep()
        assert set(place.keys()) <= {"clock"}
        step += 1
    assert step >= 2


async def _ended_after(place: Place, call: Awaitable[object], steps: int) -> bool:
    """Carry out so many requests of the call, and no more; tell whether it came to its end by then."""
    place.bucket.in_order = True
    task = asyncio.ensure_future(call)
    for step in range(steps + 1):
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        if task.done():
            break
        if step < steps:
            request, done = place.bucket.waiting.pop(0)
            done.set_result(request())
    ended = task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    place.bucket.waiting.clear()
    place.bucket.in_order = False
    return ended
