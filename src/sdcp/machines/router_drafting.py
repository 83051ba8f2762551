"""How a router session comes to a drafter (5.2, 6.1, 6.5.2, 6.9, D17, D20, D28). Part of `router`.

The verifier is informed first; what it answers is what the drafter is told, and with committed output the drafter gets
an object of exactly those tokens. A drafter that refuses, or does not answer, is passed over for another.
"""

from __future__ import annotations

from dataclasses import replace

from sdcp.errors import InvalidContent, MalformedBody
from sdcp.machines import inputs
from sdcp.machines.effects import ChooseDrafter, ReadLog, SendAssignment, SendDrafter, StoreTokens
from sdcp.machines.fencing import LOG_DAMAGED
from sdcp.machines.router_steps import HAS_DRAFTER, Effects, Point, Step, Stepping, ended_by
from sdcp.messages.contract import Action
from sdcp.messages.manifest import AssignedRecord
from sdcp.messages.output import Event
from sdcp.messages.round import Assignment
from sdcp.messages.session import SessionState, State


class Drafting(Stepping):
    """Choose, PUT drafter, read and store the tokens, assign."""

    def _choose_drafter(self) -> Effects:
        """Catch up with the log, then choose.

        So PUT drafter says where the session stands now. One that said what an earlier one did, byte for byte, would
        pass for its repeat and change nothing (D28): the drafter chosen may well be the one before.
        """
        self._catching_up = self._put is not None
        return self._read_committed() if self._catching_up else self._ask_for_drafter()

    def _caught_up(self, event: object) -> Effects:
        recorded = self._recorded
        if recorded.fence > self.epoch:
            return self._fence()
        if not isinstance(event, inputs.LogRead):
            return self._pause()
        if len(recorded.tokens) <= self._point.committed and (self._point.ref or not recorded.tokens):
            return self._ask_for_drafter()
        self._point = Point(recorded.round, len(recorded.tokens), recorded.digest)
        return self._ask(Step.STORING_COMMITTED, StoreTokens(tuple(recorded.tokens)))

    def _ask_for_drafter(self) -> Effects:
        self._catching_up = False
        but = (self._wanted or frozenset()) | self._refusing
        return self._ask(Step.CHOOSING_DRAFTER, ChooseDrafter(self.contract, but))

    def _drafter_chosen(self, event: inputs.DrafterChosen) -> Effects:
        if self._step is not Step.CHOOSING_DRAFTER or self._pausing:
            return []
        if event.base_uri is not None and event.base_uri not in self._refusing:
            return self._send_drafter(event.base_uri)
        self._refusing.clear()
        self._awaited = ChooseDrafter(self.contract, self._wanted or frozenset())
        return self._pause()

    def _send_drafter(self, drafter: str) -> Effects:
        self.drafter = drafter
        self._put = self._assignment(drafter)
        return self._ask(Step.PUTTING, SendDrafter(self._verifier_uri, self._put))

    def _assignment(self, drafter: str) -> Assignment:
        point = self._point
        return Assignment(
            session=self.session,
            epoch=self.epoch,
            contract=self.contract,
            verifier=self._verifier_uri,
            drafter=drafter,
            prompt=self._prompt,
            round=point.round,
            sampling=self._current_sampling,
            committed=point.committed,
            digest=point.digest,
            committed_tokens=point.ref if point.committed else None,
            m_init=self._patience.m_init,
        )

    def _drafter_put(self, state: SessionState) -> Effects:
        ended = ended_by(state)
        if ended is not None:
            return self._end(ended, state.committed)
        if state.state == State.WAITING and self._put is not None and state.round > self._put.round:
            return self._choose_drafter()  # it took the PUT for a repeat of the one before, and still has no drafter
        self._wanted = None
        self._proposers = [*self._proposers[-1:], (state.round, self.drafter or "")]
        if (state.committed, state.digest) == (self._point.committed, self._point.digest):
            return self._assign(replace(self._point, round=state.round))
        self._point = Point(state.round, state.committed, state.digest)
        return self._read_committed()

    def _read_committed(self) -> Effects:
        return self._ask(Step.READING, ReadLog(self._log, self._recorded.end))

    def _committed_read(self, event: object) -> Effects:
        """The drafter begins where the verifier said, so it needs exactly those tokens."""
        try:
            if isinstance(event, inputs.LogRead):
                self._recorded.take(event.start, event.data, event.etag)
            elif isinstance(event, inputs.LogUnanswered) and event.damage is not None:
                raise InvalidContent(LOG_DAMAGED)
        except (InvalidContent, MalformedBody) as fault:
            self._refusal = fault
            return self._give_up()
        if self._catching_up:
            return self._caught_up(event)
        digest = self._recorded.digest_at(self._point.committed)
        if self._recorded.fence > self.epoch or digest not in (None, self._point.digest):
            return self._fence()
        if digest is None:  # the log did not answer, or with less than the verifier says is in it
            self._awaited = ReadLog(self._log, self._recorded.end)
            return self._pause()
        return self._ask(Step.STORING_COMMITTED, StoreTokens(tuple(self._recorded.tokens[: self._point.committed])))

    def _assign(self, point: Point) -> Effects:
        """The tokens are at hand; `point` is where a drafter begins."""
        self._point = point
        return self._ask_for_drafter() if self._catching_up else self._send_assignment(Step.ASSIGNING)

    def _send_assignment(self, step: Step) -> Effects:
        assert self.drafter is not None  # an assignment goes to the drafter that the verifier was told of
        return self._ask(step, SendAssignment(self.drafter, self._assignment(self.drafter)))

    def _assignment_taken(self, event: inputs.AssignmentTaken) -> Effects:
        self._refusing.clear()
        self._waited_ms = self._refusals = 0
        put = self._put
        if put is None or put is self._put_kept:
            return self._next()
        self._put_kept = put
        assigned = AssignedRecord(
            serving=put.epoch,
            after=put.round,
            verifier=put.verifier,
            drafter=put.drafter,
            prompt=put.prompt if isinstance(put.prompt, str) else None,
            sampling=put.sampling,
            committed=put.committed,
            digest=put.digest,
            committed_tokens=put.committed_tokens,
            m_init=put.m_init,
        )
        return self._keep(assigned) + self._next()

    def _assignment_refused(self, event: inputs.AssignmentRefused) -> Effects:
        if event.error is not None and self._store_anew():
            self._prompt, self._point = self._prompt_tokens, replace(self._point, ref=None)
        self._refusing.add(self._awaited.drafter)
        self._wanted = self._wanted or frozenset()
        if self._prompt_is_loose:
            return self._ask(Step.STORING_PROMPT, StoreTokens(self._prompt_tokens))
        return self._choose_drafter()  # it may have drafted all the same: only its answer was lost

    def _drafter_lost(self, event: inputs.DrafterLost) -> Effects:
        if self.drafter is None or self._step not in HAS_DRAFTER:
            return []
        self._wanted = frozenset((self.drafter,))
        return self._next() if self._step is Step.RUNNING else []

    def _drafter_needed(self, message: Event) -> Effects:
        """An event says so (D17), unless the verifier sent it before it answered the last PUT drafter."""
        if self._step not in HAS_DRAFTER or message.committed < self._point.committed:
            return []
        if self._step is Step.ASSIGNING and message.committed == self._point.committed:
            return []
        switch = message.kind == Action.SWITCH and self.drafter is not None
        self._wanted = frozenset((self.drafter or "",)) if switch else frozenset()
        return self._next() if self._step is Step.RUNNING else []
