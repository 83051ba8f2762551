"""The rounds of one drafter in one session and epoch: draft, write rows, propose, learn from the verdict (6.2).

Words: at any moment one effect is *awaited*, and that is the phase: no two proposals are outstanding at once (6.2).
An effect that failed for the moment is carried out *again*, unchanged, after a delay that doubles: the same proposal,
the same tokens and rows (6.9 Lost messages, D31).

The prefix grows by what verdicts emitted, never by our own tokens, and only when the digest agrees; where it does not,
and where the verifier says that we are behind, the committed output is fetched anew (D9a).

Stricter than the draft: a drafter that gets nowhere gives the session up (EndSession) instead of trying for ever; a new
assignment takes it up again.

The draft lets a drafter prepare its next proposal while it waits for the verdict (6.2, MAY). This one does not: engines
keep the KV of a prefix because it only grows, and their free time belongs to the other sessions of the instance.

Not here: assignments (`sdcp.machines.drafter`) and choosing M (`sdcp.machines.drafter_estimate`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from sdcp.errors import BadProposal, Limit, ProblemError, QUnavailable, StaleBase
from sdcp.machines.drafter_estimate import Estimate
from sdcp.machines.drafter_prefix import Prefix
from sdcp.machines.effects import (
    Abandon,
    CancelTimer,
    Draft,
    EndSession,
    FetchOutput,
    ReleaseRows,
    SendProposal,
    SetTimer,
    WriteRows,
)
from sdcp.machines.inputs import (
    Drafted,
    DraftFailed,
    OutputFetched,
    OutputUnavailable,
    ProposalRefused,
    ProposalUnanswered,
    RowsWritten,
    StopRequested,
    TimerFired,
    VerdictReceived,
)
from sdcp.messages.contract import Action, Sampling
from sdcp.messages.round import Assignment, Proposal, Verdict
from sdcp.messages.status import DRAFTER, Status
from sdcp.rules.draws import LAST_ROUND

Effects: TypeAlias = list[Any]
Awaited: TypeAlias = Draft | WriteRows | SendProposal | FetchOutput
A = TypeVar("A", Draft, WriteRows, SendProposal, FetchOutput)

AGAIN = "again"
"""The only timer: carry out the awaited effect once more."""

GOES_ON = (Action.CONTINUE, Action.REDUCE)
PASSING = (408, 425, 429)
"""Statuses below 500 that say no more than: not now (RFC 9110, RFC 6585)."""

REWRITES, REDRAWS, RESYNCS = 3, 1, 3
"""How often a round's rows are written again, its tokens drawn again, and the output fetched between two verdicts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How an effect that failed for the moment is tried again: `tries` times, the delay doubling from first to last."""

    first_ms: int = 100
    longest_ms: int = 5_000
    tries: int = 30

    def delay_ms(self, tries: int) -> int:
        """Return the delay before the next try after `tries` of them, at least one."""
        return int(min(self.first_ms * 2 ** min(tries - 1, 30), self.longest_ms))


@dataclass(slots=True)
class _Round:
    """The round under way: what was drafted for it, and what has been tried."""

    number: int
    tokens: tuple[int, ...] = ()
    rows: str | None = None
    rewrites: int = 0
    redraws: int = 0


class Rounds:
    """The rounds that follow `assignment`, whose committed prefix is `prefix`. `ended`: EndSession went out."""

    def __init__(self, assignment: Assignment, prefix: Prefix, estimate: Estimate, patience: Patience) -> None:
        self.ended = False
        self._assignment = assignment
        self._profile: Sampling = assignment.sampling or assignment.contract.profile
        self._last_round = assignment.round
        self._heard_round = assignment.round  # of all that anybody told us; may be ahead of our own
        self._contract = assignment.contract
        self._prefix = prefix
        self._estimate = estimate
        self._patience = patience
        self._set_limit(assignment.m_init)
        self._round: _Round | None = None
        self._doubted: Verdict | None = None
        self._awaited: Awaited | None = None
        self._paused = self._stopping = False
        self._tries = self._resyncs = 0
        self._handlers: dict[type, Callable[[Any], Effects]] = {
            Drafted: self._drafted,
            DraftFailed: self._draft_failed,
            RowsWritten: self._rows_written,
            VerdictReceived: self._verdict_received,
            ProposalRefused: self._proposal_refused,
            ProposalUnanswered: self._proposal_unanswered,
            OutputFetched: self._output_fetched,
            OutputUnavailable: self._output_unavailable,
            TimerFired: self._timer_fired,
            StopRequested: self._stop_requested,
        }

    def handle(self, event: Any) -> Effects:
        """Take one answer; return what has to happen, in order. What nobody asked for changes nothing."""
        handler = self._handlers.get(type(event))
        return handler(event) if handler else []

    @property
    def proposing(self) -> bool:
        """Whether a proposal is out whose verdict is not known."""
        return isinstance(self._awaited, SendProposal)

    def hear(self, message: Assignment) -> None:
        """The session was assigned once more: take its profile, unless it is older than what is known (D21)."""
        if message.round >= self._heard_round:
            self._heard_round = message.round
            self._profile = message.sampling or self._profile

    def leave(self) -> Effects:
        """A higher epoch has come: nothing under way can be committed any more, so wait for none of it (6.9, D28)."""
        self.ended = True
        return [*self._quiet(), Abandon(), *self._release()]

    # -- drafting (6.2) -----------------------------------------------------------------------------------------------

    def begin(self) -> Effects:
        """Begin the round after the last one, unless there is nothing left to generate, or no number for a round."""
        if self._stopping or self._room() < 1 or self._last_round >= LAST_ROUND:
            return self._end()
        self._round = _Round(self._last_round + 1)
        return self._draft(self._round)

    def _draft(self, round_: _Round) -> Effects:
        tokens, count = self._prefix.tokens, self._estimate.length(self._limit())
        return self._await(Draft(round_.number, tokens, len(tokens), count, self._contract.rule, self._profile))

    def _limit(self) -> int:
        """The most tokens that can pay: the additional token needs room too, so it is never drafted (D14)."""
        return min(self._m_cap, max(1, self._room() - 1))

    def _room(self) -> int:
        return self._contract.max_new - self._prefix.committed

    def _set_limit(self, m_cap: int) -> None:
        """Take a limit from the peer: within 1..m_max, whatever it is (6.2, 6.5.1, D16)."""
        self._m_cap = min(max(m_cap, 1), self._contract.m_max)

    def _drafted(self, event: Drafted) -> Effects:
        awaited, round_ = self._now(Draft), self._round
        if awaited is None or round_ is None or event.round != awaited.round:
            return []
        if not event.tokens:
            return self._again()
        self._estimate.drafted(event.token_ms)
        round_.tokens = event.tokens[: awaited.count]
        return self._publish(round_)

    def _publish(self, round_: _Round) -> Effects:
        """Under rule 2 the verifier needs the rows, and before it draws (6.3 step 5, 6.4)."""
        if self._contract.rule == 2:
            return self._await(WriteRows(round_.number, len(round_.tokens)))
        return self._propose(round_)

    def _rows_written(self, event: RowsWritten) -> Effects:
        awaited, round_ = self._now(WriteRows), self._round
        if awaited is None or round_ is None or event.round != awaited.round:
            return []
        self._estimate.written(event.write_ms, awaited.count)
        round_.rows = event.ref
        return self._propose(round_)

    def _draft_failed(self, event: DraftFailed) -> Effects:
        awaited = self._now(Draft) or self._now(WriteRows)
        return self._again() if awaited is not None and event.round == awaited.round else []

    # -- proposing (6.2) ----------------------------------------------------------------------------------------------

    def _propose(self, round_: _Round) -> Effects:
        held = self._assignment
        message = Proposal(
            session=held.session,
            epoch=held.epoch,
            round=round_.number,
            drafter=held.drafter,
            base=self._prefix.committed,
            base_digest=self._prefix.digest,
            tokens=round_.tokens,
            q_rows=round_.rows,
            # A stand-in: what the process has to say of itself at that moment, its shell fills in when it sends.
            status=Status(instance=held.drafter, role=DRAFTER, load=0, queue=0, ttl_ms=0),
        )
        return self._await(SendProposal(held.verifier, message))

    def _verdict_received(self, event: VerdictReceived) -> Effects:
        sent, verdict = self._now(SendProposal), event.message
        if sent is None:
            return []
        if _of(verdict) != _of(sent.message):
            return self._again()  # no answer to what was asked
        released = self._release()
        self._round = None
        if not self._prefix.extend_to(verdict.emitted, verdict.committed, verdict.digest):
            self._doubted = verdict
            return [*released, *self._fetch_output()]
        self._resyncs = 0
        self._estimate.judged(verdict.accepted, len(sent.message.tokens), event.elapsed_ms)
        return [*released, *self._obey(verdict)]

    def _obey(self, verdict: Verdict) -> Effects:
        """Go on to the next round, or stop proposing: switch, self_decode, finish and fail all mean that (6.5.2)."""
        self._last_round = verdict.round
        self._set_limit(verdict.m_cap)
        return self.begin() if verdict.action in GOES_ON else self._end()

    def _proposal_unanswered(self, event: ProposalUnanswered) -> Effects:
        sent = self._now(SendProposal)
        return self._again() if sent is not None and event.round == sent.message.round else []

    def _proposal_refused(self, event: ProposalRefused) -> Effects:
        sent, round_ = self._now(SendProposal), self._round
        if sent is None or round_ is None or event.round != sent.message.round:
            return []
        match event.error:
            case StaleBase():
                self._heard_round = max(self._heard_round, event.last_round or 0)
                return [*self._release(), *self._fetch_output()]
            case QUnavailable() if round_.rows is not None and round_.rewrites < REWRITES:
                round_.rewrites += 1
                self._awaited = WriteRows(round_.number, len(round_.tokens))
                return self._again()
            case Limit() if len(round_.tokens) > 1:
                return self._shorten(round_)
            case BadProposal() if round_.redraws < REDRAWS:
                round_.redraws += 1
                return [*self._release(), *self._draft(round_)]
        return self._again() if _passes(event.error) else self._end()

    def _shorten(self, round_: _Round) -> Effects:
        """Propose the first of the tokens alone; cutting the tail loses no exactness (D16, D31)."""
        round_.tokens = round_.tokens[:1]
        return self._publish(round_)

    # -- resynchronization (D9a) --------------------------------------------------------------------------------------

    def _fetch_output(self) -> Effects:
        self._resyncs += 1
        self._round = None
        if self._resyncs > RESYNCS:
            return self._end()
        return self._await(FetchOutput(self._assignment.verifier, self._assignment.session, 0))

    def _output_fetched(self, event: OutputFetched) -> Effects:
        if self._now(FetchOutput) is None:
            return []
        if event.epoch > self._assignment.epoch or event.final:
            return self._end()
        if event.epoch < self._assignment.epoch or event.start != 0:
            return self._again()
        verdict, self._doubted = self._doubted, None
        return self._rebuild(event.tokens) if verdict is None else self._settle(event.tokens, verdict)

    def _rebuild(self, tokens: tuple[int, ...]) -> Effects:
        """Take the committed output for what it is: the verifier is the sole commit authority (1.3)."""
        prefix = self._prefix.restarted(self._contract)
        try:
            prefix.extend(tokens)
        except ValueError:
            return self._end()
        self._prefix = prefix
        self._last_round = max(self._last_round, self._heard_round)
        return self.begin()

    def _settle(self, tokens: tuple[int, ...], verdict: Verdict) -> Effects:
        """A verdict did not extend our prefix: either ours was wrong, or its word cannot be relied on."""
        prefix = self._prefix.restarted(self._contract)
        if not prefix.extend_to(tokens[: verdict.committed], verdict.committed, verdict.digest):
            return self._end()
        self._prefix = prefix
        return self._obey(verdict)

    def _output_unavailable(self, event: OutputUnavailable) -> Effects:
        if self._now(FetchOutput) is None:
            return []
        return self._again() if event.error is None or _passes(event.error) else self._end()

    # -- waiting, trying again, ending --------------------------------------------------------------------------------

    def _await(self, effect: Awaited) -> Effects:
        self._awaited, self._tries = effect, 0
        return [effect]

    def _now(self, kind: type[A]) -> A | None:
        """The awaited effect, if it is of this kind and under way."""
        return self._awaited if isinstance(self._awaited, kind) and not self._paused else None

    def _again(self) -> Effects:
        """The awaited effect failed for the moment: carry it out once more after a delay, or give up."""
        self._tries += 1
        if self._tries > self._patience.tries:
            return self._end()
        self._paused = True
        return [SetTimer(AGAIN, self._patience.delay_ms(self._tries))]

    def _timer_fired(self, event: TimerFired) -> Effects:
        if not self._paused or self._awaited is None or event.name != AGAIN:
            return []
        self._paused = False
        return [self._awaited]

    def _quiet(self) -> Effects:
        return [CancelTimer(AGAIN)] if self._paused else []

    def _release(self) -> Effects:
        """Give up the round's rows, if it can have any (6.3)."""
        if self._round is None or self._contract.rule != 2:
            return []
        self._round.rows = None
        return [ReleaseRows(self._round.number)]

    def _stop_requested(self, event: StopRequested) -> Effects:
        self._stopping = True
        return [] if self.proposing else self._end()

    def _end(self) -> Effects:
        self.ended = True
        return [*self._quiet(), *self._release(), EndSession()]


def _passes(error: ProblemError) -> bool:
    """Whether a refusal says no more than: not now (RFC 9110 section 15, by class)."""
    return error.suffix is None and (error.status >= 500 or error.status in PASSING)


def _of(message: Proposal | Verdict) -> tuple[bytes, int, int]:
    return message.session, message.epoch, message.round
