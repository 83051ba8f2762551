"""An open verifier session: its requests, and what follows from each round (4.1, 6.1, 6.3, 6.5.2, 6.6, 6.7, 6.9).

The session moves in `_commit` alone, on the log's word that a round's record is durable and valid; verdict, output and
events come out of that one step and of nothing before it (6.3 step 8). A refused input changes nothing.
The table of states is at the head of `verifier`.

Not here: opening (`verifier_open`), a round on its way (`verifier_round`), long polls (`output`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from enum import IntEnum
from typing import Any, ClassVar

from sdcp.errors import (
    BadContract,
    Conflict,
    NotAssigned,
    Overloaded,
    ProblemError,
    SessionClosed,
    StaleBase,
    StaleEpoch,
)
from sdcp.machines.commit_log import TIMER as LOG_TIMER
from sdcp.machines.commit_log import CommitLog
from sdcp.machines.control import Busy
from sdcp.machines.effects import CancelTimer, CloseEngine, DropOlderKv, Refuse, ReplayVerdict, Reply, SendEvent
from sdcp.machines.inputs import (
    DrafterAssigned,
    EngineFailed,
    EventDelivered,
    KvPublished,
    LogAppended,
    LogFenced,
    LogMoved,
    LogRead,
    LogUnanswered,
    OutputRequested,
    PolicyReceived,
    ProposalReceived,
    RandomDrawn,
    RequestCancelled,
    RowsObtained,
    RowsRefused,
    SelfDecoded,
    StopRequested,
    Superseded,
    TimerFired,
    Verified,
)
from sdcp.machines.output import OutputDesk
from sdcp.machines.verifier_checks import check_content, check_epoch, check_extends, check_proposer, is_identical
from sdcp.machines.verifier_committed import Committed
from sdcp.machines.verifier_kv import KvPublishing
from sdcp.machines.verifier_open import Opened
from sdcp.machines.verifier_policy import Profiles
from sdcp.machines.verifier_round import Answer, Broken, Lost, Recorded, Refused, Round, Rounds, Step
from sdcp.messages.contract import Action
from sdcp.messages.output import Event
from sdcp.messages.round import Assignment
from sdcp.messages.session import SessionState, State
from sdcp.rules import escalation, limit
from sdcp.rules.digest import digest_of

Effect = Any
Input = Any


class Phase(IntEnum):
    """The states of the table; those that peers are told have the values of D18."""

    DRAFTING = State.DRAFTING
    WAITING = State.WAITING
    SELF_DECODING = State.SELF_DECODING
    FINISHED = State.FINISHED
    FAILED = State.FAILED
    FENCED = 6


ENDED = frozenset({Phase.FINISHED, Phase.FAILED, Phase.FENCED})


class Serving:
    """One open session under one epoch."""

    def __init__(
        self, opened: Opened, busy: Busy, vocabulary: int, *, enforces_fences: bool, kv_interval: int = 0
    ) -> None:
        self.phase = Phase(opened.state)
        self._contract_digest = opened.contract_digest
        self._vocabulary = vocabulary
        self._committed = Committed(opened)
        self._profiles = Profiles(self._committed.contract.profile)
        log = CommitLog(
            opened.message.commit_log,
            opened.message.epoch,
            opened.reader,
            opened.etag,
            enforces_fences=enforces_fences,
        )
        self._log_ref = log.ref
        self._rounds = Rounds(self._committed, log, busy)
        self._desk = OutputDesk(self._committed)
        self._kv = KvPublishing(self._committed, kv_interval)
        self._drafter: str | None = None
        self._assignment: bytes | None = None  # digest of the latest one applied (D28)
        self._assigning: list[DrafterAssigned] = []  # they wait for the end of the round on its way
        self._period = 0  # tokens of this self-decoding period
        self._stopping = False
        self._effects: list[Effect] = []

    @property
    def working(self) -> bool:
        """Whether a round is on its way (D27)."""
        return self._rounds.current is not None

    @property
    def state(self) -> SessionState:
        """The session-state that peers are told. Not to be asked once fenced."""
        return self._committed.state(State(self.phase))

    def start(self) -> list[Effect]:
        """Return what has to happen once the open is answered: a session that opens ended says so (D14, D19)."""
        if self.phase in ENDED:
            self._end(self.phase)
        return self._take_effects()

    def handle(self, given: Input) -> list[Effect]:
        """Take one input; return what has to happen, in order. What is of no concern now changes nothing."""
        handler = self._handlers.get(type(given))
        if handler is None:  # an answer to what only an opening asks
            return []
        try:
            handler(self, given)
        except ProblemError as error:  # only requests are refused this way, before anything was changed
            self._refuse(given.request, error)
        return self._take_effects()

    def _take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    # ---- assignment and policy (6.1, 6.6, D21, D28) ------------------------------------------------------------------

    def _on_assigned(self, given: DrafterAssigned) -> None:
        self._check_serving()
        message = given.message
        check_epoch(message.epoch, self._committed.epoch)
        if digest_of(message.contract) != self._contract_digest:
            raise BadContract("The assignment's contract is not the contract of the session.")
        if self._rounds.current is not None:
            self._assigning.append(given)
        else:
            self._assign(given)

    def _assign(self, given: DrafterAssigned) -> None:
        """Make an assignment the latest one (6.1); a repeat of the one in force changes nothing (D28).

        Only the latest is remembered: a router that comes back to an earlier drafter at the same round means it.
        """
        message, digest = given.message, _digest(given.message)
        if digest != self._assignment:
            self._check_not_ended()
            if message.drafter != self._drafter:
                self._committed.m_cap = limit.start(message.m_init, self._committed.contract.m_max)  # D16
            self._drafter, self._assignment = message.drafter, digest
            self.phase = Phase.DRAFTING
        self._effects.append(Reply(given.request, self.state))

    def _assign_all(self) -> None:
        """Apply the assignments that came during the round (D28); one ends a self-decoding period (D29)."""
        assigning, self._assigning = self._assigning, []
        for given in assigning:
            self._or_refuse(given, self._assign)

    def _on_policy(self, given: PolicyReceived) -> None:
        self._check_serving()
        self._check_not_ended()
        current = self._rounds.current.number if self._rounds.current else self._committed.round
        if given.message.from_round <= current:
            raise Conflict(f"The current round is {current}; from_round must be greater.")
        if not self._profiles.room_for(given.message.from_round, current):
            raise Conflict(
                "As many changes of the profile wait for their rounds as this verifier keeps; send it later."
            )
        self._profiles.update(given.message.from_round, given.message.sampling)
        self._effects.append(Reply(given.request, self.state))

    # ---- a proposal (6.3 steps 1 to 5, D12) --------------------------------------------------------------------------

    def _on_proposal(self, given: ProposalReceived) -> None:
        self._check_serving()
        proposal, current = given.message, self._rounds.current
        check_proposer(proposal, given.client, self._drafter)
        check_epoch(proposal.epoch, self._committed.epoch)
        if self._replay(given.request, proposal.round):
            return
        if current is not None and current.proposal is not None and proposal.round == current.number:
            current.waiting.append(given)
            return
        self._check_not_ended()
        if self.phase is not Phase.DRAFTING and proposal.round > self._committed.round:
            raise NotAssigned("The drafter has been told to stop; wait for an assignment.")  # D13
        check_extends(proposal, self._committed)
        check_content(proposal, self._committed, self._vocabulary)
        if self._stopping:
            raise Overloaded("This verifier is going down; no new round begins.")
        self._begin(Round(proposal.round, proposal, self._profiles.take(proposal.round), [given]))

    def _replay(self, request: int, round: int) -> bool:
        """Step 3: answer with the stored verdict, if there is one."""
        stored = self._committed.stored(round)
        if stored is None:
            return False
        if stored.verdict is not None:
            self._effects.append(Reply(request, stored.verdict))
        else:
            self._effects.append(ReplayVerdict(request, self._log_ref, round, stored.start))
        return True

    # ---- a round (6.3 steps 5 to 8) ----------------------------------------------------------------------------------

    def _begin(self, round: Round) -> None:
        self._follow(self._rounds.begin(round))

    def _on_answer(self, given: Answer) -> None:
        self._follow(self._rounds.handle(given))

    def _follow(self, step: Step) -> None:
        effects, outcome = step
        self._effects += effects
        match outcome:
            case Recorded():
                self._commit(outcome)
            case Refused():
                self._drop(outcome)
            case Broken():
                self._break(outcome)
            case Lost():
                self._fence(outcome.round)

    def _commit(self, done: Recorded) -> None:
        """The round's record is durable and valid: verdict, output and what follows, in one step."""
        self._committed.apply(done.record, done.start)
        self._effects += [Reply(each.request, self._committed.verdict) for each in done.round.waiting]
        if done.record.kv is not None:
            self._effects.append(DropOlderKv(done.record.kv))
        self._act(done.record.action, self_decoded=done.round.proposal is None)
        self._effects += self._desk.release()  # after the end, if this is one: the last tokens come with it
        self._assign_all()
        if self.phase not in ENDED and not self._stopping:
            self._effects += self._kv.due()
        self._go_on(done.load)

    def _drop(self, refused: Refused) -> None:
        """Refuse the proposal and its like; another one for the same round may do better."""
        waiting = [(each, _is_like(each, refused.round)) for each in refused.round.waiting]
        for each, alike in waiting:
            if alike:
                self._refuse(each.request, refused.error)
        self._assign_all()
        for each, alike in waiting:
            if not alike:
                self._or_refuse(each, self._on_proposal)

    def _break(self, broken: Broken) -> None:
        """The session fails in no round: readers see it once the router knows (D30)."""
        self.phase = Phase.FAILED
        for each in broken.round.waiting:
            self._refuse(each.request, SessionClosed("The session has failed: the target model broke."))
        self._assign_all()
        self._effects += [self._event(Action.FAIL), CloseEngine()]

    # ---- after a round (6.5.2, D13, D17, D29) ------------------------------------------------------------------------

    def _act(self, action: Action | None, *, self_decoded: bool) -> None:
        """Do what the round's action says; continue and reduce leave the session drafting."""
        match action:
            case Action.SWITCH:
                self.phase = Phase.WAITING
                self._effects.append(self._event(Action.SWITCH))
            case Action.SELF_DECODE:
                self.phase = Phase.SELF_DECODING
                self._period = self._period + 1 if self_decoded else 0
            case Action.FINISH:
                self._end(Phase.FINISHED)
            case Action.FAIL:
                self._end(Phase.FAILED)

    def _end(self, phase: Phase) -> None:
        """The session has ended by what is committed: readers see it at once, the router is told (D17)."""
        finish = Action.FINISH if phase is Phase.FINISHED else Action.FAIL
        self.phase = phase
        self._effects += [*self._desk.end(finish), self._event(finish), CloseEngine()]

    def _go_on(self, load: int) -> None:
        """Begin the next token of a self-decoding period, or end the period; the load is looked at each time."""
        if self.phase is not Phase.SELF_DECODING or self._stopping:
            return
        contract, number = self._committed.contract, self._committed.round + 1
        spent = contract.self_max is not None and self._period >= contract.self_max
        if spent or not escalation.may_self_decode(contract, load):
            self.phase = Phase.WAITING
            self._effects.append(self._event(Action.SELF_DECODE))
        else:
            self._begin(Round(number, None, self._profiles.take(number)))

    def _fence(self, round: Round | None) -> None:
        """Discard the round, release nothing, stop serving (6.3 step 8, D30)."""
        error = self._stale()
        for each in [*(round.waiting if round else ()), *self._assigning]:
            self._effects.append(Refuse(each.request, error))
        self._effects += self._desk.refuse_all(error)
        self._assigning = []
        self.phase = Phase.FENCED
        self._effects += [CancelTimer(LOG_TIMER), CloseEngine()]

    # ---- output, events, and the rest --------------------------------------------------------------------------------

    def _on_output(self, given: OutputRequested) -> None:
        self._check_serving()
        if given.client is not None and not (self._drafter is not None and given.client.owns(self._drafter)):
            raise NotAssigned("Only the drafter of the latest assignment may read the output of the session.")  # D9a
        self._effects += self._desk.ask(given)

    def _on_event_delivered(self, given: EventDelivered) -> None:
        if self.phase is Phase.FAILED and given.message.kind is Action.FAIL and not self._desk.ended:
            self._effects += self._desk.end(Action.FAIL)

    def _on_kv_published(self, given: KvPublished) -> None:
        self._kv.published(given)

    def _on_timer(self, given: TimerFired) -> None:
        if given.name == LOG_TIMER:
            self._on_answer(given)
        else:
            self._effects += self._desk.expire(given.name)

    def _on_cancelled(self, given: RequestCancelled) -> None:
        """A wait ends; rounds and assignments that were received go on (D27)."""
        if self._rounds.current is not None:
            self._rounds.current.forget(given.request)
        self._effects += self._desk.forget(given.request)

    def _on_superseded(self, given: Superseded) -> None:
        if self.phase is not Phase.FENCED:
            self._fence(self._rounds.abandon())

    def _on_stop(self, given: StopRequested) -> None:
        self._stopping = True

    # ---- small words -------------------------------------------------------------------------------------------------

    def _check_serving(self) -> None:
        if self.phase is Phase.FENCED:
            raise self._stale()

    def _check_not_ended(self) -> None:
        if self.phase in ENDED:
            raise SessionClosed(f"The session has {self.phase.name.lower()}.")

    def _or_refuse(self, given: Any, take: Callable[[Any], None]) -> None:
        try:
            take(given)
        except ProblemError as error:
            self._refuse(given.request, error)

    def _refuse(self, request: int, error: ProblemError) -> None:
        self._effects.append(Refuse(request, error, self.state if isinstance(error, StaleBase) else None))  # D2

    def _stale(self) -> StaleEpoch:
        return StaleEpoch(f"Epoch {self._committed.epoch} of the session is over; ask the router who serves it.")

    def _event(self, kind: Action) -> SendEvent:
        now = self._committed
        committed, digest = now.history.committed, now.digest
        return SendEvent(Event(session=now.session, epoch=now.epoch, kind=kind, committed=committed, digest=digest))

    _handlers: ClassVar[dict[type, Callable[[Serving, Any], None]]] = {
        DrafterAssigned: _on_assigned,
        PolicyReceived: _on_policy,
        ProposalReceived: _on_proposal,
        OutputRequested: _on_output,
        RequestCancelled: _on_cancelled,
        RowsObtained: _on_answer,
        RowsRefused: _on_answer,
        RandomDrawn: _on_answer,
        Verified: _on_answer,
        SelfDecoded: _on_answer,
        EngineFailed: _on_answer,
        LogRead: _on_answer,
        LogUnanswered: _on_answer,
        LogAppended: _on_answer,
        LogMoved: _on_answer,
        LogFenced: _on_answer,
        EventDelivered: _on_event_delivered,
        KvPublished: _on_kv_published,
        TimerFired: _on_timer,
        Superseded: _on_superseded,
        StopRequested: _on_stop,
    }


def _is_like(given: ProposalReceived, round: Round) -> bool:
    return round.proposal is not None and is_identical(given.message, round.proposal)


def _digest(assignment: Assignment) -> bytes:
    """What a byte-identical repeat of an assignment is known by."""
    return hashlib.sha256(assignment.encode()).digest()
