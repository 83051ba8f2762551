"""One session at a router: its machine, its driver, and how the machine's effects are carried out (6.1, 6.9).

The objects that a session needs, its prompt when that is long and its committed tokens, are written and leased here
until the session ends (D20); then lease and objects go. What a manifest keeps is written before or beside that, as the
machine says (D45). The KV object of a verifier that was lost is leased while the session opens at another one, and goes
when a newer one takes its place or the session ends (D44).

Not here: the sessions together and who is alive (`sdcp.roles.router`).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from sdcp.http.identity import DRAFTER, VERIFIER
from sdcp.http.resources import encode_id, url
from sdcp.machines.effects import (
    AppendLog,
    AppendManifest,
    ChooseDrafter,
    ChooseVerifier,
    EndSession,
    LetGo,
    ReadLog,
    ReadManifest,
    Refuse,
    Reply,
    SendAssignment,
    SendDrafter,
    SendOpen,
    SendPolicy,
    StoreTokens,
)
from sdcp.machines.inputs import (
    AssignmentRefused,
    AssignmentTaken,
    DrafterChosen,
    LogAppended,
    LogFenced,
    LogMoved,
    LogRead,
    LogUnanswered,
    ManifestAnswered,
    StateReceived,
    StoreFailed,
    TokensStored,
    VerifierChosen,
    VerifierRefused,
    VerifierUnanswered,
)
from sdcp.machines.roster import Roster
from sdcp.machines.router import RouterSession
from sdcp.machines.router_kept import KeptSession
from sdcp.messages.contract import Action
from sdcp.messages.fields import Message
from sdcp.messages.request import GenerationRequest
from sdcp.messages.session import SessionOpen, SessionState
from sdcp.ports import (
    Cache,
    LogDamagedError,
    ObjectMissingError,
    StoreFullError,
    StoreUnavailableError,
)
from sdcp.roles.drive import Driver
from sdcp.roles.logs import append_log, read_log
from sdcp.roles.objects import is_kv_of
from sdcp.roles.peers import Peers, RefusedError, UnansweredError
from sdcp.roles.telemetry import Metrics
from sdcp.wire import cbor

logger = logging.getLogger("sdcp.roles")

LEASE_MS = 60_000
OPEN_S = 120.0  # the verifier answers when it has computed the prompt (6.1)
ASK_S = 30.0  # PUT drafter is answered after the round under verification (D28)

CACHE_FAULTS = (ObjectMissingError, StoreFullError, StoreUnavailableError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """What the sessions of a router share. `now_ms` is the monotonic clock by which statuses expire (D7)."""

    roster: Roster
    cache: Cache
    peers: Peers
    metrics: Metrics
    now_ms: Callable[[], int]
    report: Callable[[str, BaseException], None]


class RoutingSession:
    """A request, the session made of it, and to whom it belongs.

    `owner` names the certificate that submitted it (D33). `ended_ms`: when it ended, None while it lives. `lost`:
    another life of a router has it now (D45).
    """

    def __init__(
        self,
        request: GenerationRequest,
        owner: str,
        machine: RouterSession | KeptSession,
        equipment: Equipment,
        objects: Sequence[str] = (),
    ) -> None:
        """`objects`: what an earlier life has stored for the session."""
        self.request = request
        self.owner = owner
        self.machine = machine.session if isinstance(machine, KeptSession) else machine
        self.ended_ms: int | None = None
        self.lost = False
        self._driven = machine
        self._equipment = equipment
        self._lease = f"{encode_id(self.machine.session)}-{secrets.token_hex(8)}"
        self._objects = list(objects)
        self._inherited = list(objects)  # an earlier life's lease may still be on them at the end
        self._kv: str | None = None  # what the last open referred to
        self._kv_leased = False
        self._kv_left: set[str] = set()  # to delete once more when no verifier's lease is on them any longer
        self._epoch = self.machine.epoch
        self._driver = Driver(
            self,
            {
                ChooseVerifier: self._choose_verifier,
                ChooseDrafter: self._choose_drafter,
                SendOpen: self._send_open,
                SendDrafter: self._send_drafter,
                SendPolicy: self._send_policy,
                SendAssignment: self._send_assignment,
                StoreTokens: self._store_tokens,
                AppendLog: self._append,
                ReadLog: self._read,
                EndSession: self._end,
                AppendManifest: self._append_manifest,
                ReadManifest: self._read_manifest,
                LetGo: self._lose,
            },
            self._broken,
        )

    def handle(self, event: Any, /) -> list[Any]:
        """What the driver drives: the machine, and a look at what became of it."""
        effects = self._driven.handle(event)
        if logger.isEnabledFor(logging.DEBUG):
            wanted = ", ".join(type(effect).__name__ for effect in effects)
            logger.debug("%s: %s: %s", encode_id(self.machine.session), type(event).__name__, wanted or "nothing")
        if self.machine.epoch != self._epoch:
            self._epoch = self.machine.epoch
            self._equipment.metrics.count("fences")
        return effects

    def tell(self, event: Any) -> None:
        """Hand in what the role has learned: an instance is lost."""
        self._driver.handle(event)

    async def ask(self, make: Callable[[int], Any]) -> Reply | Refuse:
        """Hand in a request and wait for its answer."""
        return await self._driver.ask(make)

    async def renew(self) -> None:
        """Keep the objects of a living session."""
        cache = self._equipment.cache
        if self._objects and self.ended_ms is None:
            with suppress(*CACHE_FAULTS):
                await cache.lease(self._lease, self._objects, LEASE_MS)
        if self._kv_leased and self._kv is not None:
            with suppress(*CACHE_FAULTS):
                await cache.lease(self._kv_lease, [self._kv], LEASE_MS)
        if self.ended_ms is not None and self._equipment.now_ms() - self.ended_ms > LEASE_MS:
            left, self._kv_left = self._kv_left, set()
            for ref in left:
                await self._delete_kv(ref)
            inherited, self._inherited = self._inherited, []
            for ref in inherited:
                with suppress(*CACHE_FAULTS):
                    await cache.delete(ref)

    async def settled(self) -> None:
        """Wait until nothing is under way."""
        await self._driver.settle()

    def close(self) -> None:
        """Leave everything as it is; who still waits is told to ask elsewhere."""
        self._driver.close()

    # ---- choices -----------------------------------------------------------------------------------------------------

    def _choose_verifier(self, effect: ChooseVerifier) -> VerifierChosen:
        contract, equipment = effect.contract, self._equipment
        chosen = equipment.roster.choose_verifier(contract.target, contract.tokenizer, effect.but, equipment.now_ms())
        return VerifierChosen(chosen)

    def _choose_drafter(self, effect: ChooseDrafter) -> DrafterChosen:
        equipment = self._equipment
        return DrafterChosen(equipment.roster.choose_drafter(effect.contract, effect.but, equipment.now_ms()))

    # ---- peers -------------------------------------------------------------------------------------------------------

    async def _send_open(self, effect: SendOpen) -> object:
        offered = await self._offer_kv(effect.message)
        answer = await self._state(effect, "POST", url(effect.verifier, "sessions"), OPEN_S, offered)
        await self._release_kv()
        return answer

    async def _send_drafter(self, effect: SendDrafter) -> object:
        path = url(effect.verifier, "sessions/{id}/drafter", encode_id(effect.message.session))
        return await self._state(effect, "PUT", path, ASK_S)

    async def _send_policy(self, effect: SendPolicy) -> object:
        path = url(effect.verifier, "sessions/{id}/policy", encode_id(effect.message.session))
        return await self._state(effect, "POST", path, ASK_S)

    async def _state(
        self,
        effect: SendOpen | SendDrafter | SendPolicy,
        method: str,
        target: str,
        deadline_s: float,
        message: Message | None = None,
    ) -> StateReceived | VerifierRefused | VerifierUnanswered:
        try:
            state = await self._equipment.peers.ask(
                method, target, SessionState, message or effect.message, role=VERIFIER, deadline_s=deadline_s
            )
        except RefusedError as refusal:
            return VerifierRefused(refusal.error, effect)
        except UnansweredError:
            self._equipment.metrics.count("verifier_unanswered")
            return VerifierUnanswered(effect)
        return StateReceived(state, effect)

    async def _send_assignment(self, effect: SendAssignment) -> AssignmentTaken | AssignmentRefused:
        target = url(effect.drafter, "assignments")
        try:
            await self._equipment.peers.tell("POST", target, effect.message, role=DRAFTER, deadline_s=ASK_S)
        except RefusedError as refusal:
            return AssignmentRefused(refusal.error, effect)
        except UnansweredError:
            self._equipment.metrics.count("drafter_unanswered")
            return AssignmentRefused(None, effect)
        self._equipment.metrics.count("assignments")
        return AssignmentTaken(effect)

    # ---- objects and the log -----------------------------------------------------------------------------------------

    async def _store_tokens(self, effect: StoreTokens) -> TokensStored | StoreFailed:
        cache = self._equipment.cache
        try:
            ref = await cache.create(cbor.encode(list(effect.tokens)))
            await self._hold(ref)
        except CACHE_FAULTS as fault:
            return StoreFailed(str(fault), effect)
        if self.ended_ms is not None and not self.lost:  # it ended meanwhile
            await self._let_go()
        return TokensStored(ref, effect)

    async def _hold(self, ref: str) -> None:
        """Lease an object with those of before; without them if one has gone: whoever misses it says so."""
        cache = self._equipment.cache
        try:
            await cache.lease(self._lease, [*self._objects, ref], LEASE_MS)
        except ObjectMissingError:
            await cache.lease(self._lease, [ref], LEASE_MS)
            self._objects.clear()
        self._objects.append(ref)

    async def _append(self, effect: AppendLog) -> LogAppended | LogMoved | LogFenced | LogUnanswered:
        return await append_log(self._equipment.cache, effect)

    async def _read(self, effect: ReadLog) -> LogRead | LogUnanswered:
        return await read_log(self._equipment.cache, effect)

    async def _append_manifest(self, effect: AppendManifest) -> ManifestAnswered:
        return ManifestAnswered(await append_log(self._equipment.cache, effect), effect)

    async def _read_manifest(self, effect: ReadManifest) -> ManifestAnswered:
        try:
            found = await self._equipment.cache.read_log(effect.ref, effect.start)
        except LogDamagedError:  # it takes no append any more: as good as gone
            return ManifestAnswered(LogRead(effect.start, b"", None), effect)
        except (StoreUnavailableError, ObjectMissingError, ValueError):
            return ManifestAnswered(LogUnanswered(), effect)
        return ManifestAnswered(LogRead(effect.start, found.data, found.etag), effect)

    # ---- the KV of a verifier that was lost (6.9, D44) ---------------------------------------------------------------

    @property
    def _kv_lease(self) -> str:
        return f"{self._lease}-kv"

    async def _offer_kv(self, message: SessionOpen) -> SessionOpen:
        """Lease the KV that an open refers to; what has gone, or nobody can tell, the open does without."""
        resume = message.resume
        if resume is None or resume.target_kv is None:
            return message
        if self._kv is not None and self._kv != resume.target_kv:
            await self._delete_kv(self._kv)
        self._kv = resume.target_kv
        try:
            await self._equipment.cache.lease(self._kv_lease, [self._kv], LEASE_MS)
        except (*CACHE_FAULTS, ValueError):
            return replace(message, resume=replace(resume, target_kv=None))
        self._kv_leased = True
        return message

    async def _release_kv(self) -> None:
        if self._kv_leased:
            self._kv_leased = False
            with suppress(*CACHE_FAULTS):
                await self._equipment.cache.release(self._kv_lease)

    async def _delete_kv(self, ref: str) -> None:
        """Only what is this session's: a log is written by others. What its verifier leases stays until then."""
        cache = self._equipment.cache
        if cache.allows(ref) and is_kv_of(self.machine.session, ref):
            with suppress(*CACHE_FAULTS):
                await cache.delete(ref)

    # ---- the end -----------------------------------------------------------------------------------------------------

    def _lose(self, _: LetGo) -> None:
        """What is stored for the session is the other life's now; our lease ends by time."""
        logger.warning("session %s: another router has it now", encode_id(self.machine.session))
        self._equipment.metrics.count("sessions_lost")
        self.lost, self.ended_ms = True, self._equipment.now_ms()
        self._objects.clear()
        self._inherited.clear()
        self._kv_left.clear()
        self._kv_leased = False
        self.close()

    async def _end(self, _: EndSession) -> None:
        self.ended_ms = self._equipment.now_ms()
        if self.machine.ended is Action.FAIL and self.machine.refusal is not None:
            logger.warning("session %s has failed: %s", encode_id(self.machine.session), self.machine.refusal.detail)
        await self._let_go()
        await self._release_kv()
        self._kv_left = {ref for ref in (self._kv, self.machine.kv) if ref is not None}
        for ref in tuple(self._kv_left):
            await self._delete_kv(ref)

    async def _let_go(self) -> None:
        """Release the lease, delete the objects; what the cache will not do now, time does."""
        gone, self._objects = self._objects, []
        if not gone:
            return
        with suppress(*CACHE_FAULTS):
            await self._equipment.cache.release(self._lease)
        for ref in gone:
            with suppress(*CACHE_FAULTS):
                await self._equipment.cache.delete(ref)

    def _broken(self, fault: BaseException) -> None:
        """A bug of ours: this session is given up, the others are not."""
        self._equipment.report("a router session broke and was given up", fault)
        self.ended_ms = self._equipment.now_ms()
        self.close()
