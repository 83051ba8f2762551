"""The router's role with scripted peers: who may say what, requests, contracts, statuses (6.1, D7, D9, D10, D33)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from sdcp import errors
from sdcp.http.client import Answer
from sdcp.http.exchange import Request, Response
from sdcp.http.faults import Unreachable
from sdcp.http.identity import Peer
from sdcp.http.problems import problem_response
from sdcp.http.resources import SDCP_CBOR, encode_id
from sdcp.machines.roster import Known
from sdcp.machines.router import Patience
from sdcp.messages.contract import Action, Sampling
from sdcp.messages.fields import Message
from sdcp.messages.output import Event
from sdcp.messages.record import FenceRecord, parse_record
from sdcp.messages.request import GenerationRequest, Location, ProfileChange
from sdcp.messages.round import Assignment
from sdcp.messages.session import Policy, SessionOpen, SessionState
from sdcp.messages.status import DRAFTER, VERIFIER, Status
from sdcp.ports import ObjectMissingError
from sdcp.roles.config import ContractDefaults
from sdcp.roles.router import RouterFacts, RouterRole
from sdcp.roles.telemetry import Metrics
from sdcp.rules.digest import contract_digest, prefix_digest
from sdcp.stores.local import LocalCache
from sdcp.stores.memory import MemoryStore
from sdcp.wire import cbor

TARGET, TOKENIZER, SMALL = bytes([1]) * 32, bytes([2]) * 32, bytes([3]) * 32
V1, V2, D1, D2 = "https://v1.example", "https://v2.example", "https://d1.example", "https://d2.example"
PREFIX = "https://cache.example/"
REQUEST = bytes(range(16))
NOBODY = Peer(frozenset(), frozenset(), frozenset())


def peer(role: str, *uris: str, dns: tuple[str, ...] = ()) -> Peer:
    normal = [f"{uri}/" for uri in uris]
    return Peer(frozenset([f"urn:sdcp:role:{role}", *normal]), frozenset(dns), frozenset(), frozenset({role}))


FRONT_END = peer("front-end", "https://gateway.example")


def generation(**members: Any) -> GenerationRequest:
    basics = {"request": REQUEST, "prompt": (1, 2), "max_new": 8, "stop": (7,), "rule": 1}
    return GenerationRequest(**{**basics, **members})


def status(base: str, role: int = VERIFIER, **members: Any) -> Status:
    basics = {
        "instance": base,
        "role": role,
        "load": 0,
        "queue": 0,
        "ttl_ms": 1000,
        "base": base,
        "model": TARGET if role == VERIFIER else SMALL,
        "tokenizer": TOKENIZER,
    }
    return Status(**{**basics, **members})


class _Body:
    def __init__(self, octets: bytes) -> None:
        self._octets = octets

    async def read(self, limit: int, too_large: Callable[[int], Exception]) -> bytes:
        if len(self._octets) > limit:
            raise too_large(limit)
        return self._octets

    async def next_chunk(self) -> bytes | None:
        octets, self._octets = self._octets, b""
        return octets or None


class World:
    """The router, and peers that do what they are asked. `refusals`: method and path suffix to what is answered."""

    def __init__(self, **facts: Any) -> None:
        self.now_ms = 0
        self.asked: list[tuple[str, str, Message]] = []
        self.refusals: dict[tuple[str, str], errors.ProblemError | Exception] = {}
        self.assigned = asyncio.Event()
        self.store = MemoryStore()
        self.cache = LocalCache(self.store, owner="router", prefix=PREFIX)
        self.faults: list[str] = []
        self.role = RouterRole(
            self,  # type: ignore[arg-type]
            self.cache,
            RouterFacts(**{"patience": Patience(verifier_wait_ms=0), **facts}),
            Metrics(),
            lambda what, fault: self.faults.append(f"{what}: {fault!r}"),
            now_ms=lambda: self.now_ms,
        )

    # ---- what the role calls ----------------------------------------------------------------------------------------

    async def request(self, method: str, url: str, *, body: bytes | None = None, **options: Any) -> Answer:
        base, path = url[: url.index(".example") + 8], url[url.index(".example") + 8 :]
        kind = _kind(method, path)
        message = kind.decode(body or b"")
        self.asked.append((method, url, message))
        refusal = self.refusals.get((method, url)) or self.refusals.get((method, base))
        if isinstance(refusal, errors.ProblemError):
            return _answer(problem_response(refusal))
        if refusal is not None:
            raise refusal
        if kind is Assignment and method == "POST":
            self.assigned.set()
            return Answer(204, {}, b"", NOBODY)
        return Answer(200, {"content-type": SDCP_CBOR}, self._state(message).encode(), NOBODY)

    def _state(self, message: Any) -> SessionState:
        """Nothing was ever committed."""
        opened = next(each for _, _, each in reversed(self.asked) if isinstance(each, SessionOpen))
        digest = prefix_digest(contract_digest(opened.contract.to_plain()), tuple(opened.prompt))
        epoch = getattr(message, "epoch", opened.epoch)
        return SessionState(session=message.session, epoch=epoch, round=0, committed=0, digest=digest, state=0)

    async def close(self) -> None:
        pass

    # ---- what a test does -------------------------------------------------------------------------------------------

    async def send(
        self,
        client: Peer,
        method: str,
        path: str,
        message: Message | None = None,
        query: str = "",
        prefer: str = "wait=0",
    ) -> Response:
        headers = {"prefer": prefer} | ({} if message is None else {"content-type": SDCP_CBOR})
        body = _Body(b"" if message is None else message.encode())
        return await self.role.handle(Request(method, f"/{path}", query, "router", headers, client, body))

    async def report(self, uri: str, role: int = VERIFIER, client: Peer | None = None, **members: Any) -> Response:
        message = replace(status(uri, role), **members)
        owner = client or peer("verifier" if role == VERIFIER else "drafter", uri)
        path = message.instance.replace("/", "%2F").replace(":", "%3A")
        return await self.send(owner, "PUT", f"instances/{path}/status", message)

    async def submit(self, message: GenerationRequest | None = None, client: Peer = FRONT_END) -> Location:
        return Location.decode(_octets(await self.send(client, "POST", "requests", message or generation())))

    async def running(self) -> Location:
        """A session that is running at V1 with D1."""
        await self.report(V1)
        await self.report(D1, DRAFTER)
        location = await self.submit()
        await self.assigned.wait()
        return location

    def messages(self, kind: type) -> list[Any]:
        return [message for _, _, message in self.asked if isinstance(message, kind)]

    async def settled(self) -> None:
        for session in self.role._sessions.values():
            await session.settled()


def _kind(method: str, path: str) -> type[Message]:
    if path.endswith("/policy"):
        return Policy
    return SessionOpen if path == "/sessions" else Assignment


def _answer(response: Response) -> Answer:
    return Answer(response.status, dict(response.headers), _octets(response), NOBODY)


def _octets(response: Response) -> bytes:
    assert isinstance(response.body, bytes)
    return response.body


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    assert made.faults == []
    await made.role.drain()


# ---- instances -------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S5.1-put-status", "S6.1-expired-status")
@pytest.mark.decision("D7-ttl")
async def test_an_instance_counts_until_its_ttl_is_over(world: World) -> None:
    assert (await world.report(V1)).status == 204
    world.now_ms = 999
    assert (await world.submit()).verifier == V1
    world.now_ms = 1000
    with pytest.raises(errors.Overloaded):
        await world.submit(generation(request=bytes(16)))


@pytest.mark.decision("D9", "D10-drafter")
@pytest.mark.parametrize(
    "client",
    [peer("verifier", V2), peer("verifier"), peer("drafter", V1), peer("router", V1), peer("verifier", f"{V1}/other")],
)
async def test_a_status_comes_from_the_instance_itself_only(world: World, client: Peer) -> None:
    with pytest.raises(errors.Forbidden):
        await world.report(V1, client=client)


@pytest.mark.decision("D9-host")
async def test_a_host_name_is_enough_where_the_deployment_says_so() -> None:
    by_host = peer("verifier", dns=("v1.example",))
    world = World(match_host=True)
    assert (await world.report(V1, client=by_host)).status == 204
    with pytest.raises(errors.Forbidden):
        await World().report(V1, client=by_host)


async def test_nobody_takes_the_name_of_an_instance_that_is_alive(world: World) -> None:
    await world.report(V1, instance="one")
    with pytest.raises(errors.Forbidden):
        await world.report(V2, instance="one")
    world.now_ms = 1000
    assert (await world.report(V2, instance="one")).status == 204


async def test_a_status_of_another_instance_than_its_path_is_refused(world: World) -> None:
    with pytest.raises(errors.InvalidContent):
        await world.send(peer("verifier", V1), "PUT", "instances/other/status", status(V1))


@pytest.mark.decision("D7-configured")
async def test_an_instance_without_our_keys_is_known_from_configuration() -> None:
    known = {"v": Known(V1, TARGET, TOKENIZER)}
    world, bare = World(known=known), {"instance": "v", "base": None, "model": None, "tokenizer": None}
    with pytest.raises(errors.Forbidden):
        await world.report(V1, client=peer("verifier", V2), **bare)
    await world.report(V1, **bare)
    assert (await world.submit()).verifier == V1


# ---- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S4.1-contract", "S6.1-open-epoch-1")
@pytest.mark.decision("D33-request", "D36-ladder")
async def test_a_contract_is_the_request_within_the_router_s_settings() -> None:
    defaults = ContractDefaults(m_max=6, m_init=3, low_rounds=4, low_ratio=20, fallback=("reduce",), self_load=50)
    world = World(contract=defaults, patience=Patience(m_init=3))
    await world.report(V1)
    await world.submit(generation(rule=2, sampling=Sampling(temperature_milli=700)))
    (opened,) = world.messages(SessionOpen)
    contract = opened.contract
    assert (contract.target, contract.tokenizer, contract.rule) == (TARGET, TOKENIZER, 2)
    assert contract.sampling is not None
    assert contract.sampling.to_plain() == {"temperature_milli": 700}
    assert (contract.max_new, contract.stop) == (8, (7,))
    assert (contract.m_max, contract.low_rounds, contract.low_ratio) == (6, 4, 20)
    assert (contract.self_load, contract.self_max, contract.drafters) == (50, 16, None)
    # 8 tokens are at most 2 applications of an entry, each skipping one at most.
    assert contract.fallback == (Action.REDUCE, *(Action.SELF_DECODE, Action.SWITCH) * 3)
    assert opened.commit_log.startswith(f"{PREFIX}logs/")


@pytest.mark.decision("D36-fail")
async def test_a_ladder_with_fail_is_the_operator_s_word() -> None:
    world = World(contract=ContractDefaults(fallback=("reduce", "fail")))
    await world.report(V1)
    await world.submit(generation(max_new=2**63))
    assert world.messages(SessionOpen)[0].contract.fallback == (Action.REDUCE, Action.FAIL)


@pytest.mark.decision("D33-repeat")
async def test_a_repeat_is_the_same_session_and_another_content_a_conflict(world: World) -> None:
    first = await world.running()
    assert await world.submit() == first
    assert len(world.messages(SessionOpen)) == 1
    with pytest.raises(errors.Conflict):
        await world.submit(generation(max_new=9))
    with pytest.raises(errors.Conflict):
        await world.submit(client=peer("front-end", "https://other.example"))


async def test_repeats_at_the_same_time_are_one_session(world: World) -> None:
    await world.report(V1)
    locations = await asyncio.gather(*(world.submit() for _ in range(5)))
    assert len({location.session for location in locations}) == 1


@pytest.mark.decision("D33-refused")
async def test_a_verifier_s_refusal_reaches_the_front_end(world: World) -> None:
    await world.report(V1)
    world.refusals["POST", f"{V1}/sessions"] = errors.BadContract("P + max_new is over the context")
    with pytest.raises(errors.BadContract, match="context"):
        await world.submit()


@pytest.mark.decision("D33-request")
async def test_target_and_tokenizer_bind_a_request_and_are_needed_where_there_are_several(world: World) -> None:
    await world.report(V1)
    await world.report(V2, model=SMALL)
    with pytest.raises(errors.InvalidContent, match="several models"):
        await world.submit()
    assert (await world.submit(generation(target=SMALL))).verifier == V2
    with pytest.raises(errors.Overloaded):
        await world.submit(generation(request=bytes(16), tokenizer=bytes(32)))


async def test_a_request_waits_for_the_first_verifier_to_report() -> None:
    world = World(patience=Patience())
    waiting = asyncio.ensure_future(world.submit())
    await asyncio.sleep(0)
    await world.report(V1)
    assert (await waiting).verifier == V1


async def test_a_router_takes_no_more_than_its_settings_say() -> None:
    world = World(sessions=1)
    await world.report(V1)
    await world.submit()
    with pytest.raises(errors.Overloaded):
        await world.submit(generation(request=bytes(16)))


async def test_a_prompt_that_no_digest_can_hold_is_refused(world: World) -> None:
    await world.report(V1)
    with pytest.raises(errors.InvalidContent):
        await world.submit(generation(prompt=(2**32,)))


@pytest.mark.decision("D10")
@pytest.mark.parametrize("role", ["router", "verifier", "drafter", "cache"])
async def test_requests_are_for_front_ends(world: World, role: str) -> None:
    for method, path in (("POST", "requests"), ("GET", f"requests/{encode_id(REQUEST)}")):
        with pytest.raises(errors.Forbidden):
            await world.send(peer(role, V1), method, path, generation())


@pytest.mark.decision("D33-owner")
async def test_a_request_belongs_to_the_certificate_that_made_it(world: World) -> None:
    await world.running()
    path, other = f"requests/{encode_id(REQUEST)}", peer("front-end", "https://other.example")
    for method in ("GET", "DELETE"):
        with pytest.raises(errors.UnknownResource):
            await world.send(other, method, path)
        with pytest.raises(errors.UnknownResource):
            await world.send(FRONT_END, method, f"requests/{encode_id(bytes(16))}")


@pytest.mark.decision("D33")
@pytest.mark.parametrize("epoch", ["x", "-1", "1.0", "", "99999999999999999999999"])
async def test_an_epoch_is_decimal(world: World, epoch: str) -> None:
    await world.running()
    with pytest.raises(errors.MalformedBody):
        await world.send(FRONT_END, "GET", f"requests/{encode_id(REQUEST)}", query=f"epoch={epoch}")


# ---- failover and cancelling -----------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.9-fence-first", "S6.9-resume")
@pytest.mark.decision("D33-location")
async def test_sessions_of_a_verifier_that_expired_are_failed_over_and_front_ends_told(world: World) -> None:
    await world.running()
    path = f"requests/{encode_id(REQUEST)}"
    waiting = asyncio.ensure_future(world.send(FRONT_END, "GET", path, query="epoch=1", prefer="wait=20"))
    world.now_ms = 900
    await world.report(V2)
    await world.report(D1, DRAFTER)
    world.now_ms = 1000
    world.assigned.clear()
    world.role.sweep()
    location = Location.decode(_octets(await waiting))
    assert (location.verifier, location.epoch) == (V2, 2)
    await world.assigned.wait()
    opened = world.messages(SessionOpen)[-1]
    log = (await world.cache.read_log(opened.commit_log)).data
    assert [parse_record(value) for _, value in cbor.decode_sequence(log)] == [FenceRecord(epoch=2)]
    assert world.messages(Assignment)[-1].verifier == V2


@pytest.mark.requirement("S6.9-drafter-expired")
async def test_sessions_of_a_drafter_that_expired_get_another(world: World) -> None:
    await world.running()
    world.now_ms = 900
    await world.report(V1)
    await world.report(D2, DRAFTER)
    world.now_ms = 1000
    world.assigned.clear()
    world.role.sweep()
    await world.assigned.wait()
    assert world.messages(Assignment)[-1].drafter == D2
    assert {message.verifier for message in world.messages(Assignment)} == {V1}


async def test_a_drafter_that_cannot_be_reached_is_passed_over(world: World) -> None:
    await world.report(V1)
    await world.report(D1, DRAFTER)
    await world.report(D2, DRAFTER, load=50)
    world.refusals["POST", f"{D1}/assignments"] = Unreachable("no route", maybe_processed=False)
    await world.submit()
    await world.assigned.wait()
    assert [message.drafter for message in world.messages(Assignment)] == [D1, D1, D2, D2]  # PUT, POST, each


@pytest.mark.decision("D34-fenced", "D33-delete")
async def test_a_withdrawn_request_is_fenced_and_its_objects_go(world: World) -> None:
    await world.running()
    assert (await world.send(FRONT_END, "DELETE", f"requests/{encode_id(REQUEST)}")).status == 204
    await world.settled()
    log = (await world.cache.read_log(world.messages(SessionOpen)[0].commit_log)).data
    assert [parse_record(value) for _, value in cbor.decode_sequence(log)] == [FenceRecord(epoch=2)]
    assert (await world.send(FRONT_END, "DELETE", f"requests/{encode_id(REQUEST)}")).status == 204


@pytest.mark.decision("D20-router")
async def test_a_long_prompt_is_leased_until_the_session_ends_and_deleted_then() -> None:
    world = World(patience=Patience(inline_prompt=1, verifier_wait_ms=0))
    world.refusals["POST", f"{V1}/sessions"] = errors.BadContract("no")
    await world.report(V1)
    with pytest.raises(errors.BadContract):
        await world.submit()
    ref = world.messages(SessionOpen)[0].prompt
    assert isinstance(ref, str)
    await world.settled()
    with pytest.raises(ObjectMissingError):
        await world.cache.fetch(ref, at_most=100)


async def test_an_ended_request_is_forgotten_after_its_retention(world: World) -> None:
    location = await world.running()
    message = Event(session=location.session, epoch=1, kind=Action.FINISH, committed=0, digest=bytes(32))
    await world.send(peer("verifier", V1), "POST", "events", message)
    await world.settled()
    path = f"requests/{encode_id(REQUEST)}"
    assert Location.decode(_octets(await world.send(FRONT_END, "GET", path))).ended == Action.FINISH
    world.now_ms = 600_000
    world.role.sweep()
    with pytest.raises(errors.UnknownResource):
        await world.send(FRONT_END, "GET", path)


# ---- events and policies ---------------------------------------------------------------------------------------------


@pytest.mark.requirement("S5.1-post-events")
@pytest.mark.decision("D17-router")
async def test_events_come_from_the_session_s_own_verifier(world: World) -> None:
    location = await world.running()
    message = Event(session=location.session, epoch=1, kind=Action.FINISH, committed=0, digest=bytes(32))
    with pytest.raises(errors.Forbidden):
        await world.send(peer("verifier", V2), "POST", "events", message)
    with pytest.raises(errors.UnknownResource):
        await world.send(peer("verifier", V1), "POST", "events", replace(message, session=bytes(16)))
    older = replace(message, epoch=0)
    assert (await world.send(peer("verifier", V2), "POST", "events", older)).status == 204  # without effect
    assert (await world.send(peer("verifier", V1), "POST", "events", message)).status == 204


@pytest.mark.decision("D33-policy")
@pytest.mark.requirement("S5.1-post-policy", "S6.6-from-round")
async def test_a_policy_goes_to_the_verifier_and_comes_back_as_applied(world: World) -> None:
    location = await world.running()
    path = f"requests/{encode_id(REQUEST)}/policy"
    change = ProfileChange(sampling=Sampling(temperature_milli=5))
    given = Policy.decode(_octets(await world.send(FRONT_END, "POST", path, change)))
    assert given == Policy(session=location.session, from_round=1, sampling=Sampling(temperature_milli=5))
    assert world.messages(Policy) == [given]
