"""A session as its router sees it: submitted, opened, assigned, watched over, failed over (6.1, 6.6, 6.9). Sans-IO.

At any time the session is in one step (`router_steps`); what else happens meanwhile is remembered and acted upon when
the step is over. Only the loss of the verifier, a withdrawal and the end of the session interrupt a step.

    submitted ─▶ choose verifier ─▶ open ─▶ policies ─▶ choose drafter ─▶ PUT drafter ─▶ assignment ─▶ RUNNING
                      ▲                                      ▲                                           │ │
                      │                                      └── event 0, 2, 3, or the drafter is lost ──┘ │
                      └── fence, then read, then store the tokens ◀── the verifier is lost ────────────────┘

Rules that hold throughout: a session that may be open anywhere is opened elsewhere only behind a fence (D19); a
session that has ended is never failed over; what a drafter is told is what the verifier answered to PUT drafter (D28).

Not here: who is alive (`sdcp.machines.roster`), who may say what (D9, D10: the role checks before it hands in).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from sdcp.errors import InvalidContent, MalformedBody, Overloaded, SessionClosed, StaleEpoch
from sdcp.machines import inputs
from sdcp.machines.effects import CancelTimer, EndSession, ReadLog, Refuse, Reply, SendDrafter, SetTimer
from sdcp.machines.fencing import LOG_DAMAGED
from sdcp.machines.fencing import TIMER as FENCE_TIMER
from sdcp.machines.locating import TIMER as LOCATION_TIMER
from sdcp.machines.router_steps import REMINDER, TIMER, Effects, Patience, Step, ended_by, unclear
from sdcp.machines.router_taking_up import TakingUp
from sdcp.messages.contract import Action
from sdcp.messages.manifest import EndRecord, WithdrawnRecord
from sdcp.messages.session import SessionState, State
from sdcp.rules.draws import LAST_ROUND

__all__ = ["Patience", "RouterSession"]


class RouterSession(TakingUp):
    """One session: `handle` takes one input and returns what has to happen, in order."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._last_event: object = None
        self._unable: list[int] = []  # front ends that cannot have the output from the verifier any more
        self._round_reminded: int | None = None  # the verifier's, when it was last told again

    def handle(self, event: object) -> Effects:
        """Take one of `sdcp.machines.inputs`; what is of no concern now changes nothing."""
        handler = _HANDLERS.get(type(event))
        if handler is None or (hasattr(event, "answers") and not self._awaits(event.answers)):
            return []
        return handler(self, event)

    def _next(self) -> Effects:
        self._rest(Step.RUNNING)
        if self._changes:
            return self._send_policy()
        if self._wanted is not None:
            return self._choose_drafter()
        return [SetTimer(REMINDER, self._patience.reminder_ms)]

    def _remind(self) -> Effects:
        """Tell verifier and drafter once more what they were told before (D37), the verifier first (6.1).

        A verifier at which an earlier PUT arrived late takes the right drafter again; one that waits for a drafter, of
        which no event told us, gets one. A drafter that holds the session does nothing (D21); one that lost it, or gave
        it up, takes it up again. A drafter that was restarted before its status expired is found in no other way.
        """
        if self._step is not Step.RUNNING or self.drafter is None or self._put is None:
            return []
        return self._ask(Step.REMINDING, SendDrafter(self._verifier_uri, self._put))

    def _reminded(self, state: SessionState) -> Effects:
        ended = ended_by(state)
        if ended is not None:
            return self._end(ended, state.committed)
        stands_still = state.round == self._round_reminded
        self._round_reminded = state.round
        if state.state == State.WAITING:
            self._wanted = self._wanted or frozenset()
        if self._wanted is not None:
            return self._next()
        if stands_still and state.round > self._point.round:  # from where it was assigned, no drafter may get on (D13)
            return self._drafter_put(state)
        return self._send_assignment(Step.TELLING)

    def _timer(self, event: inputs.TimerFired) -> Effects:
        if event.name.startswith(LOCATION_TIMER):
            return [*self._locating.fired(event.name)]
        if event.name == FENCE_TIMER:
            return self._log_answered(event)
        if event.name == REMINDER:
            return self._remind()
        if event.name != TIMER or not self._pausing:
            return []
        self._pausing = False
        return [self._awaited]

    # ---- requests of front ends (D33, D34) --------------------------------------------------------------------------

    def _submitted(self, event: inputs.RequestSubmitted) -> Effects:
        if self.failure is not None:
            return [Refuse(event.request, self.failure)]
        waiting = [*self._locating.ask(event.request, None, None)]
        return waiting + self._begin() if self._step is Step.NEW else waiting

    def _located(self, event: inputs.LocationRequested) -> Effects:
        if self.failure is not None:
            return [Refuse(event.request, self.failure)]
        if self._locating.beyond(event.epoch):
            self._unable.append(event.request)
            return [ReadLog(self._log, self._recorded.end)]
        waiting = [*self._locating.ask(event.request, event.epoch, event.wait_ms)]
        return waiting if self._locating.news_for(event.epoch) else waiting + self._probe()

    def _probe(self) -> Effects:
        """A front end has lost its verifier: has the verifier lost the session? (D19)"""
        if self._step is not Step.RUNNING or self._put is None:
            return []
        # Byte for byte what it was told before, so the answer is a state or 404, and nothing changes (D28).
        return self._ask(Step.PROBING, SendDrafter(self._verifier_uri, self._put))

    def _probed(self, state: SessionState) -> Effects:
        ended = ended_by(state)
        return self._next() if ended is None else self._end(ended, state.committed)

    def _withdraw(self, event: inputs.RequestWithdrawn) -> Effects:
        reply: Effects = [Reply(event.request, None)]
        if self._step is Step.ENDED:
            return reply
        return self._keep(WithdrawnRecord()) + reply + self._give_up()

    def _cancelled(self, event: inputs.RequestCancelled) -> Effects:
        self._requester_gone(event.request)
        return [*self._locating.forget(event.request)]

    # ---- answers of the verifier ------------------------------------------------------------------------------------

    def _state(self, event: inputs.StateReceived) -> Effects:
        state = event.message
        if (state.session, state.epoch) != (self.session, self.epoch) or state.round > LAST_ROUND:
            return self._fence()  # it speaks of no session of ours
        return _ON_STATE[self._step](self, state) if self._step in _ON_STATE else []

    def _refused(self, event: inputs.VerifierRefused) -> Effects:
        error = event.error
        if self._step is Step.OPENING:
            return self._open_refused(error)
        if unclear(error):
            return self._verifier_unanswered(event)
        if isinstance(error, Overloaded):
            return self._pause()
        if isinstance(error, SessionClosed):
            return self._closed()
        if error.status == 404 or isinstance(error, StaleEpoch):  # the same verifier may serve the next epoch (D19)
            return self._fence()
        if self._step is Step.UPDATING:
            return self._policy_refused(error)
        self._refusing.add(self._verifier_uri)
        return self._fence()

    def _verifier_unanswered(self, event: object) -> Effects:
        if self._step is Step.UPDATING:
            self._policy_unanswered()
        return self._unanswered()

    def _closed(self) -> Effects:
        """The session has ended there; its last event, which says how, is on the way (D17)."""
        self._put = self._wanted = None
        dropped = self._drop_changes()
        self._rest(Step.RUNNING)
        return dropped

    # ---- answers of the cache ---------------------------------------------------------------------------------------

    def _log_answered(self, event: object) -> Effects:
        if self._step is Step.FENCING and self._fencing is not None:
            return self._fence_answered(self._fencing, event)
        if self._step is Step.READING:
            return self._committed_read(event)
        return self._tell_tokens(event) if self._step is Step.ENDED else []

    def _tokens_stored(self, event: inputs.TokensStored) -> Effects:
        if self._step is Step.STORING_RESUME:
            return self._resume(event.ref)
        if self._step is Step.STORING_PROMPT:
            self._prompt = event.ref
            return self._prompt_settled()
        return self._assign(replace(self._point, ref=event.ref))

    def _store_failed(self, event: inputs.StoreFailed) -> Effects:
        """A prompt can travel in the message; committed tokens cannot (D20)."""
        return self._prompt_settled() if self._step is Step.STORING_PROMPT else self._pause()

    def _prompt_settled(self) -> Effects:
        """The prompt is stored, or travels in messages: on with the verifier or, where it has one, the drafter."""
        return self._choose_drafter() if self._may_commit else self._choose_verifier()

    # ---- events and the end (D17) -----------------------------------------------------------------------------------

    def _event(self, event: inputs.EventReceived) -> Effects:
        message = event.message
        done: Effects = [Reply(event.request, None)]
        if self._step is Step.ENDED or message.epoch < self.epoch:
            return done
        if message.epoch > self.epoch:
            return [Refuse(event.request, StaleEpoch(f"This router has the session in epoch {self.epoch}."))]
        if message.kind in (Action.FINISH, Action.FAIL):
            unheard = self._step is Step.OPENING or self._locating.location is None  # its answer, or that it opened
            moved = self._moved() if unheard and self.verifier is not None else []
            return done + moved + self._end(message.kind, message.committed)
        if message == self._last_event:
            return done
        self._last_event = message
        return done + self._drafter_needed(message)

    def _end(self, action: Action, committed: int = 0) -> Effects:
        self.ended = action
        self._committed = committed
        self.drafter = None
        self._rest(Step.ENDED)
        told = [*self._locating.ended(action)]
        if self._locating.location is None:
            self.failure = self.failure or SessionClosed("The request was withdrawn before a verifier took it.")
            told += self._locating.refuse(self.failure)
        forgotten = [CancelTimer(name) for name in (TIMER, FENCE_TIMER, REMINDER)]
        kept = self._keep(EndRecord(ended=action, committed=committed))
        return [*kept, *forgotten, *self._drop_changes(), *told, EndSession()]

    def _tell_tokens(self, event: object) -> Effects:
        """The log has all that was committed, when the verifier that ended the session is gone (D33)."""
        requests, location = self._unable, self._locating.location
        self._unable = []
        try:
            if isinstance(event, inputs.LogRead) and location is not None:
                self._recorded.take(event.start, event.data, event.etag)
                if len(self._recorded.tokens) >= self._committed:  # else read before the last round was in it
                    location = replace(location, tokens=tuple(self._recorded.tokens))
                    return [Reply(each, location) for each in requests]
            if isinstance(event, inputs.LogUnanswered) and event.damage is not None:
                raise InvalidContent(LOG_DAMAGED)
        except (InvalidContent, MalformedBody) as fault:
            return [Refuse(each, fault) for each in requests]
        return [
            Refuse(each, Overloaded("The commit log does not show the whole output now; ask again."))
            for each in requests
        ]


_ON_STATE: Mapping[Step, Callable[[RouterSession, SessionState], Effects]] = MappingProxyType(
    {
        Step.OPENING: RouterSession._opened,
        Step.PUTTING: RouterSession._drafter_put,
        Step.UPDATING: RouterSession._policy_taken,
        Step.REFRESHING: RouterSession._refreshed,
        Step.PROBING: RouterSession._probed,
        Step.REMINDING: RouterSession._reminded,
    }
)

_HANDLERS: Mapping[type, Callable[[RouterSession, Any], Effects]] = MappingProxyType(
    {
        inputs.RequestSubmitted: RouterSession._submitted,
        inputs.LocationRequested: RouterSession._located,
        inputs.RequestWithdrawn: RouterSession._withdraw,
        inputs.RequestCancelled: RouterSession._cancelled,
        inputs.ProfileChanged: RouterSession._changed,
        inputs.VerifierChosen: RouterSession._verifier_chosen,
        inputs.StateReceived: RouterSession._state,
        inputs.VerifierRefused: RouterSession._refused,
        inputs.VerifierUnanswered: RouterSession._verifier_unanswered,
        inputs.VerifierLost: RouterSession._verifier_lost,
        inputs.LogRead: RouterSession._log_answered,
        inputs.LogAppended: RouterSession._log_answered,
        inputs.LogMoved: RouterSession._log_answered,
        inputs.LogFenced: RouterSession._log_answered,
        inputs.LogUnanswered: RouterSession._log_answered,
        inputs.TokensStored: RouterSession._tokens_stored,
        inputs.StoreFailed: RouterSession._store_failed,
        inputs.DrafterChosen: RouterSession._drafter_chosen,
        inputs.AssignmentTaken: RouterSession._assignment_taken,
        inputs.AssignmentRefused: RouterSession._assignment_refused,
        inputs.DrafterLost: RouterSession._drafter_lost,
        inputs.EventReceived: RouterSession._event,
        inputs.TimerFired: RouterSession._timer,
    }
)
