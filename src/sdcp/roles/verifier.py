"""`sdcp verifier`: opens sessions, verifies and commits, delivers output, reports its status (Table 1, 6.1, 6.3, 6.7).

Who may ask (D9, D10), admission, retention of ended sessions (D8), and the end of the process are decided here. A drain
opens no session, lets every round that is under way commit and be answered (D27), begins none, and then tells the
routers that nobody is here any more.

Not here: the protocol (`sdcp.machines.verifier`), one session's I/O (`sdcp.roles.verifying`), models (`sdcp.engines`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from sdcp.engines.registry import load_target
from sdcp.engines.worker import Worker
from sdcp.errors import ConfigurationError, InvalidContent, MalformedBody, Overloaded, ProblemError
from sdcp.http.client import Client
from sdcp.http.dispatch import answer, dispatcher, receive
from sdcp.http.exchange import Request, Response
from sdcp.http.identity import FRONT_END, ROUTER, Peer
from sdcp.http.problems import problem_response
from sdcp.http.resources import VERIFIER_RESOURCES, Parameters, Table
from sdcp.machines.control import Busy
from sdcp.machines.effects import Refuse, Reply
from sdcp.machines.inputs import DrafterAssigned, OpenReceived, OutputRequested, PolicyReceived, ProposalReceived
from sdcp.machines.verifier import VerifierSession
from sdcp.machines.verifier_open import TargetFacts
from sdcp.messages.fields import U64_MAX
from sdcp.messages.round import Assignment, Proposal
from sdcp.messages.session import Policy, SessionOpen
from sdcp.messages.status import VERIFIER, Status
from sdcp.ports import Cache, Target
from sdcp.roles.caching import open_caches
from sdcp.roles.config import Kv, VerifierSettings
from sdcp.roles.kv import KvExchange, KvPolicy
from sdcp.roles.peers import Peers
from sdcp.roles.prefer import wait_ms
from sdcp.roles.process import Context
from sdcp.roles.reporting import StatusReporter
from sdcp.roles.sessions import Sessions
from sdcp.roles.telemetry import Metrics
from sdcp.roles.verifying import Equipment, VerifyingSession
from sdcp.wire.kv_object import LEAST_KEY

_GONE_MS = 1
_EVENT_GRACE_S = 2.0
"""Of a drain, for events that no router has taken yet: one that fails over reads the log anyway."""


async def make(context: Context[VerifierSettings]) -> VerifierRole:
    """Open the caches and load the model of the settings. Raises ConfigurationError."""
    settings = context.settings
    model, limits = settings.model, settings.limits
    kv = _kv_policy(settings.kv)
    client = context.client()  # all of this before the model, which may take minutes
    cache = await open_caches(settings.cache, settings, client)
    kv_cache = None if kv is None else await open_caches(settings.cache, settings, client, deadline_s=kv.deadline_s)
    target = load_target(model.engine, model.path, model.tokenizer, **model.options())
    if kv is not None and target.kv_layout is None:
        raise ConfigurationError(f"[kv] group_key: the engine {model.engine} has no KV to share; remove the section")
    return VerifierRole(
        target,
        client,
        cache,
        VerifierFacts(
            routers=settings.routers.base_uris,
            sessions=limits.sessions,
            wait_ms=limits.wait_ms,
            retention_s=limits.retention_s,
            idle_s=limits.idle_s,
            busy_load=limits.busy_load,
            busy_cap=limits.busy_cap,
            fetch_s=limits.fetch_ms / 1000,
            drain_s=limits.drain_s,
            ttl_ms=limits.status_ttl_ms,
            body_bytes=limits.body_bytes,
            match_host=settings.tls.match_host,
            base_path=urlsplit(settings.server.base_uri or "").path,
            kv=kv,
        ),
        context.metrics,
        context.report,
        kv_cache=kv_cache,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierFacts:
    """The settings of a verifier, as plain values; names and units as in `sdcp.roles.config`.

    `kv`: None unless KV is published and loaded (D44), which takes a target with a `kv_layout`.
    """

    routers: tuple[str, ...] = ()
    sessions: int = 256
    wait_ms: int = 25_000
    retention_s: float = 600.0
    idle_s: float = 600.0
    busy_load: int = 90
    busy_cap: int = 4
    fetch_s: float = 5.0
    drain_s: float = 20.0
    ttl_ms: int = 3000
    body_bytes: int = 16 << 20
    match_host: bool = False
    base_path: str = ""
    kv: KvPolicy | None = None


@dataclass(frozen=True, slots=True)
class _Identity:
    """The client of a request, as machines see it (D9)."""

    peer: Peer
    match_host: bool

    def owns(self, base_uri: str) -> bool:
        return self.peer.owns(base_uri, self.match_host)


class VerifierRole:
    """The role: `start`, `handle`, `drain` (`sdcp.roles.process.Role`). Closes `client` when it has drained."""

    def __init__(
        self,
        target: Target,
        client: Client,
        cache: Cache,
        facts: VerifierFacts,
        metrics: Metrics,
        report: Callable[[str, BaseException], None],
        *,
        kv_cache: Cache | None = None,
    ) -> None:
        """`kv_cache`: the same cache with a deadline fit for KV, closed by `drain`; None: `cache` has one."""
        self._target = target
        self._client = client
        self._cache = cache
        self._facts = facts
        self._metrics = metrics
        self._target_facts = TargetFacts(
            model=target.model, tokenizer=target.tokenizer, vocabulary=target.vocabulary, context=target.context
        )
        self._most_sessions = min(facts.sessions, target.capacity)
        self._worker = Worker(target)
        self._peers = Peers(client)
        self._sessions = Sessions(facts.retention_s, facts.idle_s)
        self._base_uri = ""
        self._draining = False
        self._reporter = StatusReporter(self._peers, facts.routers, self.status)
        self._kv_cache = kv_cache
        self._kv = None if facts.kv is None else KvExchange(self._worker, kv_cache or cache, metrics, facts.kv, report)
        self._equipment = Equipment(
            worker=self._worker,
            cache=cache,
            peers=self._peers,
            metrics=metrics,
            fetch_s=facts.fetch_s,
            report=report,
            kv=self._kv,
        )
        self._dispatch = dispatcher(
            Table(VERIFIER_RESOURCES, facts.base_path),
            {
                "POST sessions": self._open,
                "PUT sessions/{id}/drafter": self._assign,
                "POST proposals": self._propose,
                "GET sessions/{id}/output": self._output,
                "POST sessions/{id}/policy": self._policy,
            },
        )
        metrics.watch("sessions", lambda: self._sessions.live)
        metrics.watch("load", self._worker.load)
        metrics.watch("queue", self._queue)

    async def start(self, base_uri: str) -> None:
        """Peers know us as `base_uri`: begin to report status."""
        self._base_uri = base_uri
        self._reporter.start()
        if self._kv is not None:
            self._kv.start()

    async def handle(self, request: Request) -> Response:
        """Answer one request. Raises ProblemError. Refusals are counted by type, outside Table 2 by status."""
        try:
            return await self._dispatch(request)
        except ProblemError as refusal:
            self._refused(refusal)
            raise

    async def drain(self) -> None:
        """Open nothing, let what is under way commit and be answered, say goodbye."""
        self._draining = True
        await self._reporter.stop()
        await self._reporter.report()
        held = list(self._sessions)
        for session in held:
            session.stop()
        await _within(self._facts.drain_s, (session.finished() for session in held))
        await _within(min(_EVENT_GRACE_S, self._facts.drain_s), (session.settled() for session in held))
        for session in held:
            session.close()
        if self._kv is not None:
            await self._kv.stop()
        if self._kv_cache is not None:
            await self._kv_cache.close()
        await self._worker.stop()
        await StatusReporter(self._peers, self._facts.routers, self._last_status).report()
        await self._cache.close()
        await self._client.close()

    def status(self) -> Status:
        """What routers get: how it stands here, and who we are (D7)."""
        full = self._draining or self._sessions.live >= self._most_sessions
        return Status(
            instance=self._base_uri,
            role=VERIFIER,
            load=100 if full else self._worker.load(),
            queue=self._queue(),
            ttl_ms=self._facts.ttl_ms,
            base=self._base_uri,
            model=self._target.model,
            tokenizer=self._target.tokenizer,
        )

    def _last_status(self) -> Status:
        return replace(self.status(), ttl_ms=_GONE_MS)

    def _refused(self, error: ProblemError) -> None:
        self._metrics.count(f"refused_{error.suffix or error.status}")

    def _queue(self) -> int:
        return int(self._worker.snapshot()["rounds_waiting"])

    # ---- requests ----------------------------------------------------------------------------------------------------

    async def _open(self, request: Request, _: Parameters) -> Response:
        message = await receive(request, SessionOpen, self._facts.body_bytes)
        held = self._sessions.opening(message.session, message.epoch) or self._admit(message, request.peer)
        return self._response(await held.ask(lambda number: OpenReceived(number, message)))

    async def _assign(self, request: Request, parameters: Parameters) -> Response:
        held = self._sessions.serving(_id(parameters))
        message = await receive(request, Assignment, self._facts.body_bytes)
        _check_same(message.session, held)
        return self._response(await held.ask(lambda number: DrafterAssigned(number, message)))

    async def _propose(self, request: Request, _: Parameters) -> Response:
        message = await receive(request, Proposal, self._facts.body_bytes)
        held, client = self._sessions.serving(message.session), self._identity(request)
        return self._response(await held.ask(lambda number: ProposalReceived(number, message, client)))

    async def _policy(self, request: Request, parameters: Parameters) -> Response:
        held = self._sessions.serving(_id(parameters))
        message = await receive(request, Policy, self._facts.body_bytes)
        _check_same(message.session, held)
        return self._response(await held.ask(lambda number: PolicyReceived(number, message)))

    async def _output(self, request: Request, parameters: Parameters) -> Response:
        held = self._sessions.serving(_id(parameters))
        start = _start(request.parameter("from"))
        longest_ms = wait_ms(request.headers.get("prefer"), self._facts.wait_ms)
        # Routers and front ends may read by their role; a drafter must be the one assigned (D9a, D10).
        client = None if request.peer.roles & {ROUTER, FRONT_END} else self._identity(request)
        return self._response(await held.ask(lambda number: OutputRequested(number, start, longest_ms, client)))

    def _identity(self, request: Request) -> _Identity:
        return _Identity(request.peer, self._facts.match_host)

    def _response(self, given: Reply | Refuse) -> Response:
        if isinstance(given, Refuse):
            self._refused(given.error)
            return problem_response(given.error, None if given.state is None else given.state.to_plain())
        if given.message is None:
            raise TypeError("a verifier answers every request with a message")
        return answer(given.message)

    # ---- sessions ----------------------------------------------------------------------------------------------------

    def _admit(self, message: SessionOpen, router: Peer) -> VerifyingSession:
        """Make room for a session that is not here under this epoch. Raises Overloaded or InvalidContent."""
        if self._draining:
            raise Overloaded("This verifier is going down; open the session at another one.")
        if message.session not in self._sessions and self._sessions.live >= self._most_sessions:
            raise Overloaded(f"This verifier serves {self._sessions.live} sessions and takes no more.")
        if not self._cache.allows_log(message.commit_log):
            raise InvalidContent(f"{message.commit_log} is no log under a cache prefix that is configured here.")  # D11
        machine = VerifierSession(
            self._target_facts,
            Busy(self._facts.busy_load, self._facts.busy_cap),
            enforces_fences=self._cache.enforces_fences(message.commit_log),
            kv_interval=0 if self._facts.kv is None else self._facts.kv.interval,
        )
        its_router = sorted(self._facts.routers, key=lambda uri: not router.owns(uri, self._facts.match_host))
        held = VerifyingSession(message.session, message.epoch, machine, self._equipment, its_router, self._sessions)
        self._sessions.add(held)
        return held


def _kv_policy(settings: Kv) -> KvPolicy | None:
    """Read the group's key. Raises ConfigurationError."""
    path = settings.group_key
    if path is None:
        return None
    try:
        key = path.read_bytes()
    except OSError as fault:
        raise ConfigurationError(f"[kv] group_key: {path}: cannot be read: {fault.strerror or fault}") from None
    if len(key) < LEAST_KEY:
        raise ConfigurationError(
            f"[kv] group_key: {path}: holds {len(key)} octets; it takes at least {LEAST_KEY} random ones, e.g. "
            f"`head -c {LEAST_KEY} /dev/urandom`"
        )
    return KvPolicy(
        key=key,
        interval=settings.interval,
        prompt_min=settings.prompt_min,
        deadline_s=settings.object_ms / 1000,
        object_bytes=settings.object_bytes,
    )


def _id(parameters: Parameters) -> bytes:
    identifier = parameters["id"]
    if not isinstance(identifier, bytes):
        raise TypeError("{id} is octets")
    return identifier


def _check_same(session: bytes, held: VerifyingSession) -> None:
    if session != held.session:
        raise InvalidContent("The message is for another session than its path.")


def _start(value: str | None) -> int:
    """Read `from`: an output index, 0 when absent (D8). Raises MalformedBody."""
    if value is None:
        return 0
    if not (value.isascii() and value.isdecimal()) or len(value) > 20 or int(value) > U64_MAX:
        raise MalformedBody(f"from={value} is not a decimal output index.")
    return int(value)


async def _within(seconds: float, waits: Iterable[object]) -> None:
    """Wait for all of them, but no longer than that."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*waits)  # type: ignore[call-overload]
