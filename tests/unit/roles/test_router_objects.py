"""A cache that lost a leased object does not keep a router from storing another (D20)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sdcp.machines.effects import StoreTokens
from sdcp.machines.inputs import StoreFailed, TokensStored
from sdcp.ports import ObjectMissingError
from tests.unit.roles.test_router_role import World


@pytest.mark.decision("D20")
async def test_a_lost_object_does_not_keep_the_next_from_being_leased(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    await world.running()
    (session,) = world.role._sessions.values()
    first = await session._store_tokens(StoreTokens((1, 2)))
    assert isinstance(first, TokensStored)
    lost, leased = {first.ref}, list[Sequence[str]]()

    async def lease(name: str, refs: Sequence[str], ttl_ms: int) -> None:
        if lost.intersection(refs):
            raise ObjectMissingError("an object is not there")
        leased.append(refs)

    monkeypatch.setattr(world.cache, "lease", lease)
    second = await session._store_tokens(StoreTokens((1, 2)))
    assert isinstance(second, TokensStored)
    await session.renew()
    assert leased == [[second.ref], [second.ref]], "what is left is renewed"


async def test_an_object_that_is_lost_at_once_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    await world.running()
    (session,) = world.role._sessions.values()

    async def lease(name: str, refs: Sequence[str], ttl_ms: int) -> None:
        raise ObjectMissingError("an object is not there")

    monkeypatch.setattr(world.cache, "lease", lease)
    assert isinstance(await session._store_tokens(StoreTokens((1, 2))), StoreFailed)
