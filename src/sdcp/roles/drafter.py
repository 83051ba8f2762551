"""`sdcp drafter`: takes assignments from routers, drafts, proposes to verifiers, and reports its status (6.1, 6.2).

A process holds at most `[limits] sessions` of them; beyond that an assignment is answered 503, and so while it drains.
A drain lets every outstanding proposal get its verdict, begins nothing, and tells the routers at once that nothing is
to be had here (load 100), at the end that nobody is here any more (a ttl that is over).

Not here: the protocol (`sdcp.machines.drafter`), one session's I/O (`sdcp.roles.drafting`), models (`sdcp.engines`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from sdcp.engines.registry import load_drafter
from sdcp.engines.worker import DraftWorker
from sdcp.errors import InvalidContent, Overloaded
from sdcp.http.client import Client
from sdcp.http.dispatch import dispatcher, no_content, receive
from sdcp.http.exchange import Request, Response
from sdcp.http.identity import normalize_uri
from sdcp.http.resources import DRAFTER_RESOURCES, Parameters, Table
from sdcp.machines.drafter import DrafterSession
from sdcp.machines.drafter_joining import DraftModel
from sdcp.machines.drafter_rounds import Patience
from sdcp.machines.effects import Refuse
from sdcp.messages.round import Assignment
from sdcp.messages.status import DRAFTER, Status
from sdcp.ports import Cache, Drafter
from sdcp.roles.artifacts import Artifacts
from sdcp.roles.caching import open_caches
from sdcp.roles.config import DrafterSettings
from sdcp.roles.drafting import DraftingSession, Equipment
from sdcp.roles.peers import Peers
from sdcp.roles.process import Context
from sdcp.roles.reporting import StatusReporter
from sdcp.roles.telemetry import Metrics

_ACCEPT_WEIGHT = 0.1
_GONE_MS = 1


async def make(context: Context[DrafterSettings]) -> DrafterRole:
    """Open the caches and load the model of the settings. Raises ConfigurationError."""
    settings = context.settings
    model = settings.model
    client = context.client()
    cache = await open_caches(settings.cache, settings, client)
    drafter = load_drafter(model.engine, model.path, model.tokenizer, **model.options())
    return DrafterRole(
        drafter,
        client,
        cache,
        DrafterFacts(
            routers=settings.routers.base_uris,
            sessions=settings.limits.sessions,
            proposal_s=settings.limits.proposal_ms / 1000,
            drain_s=settings.limits.drain_s,
            ttl_ms=settings.limits.status_ttl_ms,
            body_bytes=settings.limits.body_bytes,
            base_path=urlsplit(settings.server.base_uri or "").path,
        ),
        context.metrics,
        context.report,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterFacts:
    """The settings of a drafter, as plain values; names and units as in `sdcp.roles.config`."""

    routers: tuple[str, ...] = ()
    sessions: int = 256
    proposal_s: float = 60.0
    drain_s: float = 20.0
    ttl_ms: int = 3000
    body_bytes: int = 16 << 20
    base_path: str = ""
    patience: Patience = field(default_factory=Patience)


class DrafterRole:
    """The role: `start`, `handle`, `drain` (`sdcp.roles.process.Role`). Closes `client` when it has drained."""

    def __init__(
        self,
        drafter: Drafter,
        client: Client,
        cache: Cache,
        facts: DrafterFacts,
        metrics: Metrics,
        report: Callable[[str, BaseException], None],
    ) -> None:
        self._drafter = drafter
        self._client = client
        self._facts = facts
        self._model = DraftModel(
            model=drafter.model, tokenizer=drafter.tokenizer, width=drafter.vocabulary, context=drafter.context
        )
        self._worker = DraftWorker(drafter)
        self._cache = cache
        self._artifacts = Artifacts(cache)
        self._peers = Peers(client)
        self._metrics = metrics
        self._base_uri = ""
        self._accept: float | None = None
        self._draining = False
        self._sessions: dict[bytes, DraftingSession] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._reporter = StatusReporter(self._peers, facts.routers, self._report_status)
        self._dispatch = dispatcher(Table(DRAFTER_RESOURCES, facts.base_path), {"POST assignments": self._assign})
        self._equipment = Equipment(
            worker=self._worker,
            cache=cache,
            artifacts=self._artifacts,
            peers=self._peers,
            metrics=metrics,
            status=self.status,
            judged=self._judged,
            proposal_s=facts.proposal_s,
            report=report,
        )
        metrics.watch("sessions", lambda: len(self._sessions))
        metrics.watch("rounds_with_rows", lambda: len(self._artifacts))
        metrics.watch("queue", lambda: self._queue())

    async def start(self, base_uri: str) -> None:
        """Peers know us as `base_uri`: begin to report status, and to renew leases."""
        self._base_uri = base_uri
        self._artifacts.start()
        self._reporter.start()

    async def handle(self, request: Request) -> Response:
        """Answer one request. Raises ProblemError."""
        return await self._dispatch(request)

    async def drain(self) -> None:
        """Refuse what is new, wait for the verdicts of what is proposed, release everything, say goodbye."""
        self._draining = True
        await self._reporter.stop()
        await self._reporter.report()
        for session in tuple(self._sessions.values()):
            session.stop()
        try:
            async with asyncio.timeout(self._facts.drain_s):
                await self._idle.wait()
        except TimeoutError:
            for session in tuple(self._sessions.values()):
                session.end()
        await self._artifacts.stop()
        await self._worker.stop()
        await StatusReporter(self._peers, self._facts.routers, self._last_status).report()
        await self._cache.close()
        await self._client.close()

    def status(self) -> Status:
        """What a proposal carries: how it stands here right now."""
        full = self._draining or len(self._sessions) >= self._facts.sessions
        return Status(
            instance=self._base_uri,
            role=DRAFTER,
            load=100 if full else self._worker.load(),
            queue=self._queue(),
            accept_milli=None if self._accept is None else round(1000 * self._accept),
            cache_mbps=self._artifacts.mbps,
            ttl_ms=self._facts.ttl_ms,
        )

    def _report_status(self) -> Status:
        """What routers get: with it, who we are (D7)."""
        return replace(self.status(), base=self._base_uri, model=self._drafter.model, tokenizer=self._drafter.tokenizer)

    def _last_status(self) -> Status:
        return replace(self._report_status(), ttl_ms=_GONE_MS)

    def _queue(self) -> int:
        return int(self._worker.snapshot()["rounds_waiting"])

    def _judged(self, accepted: int, proposed: int) -> None:
        """A verdict came for one of the sessions: a/M into the average that routers see (5.2)."""
        ratio = min(accepted, proposed) / proposed
        self._accept = ratio if self._accept is None else self._accept + _ACCEPT_WEIGHT * (ratio - self._accept)
        self._metrics.count("rounds")
        self._metrics.count("proposed", proposed)
        self._metrics.count("accepted", min(accepted, proposed))

    # -- assignments --------------------------------------------------------------------------------------------------

    async def _assign(self, request: Request, _: Parameters) -> Response:
        message = await receive(request, Assignment, self._facts.body_bytes)
        self._check_addresses(message)
        session = self._session(message.session)
        try:
            answer = await session.assign(message)
        finally:
            if session.machine.epoch is None and self._sessions.get(message.session) is session:
                session.end()
        if isinstance(answer, Refuse):
            raise answer.error
        return no_content()

    def _check_addresses(self, message: Assignment) -> None:
        """The assignment is for us (D9), and its verifier can be reached at all (5.1)."""
        if _normal(message.drafter) != _normal(self._base_uri):
            raise InvalidContent(f"The assignment is for the drafter {message.drafter}; this one is {self._base_uri}.")
        if not (_normal(message.verifier) or "").startswith("https://"):
            raise InvalidContent(f"The verifier {message.verifier} is not an https URI.")

    def _session(self, session: bytes) -> DraftingSession:
        held = self._sessions.get(session)
        if held is not None:
            return held
        if self._draining:
            raise Overloaded("This drafter is going down; assign another.")
        if len(self._sessions) >= self._facts.sessions:
            raise Overloaded(f"This drafter holds {len(self._sessions)} sessions and takes no more; assign another.")
        held = DraftingSession(session, DrafterSession(self._model, self._facts.patience), self._equipment, self._ended)
        self._sessions[session] = held
        self._idle.clear()
        return held

    def _ended(self, session: DraftingSession) -> None:
        if self._sessions.get(session.session) is session:
            del self._sessions[session.session]
        if not self._sessions:
            self._idle.set()


def _normal(uri: str) -> str | None:
    try:
        return normalize_uri(uri).rstrip("/")
    except ValueError:
        return None
