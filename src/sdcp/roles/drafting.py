"""One session at a drafter: its machine, its driver, and how the machine's effects are carried out (6.2).

Not here: the sessions together, status and the end of the process (`sdcp.roles.drafter`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter

from sdcp.engines.rounds import certain
from sdcp.engines.worker import DraftWorker
from sdcp.errors import ProblemError
from sdcp.http.identity import VERIFIER
from sdcp.http.resources import url
from sdcp.machines.drafter import DrafterSession
from sdcp.machines.effects import (
    Draft,
    EndSession,
    FetchOutput,
    FetchTokens,
    Refuse,
    ReleaseRows,
    Reply,
    SendProposal,
    WriteRows,
)
from sdcp.machines.inputs import (
    AssignmentReceived,
    Drafted,
    DraftFailed,
    OutputFetched,
    OutputUnavailable,
    ProposalRefused,
    ProposalUnanswered,
    RowsWritten,
    StopRequested,
    VerdictReceived,
)
from sdcp.messages.output import Output
from sdcp.messages.round import Assignment, Verdict
from sdcp.messages.status import Status
from sdcp.ports import Cache, DraftJob, DraftResult
from sdcp.roles.artifacts import CACHE_FAULTS, Artifacts
from sdcp.roles.drive import Driver
from sdcp.roles.objects import fetch_tokens
from sdcp.roles.peers import Peers, RefusedError, UnansweredError
from sdcp.roles.telemetry import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """What the sessions of a drafter share.

    `judged(a, M)` is told of every verdict. `proposal_s`: how long one wait for a verdict lasts before it is repeated.
    `report` takes faults of ours.
    """

    worker: DraftWorker
    cache: Cache
    artifacts: Artifacts
    peers: Peers
    metrics: Metrics
    status: Callable[[], Status]
    judged: Callable[[int, int], None]
    proposal_s: float
    report: Callable[[str, BaseException], None]


class DraftingSession:
    """A session that this drafter holds or is being asked to hold. `ended(self)` is called once, at its end."""

    def __init__(
        self, session: bytes, machine: DrafterSession, equipment: Equipment, ended: Callable[[DraftingSession], None]
    ) -> None:
        self.session = session
        self.machine = machine
        self._equipment = equipment
        self._ended = ended
        self._driver = Driver(
            machine,
            {
                FetchTokens: partial(fetch_tokens, equipment.cache),
                FetchOutput: self._fetch_output,
                Draft: self._draft,
                WriteRows: self._write_rows,
                ReleaseRows: self._release_rows,
                SendProposal: self._send_proposal,
                EndSession: self._end_session,
            },
            self._broken,
        )

    async def assign(self, message: Assignment) -> Reply | Refuse:
        """Hand in an assignment and wait for the answer."""
        return await self._driver.ask(lambda request: AssignmentReceived(request, message))

    def stop(self) -> None:
        """Finish what is proposed, begin nothing else."""
        self._driver.handle(StopRequested())

    def end(self) -> None:
        """Leave everything as it is: the wait for a verdict ends too, and what was asked is not heard any more."""
        self._driver.close()
        self._equipment.artifacts.release_all(self.session)
        self._equipment.worker.close(self.session)
        self._ended(self)

    # -- performers ---------------------------------------------------------------------------------------------------

    async def _draft(self, effect: Draft) -> Drafted | DraftFailed:
        equipment = self._equipment
        job = DraftJob(self.session, effect.prefix, effect.length, effect.count, effect.rule, effect.profile)
        try:
            with equipment.metrics.time("draft"):
                result, token_ms = await equipment.worker.draft(job)
        except ProblemError as fault:
            return DraftFailed(effect.round, fault.detail)
        except Exception as fault:
            equipment.report("the engine could not draft", fault)
            return DraftFailed(effect.round, "the engine could not draft")
        result = _at_least_one(result, job, equipment.worker.drafter.vocabulary)
        if result.rows is not None and effect.rule == 2:
            equipment.artifacts.hold(self.session, effect.round, result.rows)
        return Drafted(effect.round, result.tokens, token_ms)

    async def _write_rows(self, effect: WriteRows) -> RowsWritten | DraftFailed:
        equipment, began = self._equipment, perf_counter()
        try:
            with equipment.metrics.time("write"):
                ref = await equipment.artifacts.write(self.session, effect.round, effect.count)
        except CACHE_FAULTS as fault:
            return DraftFailed(effect.round, f"rows cannot be written now: {fault}")
        return RowsWritten(effect.round, ref, 1000 * (perf_counter() - began))

    def _release_rows(self, effect: ReleaseRows) -> None:
        self._equipment.artifacts.release(self.session, effect.round)

    async def _send_proposal(self, effect: SendProposal) -> VerdictReceived | ProposalRefused | ProposalUnanswered:
        equipment, began = self._equipment, perf_counter()
        message = replace(effect.message, status=equipment.status())
        target = url(effect.verifier, "proposals")
        try:
            with equipment.metrics.time("verdict"):
                verdict = await equipment.peers.ask(
                    "POST", target, Verdict, message, role=VERIFIER, deadline_s=equipment.proposal_s
                )
        except RefusedError as refusal:
            equipment.metrics.count(f"refused_{refusal.error.suffix or refusal.error.status}")
            return ProposalRefused(message.round, refusal.error, refusal.last_round)
        except UnansweredError:
            equipment.metrics.count("unanswered")
            return ProposalUnanswered(message.round)
        equipment.judged(verdict.accepted, len(message.tokens))
        return VerdictReceived(verdict, 1000 * (perf_counter() - began))

    async def _fetch_output(self, effect: FetchOutput) -> OutputFetched | OutputUnavailable:
        target = url(effect.verifier, "sessions/{id}/output", effect.session)
        try:
            output = await self._equipment.peers.ask(
                "GET", f"{target}?from={effect.start}", Output, role=VERIFIER, headers=(("prefer", "wait=0"),)
            )
        except RefusedError as refusal:
            return OutputUnavailable(refusal.error)
        except UnansweredError:
            return OutputUnavailable(None)
        return OutputFetched(output.from_, output.tokens, output.epoch, output.final)

    def _end_session(self, _: EndSession) -> None:
        self.end()

    def _broken(self, fault: BaseException) -> None:
        """A bug of ours: this session is lost, the others are not."""
        self._equipment.report("a drafter session broke and was given up", fault)
        self.end()


def _at_least_one(result: DraftResult, job: DraftJob, vocabulary: int) -> DraftResult:
    """A proposal needs a token (5.2): where nothing can be drafted it is token 0, certain before any draw (D31)."""
    if result.tokens:
        return result
    return certain((0,), job.rule, vocabulary)
