"""`sdcp router`: takes requests, opens sessions at verifiers, assigns drafters, watches over both (Table 1, 6.1, 6.9).

A router makes the contract of a request from the request and its own `[contract]` settings. It knows an instance by the
instance's status alone, accepts a status from its own instance only, and an event from the session's verifier only
(D9, D10). Its sessions live in its memory: after its end they run on at their verifiers and drafters. With manifests in
the cache it takes them up again when it is back (D45); without, nobody fails them over any more.

Not here: the protocol (`sdcp.machines.router`), the choice (`sdcp.machines.roster`), one session's I/O
(`sdcp.roles.routing`), finding sessions again (`sdcp.roles.taking_up`).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from sdcp.errors import (
    ConfigurationError,
    Conflict,
    Forbidden,
    InvalidContent,
    MalformedBody,
    Overloaded,
    UnknownResource,
)
from sdcp.http.client import Client
from sdcp.http.dispatch import answer, dispatcher, no_content, receive
from sdcp.http.exchange import Request, Response
from sdcp.http.identity import DRAFTER as DRAFTER_ROLE
from sdcp.http.identity import VERIFIER as VERIFIER_ROLE
from sdcp.http.identity import Peer, normalize_uri
from sdcp.http.resources import ROUTER_RESOURCES, Parameters, Table, encode_id
from sdcp.machines.effects import Refuse, Reply
from sdcp.machines.inputs import (
    DrafterLost,
    EventReceived,
    LocationRequested,
    ProfileChanged,
    RequestSubmitted,
    RequestWithdrawn,
    VerifierLost,
)
from sdcp.machines.manifest import request_records
from sdcp.machines.manifest_log import ManifestLog
from sdcp.machines.roster import Known, Roster
from sdcp.machines.router import Patience, RouterSession
from sdcp.machines.router_kept import KeptSession
from sdcp.messages.contract import Action, Contract
from sdcp.messages.fields import U64_MAX
from sdcp.messages.manifest import RequestRecord
from sdcp.messages.output import Event
from sdcp.messages.request import GenerationRequest, ProfileChange
from sdcp.messages.status import DRAFTER, VERIFIER, Status
from sdcp.ports import Cache, StoreUnavailableError
from sdcp.roles.caching import open_caches
from sdcp.roles.config import ContractDefaults, Instance, ManifestSettings, RouterSettings
from sdcp.roles.manifests import Manifests
from sdcp.roles.peers import Peers
from sdcp.roles.prefer import wait_ms
from sdcp.roles.process import Context
from sdcp.roles.routing import LEASE_MS, Equipment, RoutingSession
from sdcp.roles.taking_up import TakingUp
from sdcp.roles.telemetry import Metrics

SWEEP_S = 0.05
RENEW_MS = LEASE_MS // 3
LOCATION_WAIT_MS = 25_000
MOST_TURNS = 4096  # a contract travels with every assignment

_ROLE_OF = {DRAFTER: DRAFTER_ROLE, VERIFIER: VERIFIER_ROLE}


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterFacts:
    """The settings of a router, as plain values; names and units as in `sdcp.roles.config`."""

    contract: ContractDefaults = field(default_factory=ContractDefaults)
    known: dict[str, Known] = field(default_factory=dict)
    patience: Patience = field(default_factory=Patience)
    sessions: int = 4096
    retention_s: float = 600.0
    drain_s: float = 20.0
    body_bytes: int = 16 << 20
    match_host: bool = False
    base_path: str = ""
    manifest: ManifestSettings = field(default_factory=lambda: ManifestSettings(keep=False))


async def make(context: Context[RouterSettings]) -> RouterRole:
    """Make a router from its settings; open the caches. Raises ConfigurationError."""
    settings = context.settings
    client = context.client()
    facts = RouterFacts(
        contract=settings.contract,
        known=dict(_known(instance) for instance in settings.instances),
        patience=Patience(m_init=settings.contract.m_init),
        sessions=settings.limits.sessions,
        retention_s=settings.limits.retention_s,
        drain_s=settings.limits.drain_s,
        body_bytes=settings.limits.body_bytes,
        match_host=settings.tls.match_host,
        base_path=urlsplit(settings.server.base_uri or "").path,
        manifest=settings.manifest,
    )
    cache = await open_caches(settings.cache, settings, client)
    return RouterRole(client, cache, facts, context.metrics, context.report)


class RouterRole:
    """The role: `start`, `handle`, `drain` (`sdcp.roles.process.Role`). Closes `client` when it has drained."""

    def __init__(
        self,
        client: Client,
        cache: Cache,
        facts: RouterFacts,
        metrics: Metrics,
        report: Callable[[str, BaseException], None],
        now_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        self._client = client
        self._cache = cache
        self._facts = facts
        self._now_ms = now_ms
        self._report = report
        self._roster = Roster(facts.known)
        self._reported = asyncio.Event()
        self._requests: dict[bytes, RoutingSession] = {}
        self._sessions: dict[bytes, RoutingSession] = {}
        self._draining = False
        self._manifests: Manifests | None = None
        self._taking_up: TakingUp | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._equipment = Equipment(
            roster=self._roster,
            cache=cache,
            peers=Peers(client),
            metrics=metrics,
            now_ms=now_ms,
            report=report,
        )
        self._dispatch = dispatcher(
            Table(ROUTER_RESOURCES, facts.base_path),
            {
                "PUT instances/{instance}/status": self._status,
                "POST events": self._event,
                "POST requests": self._submit,
                "GET requests/{id}": self._locate,
                "DELETE requests/{id}": self._withdraw,
                "POST requests/{id}/policy": self._policy,
            },
        )
        metrics.watch("sessions", lambda: self._living())
        metrics.watch("instances", lambda: sum(1 for _ in self._roster.alive(self._now_ms())))

    async def start(self, base_uri: str) -> None:
        """Begin to look after sessions: who has expired, which leases are due, what nobody will ask for any more.

        And take up those that an earlier life has left (D45).
        """
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._tend())]
        kept = self._facts.manifest
        if kept.keep:
            self._manifests = Manifests(self._cache, kept.name or base_uri, kept.take_over, kept.horizon_s)
            self._taking_up = TakingUp(
                self._manifests, self._equipment, self._facts.patience, self._hold, 1000 * self._facts.retention_s
            )
            self._tasks.append(loop.create_task(self._taking_up.all(kept.at_once)))

    async def handle(self, request: Request) -> Response:
        """Answer one request. Raises ProblemError."""
        return await self._dispatch(request)

    async def drain(self) -> None:
        """Take no new request; leave the sessions to their verifiers."""
        self._draining = True
        held = list(self._sessions.values())
        with suppress(TimeoutError):
            async with asyncio.timeout(self._facts.drain_s):
                await asyncio.gather(*(session.settled() for session in held))
        for session in held:
            session.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._cache.close()
        await self._client.close()

    # ---- instances (6.1, D7, D9) -------------------------------------------------------------------------------------

    async def _status(self, request: Request, parameters: Parameters) -> Response:
        status = await receive(request, Status, self._facts.body_bytes)
        if parameters["instance"] != status.instance:
            raise InvalidContent("The status is of another instance than its path says.")
        self._check_reporter(status, request.peer)
        if status.base is not None:  # one spelling, since nobody but us compares it (D9)
            status = replace(status, base=normalize_uri(status.base).rstrip("/"))
        entry = self._roster.report(status, self._now_ms())
        if entry.base is not None and status.role == VERIFIER:
            self._reported.set()
        return no_content()

    def _check_reporter(self, status: Status, peer: Peer) -> None:
        """A status comes from the instance itself: from the owner of its base URI, with the role it claims (D10)."""
        role = _ROLE_OF[status.role]
        if role not in peer.roles:
            raise Forbidden(f"A status with role {status.role} takes a certificate with the role {role}.")
        held = self._roster.base_in_use(status.instance, self._now_ms())
        for base in (self._roster.base_of(status), held):
            if base is not None and not peer.owns(base, self._facts.match_host):
                raise Forbidden(f"The certificate does not have {base}, the base URI of {status.instance}, as a SAN.")

    # ---- events (D17) ------------------------------------------------------------------------------------------------

    async def _event(self, request: Request, _: Parameters) -> Response:
        message = await receive(request, Event, self._facts.body_bytes)
        held = self._sessions.get(message.session)
        if held is None:
            if self._taking_up is not None and self._taking_up.under_way:
                raise Overloaded("This router has just begun and does not know all its sessions yet; say it again.")
            raise UnknownResource("This router has no such session.")
        machine = held.machine
        current = message.epoch >= machine.epoch and machine.ended is None
        owned = machine.verifier is not None and request.peer.owns(machine.verifier, self._facts.match_host)
        if current and not owned:
            raise Forbidden("Events of a session come from its verifier.")
        return _response(await held.ask(lambda number: EventReceived(number, message)))

    # ---- requests (D33) ----------------------------------------------------------------------------------------------

    async def _submit(self, request: Request, _: Parameters) -> Response:
        message = await receive(request, GenerationRequest, self._facts.body_bytes)
        held = await self._known(message.request, anew=True)
        if held is None:
            held = await self._admit(message, request.peer)
        elif held.owner != request.peer.name or held.request != message:
            raise Conflict("There is another request with this identifier.")
        return _response(await held.ask(RequestSubmitted))

    async def _locate(self, request: Request, parameters: Parameters) -> Response:
        held = await self._owned(request, parameters)
        epoch = _epoch(request.parameter("epoch"))
        longest_ms = wait_ms(request.headers.get("prefer"), LOCATION_WAIT_MS)
        return _response(await held.ask(lambda number: LocationRequested(number, epoch, longest_ms)))

    async def _withdraw(self, request: Request, parameters: Parameters) -> Response:
        held = await self._owned(request, parameters)
        return _response(await held.ask(RequestWithdrawn))

    async def _policy(self, request: Request, parameters: Parameters) -> Response:
        held = await self._owned(request, parameters)
        message = await receive(request, ProfileChange, self._facts.body_bytes)
        given = await held.ask(lambda number: ProfileChanged(number, message.sampling, message.from_round))
        return _response(given)

    async def _owned(self, request: Request, parameters: Parameters) -> RoutingSession:
        """The request of that identifier, if it is this client's: nobody learns of another's (D33)."""
        identifier = parameters["id"]
        held = await self._known(identifier) if isinstance(identifier, bytes) else None
        if held is None or held.owner != request.peer.name:
            raise UnknownResource("There is no such request here.")
        return held

    async def _known(self, identifier: bytes, *, anew: bool = False) -> RoutingSession | None:
        """The request of that identifier, found in the cache if need be (D45). Raises Overloaded.

        `anew`: it is submitted. Then it need not be looked for once everything was taken up, unless we have lost it.
        """
        held = self._requests.get(identifier)
        if self._taking_up is None or (held is not None and not held.lost):
            return held
        if anew and held is None and not self._taking_up.under_way:
            return None
        try:
            return await self._taking_up.one(identifier)
        except StoreUnavailableError:
            raise Overloaded("The cache cannot tell now whether this request is known; ask again.") from None

    def _hold(self, held: RoutingSession) -> RoutingSession:
        """Look after a session from now on; return it, or the one of that request that we have already."""
        before = self._requests.get(held.request.request)
        if before is not None and not before.lost:
            return before
        if before is not None:
            del self._sessions[before.machine.session]
        self._requests[held.request.request] = self._sessions[held.machine.session] = held
        return held

    async def _admit(self, message: GenerationRequest, client: Peer) -> RoutingSession:
        if self._draining:
            raise Overloaded("This router is going down; ask another.")
        if self._living() >= self._facts.sessions:
            raise Overloaded(f"This router looks after {self._living()} sessions and takes no more.")
        target, tokenizer = await self._model(message)
        contract = self._contract(message, target, tokenizer)
        try:
            machine = self._machine(message, client, contract)
        except ValueError as fault:  # D5
            raise InvalidContent(f"The prompt cannot be served: {fault}.") from None
        return self._hold(RoutingSession(message, client.name, machine, self._equipment))  # if no repeat was quicker

    def _machine(self, message: GenerationRequest, client: Peer, contract: Contract) -> RouterSession | KeptSession:
        """A new session, with a manifest if it is to have one. ValueError for a prompt that no session can have."""
        session, kept = secrets.token_bytes(16), self._manifests
        if kept is None:
            log = self._cache.ref_of("logs", f"{encode_id(session)}-{secrets.token_hex(16)}")
            return RouterSession(session, contract, message.prompt, log, self._facts.patience)
        log, manifest = kept.new(message.request)
        machine = RouterSession(session, contract, message.prompt, log, self._facts.patience)
        first = RequestRecord(
            router=kept.name,
            life=kept.life,
            owner=client.name,
            session=session,
            contract=contract,
            commit_log=log,
            request=message,
            prompt_length=len(message.prompt),
        )
        return KeptSession(machine, ManifestLog(manifest), request_records(first))

    async def _model(self, message: GenerationRequest) -> tuple[bytes, bytes]:
        """The target and tokenizer digests of the contract. Waits for a verifier a while. Raises Overloaded."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._facts.patience.verifier_wait_ms / 1000):
                while not (models := self._models(message)):
                    self._reported.clear()
                    await self._reported.wait()
                if len(models) > 1:
                    raise InvalidContent("The verifiers serve several models; name one with `target`.")
                return models.pop()
        raise Overloaded("No verifier of such a model has reported to this router; try again later.")

    def _models(self, message: GenerationRequest) -> set[tuple[bytes, bytes]]:
        return {
            (entry.model, entry.tokenizer)
            for entry in self._roster.alive(self._now_ms())
            if entry.status.role == VERIFIER
            and entry.model is not None
            and entry.tokenizer is not None
            and message.target in (None, entry.model)
            and message.tokenizer in (None, entry.tokenizer)
        }

    def _contract(self, message: GenerationRequest, target: bytes, tokenizer: bytes) -> Contract:
        """What the front end asks for, within what the operator of the router wants (4.1)."""
        defaults = self._facts.contract
        return Contract(
            target=target,
            tokenizer=tokenizer,
            rule=message.rule,
            sampling=message.sampling,
            m_max=defaults.m_max,
            max_new=message.max_new,
            stop=message.stop,
            low_rounds=defaults.low_rounds,
            low_ratio=defaults.low_ratio,
            fallback=_ladder(defaults, message.max_new),
            self_load=defaults.self_load,
            self_max=defaults.self_max,
        )

    # ---- looking after sessions --------------------------------------------------------------------------------------

    async def _tend(self) -> None:
        renewed_ms = self._now_ms()
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                self.sweep()
                if self._now_ms() - renewed_ms >= RENEW_MS:
                    renewed_ms = self._now_ms()
                    await asyncio.gather(*(session.renew() for session in self._sessions.values()))
            except Exception as fault:  # a bug of ours; the next turn may go better
                self._report("looking after the sessions failed", fault)

    def sweep(self) -> None:
        """Fail over what has lost its verifier or drafter (6.9), forget what has ended long ago."""
        for lost in self._roster.lost(self._now_ms()):
            for session in list(self._sessions.values()):
                machine = session.machine
                if lost.role == VERIFIER and machine.verifier == lost.base:
                    session.tell(VerifierLost())
                elif lost.role == DRAFTER and machine.drafter == lost.base:
                    session.tell(DrafterLost())
        horizon_ms = self._now_ms() - 1000 * self._facts.retention_s
        old = [each for each in self._sessions.values() if each.ended_ms is not None and each.ended_ms <= horizon_ms]
        for session in old:
            session.close()
            del self._sessions[session.machine.session], self._requests[session.request.request]

    def _living(self) -> int:
        return sum(session.ended_ms is None for session in self._sessions.values())


def _ladder(defaults: ContractDefaults, max_new: int) -> tuple[Action, ...]:
    """The operator's ladder, and after it self_decode and switch in turn for as long as the request can last (D36).

    An entry is applied after `low_rounds` rounds at the soonest, each of at least one token; of two entries in turn at
    most one is skipped.
    """
    ladder = tuple(Action[name.upper()] for name in defaults.fallback)
    if Action.FAIL in ladder:
        return ladder
    turns = min(max_new // defaults.low_rounds + 1, MOST_TURNS)
    return ladder + (Action.SELF_DECODE, Action.SWITCH) * turns


def _response(given: Reply | Refuse) -> Response:
    if isinstance(given, Refuse):
        raise given.error
    return no_content() if given.message is None else answer(given.message)


def _epoch(value: str | None) -> int | None:
    """Read `epoch` (D33). Raises MalformedBody."""
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal()) or len(value) > 20 or int(value) > U64_MAX:
        raise MalformedBody(f"epoch={value} is not a decimal epoch.")
    return int(value)


def _known(instance: Instance) -> tuple[str, Known]:
    """An inventory entry (D7). Raises ConfigurationError."""
    try:
        base = normalize_uri(instance.base).rstrip("/")
        model, tokenizer = bytes.fromhex(instance.model), bytes.fromhex(instance.tokenizer)
    except ValueError as fault:
        raise ConfigurationError(f"[[instances]] {instance.instance}: {fault}") from None
    if len(model) != 32 or len(tokenizer) != 32:
        raise ConfigurationError(f"[[instances]] {instance.instance}: model and tokenizer are SHA-256 in hex")
    return instance.instance, Known(base, model, tokenizer)
