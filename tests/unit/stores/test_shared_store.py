"""Stores that keep sealed segments: the same objects, put and got either way (`sdcp.stores.store.SharedStore`, D40)."""

from __future__ import annotations

import gc
import os
import secrets
from typing import Any

import pytest

from sdcp.errors import PreconditionFailed
from sdcp.ports import ObjectMissingError, StoreFullError
from sdcp.stores.sealed import AVAILABLE, Sealed
from sdcp.stores.store import SharedStore
from tests.unit.stores.conftest import MakeStore

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="memfds with seals are Linux's: run this on Linux")

DATA = secrets.token_bytes(70_001)


@pytest.fixture
def store(make_store: MakeStore) -> Any:
    made = make_store(1 << 20)
    assert isinstance(made, SharedStore)
    return made


async def test_an_object_is_the_same_however_it_is_put_and_got(store: Any) -> None:
    await store.put("a", DATA, "x")
    await store.put_sealed("b", Sealed.of(DATA), "y")
    for name, owner in (("a", "x"), ("b", "y")):
        info, data = await store.get(name)
        assert (info.size, info.owner, data) == (len(DATA), owner, DATA)
        sealed_info, segment = await store.get_sealed(name)
        assert sealed_info == info
        assert Sealed.received(os.dup(segment.fd), len(DATA)).view() == DATA
        assert (await store.get(name))[1] == DATA


async def test_a_segment_is_compared_with_what_is_there(store: Any) -> None:
    info, created = await store.put_sealed("a", Sealed.of(DATA), "x")
    assert created
    assert await store.put_sealed("a", Sealed.of(DATA), "x") == (info, False)
    assert await store.put("a", DATA, "x") == (info, False)
    with pytest.raises(PreconditionFailed):
        await store.put_sealed("a", Sealed.of(DATA[::-1]), "x")
    with pytest.raises(PreconditionFailed):
        await store.put("a", DATA[::-1], "x")


async def test_a_segment_counts_and_is_evicted_as_other_objects_are(store: Any) -> None:
    for number in range(30):
        await store.put_sealed(f"o{number}", Sealed.of(DATA), "x")
    figures = store.figures()
    assert figures["object_octets"] <= 1 << 20
    assert figures["object_octets"] == figures["objects"] * len(DATA)
    with pytest.raises(ObjectMissingError):
        await store.get_sealed("o0")
    names = [entry.name for entry in store.listing("objects")]
    await store.take_lease("l", "x", names, 60_000)
    with pytest.raises(StoreFullError):
        await store.put_sealed("more", Sealed.of(DATA), "x")


async def test_what_is_evicted_or_deleted_stays_readable_for_who_has_it(store: Any) -> None:
    await store.put_sealed("a", Sealed.of(DATA), "x")
    _, segment = await store.get_sealed("a")
    view = segment.view()
    segment.close()
    await store.delete("a")
    with pytest.raises(ObjectMissingError):
        await store.get_sealed("a")
    assert view == DATA


async def test_no_descriptor_leaks(store: Any) -> None:
    await store.put_sealed("first", Sealed.of(DATA), "x")
    await store.delete("first")
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    await store.put_sealed("a", Sealed.of(DATA), "x")
    await store.put_sealed("a", Sealed.of(DATA), "x")
    with pytest.raises(PreconditionFailed):
        await store.put_sealed("a", Sealed.of(b"other"), "x")
    with pytest.raises(StoreFullError):
        await store.put_sealed("large", Sealed.of(bytes(2 << 20)), "x")
    (await store.get_sealed("a"))[1].close()
    await store.get("a")
    await store.delete("a")
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
