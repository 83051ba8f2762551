"""A session that moves to another verifier goes on bit for bit the same, with KV from the cache or without (6.9, D44).

Verifiers on a real engine, a cache and TLS between them; the tests are router and drafter. Under both rules the
output must be that of a session that never moved, whatever the cache makes of the KV.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sdcp.engines.transformers import TransformersTarget
from sdcp.errors import StaleEpoch, UnknownResource
from sdcp.http.authority import issue
from sdcp.http.client import Client
from sdcp.http.server import Server
from sdcp.http.tls import TlsFiles, client_context, server_context
from sdcp.messages.contract import Action, Contract, ContractSampling
from sdcp.ports import StoreFullError
from sdcp.roles.cache import CacheRole
from sdcp.roles.kv import KvPolicy
from sdcp.roles.telemetry import Metrics
from sdcp.roles.verifier import VerifierFacts, VerifierRole
from sdcp.stores.memory import MemoryStore
from sdcp.stores.remote import RemoteCache
from sdcp.stores.store import ObjectInfo
from sdcp.testing.played import Outside, Played
from tests.engines.conftest import V

KEY = b"a secret of this group" + bytes(10)
SESSION, OTHER = b"one-session-----", b"another-session-"
DRAFTER = "https://drafter.example/"
VERIFIERS = ("first", "second", "alone")
NAMES = {"cache": "cache", "router": "router", "drafter": "drafter", **dict.fromkeys(VERIFIERS, "verifier")}
PROMPT = tuple(Random(1).randrange(3, V) for _ in range(90))
MAX_NEW = 60


class LyingStore(MemoryStore):
    """A store that gives other octets for KV than it was given, or none, or takes none."""

    def __init__(self) -> None:
        super().__init__()
        self.lie: Callable[[bytes], bytes] = lambda data: data
        self.full = False

    async def put(self, name: str, data: bytes | memoryview, owner: str) -> tuple[ObjectInfo, bool]:
        if self.full and name.startswith("k"):
            raise StoreFullError("there is no room")
        return await super().put(name, data, owner)

    async def get(self, name: str) -> tuple[ObjectInfo, bytes]:
        info, data = await super().get(name)
        told = self.lie(data) if name.startswith("k") else data
        return replace(info, size=len(told)), told


class Verifier:
    """One verifier on its server."""

    def __init__(self, role: VerifierRole, server: Server, metrics: Metrics) -> None:
        self.role = role
        self.base = f"https://127.0.0.1:{server.port}"
        self.metrics = metrics

    def counted(self, event: str) -> int:
        line = f'sdcp_events_total{{event="{event}"}} '
        shown = self.metrics.render().decode().splitlines()
        return sum(int(float(each.removeprefix(line))) for each in shown if each.startswith(line))

    def refused(self) -> int:
        reasons = ("missing", "unavailable", "content", "unfit", "elsewhere")
        return sum(self.counted(f"kv_refused_{reason}") for reason in reasons)

    async def published(self) -> None:
        """Wait until no KV is on its way."""
        for held in [*self.role._sessions]:
            await held.settled()
        exchange = self.role._kv
        while exchange is not None and exchange._tasks:
            await asyncio.wait(exchange._tasks)


class Stage:
    """The cache and the verifiers, `alone` one that computes everything by itself; and who asks them."""

    def __init__(self, store: LyingStore, outside: Outside) -> None:
        self.store = store
        self.outside = outside
        self.verifiers: list[Verifier] = []
        self.alone: Verifier

    def session(self, contract: Contract, prompt: tuple[int, ...] = PROMPT, session: bytes = SESSION) -> Played:
        return Played(self.outside, contract, prompt, session, proposals)


def proposals(rounds: int) -> tuple[int, ...]:
    luck = Random(rounds)
    return tuple(luck.randrange(V) for _ in range(3))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TlsFiles]:
    folder = tmp_path_factory.mktemp("certificates")
    uris = {"drafter": [DRAFTER]}
    return {
        name: issue(folder, name, role, uris.get(name, [f"https://{name}.test/"]), ips=["127.0.0.1"])
        for name, role in NAMES.items()
    }


@pytest.fixture
def policy() -> KvPolicy | None:
    return KvPolicy(key=KEY, interval=6, prompt_min=0)


@pytest.fixture
def model() -> str:
    return "llama-gqa-tied"


@pytest.fixture
async def stage(
    certificates: dict[str, TlsFiles], folder: Callable[[str], Path], model: str, policy: KvPolicy | None
) -> AsyncIterator[Stage]:
    """Two verifiers of one group, that share nothing but the cache, and one that computes everything by itself."""
    faults: list[BaseException] = []
    async with AsyncExitStack() as stack:
        clients = {name: Client(client_context(files)) for name, files in certificates.items()}
        store = LyingStore()
        cache = CacheRole(store, Metrics(), body_bytes=64 << 20)
        server = await stack.enter_async_context(Server(cache.handle, server_context(certificates["cache"])))
        base = f"https://127.0.0.1:{server.port}"
        outside = Outside(
            router=clients["router"],
            drafter=clients["drafter"],
            router_cache=RemoteCache(clients["router"], base),
            drafter_cache=RemoteCache(clients["drafter"], base),
            drafter_uri=DRAFTER,
            vocabulary=V,
        )
        made = Stage(store, outside)
        for name in VERIFIERS:
            metrics, client = Metrics(), clients[name]
            role = VerifierRole(
                TransformersTarget(folder(model), bytes(32), precision="float32"),
                client,
                RemoteCache(client, base),
                VerifierFacts(kv=policy if name != "alone" else None, drain_s=0.5),
                metrics,
                lambda _, fault: faults.append(fault),
            )
            its = await stack.enter_async_context(Server(role.handle, server_context(certificates[name])))
            made.verifiers.append(Verifier(role, its, metrics))
            await role.start(made.verifiers[-1].base)
        roles = [verifier.role for verifier in made.verifiers]
        made.alone = made.verifiers.pop()
        yield made
        for role in roles:
            await role.drain()
        for name in ("cache", "router", "drafter"):
            await clients[name].close()
    assert faults == []


def contract_of(stage: Stage, rule: int, **members: Any) -> Contract:
    target = stage.verifiers[0].role._target
    basics = Contract(
        target=target.model,
        tokenizer=target.tokenizer,
        rule=rule,
        sampling=ContractSampling(temperature_milli=900, seed=11) if rule == 2 else None,
        m_max=4,
        max_new=MAX_NEW,
        stop=(),
        low_rounds=1000,
        fallback=(Action.SWITCH,),
    )
    return replace(basics, **members)


async def unmoved(stage: Stage, contract: Contract, prompt: tuple[int, ...] = PROMPT) -> tuple[int, ...]:
    """The output of the session when it stays where it was, at a verifier that knows no KV but its own."""
    session = await (await stage.session(contract, prompt).open(stage.alone.base)).play()
    assert len(session.output) == contract.max_new
    return session.output


async def with_kv(stage: Stage, contract: Contract, rounds: int = 9, session: bytes = SESSION) -> Played:
    """A session at the first verifier of which a record names KV."""
    made = await stage.session(contract, session=session).open(stage.verifiers[0].base)
    for _ in range(rounds):
        await made.play(1)
        await stage.verifiers[0].published()
    assert (await made.read()).kv is not None
    return made


@pytest.mark.requirement("S6.9-resume", "S6.3-target-kv-published")
@pytest.mark.decision("D44-loaded", "D44-named")
@pytest.mark.parametrize("late", [0, 2], ids=["newest", "of some rounds ago"])
@pytest.mark.parametrize("rule", [1, 2])
@pytest.mark.parametrize("model", ["llama", "llama-gqa-tied", "llama-biased", "qwen2", "mistral-window", "gpt2"])
async def test_a_session_that_was_taken_over_with_kv_goes_on_bit_for_bit_the_same(
    stage: Stage, rule: int, late: int
) -> None:
    contract = contract_of(stage, rule)
    session = await (await with_kv(stage, contract)).play(late)
    second = stage.verifiers[1]
    await (await session.fail_over(second.base)).play()
    assert (second.counted("kv_loaded"), second.refused()) == (1, 0)
    assert second.counted("kv_loaded_tokens") > len(PROMPT), "some of the output too"
    assert session.output == await unmoved(stage, contract)


def _flip(at: float) -> Callable[[bytes], bytes]:
    def flipped(data: bytes) -> bytes:
        place = min(int(at * len(data)), len(data) - 1)
        return data[:place] + bytes((data[place] ^ 0x40,)) + data[place + 1 :]

    return flipped


LIES: dict[str, Callable[[bytes], bytes]] = {
    **{f"flipped at {at}": _flip(at) for at in (0.0, 0.1, 0.5, 0.9, 1.0)},
    "cut": lambda data: data[: len(data) * 2 // 3],
    "extended": lambda data: data + bytes(64),
    "zeros": lambda data: bytes(len(data)),
    "empty": lambda _: b"",
}


def _gone(_: bytes) -> bytes:
    raise UnknownResource("evicted")


def _dead(_: bytes) -> bytes:
    raise RuntimeError("the cache broke")


@pytest.mark.requirement("S6.9-resume")
@pytest.mark.decision("D44-refused")
@pytest.mark.parametrize("rule", [1, 2])
@pytest.mark.parametrize("lie", LIES)
async def test_whatever_the_cache_makes_of_kv_the_output_stays_the_same(stage: Stage, lie: str, rule: int) -> None:
    contract = contract_of(stage, rule)
    session = await with_kv(stage, contract)
    stage.store.lie = LIES[lie]
    second = stage.verifiers[1]
    await (await session.fail_over(second.base)).play()
    assert (second.counted("kv_loaded"), second.refused()) == (0, 1)
    stage.store.lie = lambda data: data
    assert session.output == await unmoved(stage, contract)


@pytest.mark.decision("D44-refused")
async def test_kv_of_another_session_is_refused(stage: Stage) -> None:
    contract = contract_of(stage, 1)
    first, second = stage.verifiers
    session = await with_kv(stage, contract)
    other = stage.session(replace(contract, max_new=50), (*PROMPT[:-8], *range(3, 11)), OTHER)
    await other.open(first.base)
    for _ in range(9):
        await other.play(1)
        await first.published()
    await session.fail_over(second.base, (await other.read()).kv)
    assert (second.counted("kv_loaded"), second.refused()) == (0, 1)
    await session.play()
    assert session.output == await unmoved(stage, contract)


@pytest.mark.decision("D44-refused")
@pytest.mark.parametrize("how", [_gone, _dead], ids=["evicted", "broken"])
async def test_kv_that_is_not_there_is_computed(stage: Stage, how: Callable[[bytes], bytes]) -> None:
    contract = contract_of(stage, 1)
    session = await with_kv(stage, contract)
    if how is _gone:
        for lease in stage.store.listing("leases"):
            await stage.store.release_lease(lease.name, lease.owner)
            await stage.store.delete(lease.name)
    else:
        stage.store.lie = how
    second = stage.verifiers[1]
    await (await session.fail_over(second.base)).play()
    assert (second.counted("kv_loaded"), second.refused()) == (0, 1)
    stage.store.lie = lambda data: data
    assert session.output == await unmoved(stage, contract)


@pytest.mark.decision("D44-skipped")
async def test_a_full_cache_costs_the_session_nothing_but_the_kv(stage: Stage) -> None:
    contract = contract_of(stage, 1)
    stage.store.full = True
    session = await stage.session(contract).open(stage.verifiers[0].base)
    for _ in range(8):
        await session.play(1)
        await stage.verifiers[0].published()
    await (await session.fail_over(stage.verifiers[1].base)).play()
    assert session.recorded.kv is None
    assert stage.verifiers[0].counted("kv_unpublished") == 1
    stage.store.full = False
    assert session.output == await unmoved(stage, contract)


@pytest.mark.decision("D44-ended", "D44-dropped", "D44-held")
@pytest.mark.parametrize("ending", ["finish", "fence", "superseded", "finished elsewhere"])
async def test_every_ending_at_a_verifier_leaves_nothing_leased(stage: Stage, ending: str) -> None:
    contract, first = contract_of(stage, 1), stage.verifiers[0]
    session = await with_kv(stage, contract)
    assert len(stage.store.listing("objects", "kv-")) <= 2, "older ones go as newer ones are named"
    match ending:
        case "fence":
            await session.fence()
            session.epoch = 1
            with pytest.raises(StaleEpoch):
                await session.play(1)
        case "superseded":
            await session.fail_over(first.base)
            assert first.counted("kv_loaded") == 0, "the engine holds the prompt itself"
            await session.play()
        case "finished elsewhere":
            await session.fail_over(stage.verifiers[1].base)
            await session.play()
            await stage.verifiers[1].published()
            for held in [*first.role._sessions]:
                held.supersede()
        case "finish":
            await session.play()
    await first.published()
    assert stage.store.listing("leases") == []
    assert stage.store.listing("objects", "kv-") == []


@pytest.mark.decision("D44-shared")
@pytest.mark.parametrize("policy", [KvPolicy(key=KEY, interval=0, prompt_min=32, block=16)], ids=["shared"])
@pytest.mark.parametrize("rule", [1, 2])
async def test_a_prompt_that_begins_as_another_did_is_loaded_and_gives_the_same(stage: Stage, rule: int) -> None:
    contract, (first, second) = contract_of(stage, rule), stage.verifiers
    for name, prompt in ((SESSION, PROMPT), (OTHER, (*PROMPT[:70], *range(3, 30)))):
        session = await stage.session(contract, prompt, name).open(first.base)
        await first.published()
        await session.play()
    third = (*PROMPT[:70], *range(30, 50))
    moved = await (await stage.session(contract, third).open(second.base)).play()
    assert second.counted("kv_loaded_tokens") == 64
    assert moved.output == await unmoved(stage, contract, third)
    assert stage.store.listing("leases") == []


@pytest.mark.decision("D44-group")
@pytest.mark.parametrize("policy", [None], ids=["no key"])
async def test_without_a_key_nothing_is_published_or_loaded(stage: Stage) -> None:
    contract = contract_of(stage, 1)
    session = await (await stage.session(contract).open(stage.verifiers[0].base)).play(9)
    anything = await stage.outside.router_cache.create(b"no KV")
    await (await session.fail_over(stage.verifiers[1].base, anything)).play()
    assert stage.store.listing("objects", "k") == []
    assert stage.verifiers[1].refused() == 0
    assert session.output == await unmoved(stage, contract)
