"""Target KV in the multi-level cache: published for other verifiers, and loaded instead of computed (6.1, 6.3, D44).

Two kinds of object: the KV of one session's committed prefix, named by chance, leased while the session lives here and
named in its commit log; and the KV of a prompt's first tokens, under a name that the verifiers of a group find by
themselves, which the cache may evict at any time. All of it only helps: what cannot be published is left out; what
cannot be loaded, or is not exactly what it should be, is computed, and no peer is told. Few objects are on their way
at a time, and after one that the cache would not take there is a pause: KV is no burden on a cache in trouble.

Not here: the form of an object and its tag (`sdcp.wire.kv_object`), when KV is due (`sdcp.machines.verifier_kv`).
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sdcp.engines.worker import Worker
from sdcp.errors import Conflict, ProblemError
from sdcp.machines.effects import DropOlderKv, Prefill, PublishKv
from sdcp.machines.history import History
from sdcp.machines.inputs import KvPublished
from sdcp.ports import Cache, ObjectMissingError, StoreFullError, StoreUnavailableError
from sdcp.roles.objects import new_kv_name
from sdcp.roles.telemetry import Metrics
from sdcp.wire.kv_object import KvFacts, decode_kv, encode_kv, facts_of, kv_size, prefix_names

LEASE_MS = 30_000
RENEW_S = LEASE_MS / 3000

LOOK_UPS = 3
"""Names of a prompt's prefixes that are asked for before it is computed, the longest first."""

MOST_UNDER_WAY = 4
"""Objects on their way to the cache at a time: each is in memory twice."""

PAUSE_S = 10.0
"""Nothing is published for so long after the cache would not take something."""

KNOWN = 4096
"""Names of prompts' prefixes that are remembered: which were seen, and which are in the cache."""

KNOWN_S = 600.0
"""So long a prefix that was in the cache is taken to be there still."""

UNAVAILABLE = "unavailable"
"""Why KV is not taken when the cache does not answer, or not in time."""

CACHE_FAULTS = (ObjectMissingError, StoreFullError, StoreUnavailableError)

logger = logging.getLogger("sdcp.roles")


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPolicy:
    """`[kv]` of the settings (`sdcp.roles.config`); `key` is the group's secret, `deadline_s` covers one object.

    `block`: prompts are shared in multiples of so many tokens, and less than that is computed, not fetched.
    """

    key: bytes
    interval: int = 256
    prompt_min: int = 512
    block: int = 64
    deadline_s: float = 5.0
    object_bytes: int = 256 << 20


class _RefusedError(Exception):
    """KV that is not taken: `reason` for the metrics, the sentence for the log."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class KvExchange:
    """What the sessions of a verifier share. Make and use it on one running event loop; `stop` it at the end."""

    def __init__(
        self,
        worker: Worker,
        cache: Cache,
        metrics: Metrics,
        policy: KvPolicy,
        report: Callable[[str, BaseException], None],
        *,
        renew_s: float = RENEW_S,
    ) -> None:
        """The worker's target must have a `kv_layout`."""
        assert worker.target.kv_layout is not None
        self.policy = policy
        self._worker, self._cache, self._metrics, self._report = worker, cache, metrics, report
        self._model, self._layout = worker.target.model, worker.target.kv_layout
        self._renew_s = renew_s
        self._under_way = 0
        self._paused_until = 0.0
        self._leased: set[str] = set()
        self._renewal: asyncio.Future[list[None]] | None = None  # that of all leases, if one is under way
        self._known: OrderedDict[str, float | None] = OrderedDict()  # when it was last in the cache; None: only seen
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to renew leases."""
        self._renewing = asyncio.get_running_loop().create_task(self._keep_renewing())

    async def stop(self) -> None:
        """Renew no more, and wait for what is under way."""
        if self._renewing is not None:
            self._renewing.cancel()
            with suppress(asyncio.CancelledError):
                await self._renewing
        while self._tasks:
            await asyncio.wait(self._tasks)

    # ---- loading (6.1 prompt_kv, 6.9 target_kv) ----------------------------------------------------------------------

    async def load(self, session: bytes, effect: Prefill) -> None:
        """Have the engine take up KV of the prefix from the cache, if there is any that is right; else do nothing."""
        most = len(effect.prefix) - 1  # the last token is computed in any case: what follows it is asked for
        shared = self._shared(effect.prefix)
        if most < self.policy.block or not (effect.kv or shared):
            return
        try:
            with self._metrics.time("kv_load"):
                await self._load_some(session, effect, most, shared)
        except ProblemError as refusal:  # the engine is full: a prefill will say so
            logger.info("no KV is loaded: %s", refusal.detail)
        except Exception as fault:  # a bug of ours, and no reason to refuse a session
            self._report("KV could not be loaded and is computed", fault)

    async def _load_some(self, session: bytes, effect: Prefill, most: int, shared: Sequence[tuple[int, str]]) -> None:
        """Nothing is fetched of what the engine holds itself, of this session or of another that began so.

        Nor anything more when the cache does not answer: an open waits for one deadline, not for one of each name.
        """
        held = await self._worker.held_kv(session, effect.prefix, most, empty_prompt=effect.empty_prompt)
        if most - held < self.policy.block:
            return
        if effect.kv is not None and await self._load(session, effect, effect.kv, most):
            return
        if most - held >= self.policy.prompt_min:
            for length, name in shared:
                if length > held and await self._load_shared(session, effect, length, name):
                    return

    async def _load(self, session: bytes, effect: Prefill, ref: str, most: int) -> bool:
        """Load what a router refers to, whose size tells how many tokens it is of. False: something else may be had."""
        try:
            data = await self._fetch(ref, self._size(most, effect.empty_prompt))
            await self._take(session, effect, self._length(len(data), most, effect.empty_prompt), data)
        except _RefusedError as refused:
            self._refused(ref, refused)
            return refused.reason == UNAVAILABLE
        return True

    async def _load_shared(self, session: bytes, effect: Prefill, length: int, name: str) -> bool:
        """Load the KV of the first `length` tokens by the group's name for it. False: something else may be had."""
        ref = self._cache.ref_of("objects", name)
        try:
            await self._take(session, effect, length, await self._fetch(ref, self._size(length)))
        except _RefusedError as refused:
            if name in self._known:
                self._remember(name, there=False)
            if refused.reason == "missing":
                self._metrics.count("kv_missed")
            else:
                self._refused(ref, refused)
            return refused.reason == UNAVAILABLE
        self._remember(name, there=True)
        return True

    def _refused(self, ref: str, refused: _RefusedError) -> None:
        self._metrics.count(f"kv_refused_{refused.reason}")
        logger.warning("%s is not used, and KV is computed: %s", ref, refused)

    async def _fetch(self, ref: str, at_most: int) -> bytes | memoryview:
        if not self._cache.allows(ref):
            raise _RefusedError("elsewhere", "it is no object under a cache prefix that is configured here")
        try:
            async with asyncio.timeout(self.policy.deadline_s):
                return await self._cache.fetch(ref, at_most=min(at_most, self.policy.object_bytes))
        except ObjectMissingError as fault:
            raise _RefusedError("missing", str(fault)) from None
        except (StoreUnavailableError, TimeoutError) as fault:
            raise _RefusedError(UNAVAILABLE, str(fault) or "time is up") from None
        except ValueError as fault:
            raise _RefusedError("content", str(fault)) from None

    async def _take(self, session: bytes, effect: Prefill, length: int, data: bytes | memoryview) -> None:
        """Check every octet, then hand it to the engine."""
        facts = facts_of(self._model, self._layout, effect.prefix, length, empty_prompt=effect.empty_prompt)
        try:
            block = await asyncio.to_thread(decode_kv, data, facts, self.policy.key)
        except ValueError as fault:
            raise _RefusedError("content", str(fault)) from None
        try:
            taken = await self._worker.import_kv(
                session, effect.prefix, length, block, empty_prompt=effect.empty_prompt
            )
        except (ValueError, ProblemError) as fault:
            raise _RefusedError("unfit", str(fault)) from None
        self._metrics.count("kv_loaded")
        self._metrics.count("kv_loaded_tokens", taken)
        self._metrics.count("kv_loaded_octets", len(data))

    def _size(self, length: int, empty_prompt: bool = False) -> int:
        """Octets of the object of `length` tokens."""
        return kv_size(KvFacts(self._model, self._layout, bytes(32), length, int(empty_prompt)))

    def _length(self, octets: int, most: int, empty_prompt: bool) -> int:
        """How many tokens an object of that size is of; whether it is, the tag says."""
        return min(most, bisect_left(range(most + 1), octets, key=lambda length: self._size(length, empty_prompt)))

    # ---- publishing (6.3) --------------------------------------------------------------------------------------------

    async def publish(self, session: bytes, prefix: History, length: int, name: str, lease_ms: int = 0) -> bool:
        """Put the KV of `prefix[:length]` under a name, and lease it if asked to; tell whether it is there now.

        Not when it is too large, while enough others are on their way, nor in the pause after a failure.
        """
        too_many = self._under_way >= MOST_UNDER_WAY or asyncio.get_running_loop().time() < self._paused_until
        if too_many or self._size(length) > self.policy.object_bytes:
            self._metrics.count("kv_skipped")
            return False
        self._under_way += 1
        try:
            async with asyncio.timeout(self.policy.deadline_s):
                return await self._put(session, prefix, length, name, lease_ms)
        except Conflict:
            self._metrics.count("kv_unpublished")  # another object has the name: nothing of ours will ever be there
        except (*CACHE_FAULTS, TimeoutError) as fault:
            self._metrics.count("kv_unpublished")
            self._paused_until = asyncio.get_running_loop().time() + PAUSE_S
            logger.info("KV could not be published; the next try is in %.0f s: %s", PAUSE_S, fault or "time is up")
        except Exception as fault:  # a bug of ours, and no reason to end a session
            self._report("KV could not be published", fault)
        finally:
            self._under_way -= 1
        return False

    async def _put(self, session: bytes, prefix: History, length: int, name: str, lease_ms: int) -> bool:
        block = await self._worker.export_kv(session, prefix, length)
        if block is None:  # the session has closed meanwhile
            return False
        facts = facts_of(self._model, self._layout, prefix, length, empty_prompt=bool(block.head))
        data = await asyncio.to_thread(encode_kv, block, facts, self.policy.key)
        ref = await self._cache.create(data, name=name)
        if lease_ms:
            await self._cache.lease(name, [ref], lease_ms)
        self._metrics.count("kv_published")
        self._metrics.count("kv_published_octets", len(data))
        return True

    # ---- prompts that sessions share ---------------------------------------------------------------------------------

    def share(self, session: bytes, prefix: History) -> None:
        """Publish, beside all else, the KV of the prompt's first tokens where others may want it."""
        if self._shared(prefix):
            self._spawn(self._share(session, prefix))

    async def _share(self, session: bytes, prefix: History) -> None:
        """The longest part at first sight; a shorter one when another prompt that begins so comes along."""
        for index, (length, name) in enumerate(self._shared(prefix)):
            wanted = index == 0 or name in self._known
            if self._is_there(name):
                continue
            self._remember(name, there=False)
            if wanted and await self.publish(session, prefix, length, name):
                self._remember(name, there=True)

    def _shared(self, prefix: History) -> list[tuple[int, str]]:
        """Lengths and names of the parts of a prompt that may be in the cache, longest first.

        The longest in whole blocks, then one block doubled and doubled: prompts that begin alike and end differently
        meet there.
        """
        block, least = self.policy.block, self.policy.prompt_min
        longest = min(prefix.prompt_length, len(prefix) - 1) // block * block
        if not least or longest < least:
            return []
        names = prefix_names(self.policy.key, self._model, self._layout, prefix[:longest], block)
        doubled = [each for number, each in enumerate(names[:-1], 1) if number & (number - 1) == 0]
        return [each for each in (names[-1], *reversed(doubled)) if each[0] >= least][:LOOK_UPS]

    def _is_there(self, name: str) -> bool:
        since = self._known.get(name)
        return since is not None and asyncio.get_running_loop().time() - since < KNOWN_S

    def _remember(self, name: str, *, there: bool) -> None:
        self._known[name] = asyncio.get_running_loop().time() if there else None
        self._known.move_to_end(name)
        while len(self._known) > KNOWN:
            self._known.popitem(last=False)

    # ---- leases ------------------------------------------------------------------------------------------------------

    def keep(self, name: str) -> None:
        """Renew the lease of an object from now on."""
        self._leased.add(name)

    def leave(self, name: str) -> None:
        """Renew it no more: its lease ends by time, and whoever takes the session over may have it until then."""
        self._leased.discard(name)

    def drop(self, name: str) -> None:
        """Give lease and object back, beside all else; the object stays if somebody else leases it."""
        self._leased.discard(name)
        self._spawn(self._drop(name))

    async def _drop(self, name: str) -> None:
        if self._renewal is not None:  # a lease that is renewed after it was given back would stay
            await asyncio.wait([self._renewal])
        with suppress(*CACHE_FAULTS):
            await self._cache.release(name)
            await self._cache.delete(self._cache.ref_of("objects", name))

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(self._renew_s)
            renewal = self._renewal = asyncio.gather(*(self._renew(name) for name in tuple(self._leased)))
            try:
                await renewal
            except Exception as fault:  # a bug of ours; the next turn may go better
                self._report("leases on KV could not be renewed", fault)

    async def _renew(self, name: str) -> None:
        """An object that has gone is not missed: whoever looks for it computes."""
        with suppress(*CACHE_FAULTS):
            await self._cache.lease(name, [self._cache.ref_of("objects", name)], LEASE_MS)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class SessionKv:
    """The objects of one session under one epoch; a lease has the name of its object."""

    def __init__(self, exchange: KvExchange, cache: Cache, session: bytes, key: bytes) -> None:
        """`key` is what the engine knows the session by."""
        self._exchange, self._cache = exchange, cache
        self._session, self._key = session, key
        self._names: dict[str, str] = {}  # of the objects that are there, by their URIs, oldest first
        self._over = False

    async def publish(self, effect: PublishKv) -> KvPublished:
        """Perform PublishKv: all but the latest token, of which no pass has been made yet."""
        name, there = new_kv_name(self._session), False
        try:
            there = await self._exchange.publish(self._key, effect.prefix, effect.length - 1, name, LEASE_MS)
        finally:
            if not there or self._over:  # or the wait was cancelled: what may be there must not stay
                self._exchange.drop(name)
        if not there or self._over:
            return KvPublished(effect.length, None)
        ref = self._cache.ref_of("objects", name)
        self._names[ref] = name
        self._exchange.keep(name)
        return KvPublished(effect.length, ref)

    def drop_older(self, effect: DropOlderKv) -> None:
        """Perform DropOlderKv."""
        for ref in [*self._names]:
            if ref == effect.ref:
                return
            self._exchange.drop(self._names.pop(ref))

    def end(self) -> None:
        """No round will follow: nobody needs the objects any more, but a router that leases one."""
        self._over = True
        while self._names:
            self._exchange.drop(self._names.popitem()[1])

    def leave(self) -> None:
        """The session may go on elsewhere: the objects stay as long as their leases do."""
        self._over = True
        while self._names:
            self._exchange.leave(self._names.popitem()[1])
