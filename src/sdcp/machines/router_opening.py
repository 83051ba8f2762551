"""How a router session comes to a verifier, at first and after each failover (4.1, 6.1, 6.9, D19). Part of `router`.

A session that may be open anywhere is opened elsewhere only behind a fence; a verifier that does not answer is asked
again, and then taken for one that may have opened it. A refusal that is an answer opens nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sdcp.errors import InvalidContent, MalformedBody, Overloaded, ProblemError
from sdcp.machines import inputs
from sdcp.machines.effects import CancelTimer, ChooseVerifier, SendOpen, StoreTokens
from sdcp.machines.fencing import Fencing
from sdcp.machines.router_steps import (
    HAS_NO_VERIFIER,
    TIMER,
    Effects,
    Patience,
    Point,
    Step,
    Stepping,
    ended_by,
    unclear,
)
from sdcp.messages.contract import Action, Contract
from sdcp.messages.manifest import OpenedRecord
from sdcp.messages.request import Location
from sdcp.messages.session import Resume, SessionOpen, SessionState


class Opening(Stepping):
    """Choose, open; fence, read, resume."""

    def __init__(
        self,
        session: bytes,
        contract: Contract,
        prompt: Sequence[int],
        commit_log: str,
        patience: Patience | None = None,
    ) -> None:
        super().__init__(session, contract, prompt, commit_log, patience)
        self._fencing: Fencing | None = None
        self._failovers = 0
        self._withdrawn = False

    def _begin(self) -> Effects:
        """Store what an open needs and is not stored, then choose who gets it."""
        if self._prompt_is_loose:
            return self._ask(Step.STORING_PROMPT, StoreTokens(self._prompt_tokens))
        return self._choose_verifier()

    def _choose_verifier(self) -> Effects:
        if self.epoch > 1 and self._point.ref is None:
            return self._ask(Step.STORING_RESUME, StoreTokens(tuple(self._recorded.tokens)))
        return self._ask(Step.CHOOSING_VERIFIER, ChooseVerifier(self.contract, frozenset(self._refusing)))

    def _verifier_chosen(self, event: inputs.VerifierChosen) -> Effects:
        if self._step is not Step.CHOOSING_VERIFIER or self._pausing:
            return []
        if event.base_uri is not None:
            self.verifier = event.base_uri
            return self._send_open()
        limit_ms = self._patience.verifier_wait_ms if self.epoch == 1 else self._patience.recovery_wait_ms
        if self._waited_ms >= limit_ms:
            nobody = Overloaded("No verifier that serves this model takes the session; try again later.")
            return self._refuse_submission(self._refusal or nobody)
        self._refusing.clear()
        self._awaited = ChooseVerifier(self.contract, frozenset())
        return self._pause()

    def _send_open(self) -> Effects:
        self._open = SessionOpen(
            session=self.session,
            epoch=self.epoch,
            contract=self.contract,
            prompt=self._prompt,
            commit_log=self._log,
            resume=None if self.epoch == 1 else self._resume_member(),
        )
        self._may_commit = True
        return self._ask(Step.OPENING, SendOpen(self._verifier_uri, self._open))

    def _resume_member(self) -> Resume:
        point = self._point
        assert point.ref is not None  # a session is resumed with its committed tokens, even with none (D19)
        return Resume(
            round=point.round,
            committed=point.committed,
            digest=point.digest,
            committed_tokens=point.ref,
            target_kv=self.kv,
        )

    def _opened(self, state: SessionState) -> Effects:
        point = self._point
        if (state.round, state.committed, state.digest) != (point.round, point.committed, point.digest):
            # It does not have the prefix that the log and the contract say (D20): not to be trusted with the session.
            self._refusing.add(self._verifier_uri)
            return self._fence()
        self._refusing.clear()
        self._waited_ms = self._refusals = 0
        moved = self._moved()
        ended = ended_by(state) or self._recorded.ended
        if ended is not None:
            return moved + self._end(ended, state.committed)
        self._wanted = self._switched_from()
        return moved + self._next()

    def _switched_from(self) -> frozenset[str]:
        """The drafter of the last round, if that said switch: the event may be lost with its verifier (6.5.2)."""
        turns = [drafter for since, drafter in self._proposers if since < self._recorded.round]
        return frozenset(turns[-1:] if self._recorded.switched else ())

    def _moved(self) -> Effects:
        """Tell the front ends that wait to hear it."""
        location = Location(session=self.session, epoch=self.epoch, verifier=self._verifier_uri)
        opened = OpenedRecord(
            serving=self.epoch,
            verifier=self._verifier_uri,
            prompt=self._prompt if isinstance(self._prompt, str) else None,
            resume=self._open.resume if self._open is not None else None,
        )
        return [*self._keep(opened), *self._locating.moved(location)]

    def _open_refused(self, error: ProblemError) -> Effects:
        if unclear(error):
            return self._unanswered()
        if self._store_anew():
            self._prompt, self._point = self._prompt_tokens, replace(self._point, ref=None)
        if error.status == 409:
            return self._fence()
        if error.status == 422 and self.epoch == 1:  # the contract or the prompt itself: the front end's to mend
            return self._refuse_submission(error)
        self._refusal = error
        self._refusing.add(self._verifier_uri)
        self._may_commit = False  # an answered refusal opens nothing, and every earlier epoch is fenced
        return self._begin()

    def _refuse_submission(self, error: ProblemError) -> Effects:
        self.failure = error if self._locating.location is None else None
        return self._end(Action.FAIL)

    def _unanswered(self) -> Effects:
        self._attempts += 1
        if self._attempts < self._patience.attempts:
            return self._pause()
        self._refusing.add(self._verifier_uri)
        return self._fence()

    # ---- fence, read, resume (6.9) ----------------------------------------------------------------------------------

    def _verifier_lost(self, event: inputs.VerifierLost) -> Effects:
        return [] if self._step in HAS_NO_VERIFIER else self._fence()

    def _fence(self) -> Effects:
        self._withdrawn = self._withdrawn or self._failovers >= self._patience.failovers
        self._failovers += 1
        self._waited_ms = 0
        self.drafter = self._put = None
        self._rest(Step.FENCING)
        self._fencing = Fencing(self._recorded, self._log, self.epoch, self._patience.retry_ms)
        return [CancelTimer(TIMER), *self._fencing.begin()]

    def _fence_answered(self, fencing: Fencing, event: object) -> Effects:
        try:
            effects = [*fencing.handle(event)]
        except (InvalidContent, MalformedBody) as fault:
            self._refusal = fault
            return self._end(Action.FAIL)
        if fencing.done:
            return effects + self._fenced(fencing.epoch)
        if fencing.waited_ms >= self._patience.drafter_wait_ms:
            return self._end(Action.FAIL)
        return effects

    def _fenced(self, epoch: int) -> Effects:
        self.epoch = epoch
        self._may_commit = False
        if self._withdrawn:
            return self._end(Action.FAIL)
        tokens = self._recorded.tokens
        if len(tokens) > self._point.committed:
            self._failovers = 1  # it gets on, if haltingly
        elif self._point.ref is not None:
            return self._resume(self._point.ref)
        return self._ask(Step.STORING_RESUME, StoreTokens(tuple(tokens)))

    def _resume(self, ref: str) -> Effects:
        recorded = self._recorded
        self._point = Point(recorded.round, len(recorded.tokens), recorded.digest, ref)
        self._resumed()
        return self._choose_verifier()

    def _give_up(self) -> Effects:
        """With a fence, where somebody may still commit (D34)."""
        self._withdrawn = True
        if self._step is Step.FENCING:
            return []
        return self._fence() if self._may_commit else self._end(Action.FAIL)
