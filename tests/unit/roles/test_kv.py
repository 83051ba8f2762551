"""KV in the cache: published, leased, found by a group, checked, and computed where anything is wrong (6.3, D44)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from sdcp.engines.worker import Worker
from sdcp.errors import Overloaded
from sdcp.http.identity import VERIFIER
from sdcp.machines.effects import DropOlderKv, Prefill, PublishKv
from sdcp.machines.history import History
from sdcp.machines.verifier import VerifierSession
from sdcp.machines.verifier_open import TargetFacts
from sdcp.ports import PrefillJob, StoreFullError, StoreUnavailableError
from sdcp.roles import kv
from sdcp.roles.kv import KvExchange, KvPolicy, SessionKv
from sdcp.roles.objects import is_kv_of
from sdcp.roles.peers import Peers
from sdcp.roles.sessions import Sessions
from sdcp.roles.telemetry import Metrics
from sdcp.roles.verifying import Equipment, VerifyingSession
from sdcp.stores.local import LocalCache
from sdcp.stores.memory import MemoryStore
from sdcp.testing.in_process import InProcess, Life
from sdcp.testing.kv_target import KvTarget

PREFIX = "https://cache.example/"
KEY = b"k" * 32
SESSION, OTHER = b"s" * 16, b"t" * 16
PROMPT = tuple(range(5, 45))


class Cache(LocalCache):
    """A cache whose answers a test can spoil: `spoil` changes what is fetched; `faults` are raised by `create`."""

    def __init__(self, store: MemoryStore, owner: str = "verifier") -> None:
        super().__init__(store, owner=owner, prefix=PREFIX)
        self.spoil: Callable[[bytes], bytes] = lambda data: data
        self.faults: list[BaseException] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.creating = asyncio.Event()
        self.asked: list[str] = []
        self.renewed = asyncio.Event()

    async def fetch(self, ref: str, *, at_most: int) -> bytes | memoryview:
        self.asked.append(ref)
        return self.spoil(bytes(await super().fetch(ref, at_most=at_most)))

    async def create(self, data: bytes | memoryview, *, name: str | None = None) -> str:
        if self.faults:
            raise self.faults.pop(0)
        ref = await super().create(data, name=name)
        self.creating.set()
        await self.gate.wait()
        return ref

    async def lease(self, lease: str, refs: Any, ttl_ms: int) -> None:
        await super().lease(lease, refs, ttl_ms)
        if ttl_ms == kv.LEASE_MS:
            self.renewed.set()


class Verifier:
    """An engine, its worker, and what it shares through a cache."""

    def __init__(self, store: MemoryStore, key: bytes = KEY, **policy: Any) -> None:
        self.target = KvTarget()
        self.worker = Worker(self.target)
        self.cache = Cache(store)
        self.metrics = Metrics()
        self.faults: list[BaseException] = []
        self.exchange = KvExchange(
            self.worker,
            self.cache,
            self.metrics,
            KvPolicy(key=key, **{"prompt_min": 8, "block": 4, **policy}),
            lambda _, fault: self.faults.append(fault),
            renew_s=0.01,
        )

    def session(self, session: bytes = SESSION) -> SessionKv:
        return SessionKv(self.exchange, self.cache, session, session)

    async def holds(self, tokens: tuple[int, ...], session: bytes = SESSION, prompt: int | None = None) -> History:
        """Have the engine hold a session's KV, all but that of its last token."""
        history = History(tokens[:prompt], tokens[len(tokens) if prompt is None else prompt :])
        await self.worker.prefill(PrefillJob(session, history, len(history)))
        return history

    async def opens(self, tokens: tuple[int, ...], ref: str | None = None, session: bytes = SESSION) -> int:
        """Load and prefill, as an open does; return how many tokens were computed."""
        before = self.target.computed
        history = History(tokens)
        effect = Prefill(history, ref)
        await self.exchange.load(session, effect)
        await self.worker.prefill(PrefillJob(session, history, len(history)))
        self.exchange.share(session, history)
        return self.target.computed - before

    def says(self, tokens: tuple[int, ...], session: bytes = SESSION) -> list[float]:
        """The logits after the tokens, from whatever KV the session has."""
        return list(self.target.next_logits(session, tokens, len(tokens)))

    def counted(self, event: str) -> int:
        line = f'sdcp_events_total{{event="{event}"}} '
        return sum(
            int(float(each.removeprefix(line)))
            for each in self.metrics.render().decode().splitlines()
            if each.startswith(line)
        )

    async def settled(self) -> None:
        while self.exchange._tasks:
            await asyncio.wait(self.exchange._tasks)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def verifiers(store: MemoryStore) -> AsyncIterator[Callable[..., Verifier]]:
    made: list[Verifier] = []

    def make(**policy: Any) -> Verifier:
        made.append(Verifier(store, **policy))
        return made[-1]

    yield make
    for each in made:
        await each.exchange.stop()
        await each.worker.stop()
        assert each.faults == []


def truth(tokens: tuple[int, ...]) -> list[float]:
    """The logits after the tokens, of an engine that computes."""
    return list(KvTarget().next_logits(b"", tokens, len(tokens)))


async def published(verifier: Verifier, tokens: tuple[int, ...] = PROMPT, session: bytes = SESSION) -> str:
    """Publish a session's KV; return the object's URI."""
    history = await verifier.holds(tokens, session)
    answer = await verifier.session(session).publish(PublishKv(history, len(tokens)))
    assert answer.length == len(tokens)
    assert answer.ref is not None
    return answer.ref


def objects(store: MemoryStore) -> list[tuple[str, bool]]:
    """Names of the objects, and whether they are leased."""
    return [(entry.name, entry.leased) for entry in store.listing("objects")]


# ---- a session's KV --------------------------------------------------------------------------------------------------


@pytest.mark.decision("D44-published", "D44-loaded")
async def test_what_one_verifier_publishes_spares_another_the_passes(verifiers: Callable[..., Verifier]) -> None:
    first, second = verifiers(prompt_min=0), verifiers(prompt_min=0)
    ref = await published(first)
    assert await second.opens((*PROMPT, 9, 8, 7), ref) == 3, "KV of all but the last token, then what came since"
    assert second.target.taken == len(PROMPT) - 1
    assert second.says((*PROMPT, 9, 8, 7)) == truth((*PROMPT, 9, 8, 7))
    assert (first.counted("kv_published"), second.counted("kv_loaded")) == (1, 1)
    assert second.counted("kv_loaded_tokens") == len(PROMPT) - 1
    assert first.counted("kv_published_octets") == second.counted("kv_loaded_octets") > 8 * len(PROMPT)


SPOILT: dict[str, Callable[[bytes], bytes]] = {
    "first octet": lambda data: bytes((data[0] ^ 1,)) + data[1:],
    "a number": lambda data: data[:-80] + bytes((data[-80] ^ 64,)) + data[-79:],
    "the tag": lambda data: data[:-1] + bytes((data[-1] ^ 128,)),
    "one octet short": lambda data: data[:-1],
    "half": lambda data: data[: len(data) // 2],
    "nothing": lambda _: b"",
    "zeros": lambda data: bytes(len(data)),
}


@pytest.mark.decision("D44-refused")
@pytest.mark.parametrize("how", SPOILT)
async def test_altered_kv_is_computed_instead_and_changes_nothing(
    verifiers: Callable[..., Verifier], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = verifiers(prompt_min=0), verifiers(prompt_min=0)
    ref = await published(first)
    second.cache.spoil = SPOILT[how]
    assert await second.opens(PROMPT, ref) == len(PROMPT) - 1
    assert second.says(PROMPT) == truth(PROMPT)
    assert (second.counted("kv_loaded"), second.counted("kv_refused_content")) == (0, 1)
    assert [record.message.startswith(ref) for record in caplog.records] == [True]


@pytest.mark.decision("D44-refused")
async def test_an_object_that_is_longer_than_the_prefix_is_not_even_read(verifiers: Callable[..., Verifier]) -> None:
    first, second = verifiers(prompt_min=0), verifiers(prompt_min=0)
    ref = await published(first)
    short = PROMPT[:20]
    assert await second.opens(short, ref) == len(short) - 1
    assert second.says(short) == truth(short)
    assert second.counted("kv_refused_content") == 1


@pytest.mark.decision("D44-refused")
async def test_kv_of_another_prefix_is_computed_instead(verifiers: Callable[..., Verifier]) -> None:
    first, second = verifiers(prompt_min=0), verifiers(prompt_min=0)
    other = (*PROMPT[:-2], 1, 2)  # differs in a token that the KV covers
    ref = await published(first, other, OTHER)
    assert await second.opens(PROMPT, ref) == len(PROMPT) - 1
    assert second.says(PROMPT) == truth(PROMPT)
    assert second.counted("kv_refused_content") == 1


@pytest.mark.decision("D44-loaded")
async def test_an_older_object_of_the_session_is_taken_for_what_it_covers(verifiers: Callable[..., Verifier]) -> None:
    first, second = verifiers(prompt_min=0), verifiers(prompt_min=0)
    ref = await published(first, PROMPT[:11])
    assert await second.opens(PROMPT, ref) == len(PROMPT) - 11
    assert second.says(PROMPT) == truth(PROMPT)


@pytest.mark.decision("D44-group")
async def test_kv_of_another_group_is_computed_instead(verifiers: Callable[..., Verifier]) -> None:
    first, second = verifiers(), verifiers(key=b"x" * 32)
    ref = await published(first)
    assert await second.opens(PROMPT, ref) == len(PROMPT) - 1
    assert second.counted("kv_refused_content") == 1


@pytest.mark.decision("D44-refused")
@pytest.mark.parametrize("reason", ["missing", "unavailable", "late", "elsewhere", "unfit"])
async def test_kv_that_cannot_be_had_or_taken_is_computed(
    verifiers: Callable[..., Verifier], monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    first, second = verifiers(prompt_min=0), verifiers(prompt_min=0, deadline_s=0.01 if reason == "late" else 5)
    ref = await published(first)

    def unavailable(_: bytes) -> bytes:
        raise StoreUnavailableError("no answer")

    async def never(ref: str, *, at_most: int) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    match reason:
        case "missing":
            ref += "x"
        case "unavailable":
            second.cache.spoil = unavailable
        case "late":
            monkeypatch.setattr(second.cache, "fetch", never)
        case "elsewhere":
            ref = "https://elsewhere.example/objects/one"
        case "unfit":
            monkeypatch.setattr("sdcp.testing.kv_target.KV_LAYOUT", "of another engine")
    assert await second.opens(PROMPT, ref) == len(PROMPT) - 1
    assert second.says(PROMPT) == truth(PROMPT)
    assert second.counted(f"kv_refused_{reason.replace('late', 'unavailable')}") == 1


@pytest.mark.decision("D44-refused")
@pytest.mark.parametrize("ref", [None, "https://cache.example/objects/kv"])
async def test_an_open_waits_for_a_cache_that_does_not_answer_once(
    verifiers: Callable[..., Verifier], monkeypatch: pytest.MonkeyPatch, ref: str | None
) -> None:
    verifier = verifiers(prompt_min=4, deadline_s=0.01)
    asked: list[str] = []

    async def never(ref: str, *, at_most: int) -> bytes:
        asked.append(ref)
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(verifier.cache, "fetch", never)
    assert await verifier.opens(PROMPT, ref) == len(PROMPT) - 1
    assert len(asked) == 1


async def test_a_fault_of_ours_is_reported_and_kv_computed(
    verifiers: Callable[..., Verifier], monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier = verifiers()
    ref = await published(verifier)
    monkeypatch.setattr(kv, "facts_of", lambda *_, **__: 1 / 0)
    assert await verifier.opens(PROMPT, ref, OTHER) == len(PROMPT) - 1
    history = await verifier.holds(PROMPT)
    assert (await verifier.session().publish(PublishKv(history, len(PROMPT)))).ref is None
    await verifier.settled()
    assert {type(fault) for fault in verifier.faults} == {ZeroDivisionError}
    verifier.faults.clear()


# ---- leases ----------------------------------------------------------------------------------------------------------


@pytest.mark.decision("D44-published", "D44-name")
async def test_an_object_is_leased_under_a_name_that_tells_its_session(
    verifiers: Callable[..., Verifier], store: MemoryStore
) -> None:
    ref = await published(verifiers())
    assert [leased for _, leased in objects(store)] == [True]
    assert is_kv_of(SESSION, ref)
    assert not is_kv_of(OTHER, ref)
    assert len(ref.rpartition("/")[2]) == len("kv-") + 22 + len("-") + 22, "the session, and 128 random bits"


@pytest.mark.decision("D44-published")
async def test_the_lease_is_renewed_while_the_session_lives_here(
    verifiers: Callable[..., Verifier], store: MemoryStore
) -> None:
    verifier = verifiers()
    await published(verifier)
    for _ in range(3):
        verifier.cache.renewed.clear()
        if verifier.exchange._renewing is None:
            verifier.exchange.start()
        await asyncio.wait_for(verifier.cache.renewed.wait(), 20)


@pytest.mark.decision("D44-dropped")
async def test_older_objects_go_and_the_named_one_stays(verifiers: Callable[..., Verifier], store: MemoryStore) -> None:
    verifier = verifiers()
    session = verifier.session()
    history = await verifier.holds(PROMPT)
    refs = [(await session.publish(PublishKv(history, length))).ref for length in (10, 20, 30)]
    session.drop_older(DropOlderKv(refs[1] or ""))
    await verifier.settled()
    assert objects(store) == sorted((ref.rpartition("/")[2], True) for ref in refs[1:] if ref)


@pytest.mark.decision("D44-ended")
async def test_a_session_that_ends_leaves_no_lease_and_no_object(
    verifiers: Callable[..., Verifier], store: MemoryStore
) -> None:
    verifier = verifiers()
    session = verifier.session()
    history = await verifier.holds(PROMPT)
    for length in (10, 20):
        await session.publish(PublishKv(history, length))
    session.end()
    await verifier.settled()
    assert (objects(store), [*store.listing("leases")]) == ([], [])


@pytest.mark.decision("D44-ended")
async def test_a_session_that_is_given_up_leaves_no_lease_and_no_object(
    verifiers: Callable[..., Verifier], store: MemoryStore
) -> None:
    verifier = verifiers()
    equipment = Equipment(
        worker=verifier.worker,
        cache=verifier.cache,
        peers=Peers(InProcess().client(Life("https://verifier.example", VERIFIER))),
        metrics=verifier.metrics,
        fetch_s=1.0,
        report=lambda _, fault: verifier.faults.append(fault),
        kv=verifier.exchange,
    )
    history = await verifier.holds(PROMPT, SESSION + (1).to_bytes(8, "big"))
    sessions = Sessions(retention_s=60.0, idle_s=0.01)
    target = TargetFacts(model=bytes(32), tokenizer=bytes(32), vocabulary=64)
    held = VerifyingSession(SESSION, 1, VerifierSession(target), equipment, (), sessions)
    assert held._kv is not None
    assert (await held._kv.publish(PublishKv(history, len(PROMPT)))).ref is not None
    sessions.add(held)
    while SESSION in sessions:
        await asyncio.sleep(0)
    await verifier.settled()
    assert (objects(store), [*store.listing("leases")]) == ([], [])


@pytest.mark.decision("D44-ended")
async def test_a_renewal_that_is_under_way_leaves_no_lease_behind(
    verifiers: Callable[..., Verifier], store: MemoryStore
) -> None:
    verifier = verifiers()
    session = verifier.session()
    history = await verifier.holds(PROMPT)
    await session.publish(PublishKv(history, len(PROMPT)))
    renewing, gate, lease = asyncio.Event(), asyncio.Event(), verifier.cache.lease

    async def slow(name: str, refs: Any, ttl_ms: int) -> None:
        renewing.set()
        await gate.wait()
        await lease(name, refs, ttl_ms)

    verifier.cache.lease = slow  # type: ignore[method-assign]
    verifier.exchange.start()
    await renewing.wait()
    session.end()
    await asyncio.sleep(0)
    gate.set()
    await verifier.settled()
    assert (objects(store), [*store.listing("leases")]) == ([], [])


@pytest.mark.decision("D44-ended")
async def test_what_a_router_leases_stays_when_the_old_verifier_gives_it_back(
    verifiers: Callable[..., Verifier], store: MemoryStore
) -> None:
    verifier = verifiers()
    session = verifier.session()
    history = await verifier.holds(PROMPT)
    ref = (await session.publish(PublishKv(history, len(PROMPT)))).ref
    assert ref is not None
    await Cache(store, "router").lease("of the router".replace(" ", "-"), [ref], 60_000)
    session.end()
    await verifier.settled()
    assert objects(store) == [(ref.rpartition("/")[2], True)]


@pytest.mark.decision("D44-ended")
@pytest.mark.parametrize("how", ["end", "cancel", "leave"])
async def test_an_object_that_is_on_its_way_when_the_session_ends_goes_too(
    verifiers: Callable[..., Verifier], store: MemoryStore, how: str
) -> None:
    verifier = verifiers()
    session = verifier.session()
    history = await verifier.holds(PROMPT)
    verifier.cache.gate.clear()
    publishing = asyncio.create_task(session.publish(PublishKv(history, len(PROMPT))))
    await verifier.cache.creating.wait()
    if how == "cancel":
        publishing.cancel()
    else:
        session.end() if how == "end" else session.leave()
        verifier.cache.gate.set()
        assert (await publishing).ref is None
    await asyncio.wait([publishing])
    await verifier.settled()
    assert (objects(store), [*store.listing("leases")]) == ([], [])


@pytest.mark.decision("D44-ended")
async def test_when_the_process_goes_down_the_objects_stay_for_who_takes_over(
    verifiers: Callable[..., Verifier], store: MemoryStore
) -> None:
    verifier = verifiers()
    session = verifier.session()
    history = await verifier.holds(PROMPT)
    await session.publish(PublishKv(history, len(PROMPT)))
    session.leave()
    assert [leased for _, leased in objects(store)] == [True]
    assert verifier.exchange._leased == set(), "and the lease ends by time"


# ---- trouble ---------------------------------------------------------------------------------------------------------


@pytest.mark.decision("D44-skipped")
@pytest.mark.parametrize("fault", [StoreFullError("507"), StoreUnavailableError("no answer"), TimeoutError()], ids=repr)
async def test_what_the_cache_would_not_take_is_left_out_and_nothing_follows_for_a_while(
    verifiers: Callable[..., Verifier], store: MemoryStore, fault: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier = verifiers()
    history = await verifier.holds(PROMPT)
    verifier.cache.faults = [fault]
    assert (await verifier.session().publish(PublishKv(history, len(PROMPT)))).ref is None
    assert (await verifier.session().publish(PublishKv(history, len(PROMPT)))).ref is None
    assert (verifier.counted("kv_unpublished"), verifier.counted("kv_skipped")) == (1, 1)
    monkeypatch.setattr(verifier.exchange, "_paused_until", 0.0)
    assert (await verifier.session().publish(PublishKv(history, len(PROMPT)))).ref is not None


@pytest.mark.decision("D44-skipped")
async def test_no_more_than_a_few_are_on_their_way_at_a_time(verifiers: Callable[..., Verifier]) -> None:
    verifier = verifiers()
    verifier.cache.gate.clear()
    history = await verifier.holds(PROMPT)
    effect = PublishKv(history, len(PROMPT))
    under_way = [asyncio.create_task(verifier.session().publish(effect)) for _ in range(kv.MOST_UNDER_WAY + 2)]
    done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
    assert all(task.result().ref is None for task in done)
    verifier.cache.gate.set()
    assert [bool((await task).ref) for task in under_way] == [True] * kv.MOST_UNDER_WAY + [False] * 2


@pytest.mark.decision("D44-skipped")
async def test_what_is_too_large_for_the_cache_is_not_even_sent(
    verifiers: Callable[..., Verifier], store: MemoryStore
) -> None:
    first, second = verifiers(), verifiers(prompt_min=0, object_bytes=700)
    ref = await published(first)
    history = await second.holds(PROMPT, OTHER)
    assert (await second.session(OTHER).publish(PublishKv(history, len(PROMPT)))).ref is None
    assert second.counted("kv_skipped") == 1
    assert await second.opens(PROMPT, ref) == len(PROMPT) - 1
    assert (second.counted("kv_refused_content"), len(objects(store))) == (1, 1)


async def test_a_session_that_the_engine_does_not_hold_any_more_has_nothing_to_publish(
    verifiers: Callable[..., Verifier], store: MemoryStore
) -> None:
    verifier = verifiers()
    assert (await verifier.session().publish(PublishKv(History(PROMPT), len(PROMPT)))).ref is None
    assert objects(store) == []


# ---- prompts that begin alike ----------------------------------------------------------------------------------------


@pytest.mark.decision("D44-shared")
async def test_another_verifier_of_the_group_finds_a_prompt_without_being_told(
    verifiers: Callable[..., Verifier], store: MemoryStore
) -> None:
    first, second, stranger = verifiers(), verifiers(), verifiers(key=b"x" * 32)
    assert await first.opens(PROMPT) == len(PROMPT) - 1
    await first.settled()
    assert [leased for _, leased in objects(store)] == [False], "it may be evicted"
    assert await second.opens(PROMPT) == len(PROMPT) - 1 - 36, "the longest part in whole blocks"
    assert second.says(PROMPT) == truth(PROMPT)
    assert await stranger.opens(PROMPT) == len(PROMPT) - 1


@pytest.mark.decision("D44-shared")
async def test_prompts_that_begin_alike_and_end_differently_meet_at_a_doubled_length(
    verifiers: Callable[..., Verifier], store: MemoryStore
) -> None:
    first, second, third = verifiers(), verifiers(), verifiers()
    begin = PROMPT[:20]
    for end in (1, 2):
        await first.opens((*begin, *[end] * 10), session=bytes([end]) * 16)
        await first.settled()
    assert await second.opens((*begin, *[3] * 10)) == 29 - 16
    assert second.says((*begin, *[3] * 10)) == truth((*begin, *[3] * 10))
    assert second.cache.asked == [*dict.fromkeys(second.cache.asked)]
    assert len(second.cache.asked) <= kv.LOOK_UPS
    assert await third.opens((*begin[:-5], *[4] * 15)) == 29 - 8, "only what is common"


@pytest.mark.decision("D44-shared")
async def test_what_is_in_the_cache_already_is_not_sent_again(verifiers: Callable[..., Verifier]) -> None:
    first, second = verifiers(), verifiers()
    for session in (SESSION, OTHER):
        await first.opens(PROMPT, session=session)
        await first.settled()
    assert first.counted("kv_published") == 1 + 2, "the longest at first sight, two shorter ones at the second"
    await second.opens(PROMPT)
    await second.settled()
    assert second.counted("kv_published") == 0


@pytest.mark.decision("D44-shared")
async def test_what_was_evicted_is_published_again(verifiers: Callable[..., Verifier], store: MemoryStore) -> None:
    verifier = verifiers()
    await verifier.opens(PROMPT)
    await verifier.settled()
    [(name, _)] = objects(store)
    await store.delete(name)
    await verifier.opens(PROMPT, session=OTHER)
    await verifier.settled()
    assert name in {name for name, _ in objects(store)}


@pytest.mark.decision("D44-shared")
@pytest.mark.parametrize("tokens", [PROMPT[:8], PROMPT[:4], PROMPT[:1]], ids=len)
async def test_short_prompts_are_neither_published_nor_looked_for(
    verifiers: Callable[..., Verifier], store: MemoryStore, tokens: tuple[int, ...]
) -> None:
    verifier = verifiers()
    await verifier.opens(tokens)
    await verifier.settled()
    assert (objects(store), verifier.cache.asked) == ([], [])


@pytest.mark.decision("D44-shared", "D44-refused")
async def test_a_lie_under_a_name_of_the_group_is_computed_instead(
    verifiers: Callable[..., Verifier], store: MemoryStore
) -> None:
    first, second = verifiers(), verifiers()
    await first.opens(PROMPT)
    await first.settled()
    second.cache.spoil = SPOILT["a number"]
    assert await second.opens(PROMPT) == len(PROMPT) - 1
    assert second.says(PROMPT) == truth(PROMPT)
    await second.settled()
    assert second.counted("kv_refused_content") == 1


@pytest.mark.decision("D44-shared")
async def test_a_name_that_another_object_has_is_let_be(verifiers: Callable[..., Verifier], store: MemoryStore) -> None:
    first, second = verifiers(), verifiers()
    await first.opens(PROMPT)
    await first.settled()
    [(name, _)] = objects(store)
    await store.delete(name)
    await store.put(name, b"something else", "somebody")
    await second.opens(PROMPT)
    await second.settled()
    assert second.counted("kv_unpublished") == 1
    assert second.says(PROMPT) == truth(PROMPT)


@pytest.mark.decision("D44-held")
async def test_what_the_engine_holds_itself_is_not_fetched(verifiers: Callable[..., Verifier]) -> None:
    first, second = verifiers(), verifiers()
    ref = await published(first)
    await first.opens(PROMPT, session=OTHER)
    await first.settled()
    await second.holds(PROMPT[:-2])
    assert await second.opens(PROMPT, ref) == 2
    assert second.cache.asked == []
    await second.holds(PROMPT[:20], OTHER)
    assert await second.opens(PROMPT, session=OTHER) == len(PROMPT) - 1 - 36
    assert len(second.cache.asked) == 1, "what is longer than that"


@pytest.mark.parametrize("tokens", [(), (1,)], ids=len)
async def test_of_a_prefix_of_next_to_nothing_no_kv_is_asked_for(
    verifiers: Callable[..., Verifier], tokens: tuple[int, ...]
) -> None:
    verifier = verifiers()
    await verifier.exchange.load(SESSION, Prefill(History(tokens), f"{PREFIX}objects/kv", empty_prompt=not tokens))
    assert verifier.cache.asked == []


async def test_an_engine_that_is_full_says_so_when_it_computes(
    verifiers: Callable[..., Verifier], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = verifiers(), verifiers()
    ref = await published(first)

    def full(*_: object, **__: object) -> int:
        raise Overloaded("full")

    monkeypatch.setattr(second.target, "held_kv", full)
    await second.exchange.load(SESSION, Prefill(History(PROMPT), ref))
    assert second.cache.asked == []
