"""The KV object of a lost verifier: leased for the next one, and gone at the end (6.9, D44)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sdcp.machines.inputs import VerifierLost
from sdcp.messages.contract import Action
from sdcp.messages.output import Event
from sdcp.messages.record import CommitRecord
from sdcp.messages.session import SessionOpen, SessionState
from sdcp.ports import StoreUnavailableError
from sdcp.roles.objects import new_kv_name
from sdcp.roles.routing import LEASE_MS, RoutingSession
from sdcp.rules.digest import digest_of, extend_all, prefix_digest
from tests.unit.roles.test_router_role import FRONT_END, REQUEST, V1, V2, World, encode_id, peer

KV = b"kv" * 1000


class Town(World):
    """Peers as in World, and a log to which the verifier commits."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = asyncio.Event()
        self.leased_at_open: list[list[str]] = []

    def _state(self, message: Any) -> SessionState:
        opened = next(each for _, _, each in reversed(self.asked) if isinstance(each, SessionOpen))
        digest = prefix_digest(digest_of(opened.contract), tuple(opened.prompt))
        place = opened.resume
        if isinstance(message, SessionOpen):
            self.leased_at_open.append(self.leased())
            self.opened.set()
        return SessionState(
            session=opened.session,
            epoch=opened.epoch,
            round=place.round if place else 0,
            committed=place.committed if place else 0,
            digest=place.digest if place else digest,
            state=0,
        )

    @property
    def session(self) -> RoutingSession:
        (session,) = self.role._sessions.values()
        return session

    async def commit(self, *kv: str | None) -> None:
        """The verifier commits one token a round; each record names some KV, or none."""
        machine = self.session.machine
        ref = machine._log
        found = await self.cache.read_log(ref)
        recorded = machine._recorded
        digest, start = recorded.digest, len(recorded.tokens)
        etag = found.etag
        for number, each in enumerate(kv, start + 1):
            digest = extend_all(digest, (3,))
            record = CommitRecord(
                epoch=machine.epoch, round=number, tokens=(3,), committed=number, digest=digest, kv=each
            )
            etag = await self.cache.append(ref, record.encode(), etag)

    async def put(self, session: bytes | None = None) -> str:
        """A KV object of the session, as a verifier creates it."""
        return await self.cache.create(KV, name=new_kv_name(session or self.session.machine.session))

    async def fail_over(self) -> SessionOpen:
        """The verifier is lost; return the open that the next one gets."""
        await self.report(V2)
        self.opened.clear()
        self.session.tell(VerifierLost())
        await self.opened.wait()
        await self.settled()
        opened: SessionOpen = self.messages(SessionOpen)[-1]
        return opened

    def objects(self) -> list[str]:
        """URIs of the KV objects that are there."""
        return [f"{self.cache.ref_of('objects', entry.name)}" for entry in self.store.listing("objects", "kv-")]

    def leased(self) -> list[str]:
        return [self.cache.ref_of("objects", each.name) for each in self.store.listing("objects", "kv-") if each.leased]

    async def end(self, verifier: str, committed: int) -> None:
        machine = self.session.machine
        event = Event(
            session=machine.session, epoch=machine.epoch, kind=Action.FINISH, committed=committed, digest=bytes(32)
        )
        await self.send(peer("verifier", verifier), "POST", "events", event)
        await self.settled()


@pytest.fixture
async def town() -> Any:
    made = Town()
    await made.running()
    yield made
    assert made.faults == []
    await made.role.drain()


@pytest.mark.requirement("S6.9-resume")
@pytest.mark.decision("D44-resume")
async def test_the_kv_is_leased_while_the_next_verifier_opens_and_no_longer(town: Town) -> None:
    kv = await town.put()
    await town.commit(None, kv, None)
    opened = await town.fail_over()
    assert opened.resume is not None
    assert opened.resume.target_kv == kv
    assert town.leased_at_open[-1] == [kv]
    assert (town.objects(), town.leased()) == ([kv], []), "the next failover may need it"


@pytest.mark.decision("D44-resume")
async def test_a_long_open_keeps_the_lease(town: Town) -> None:
    kv = await town.put()
    await town.commit(kv)
    await town.fail_over()
    session = town.session
    opened: SessionOpen = town.messages(SessionOpen)[-1]
    await session._offer_kv(opened)
    await town.cache.release(session._kv_lease)
    await session.renew()
    assert town.leased() == [kv]
    await session._release_kv()


@pytest.mark.decision("D44-resume")
@pytest.mark.parametrize("how", ["evicted", "unavailable", "not of a cache"])
async def test_kv_that_cannot_be_leased_is_left_out(town: Town, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kv = await town.put() if how != "not of a cache" else "https://elsewhere.example/objects/kv"
    await town.commit(kv)
    lease = town.cache.lease

    async def broken(name: str, refs: Any, ttl_ms: int) -> None:
        if name.endswith("-kv"):
            raise StoreUnavailableError("no answer")
        await lease(name, refs, ttl_ms)

    if how == "evicted":
        await town.cache.delete(kv)
    elif how == "unavailable":
        monkeypatch.setattr(town.cache, "lease", broken)
    opened = await town.fail_over()
    assert opened.resume is not None
    assert (opened.resume.committed, opened.resume.target_kv) == (1, None)


@pytest.mark.decision("D44-deleted")
async def test_kv_goes_when_a_newer_one_takes_its_place_and_at_the_end(town: Town) -> None:
    first = await town.put()
    await town.commit(first)
    await town.fail_over()
    second = await town.put()
    await town.commit(second)
    await town.fail_over()
    assert town.objects() == [second]
    await town.end(town.session.machine.verifier or "", 2)
    assert (town.objects(), [*town.store.listing("leases")]) == ([], [])


@pytest.mark.decision("D44-deleted")
async def test_a_withdrawn_session_leaves_no_kv(town: Town) -> None:
    kv = await town.put()
    await town.commit(kv)
    await town.send(FRONT_END, "DELETE", f"requests/{encode_id(REQUEST)}")
    await town.settled()
    assert (town.objects(), [*town.store.listing("leases")]) == ([], [])


@pytest.mark.decision("D44-deleted")
async def test_what_a_dead_verifier_leases_goes_when_the_lease_is_over(town: Town) -> None:
    kv = await town.put()
    await town.cache.lease("of-the-verifier", [kv], 1000 * LEASE_MS)
    await town.commit(kv)
    await town.fail_over()
    await town.end(V2, 1)
    assert town.objects() == [kv]
    await town.cache.release("of-the-verifier")
    await town.session.renew()
    assert town.objects() == [kv]
    town.now_ms += LEASE_MS + 1
    await town.session.renew()
    assert town.objects() == []


@pytest.mark.decision("D44-deleted")
async def test_a_log_cannot_have_the_router_delete_what_is_not_the_session_s(town: Town) -> None:
    others = [await town.put(b"o" * 16), await town.cache.create(b"a prompt")]
    for each in others:
        await town.commit(each)
        await town.fail_over()
        await town.cache.fetch(each, at_most=1 << 20)
    await town.end(town.session.machine.verifier or V1, 2)
    for each in others:
        await town.cache.fetch(each, at_most=1 << 20)
