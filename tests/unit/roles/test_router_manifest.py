"""A router that has lost its memory finds its sessions in the cache (D45): the role with scripted peers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from sdcp import errors
from sdcp.http.identity import Peer
from sdcp.machines.manifest import Manifest
from sdcp.machines.router import Patience
from sdcp.messages.contract import Action, Sampling
from sdcp.messages.manifest import EndRecord
from sdcp.messages.output import Event
from sdcp.messages.request import Location, ProfileChange
from sdcp.messages.round import Assignment
from sdcp.messages.session import Policy, SessionOpen, SessionState
from sdcp.ports import Entry, LogDamagedError, LogSlice, NoListingError, StoreUnavailableError
from sdcp.roles.config import ManifestSettings
from sdcp.roles.manifests import Manifests
from sdcp.roles.router import RouterFacts, RouterRole
from sdcp.roles.telemetry import Metrics
from sdcp.rules.digest import contract_digest, prefix_digest
from sdcp.stores.local import LocalCache
from sdcp.stores.memory import MemoryStore
from tests.unit.roles.test_router_role import FRONT_END, PREFIX, REQUEST, V1, World, generation, peer

BASE = "https://router.example"
GET = "requests/AAECAwQFBgcICQoLDA0ODw"


class Cache(LocalCache):
    """A cache that may list nothing, answer nothing, or answer when it is let."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, owner="router", prefix=PREFIX)
        self.fault: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.listed: list[str] = []
        self.reading = self.most = self.refused = 0
        self.damaged: str | None = None

    async def listing(self, kind: Any, prefix: str = "", after: str = "", limit: int = 1000) -> list[Entry]:
        if self.fault is not None:
            self.refused += 1
            raise self.fault
        self.listed.append(prefix)
        return await super().listing(kind, prefix, after, limit)

    async def append(self, ref: str, data: bytes, etag: str | None) -> str:
        if ref.endswith(self.damaged or " "):
            raise LogDamagedError("octets are gone", 0)
        return await super().append(ref, data, etag)

    async def read_log(self, ref: str, start: int = 0, stop: int | None = None) -> LogSlice:
        if ref.endswith(self.damaged or " "):
            raise LogDamagedError("octets are gone", 0)
        self.reading += 1
        self.most = max(self.most, self.reading)
        await self.gate.wait()
        self.reading -= 1
        return await super().read_log(ref, start, stop)


class Life(World):
    """One life of the router; lives that share a store are lives of one router."""

    def __init__(self, store: MemoryStore | None = None, retention_s: float = 600.0, **manifest: Any) -> None:
        super().__init__()
        self.store = store or MemoryStore()
        self.cache: Cache = Cache(self.store)
        self.metrics = Metrics()
        self.role = RouterRole(
            self,  # type: ignore[arg-type]
            self.cache,
            RouterFacts(
                patience=Patience(verifier_wait_ms=0), retention_s=retention_s, manifest=ManifestSettings(**manifest)
            ),
            self.metrics,
            lambda what, fault: self.faults.append(f"{what}: {fault!r}"),
            now_ms=lambda: self.now_ms,
        )

    def _state(self, message: Any) -> SessionState:
        """Nothing was ever committed, and the verifiers know every session."""
        if not isinstance(message, SessionOpen | Assignment):
            return super()._state(message)
        digest = prefix_digest(contract_digest(message.contract.to_plain()), tuple(message.prompt))
        return SessionState(session=message.session, epoch=message.epoch, round=0, committed=0, digest=digest, state=0)

    async def begin(self) -> Life:
        await self.role.start(BASE)
        return self

    async def up(self) -> Life:
        """Begin, and wait until every session is taken up."""
        await self.begin()
        await self.role._tasks[1]
        await self.settled()
        return self

    async def locate(self, client: Peer = FRONT_END, query: str = "") -> Location:
        return Location.decode(bytes((await self.send(client, "GET", GET, query=query)).body))  # type: ignore[arg-type]

    def manifests(self) -> list[Manifest]:
        found = []
        for entry in self.store.listing("logs", "m"):
            manifest = Manifest()
            manifest.take(bytes(self.store._logs[entry.name].octets))
            found.append(manifest)
        return found

    def counted(self, event: str) -> float:
        lines = self.metrics.render().decode().splitlines()
        found = [line for line in lines if line.startswith(f'sdcp_events_total{{event="{event}"}}')]
        return float(found[0].split()[1]) if found else 0.0


@pytest.fixture
async def lives() -> AsyncIterator[list[Life]]:
    """The lives of a test; those that it adds end with it, without a fault."""
    made: list[Life] = []
    yield made
    for life in made:
        life.cache.gate.set()
        assert life.faults == []
        await life.role.drain()


@pytest.fixture
async def first(lives: list[Life]) -> Life:
    """A life with one session, which runs at V1 with D1."""
    life = Life()
    lives.append(life)
    await life.up()
    await life.running()
    await life.settled()
    return life


async def after(lives: list[Life], before: Life, **manifest: Any) -> Life:
    """The next life over the same cache, not begun yet."""
    life = Life(before.store, **manifest)
    lives.append(life)
    return life


# ---- found again -----------------------------------------------------------------------------------------------------


@pytest.mark.decision("D45-restart", "D45-names")
async def test_the_next_life_has_the_session_and_tells_nobody_anything_new(first: Life, lives: list[Life]) -> None:
    location = await first.locate()
    life = await (await after(lives, first)).up()
    assert await life.locate() == location
    assert life.messages(SessionOpen) == []
    assert life.messages(Assignment)[0] == first.messages(Assignment)[0]  # PUT drafter, word for word (D37)
    assert life.counted("sessions_taken_up") == 1


@pytest.mark.decision("D45-restart")
async def test_a_request_is_known_by_its_content_and_owner_as_before(first: Life, lives: list[Life]) -> None:
    location = await first.locate()
    life = await (await after(lives, first)).up()
    assert await life.submit() == location
    with pytest.raises(errors.Conflict):
        await life.submit(generation(prompt=(1, 3)))
    stranger = peer("front-end", "https://other.example")
    with pytest.raises(errors.Conflict):
        await life.submit(client=stranger)
    with pytest.raises(errors.UnknownResource):
        await life.locate(stranger)


@pytest.mark.decision("D45-at-once")
async def test_who_asks_need_not_wait_until_everything_is_taken_up(first: Life, lives: list[Life]) -> None:
    """Neither for a session of before, found by the name of its request, nor for a new one."""
    location = await first.locate()
    life = await after(lives, first)
    life.cache.fault = StoreUnavailableError("not now")
    await life.begin()
    await life.report(V1)
    with pytest.raises(errors.Overloaded):
        await life.locate()
    with pytest.raises(errors.Overloaded):
        await life.submit()
    life.cache.fault = None
    assert await life.locate() == location
    other = await life.submit(generation(request=bytes(16)))
    assert other.session != location.session
    with pytest.raises(errors.UnknownResource):
        await life.send(FRONT_END, "GET", "requests/AAAAAAAAAAAAAAAAAAAAAQ")


@pytest.mark.decision("D45-at-once")
async def test_a_verifier_is_asked_to_say_its_event_again_until_all_sessions_are_known(
    first: Life, lives: list[Life]
) -> None:
    location = await first.locate()
    message = Event(session=location.session, epoch=1, kind=Action.FINISH, committed=0, digest=bytes(32))
    life = await after(lives, first)
    life.cache.gate.clear()
    await life.begin()
    with pytest.raises(errors.Overloaded):
        await life.send(peer("verifier", V1), "POST", "events", message)
    life.cache.gate.set()
    await life.role._tasks[1]
    assert (await life.send(peer("verifier", V1), "POST", "events", message)).status == 204
    unknown = replace(message, session=bytes(16))
    with pytest.raises(errors.UnknownResource):
        await life.send(peer("verifier", V1), "POST", "events", unknown)
    await life.settled()
    assert life.manifests()[0].end is not None


@pytest.mark.decision("D45-at-once")
async def test_sessions_are_taken_up_some_at_a_time(first: Life, lives: list[Life]) -> None:
    for number in range(1, 20):
        await first.submit(generation(request=number.to_bytes(16, "big")))
    await first.settled()
    life = await after(lives, first, at_once=3)
    await life.up()
    assert life.counted("sessions_taken_up") == 20
    assert life.cache.most <= 4  # one look besides


@pytest.mark.decision("D45-ended")
async def test_a_session_that_has_ended_is_known_as_long_as_it_would_have_been(first: Life, lives: list[Life]) -> None:
    assert (await first.send(FRONT_END, "DELETE", GET)).status == 204
    await first.settled()
    location = await first.locate()
    assert location.ended is Action.FAIL
    life = await (await after(lives, first)).up()
    assert await life.locate() == location
    assert life.asked == []
    gone = await (await after(lives, first, retention_s=0.0)).up()
    with pytest.raises(errors.UnknownResource):
        await gone.locate()


# ---- whose they are --------------------------------------------------------------------------------------------------


@pytest.mark.decision("D45-names")
async def test_another_router_s_sessions_are_left_alone_unless_it_is_taken_over(first: Life, lives: list[Life]) -> None:
    other = await (await after(lives, first, name="other")).up()
    assert other.counted("sessions_taken_up") == 0
    with pytest.raises(errors.UnknownResource):
        await other.locate()
    heir = await (await after(lives, first, name="other", take_over=(BASE,))).up()
    assert await heir.locate() == await first.locate()


async def test_a_name_that_lies_about_its_router_is_not_believed(first: Life, lives: list[Life]) -> None:
    """A log under our names, with a manifest of somebody else in it."""
    (entry,) = first.store.listing("logs", "m")
    life = await after(lives, first, name="other")
    foreign = Manifests(life.cache, "other").new(REQUEST)[1]
    await life.cache.append(foreign, bytes(first.store._logs[entry.name].octets), None)
    await life.up()
    assert life.counted("sessions_taken_up") == 0


@pytest.mark.decision("D45-horizon")
async def test_what_was_written_long_ago_is_left_alone(first: Life, lives: list[Life]) -> None:
    class Old(Cache):
        async def listing(self, *args: Any, **named: Any) -> list[Entry]:
            found = await super().listing(*args, **named)
            return [Entry(each.name, each.size, age_s=3600.0) for each in found]

    for horizon_s, expected in ((3500.0, 0), (3700.0, 1)):
        life = await after(lives, first, horizon_s=horizon_s)
        life.cache = life.role._cache = Old(first.store)
        await life.up()
        assert life.counted("sessions_taken_up") == expected


# ---- two lives -------------------------------------------------------------------------------------------------------


@pytest.mark.decision("D45-looks", "D45-asked")
async def test_an_old_life_lets_go_and_takes_the_session_up_again_only_when_it_is_asked(
    first: Life, lives: list[Life]
) -> None:
    location = await first.locate()
    life = await (await after(lives, first)).up()
    asked = len(first.asked)
    first.now_ms = 10**6  # it slept, and everybody's status has expired
    first.role.sweep()
    await first.settled()
    assert len(first.asked) == asked
    assert first.counted("sessions_lost") == 1
    assert first.manifests()[0].life == life.role._manifests.life  # type: ignore[union-attr]
    assert await first.locate() == location
    await first.settled()
    assert first.manifests()[0].life == first.role._manifests.life  # type: ignore[union-attr]
    await life.report(V1)
    life.now_ms = 10**6
    life.role.sweep()
    await life.settled()
    assert life.counted("sessions_lost") == 1


async def test_a_manifest_whose_request_came_again_meanwhile_is_closed(first: Life, lives: list[Life]) -> None:
    """The request was written down too late for the life that asked for it; its client submitted it once more."""
    (entry,) = first.store.listing("logs", "m")
    records = bytes(first.store._logs[entry.name].octets)
    life = await after(lives, first)
    await life.up()
    manifest = Manifest()
    manifest.take(records)
    orphan = life.role._manifests.new(REQUEST)[1]  # type: ignore[union-attr]
    await life.cache.append(orphan, replace(manifest.first, session=bytes(16), epoch=1).encode(), None)
    third = await (await after(lives, first)).up()
    ended = [each for each in third.manifests() if isinstance(each.end, EndRecord)]
    assert [each.first.session for each in ended] == [bytes(16)]
    assert (await third.locate()).session == manifest.first.session


# ---- caches that cannot ----------------------------------------------------------------------------------------------


@pytest.mark.decision("D45-no-listing")
async def test_with_a_cache_that_lists_nothing_all_is_as_without_manifests(
    lives: list[Life], caplog: pytest.LogCaptureFixture
) -> None:
    life = Life()
    lives.append(life)
    life.cache.fault = NoListingError("it does not list")
    with caplog.at_level(logging.WARNING):
        await life.up()
        await life.running()
        with pytest.raises(errors.UnknownResource):
            await life.send(FRONT_END, "GET", "requests/AAAAAAAAAAAAAAAAAAAAAQ")
    assert [record.getMessage() for record in caplog.records if "no session" in record.getMessage()] == [
        "no session can be taken up again: it does not list"
    ]
    assert (await life.locate()).verifier == V1


@pytest.mark.parametrize("damaged", [True, False], ids=["damaged", "altered"])
async def test_a_manifest_that_cannot_be_read_costs_its_session_alone(
    first: Life, lives: list[Life], damaged: bool
) -> None:
    await first.submit(generation(request=bytes(16)))
    await first.settled()
    one, _ = first.store.listing("logs", "m")
    life = await after(lives, first)
    if damaged:
        life.cache.damaged = one.name
    else:
        first.store._logs[one.name].octets[:4] = b"\x00\x00\x00\x00"
    await life.up()
    assert life.counted("sessions_taken_up") == 1


@pytest.mark.decision("D45-vanished")
async def test_a_session_goes_on_whose_manifest_takes_no_record_any_more(first: Life) -> None:
    first.cache.damaged = first.store.listing("logs", "m")[0].name
    change = ProfileChange(sampling=Sampling(temperature_milli=100))
    answer = await first.send(FRONT_END, "POST", f"{GET}/policy", change)
    assert answer.status == 200
    assert first.messages(Policy)
    assert (await first.locate()).ended is None


@pytest.mark.decision("D45-at-once")
async def test_a_cache_that_does_not_answer_is_asked_until_it_does_and_spoken_of_once(
    first: Life, lives: list[Life], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sdcp.roles.taking_up.PAUSE_S", 0.0)
    life = await after(lives, first)
    life.cache.fault = StoreUnavailableError("not now")
    with caplog.at_level(logging.INFO):
        await life.begin()
        while life.cache.refused < 5:
            await asyncio.sleep(0)
        life.cache.fault = None
        await life.role._tasks[1]
    told = [record.getMessage() for record in caplog.records if record.name == "sdcp.roles"]
    assert told == [
        "sessions of an earlier life cannot be taken up yet: not now",
        "the cache answers again; sessions are taken up",
        "sessions of an earlier life taken up: 1",
    ]
    await life.settled()


async def test_a_session_whose_log_is_under_no_prefix_is_left(first: Life, lives: list[Life]) -> None:
    life = await after(lives, first)
    life.cache.allows_log = lambda ref: False  # type: ignore[method-assign]
    await life.up()
    assert life.counted("sessions_taken_up") == 0


@pytest.mark.decision("D45-off")
async def test_a_router_that_keeps_no_manifests_writes_none(lives: list[Life]) -> None:
    life = Life(keep=False)
    lives.append(life)
    await life.begin()
    await life.running()
    await life.settled()
    assert life.manifests() == []
    with pytest.raises(errors.UnknownResource):
        await life.send(FRONT_END, "GET", "requests/AAAAAAAAAAAAAAAAAAAAAQ")
    assert life.cache.listed == []


async def test_the_commit_log_and_the_manifest_have_one_name_but_for_the_first_letter(first: Life) -> None:
    (entry,) = first.store.listing("logs", "m")
    assert first.manifests()[0].first.commit_log == f"{PREFIX}logs/c{entry.name[1:]}"
