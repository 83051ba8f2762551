"""Whatever ends a session, no object stays leased: 10,000 sessions of the real roles, ended in every way (docs/mlc.md).

Router, verifiers, drafters and cache are the real roles over a fake network (`sdcp.testing.in_process`), with a target
that has KV and a drafter with rows. Drafters, verifiers and the router are killed without a word while dozens of
sessions are under way; readers go away at any moment, before the first token too.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import pytest

from sdcp.engines.digests import IDENTITY_TOKENIZER
from sdcp.engines.ngram import NgramDrafter
from sdcp.errors import ProblemError
from sdcp.http.identity import CACHE, DRAFTER, FRONT_END, ROUTER, VERIFIER
from sdcp.machines import drafter_rounds
from sdcp.machines.manifest import Manifest
from sdcp.machines.router_steps import Patience
from sdcp.messages.contract import Action, Sampling
from sdcp.roles.cache import CacheRole
from sdcp.roles.config import ContractDefaults, ManifestSettings
from sdcp.roles.delivery import FrontEnd, Wanted
from sdcp.roles.drafter import DrafterFacts, DrafterRole
from sdcp.roles.kv import KvPolicy
from sdcp.roles.peers import Peers
from sdcp.roles.router import RouterFacts, RouterRole
from sdcp.roles.telemetry import Metrics
from sdcp.roles.verifier import VerifierFacts, VerifierRole
from sdcp.stores.memory import MemoryStore
from sdcp.stores.remote import RemoteCache
from sdcp.testing.in_process import CALLER, InProcess, Life
from sdcp.testing.kv_target import KvTarget

SESSIONS = 10_000
AT_ONCE = 48
TTL_MS = 600
LONGEST_LEASE_S = 60.0
IDLE_S = 3600.0
CACHE_URI = "https://cache.test"
ROUTER_URI = "https://router.test"
ROLE = {"cache": CACHE, "router": ROUTER, "drafter": DRAFTER, "verifier": VERIFIER}
EVERY = {"drafter": 300, "verifier": 800, "router": 2000}
"""After so many sessions one of these is killed."""
ENDINGS = {"finished", "stopped", "failed", "left", "cancelled"}


class Watched(MemoryStore):
    """A store that knows which life took a lease."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(idle_s=IDLE_S, clock=clock)
        self.leases_of: Counter[str] = Counter()  # by the taker's role
        self._takers: dict[str, Life] = {}

    async def take_lease(self, lease: str, owner: str, names: Sequence[str], ttl_ms: int) -> None:
        await super().take_lease(lease, owner, names, ttl_ms)
        assert ttl_ms <= 1000 * LONGEST_LEASE_S
        self._takers[lease] = CALLER.get()
        self.leases_of.update(CALLER.get().peer.roles)

    def leased_by_the_living(self) -> bool:
        return any(self._takers[lease.name].alive for lease in self.listing("leases", limit=1 << 20))

    def logs(self, kind: str) -> set[str]:
        return {entry.name[1:] for entry in self.listing("logs", kind, limit=1 << 20)}

    async def manifest(self, identifier: str) -> Manifest:
        manifest = Manifest()
        manifest.take((await self.read_log(f"m{identifier}", 0))[0])
        return manifest


@dataclass
class Town:
    """The roles, and who of them is alive."""

    network: InProcess
    store: Watched
    lives: dict[str, Life] = field(default_factory=dict)
    metrics: dict[str, Metrics] = field(default_factory=dict)
    reports: list[str] = field(default_factory=list)
    kills: int = 0
    open: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while there is a router to ask."""

    async def begin(self, kind: str, name: str) -> None:
        life = self.lives[name] = Life(f"https://{name}.test", ROLE[kind])
        metrics = self.metrics[name] = Metrics()
        role = self._made(kind, life, metrics)
        self.network.reside(life, role.handle)
        await self.network.live(life, role.start(life.base_uri))

    def _made(self, kind: str, life: Life, metrics: Metrics) -> CacheRole | RouterRole | DrafterRole | VerifierRole:
        if kind == "cache":
            return CacheRole(self.store, metrics, body_bytes=1 << 24)
        client = self.network.client(life)
        cache = RemoteCache(client, CACHE_URI, host_memory=False)
        if kind == "router":
            return RouterRole(client, cache, ROUTING, metrics, self._report)
        if kind == "drafter":
            return DrafterRole(NgramDrafter(64, IDENTITY_TOKENIZER), client, cache, DRAFTING, metrics, self._report)
        return VerifierRole(KvTarget(), client, cache, VERIFYING, metrics, self._report, kv_cache=cache)

    async def replace(self, kind: str) -> None:
        """Kill the oldest of a kind, and begin another: a router comes back as itself, others under a new name."""
        name = next(each for each in self.lives if each.startswith(kind))
        if kind == "router":
            self.open.clear()
        del self.metrics[name]
        await self.network.kill(self.lives.pop(name))
        self.kills += 1
        await self.begin(kind, name if kind == "router" else f"{kind}-{self.kills}")
        if kind == "router":
            self.open.set()

    @property
    def at_work(self) -> bool:
        """Whether anybody who is alive has a session, or holds a lease."""
        pages = (metrics.render().decode() for name, metrics in self.metrics.items() if name != "cache")
        return (
            not all('\nsdcp_level{level="sessions"} 0.0\n' in page for page in pages)
            or self.store.leased_by_the_living()
        )

    def _report(self, what: str, fault: BaseException) -> None:
        self.reports.append(f"{what}: {fault!r}")


ROUTING = RouterFacts(
    contract=ContractDefaults(
        m_max=4, m_init=3, low_rounds=1, low_ratio=60, fallback=("reduce", "self_decode", "switch", "fail")
    ),
    patience=Patience(inline_prompt=8, drafter_wait_ms=5_000, verifier_wait_ms=5_000, reminder_ms=1_000),
    retention_s=5.0,
    manifest=ManifestSettings(keep=True),
)
DRAFTING = DrafterFacts(routers=(ROUTER_URI,), ttl_ms=TTL_MS, patience=drafter_rounds.Patience(longest_ms=500, tries=8))
VERIFYING = VerifierFacts(
    routers=(ROUTER_URI,),
    sessions=1024,
    ttl_ms=TTL_MS,
    retention_s=5.0,
    idle_s=5.0,
    kv=KvPolicy(key=bytes(32), interval=2, prompt_min=16, block=8),
)


def wanted(luck: random.Random) -> Wanted:
    """A short session, by rule 1 or 2, with a prompt in the message or in an object."""
    length = luck.choice((1, 3, 20, 40))
    return Wanted(
        prompt=tuple(luck.randrange(64) for _ in range(length)),
        max_new=luck.choice((1, 1, 2, 4, 8)),
        stop=(63,),
        rule=luck.choice((1, 2)),
        sampling=luck.choice((None, Sampling(temperature_milli=700), Sampling(seed=luck.randrange(2**32)))),
    )


async def read(front_end: FrontEnd, what: Wanted, enough: int) -> str:
    """Read a session to its end, or to so many tokens; say how it ended."""
    tokens: list[int] = []
    try:
        async with aclosing(front_end.generate(what)) as deliveries:
            async for delivery in deliveries:
                tokens += delivery.tokens
                if delivery.finish == Action.FINISH:
                    return "stopped" if tokens[-1] in what.stop else "finished"
                if delivery.finish is not None:
                    return "failed"
                if len(tokens) >= enough:
                    return "left"
    except ProblemError as refusal:
        return f"refused {refusal.status}"
    return "nothing"


async def play(front_end: FrontEnd, luck: random.Random) -> str:
    """One session, to its end or until its reader has gone."""
    enough = luck.randrange(6) if luck.random() < 0.15 else 1 << 30
    reading = asyncio.create_task(read(front_end, wanted(luck), enough))
    if luck.random() < 0.1:
        for _ in range(luck.randrange(400)):  # some way into the session, often before its first token
            await asyncio.sleep(0)
        reading.cancel()
    try:
        return await reading
    except asyncio.CancelledError:
        return "cancelled"


@pytest.mark.decision("D41-idle", "D44-ended", "D45-restart")
async def test_no_ending_leaves_anything_leased() -> None:
    skew = 0.0
    store = Watched(clock=lambda: time.monotonic() + skew)
    town = Town(InProcess(), store)
    for kind, number in (("cache", 1), ("router", 1), ("verifier", 2), ("drafter", 3)):
        for each in range(number):
            await town.begin(kind, f"{kind}-{'abc'[each]}" if number > 1 else kind)
    town.open.set()

    luck, ends = random.Random(4), Counter[str]()
    left = SESSIONS

    async def visitor(number: int) -> None:
        nonlocal left
        life = Life(f"https://gateway-{number}.test", FRONT_END)
        front_end = FrontEnd(Peers(town.network.client(life)), [ROUTER_URI], None, patience_s=60.0, unattended_s=60.0)
        while left > 0:
            left -= 1
            for kind, sessions in EVERY.items():
                if left % sessions == sessions // 2:
                    await town.replace(kind)
            await town.open.wait()
            ends[await play(front_end, luck)] += 1
        await front_end.settle()

    await asyncio.gather(*map(visitor, range(AT_ONCE)))
    assert sum(ends.values()) == SESSIONS
    assert ENDINGS <= ends.keys() <= ENDINGS | {"refused 503"}, ends
    assert store.leases_of.keys() == {DRAFTER, VERIFIER, ROUTER}

    # Every session ends, whoever has died meanwhile, and what the living have leased comes back by itself.
    async with asyncio.timeout(60):
        for identifier in store.logs("m"):
            while (await store.manifest(identifier)).end is None:
                await town.network.next_answer()
        while town.at_work:
            await town.network.next_answer()
    assert town.reports == []

    skew += LONGEST_LEASE_S
    await store.sweep()
    figures = store.figures()
    assert figures["leases"] == figures["leased_octets"] == 0, "those of the dead end by time"
    skew += IDLE_S
    await store.sweep()
    figures = store.figures()
    assert figures["objects"] == figures["object_octets"] == 0, "and what nobody deleted goes later"
    opened = {each for each in store.logs("m") if (await store.manifest(each)).opened is not None}
    assert opened <= store.logs("c") <= store.logs("m"), "two logs for a session, one if no verifier ever had it"
    assert len(store.logs("c")) + len(store.logs("m")) == figures["logs"]
