"""One session at a verifier: its machine, its driver, and how the machine's effects are carried out (6.3).

What a round may need is fetched and checked here, off the machine: q rows of exactly M·V·4 octets, under a deadline,
from configured caches alone (D11, D25); the bytes checked are the bytes used. Nothing here ends a round that is under
way: deadlines belong to fetches, and what the store leaves unanswered the machine settles (D27).

Not here: the sessions together, status and the end of the process (`sdcp.roles.verifier`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Protocol

from sdcp.engines.worker import Worker
from sdcp.errors import BadProposal, InternalFault, InvalidContent, Overloaded, ProblemError, QUnavailable
from sdcp.http.identity import ROUTER
from sdcp.http.resources import url
from sdcp.machines.effects import (
    AppendLog,
    CloseEngine,
    DrawRandom,
    DropOlderKv,
    EndSession,
    FetchRows,
    FetchTokens,
    Prefill,
    PublishKv,
    ReadLog,
    Refuse,
    ReplayVerdict,
    Reply,
    SelfDecode,
    SendEvent,
    Verify,
)
from sdcp.machines.inputs import (
    EngineFailed,
    EventDelivered,
    LogAppended,
    LogFenced,
    LogMoved,
    LogRead,
    LogUnanswered,
    Prefilled,
    PrefillFailed,
    RandomDrawn,
    RowsObtained,
    RowsRefused,
    SelfDecoded,
    StopRequested,
    Superseded,
    TokensFetched,
    TokensUnavailable,
    Verified,
)
from sdcp.machines.reader import replayed_verdict
from sdcp.machines.verifier import VerifierSession
from sdcp.messages.output import Event
from sdcp.ports import (
    Cache,
    ObjectMissingError,
    PrefillJob,
    StoreUnavailableError,
    VerifyJob,
    VerifyResult,
)
from sdcp.roles.drive import Driver, Performer
from sdcp.roles.kv import KvExchange, SessionKv
from sdcp.roles.logs import append_log, read_log
from sdcp.roles.objects import fetch_tokens
from sdcp.roles.peers import Peers, RefusedError, UnansweredError
from sdcp.roles.telemetry import Metrics
from sdcp.wire.rows import Rows, check_rows, decode_rows, size

RECORD_OCTETS = 4096
"""More than any commit record of ours has: M is at most 64."""

EVENT_PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Between two tries of an event; the last one again and again (D17)."""

BIG_ROWS = 1 << 20
"""Rows of more octets than this are checked in a thread: the event loop has other sessions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """What the sessions of a verifier share. `fetch_s`: deadline for objects named by peers (D11).

    `kv`: where KV is published and loaded; None: it is always computed (D44).
    """

    worker: Worker
    cache: Cache
    peers: Peers
    metrics: Metrics
    fetch_s: float
    report: Callable[[str, BaseException], None]
    kv: KvExchange | None = None


class Keeper(Protocol):
    """Who holds the sessions of a verifier."""

    def opened(self, held: VerifyingSession) -> None:
        """It is open now: lower epochs of the session are over."""

    def ended(self, held: VerifyingSession) -> None:
        """No round will follow any more."""

    def gone(self, held: VerifyingSession) -> None:
        """There is nothing left to serve."""


class VerifyingSession:
    """A session under one epoch, open or being opened.

    `routers` are told of events, in this order; `keeper` learns what becomes of the session.
    """

    def __init__(
        self,
        session: bytes,
        epoch: int,
        machine: VerifierSession,
        equipment: Equipment,
        routers: Sequence[str],
        keeper: Keeper,
    ) -> None:
        self.session = session
        self.epoch = epoch
        self.machine = machine
        self._key = session + epoch.to_bytes(8, "big")  # two epochs of a session may be here at once
        self._equipment = equipment
        self._routers = tuple(routers)
        self._keeper = keeper
        self._open = False
        self._committed: int | None = None
        self._touched = asyncio.get_running_loop().time()
        self._rows: dict[int, Rows] = {}
        self._idle = asyncio.Event()
        kv = equipment.kv
        self._kv = None if kv is None else SessionKv(kv, equipment.cache, session, self._key)
        self._driver = Driver(
            self,
            {
                FetchTokens: self._fetch_tokens,
                Prefill: self._prefill,
                FetchRows: self._fetch_rows,
                DrawRandom: _draw_random,
                Verify: self._verify,
                SelfDecode: self._self_decode,
                CloseEngine: self._close_engine,
                AppendLog: self._append,
                ReadLog: self._read,
                ReplayVerdict: self._replay,
                SendEvent: self._send_event,
                EndSession: lambda _: keeper.gone(self),
                **_performers_of(self._kv),
            },
            self._broken,
        )

    def handle(self, event: Any, /) -> list[Any]:
        """What the driver drives: the machine, and a look at what became of it."""
        self._touched = asyncio.get_running_loop().time()
        effects = self.machine.handle(event)
        if not self._open and self.machine.phase is not None:
            self._open = True
            self._keeper.opened(self)
        self._count_committed()
        if self.machine.working:
            self._idle.clear()
        else:
            self._idle.set()
        return effects

    def _count_committed(self) -> None:
        """Count what this process committed: not what a session that was resumed here brought along."""
        if (state := self.machine.state) is None:
            return
        if self._committed is not None and state.committed > self._committed:
            self._equipment.metrics.count("tokens_committed", state.committed - self._committed)
        self._committed = state.committed

    @property
    def idle_s(self) -> float:
        """Seconds since anything happened to it."""
        return asyncio.get_running_loop().time() - self._touched

    async def ask(self, make: Callable[[int], Any]) -> Reply | Refuse:
        """Hand in a request of a peer and wait for the answer; cancelling ends the wait alone (D27)."""
        return await self._driver.ask(make)

    def supersede(self) -> None:
        """A higher epoch has opened here: answer everybody so, and be gone (D19, D30)."""
        self._driver.handle(Superseded())
        self.close()

    def stop(self) -> None:
        """Finish the round that is under way, begin none."""
        self._driver.handle(StopRequested())

    async def finished(self) -> None:
        """Wait until no round and no open is under way."""
        await self._idle.wait()

    async def settled(self) -> None:
        """Wait until nothing at all is under way, events included."""
        await self._driver.settle()

    def give_up(self) -> None:
        """Nobody has come for long, and nobody is expected: give back what was published (D44), and close."""
        if self._kv is not None:
            self._kv.end()
        self.close()

    def close(self) -> None:
        """Leave everything as it is; who still waits is told to ask elsewhere."""
        self._driver.close()
        self._equipment.worker.close(self._key)
        if self._kv is not None:
            self._kv.leave()

    # ---- engine ------------------------------------------------------------------------------------------------------

    async def _prefill(self, effect: Prefill) -> Prefilled | PrefillFailed:
        """Compute the KV, or what is left of it once that in the cache was loaded (D20, D44)."""
        worker, kv = self._equipment.worker, self._equipment.kv
        if not effect.prefix and not worker.target.takes_empty_prompt:
            return PrefillFailed(InvalidContent("The model has no BOS token: an empty prompt cannot be served."))  # D26
        if kv is not None:
            await kv.load(self._key, effect)
        try:
            with self._equipment.metrics.time("prefill"):
                await worker.prefill(PrefillJob(self._key, effect.prefix, len(effect.prefix), effect.empty_prompt))
        except ProblemError as refusal:
            return PrefillFailed(refusal)
        except Exception as fault:
            self._equipment.report("the engine could not prefill", fault)
            return PrefillFailed(InternalFault("The prompt could not be computed."))
        if kv is not None:
            kv.share(self._key, effect.prefix)
        return Prefilled()

    async def _verify(self, effect: Verify) -> Verified | EngineFailed:
        rows = self._rows.pop(effect.round, None)
        result = await self._score(effect, effect.tokens, rows, effect.room)
        if result is None:
            return EngineFailed(effect.round, "the engine could not score")
        return Verified(effect.round, result.accepted, result.additional, self._equipment.worker.load())

    async def _self_decode(self, effect: SelfDecode) -> SelfDecoded | EngineFailed:
        result = await self._score(effect, (), None, 1)
        if result is None or result.additional is None:
            return EngineFailed(effect.round, "the engine could not decode")
        return SelfDecoded(effect.round, result.additional, self._equipment.worker.load())

    async def _score(
        self, effect: Verify | SelfDecode, tokens: tuple[int, ...], rows: Rows | None, room: int
    ) -> VerifyResult | None:
        prefix, length, rule = effect.prefix, effect.length, effect.rule
        job = VerifyJob(self._key, prefix, length, tokens, rule, effect.profile, effect.luck, rows, room)
        try:
            with self._equipment.metrics.time("score"):
                return await self._equipment.worker.verify(job)
        except Exception as fault:  # whatever it is, nothing of the round may be released
            self._equipment.report("the engine could not score a round", fault)
            return None

    def _close_engine(self, _: CloseEngine) -> None:
        self._rows.clear()
        self._equipment.worker.close(self._key)
        if self._kv is not None:
            self._kv.end()
        self._keeper.ended(self)

    # ---- objects -----------------------------------------------------------------------------------------------------

    async def _fetch_tokens(self, effect: FetchTokens) -> TokensFetched | TokensUnavailable:
        try:
            async with asyncio.timeout(self._equipment.fetch_s):
                return await fetch_tokens(self._equipment.cache, effect)
        except TimeoutError:
            return TokensUnavailable(effect.ref, Overloaded(f"{effect.ref} cannot be fetched now: time is up."))

    async def _fetch_rows(self, effect: FetchRows) -> RowsObtained | RowsRefused:
        self._rows.clear()  # of a round that was refused
        try:
            with self._equipment.metrics.time("rows"):
                self._rows[effect.round] = await self._rows_of(effect)
        except ProblemError as refusal:
            return RowsRefused(effect.round, refusal)
        return RowsObtained(effect.round)

    async def _rows_of(self, effect: FetchRows) -> Rows:
        """Fetch and check q rows (D11, D25). Raises QUnavailable or BadProposal."""
        cache, width = self._equipment.cache, self._equipment.worker.target.vocabulary
        octets = size(len(effect.tokens), width)
        if not cache.allows(effect.ref):
            raise QUnavailable(f"{effect.ref} is no object under a cache prefix that is configured here.")
        try:
            async with asyncio.timeout(self._equipment.fetch_s):
                data = await cache.fetch(effect.ref, at_most=octets)
        except (ObjectMissingError, StoreUnavailableError, TimeoutError) as fault:
            raise QUnavailable(f"{effect.ref} cannot be fetched now: {fault or 'time is up'}.") from fault
        except ValueError as fault:
            raise BadProposal(f"The q_rows object does not fit: {fault}.") from fault
        if octets <= BIG_ROWS:
            return _checked(data, effect.tokens, width)
        return await asyncio.to_thread(_checked, data, effect.tokens, width)

    # ---- commit log --------------------------------------------------------------------------------------------------

    async def _append(self, effect: AppendLog) -> LogAppended | LogMoved | LogFenced | LogUnanswered:
        equipment = self._equipment
        with equipment.metrics.time("append"):
            return await append_log(equipment.cache, effect, equipment.worker.load)

    async def _read(self, effect: ReadLog) -> LogRead | LogUnanswered:
        return await read_log(self._equipment.cache, effect)

    async def _replay(self, effect: ReplayVerdict) -> None:
        """Answer with a verdict of long ago (6.3 step 3)."""
        try:
            found = await self._equipment.cache.read_log(effect.ref, effect.start, effect.start + RECORD_OCTETS)
            answer: Reply | Refuse = Reply(effect.request, replayed_verdict(self.session, effect.round, found.data))
        except (StoreUnavailableError, ValueError):
            answer = Refuse(effect.request, Overloaded("The verdict cannot be read from the log now; ask again."))
        self._driver.answer(answer)

    # ---- events ------------------------------------------------------------------------------------------------------

    async def _send_event(self, effect: SendEvent) -> EventDelivered | None:
        """Tell the routers, one after the other, until one answers 204 (D17)."""
        if not self._routers:
            return None
        for pause_s in chain(EVENT_PAUSES_S, repeat(EVENT_PAUSES_S[-1])):
            for router in self._routers:
                if await self._tell(router, effect.message):
                    return EventDelivered(effect.message)
            await asyncio.sleep(pause_s)
        return None

    async def _tell(self, router: str, event: Event) -> bool:
        try:
            await self._equipment.peers.tell("POST", url(router, "events"), event, role=ROUTER, deadline_s=5.0)
        except (RefusedError, UnansweredError):
            self._equipment.metrics.count("event_refused")
            return False
        return True

    def _broken(self, fault: BaseException) -> None:
        """A bug of ours: this session is lost to the router (404), the others are not."""
        self._equipment.report("a verifier session broke and was given up", fault)
        self.close()
        self._keeper.gone(self)


def _performers_of(kv: SessionKv | None) -> dict[type, Performer]:
    return {} if kv is None else {PublishKv: kv.publish, DropOlderKv: kv.drop_older}


def _draw_random(effect: DrawRandom) -> RandomDrawn:
    """Draw from the operating system's generator, 53 bits a value (6.4)."""
    return RandomDrawn(effect.round, tuple(secrets.randbits(53) / 2**53 for _ in range(effect.count)))


def _checked(data: bytes | memoryview, tokens: tuple[int, ...], width: int) -> Rows:
    rows = decode_rows(data, len(tokens), width)
    check_rows(rows, tokens)
    return rows
