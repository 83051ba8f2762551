"""A drafter session: assignments come here, and the rounds that follow from them begin and end here (4.1, 6.1, 6.2).

Words: a session is *held* from the arrival of an assignment that can be taken until EndSession; first the drafter
*joins* (`drafter_joining`), then it drafts (`drafter_rounds`). After EndSession the machine is as new: an assignment
starts afresh.

Epochs (D28): a higher one replaces whatever is held, since nothing of the lower one can be committed any more; the same
one brings at most a new sampling profile (D21); a lower one is refused.

Not here: everything that takes time. A process holds one of these machines for each session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sdcp.errors import InvalidContent, Overloaded, ProblemError, StaleEpoch
from sdcp.machines.drafter_estimate import START_ALPHA, Estimate
from sdcp.machines.drafter_joining import DraftModel, Joining, fault_of
from sdcp.machines.drafter_rounds import Effects, Patience, Rounds
from sdcp.machines.effects import Abandon, EndSession, FetchOutput, FetchTokens, Refuse, Reply
from sdcp.machines.inputs import (
    AssignmentReceived,
    OutputFetched,
    OutputUnavailable,
    RequestCancelled,
    StopRequested,
    TokensFetched,
    TokensUnavailable,
)
from sdcp.messages.round import Assignment


class DrafterSession:
    """The machine of one session at one drafter.

    `alpha` is the acceptance to expect of a session that nothing is known of.
    """

    def __init__(self, model: DraftModel, patience: Patience | None = None, alpha: float = START_ALPHA) -> None:
        self._model = model
        self._patience = patience or Patience()
        self._alpha = alpha
        self._held: Assignment | None = None
        self._joining: Joining | None = None
        self._rounds: Rounds | None = None
        self._handlers: dict[type, Callable[[Any], Effects]] = {
            TokensFetched: self._tokens_fetched,
            TokensUnavailable: self._tokens_unavailable,
            OutputFetched: self._output_fetched,
            OutputUnavailable: self._output_unavailable,
            RequestCancelled: self._request_cancelled,
            StopRequested: self._stop_requested,
        }

    def handle(self, event: Any) -> Effects:
        """Take one input; return what has to happen, in order. What nobody asked for changes nothing."""
        if isinstance(event, AssignmentReceived):
            return self._assignment_received(event.message, event.request)
        if self._rounds is not None:
            effects = self._rounds.handle(event)
            if self._rounds.ended:
                self._forget()
            return effects
        handler = self._handlers.get(type(event))
        return handler(event) if handler else []

    @property
    def epoch(self) -> int | None:
        """The epoch of the assignment that is held; None: none is."""
        return self._held.epoch if self._held else None

    @property
    def proposing(self) -> bool:
        """Whether a proposal is out whose verdict is not known."""
        return self._rounds is not None and self._rounds.proposing

    def _forget(self) -> None:
        self._held = self._joining = self._rounds = None

    # -- assignments (6.1, D21, D28) ----------------------------------------------------------------------------------

    def _assignment_received(self, message: Assignment, request: int) -> Effects:
        held = self._held
        if held is not None and message.epoch < held.epoch:
            return [Refuse(request, StaleEpoch(f"This drafter holds the session in epoch {held.epoch}."))]
        if held is not None and message.epoch == held.epoch:
            return self._assigned_again(held, message, request)
        fault = fault_of(message, self._model)
        if fault is not None:
            return [Refuse(request, fault)]
        left = self._leave_epoch()
        self._held, self._joining = message, Joining(message, request, self._model)
        return [*left, *self._gather(self._joining)]

    def _assigned_again(self, held: Assignment, message: Assignment, request: int) -> Effects:
        if message.contract != held.contract:
            return [Refuse(request, InvalidContent("The contract is not the session's; it never changes (4.1)."))]
        if self._joining is not None:
            self._joining.join_again(message, request)
            return []
        assert self._rounds is not None
        self._rounds.hear(message)
        return [Reply(request, None)]

    def _leave_epoch(self) -> Effects:
        """Drop what the lower epoch has under way (6.9, D28)."""
        if self._joining is not None:
            stale = StaleEpoch("An assignment of a higher epoch has come for this session.")
            return [*self._joining.refuse(stale), Abandon()]
        if self._rounds is None:
            return []
        left, self._rounds = self._rounds.leave(), None
        return left

    # -- joining (D9a, D20) -------------------------------------------------------------------------------------------

    def _gather(self, joining: Joining) -> Effects:
        wanted = joining.wants()
        if wanted is not None:
            return [wanted]
        try:
            prefix = joining.prefix()
        except InvalidContent as fault:
            return self._refuse(joining, fault)
        self._joining = None
        rounds = self._rounds = Rounds(joining.message, prefix, Estimate(self._alpha), self._patience)
        rounds.hear(joining.latest)
        effects = [*joining.accept(), *rounds.begin()]
        if rounds.ended:
            self._forget()
        return effects

    def _refuse(self, joining: Joining, error: ProblemError) -> Effects:
        self._forget()
        return [*joining.refuse(error), EndSession()]

    def _tokens_fetched(self, event: TokensFetched) -> Effects:
        joining = self._wanting(event)
        if joining is None:
            return []
        joining.take_object(event.tokens)
        return self._gather(joining)

    def _tokens_unavailable(self, event: TokensUnavailable) -> Effects:
        joining = self._wanting(event)
        return self._refuse(joining, event.error) if joining is not None else []

    def _output_fetched(self, event: OutputFetched) -> Effects:
        joining = self._wanting(event)
        if joining is None:
            return []
        message = joining.message
        if event.epoch > message.epoch:
            return self._refuse(joining, StaleEpoch(f"The verifier is in epoch {event.epoch}."))
        if event.epoch < message.epoch or event.start != 0 or len(event.tokens) < message.committed:
            return self._refuse(joining, Overloaded("The verifier does not show the committed output yet."))
        joining.take_output(event.tokens)
        return self._gather(joining)

    def _output_unavailable(self, event: OutputUnavailable) -> Effects:
        joining = self._wanting(event)
        if joining is None:
            return []
        later = Overloaded("The committed output cannot be fetched now; assign again, or another drafter.")
        return self._refuse(joining, event.error if isinstance(event.error, StaleEpoch) else later)

    def _wanting(self, event: TokensFetched | TokensUnavailable | OutputFetched | OutputUnavailable) -> Joining | None:
        """The joining that waits for this very answer, or None."""
        wanted = self._joining.wants() if self._joining else None
        match event:
            case TokensFetched(ref=ref) | TokensUnavailable(ref=ref):
                fits = isinstance(wanted, FetchTokens) and wanted.ref == ref
            case _:
                fits = isinstance(wanted, FetchOutput)
        return self._joining if fits else None

    def _request_cancelled(self, event: RequestCancelled) -> Effects:
        """The router went away. The assignment stands: it was meant, and a verdict will say if it is so no more."""
        if self._joining is not None:
            self._joining.forget(event.request)
        return []

    def _stop_requested(self, event: StopRequested) -> Effects:
        if self._joining is not None:
            return self._refuse(self._joining, Overloaded("This drafter is going down; assign another."))
        return [EndSession()]
