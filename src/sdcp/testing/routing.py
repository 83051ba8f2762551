"""The router of a world: the real machine of one session, and whom it may choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sdcp.machines.effects import (
    AppendLog,
    ChooseDrafter,
    ChooseVerifier,
    EndSession,
    ReadLog,
    Refuse,
    Reply,
    SendAssignment,
    SendDrafter,
    SendOpen,
    SendPolicy,
    StoreTokens,
)
from sdcp.machines.inputs import (
    AssignmentRefused,
    AssignmentTaken,
    DrafterChosen,
    DrafterLost,
    EventReceived,
    LocationRequested,
    LogUnanswered,
    ProfileChanged,
    RequestSubmitted,
    RequestWithdrawn,
    StateReceived,
    StoreFailed,
    TokensStored,
    VerifierChosen,
    VerifierLost,
    VerifierRefused,
    VerifierUnanswered,
)
from sdcp.machines.router import Patience, RouterSession
from sdcp.messages.contract import Contract, Sampling
from sdcp.messages.output import Event
from sdcp.messages.session import SessionState
from sdcp.testing.drafting import DrafterInstance
from sdcp.testing.driven import Driven, Perform
from sdcp.testing.network import SILENCE, Answer, Call
from sdcp.testing.surroundings import CACHE, ROUTER, Surroundings
from sdcp.testing.verifying import VerifierInstance

NEVER = 1 << 40
LOG = "memory:/logs/session"


ENDLESS = Patience(verifier_wait_ms=NEVER, recovery_wait_ms=NEVER, drafter_wait_ms=NEVER, failovers=NEVER)
"""No number of faults wears it out, so a session ends for reasons of its own."""


class Router:
    """The router of the session. It takes the first instance that it may; one lost or passed over goes to the end."""

    def __init__(
        self,
        around: Surroundings,
        contract: Contract,
        prompt: tuple[int, ...],
        patience: Patience,
        verifiers: Mapping[str, VerifierInstance],
        drafters: Mapping[str, DrafterInstance],
    ) -> None:
        self.machine = RouterSession(around.session, contract, prompt, LOG, patience)
        self._around = around
        self._verifiers = dict(verifiers)
        self._drafters = dict(drafters)
        self._held = Driven(self.machine, around.agenda, around.network, party=ROUTER, observer=around.observer)
        self._held.able(self._performers(self._held))

    # ---- requests, and what it learns by itself ----------------------------------------------------------------------

    def submitted(self, call: Call) -> None:
        """POST requests."""
        self._held.ask(call, RequestSubmitted)

    def located(self, epoch: int | None, wait_ms: int) -> Callable[[Call], None]:
        """GET requests/{id}."""
        return lambda call: self._held.ask(call, lambda request: LocationRequested(request, epoch, wait_ms))

    def changed(self, sampling: Sampling, from_round: int | None) -> Callable[[Call], None]:
        """POST requests/{id}/policy."""
        return lambda call: self._held.ask(call, lambda request: ProfileChanged(request, sampling, from_round))

    def withdrawn(self, call: Call) -> None:
        """DELETE requests/{id}."""
        self._held.ask(call, RequestWithdrawn)

    def told(self, event: Event) -> Callable[[Call], None]:
        """POST events."""
        carried = self._around.network.carried(event)
        return lambda call: self._held.ask(call, lambda request: EventReceived(request, carried))

    def lose_verifier(self) -> None:
        """The verifier's status has expired, whatever became of it."""
        uri = self.machine.verifier
        if uri is not None:
            _sink(self._verifiers, uri)
        self._held.handle(VerifierLost())

    def lose_drafter(self) -> None:
        """The drafter's status has expired, whatever became of it."""
        self._held.handle(DrafterLost())

    def look(self) -> None:
        """Notice that the verifier or the drafter in use does not hold the session under this epoch."""
        machine = self.machine
        if machine.ended is not None:
            return
        verifier, drafter = machine.verifier, machine.drafter
        if verifier is not None and self._verifiers[verifier].machine(machine.epoch) is None:
            self.lose_verifier()
        elif drafter is not None and self._drafters[drafter].epoch != machine.epoch:
            self.lose_drafter()

    # ---- effects -----------------------------------------------------------------------------------------------------

    def _performers(self, held: Driven) -> dict[type, Perform]:
        store, answers = self._around.store, self._around.network.answer
        return {
            ChooseVerifier: lambda effect: held.work(lambda: self._choose_verifier(effect)),
            ChooseDrafter: lambda effect: held.work(lambda: self._choose_drafter(effect)),
            StoreTokens: lambda effect: held.send(
                lambda call: answers(call, TokensStored(store.put_tokens(effect.tokens), effect)),
                lambda answer: StoreFailed("no answer", effect) if answer is SILENCE else answer,
                CACHE,
            ),
            AppendLog: lambda effect: held.send(
                lambda call: answers(call, store.append(effect)), _or_unanswered, CACHE
            ),
            ReadLog: lambda effect: held.send(lambda call: answers(call, store.read(effect)), _or_unanswered, CACHE),
            SendOpen: lambda effect: self._ask(held, effect, self._verifiers[effect.verifier].opens),
            SendDrafter: lambda effect: self._ask(held, effect, self._verifiers[effect.verifier].assigns),
            SendPolicy: lambda effect: self._ask(held, effect, self._verifiers[effect.verifier].updates),
            SendAssignment: lambda effect: held.send(
                self._drafters[effect.drafter].assigned(effect.message),
                lambda answer: _taken(effect, answer),
                effect.drafter,
            ),
            EndSession: lambda _: None,  # an ended session stays known for a while
        }

    def _ask(self, held: Driven, effect: Any, how: Callable[[Any], Callable[[Call], None]]) -> None:
        held.send(how(effect.message), lambda answer: _verifier_said(effect, answer), effect.verifier)

    def _choose_verifier(self, effect: ChooseVerifier) -> VerifierChosen:
        return VerifierChosen(next((uri for uri in self._verifiers if uri not in effect.but), None))

    def _choose_drafter(self, effect: ChooseDrafter) -> DrafterChosen:
        permitted = effect.contract.drafters
        for uri in [uri for uri in self._drafters if uri in effect.but]:
            _sink(self._drafters, uri)
        able = [
            uri for uri, instance in self._drafters.items() if permitted is None or instance.engine.model in permitted
        ]
        others = [uri for uri in able if uri not in effect.but]
        return DrafterChosen(next(iter(others or able), None))


def _sink(order: dict[str, Any], uri: str) -> None:
    """Make it the last one to be taken."""
    order[uri] = order.pop(uri)


def _or_unanswered(answer: Answer) -> Any:
    return LogUnanswered() if answer is SILENCE else answer


def _verifier_said(effect: Any, answer: Answer) -> Any:
    match answer:
        case Reply(message=SessionState() as state):
            return StateReceived(state, effect)
        case Refuse(error=error):
            return VerifierRefused(error, effect)
    return VerifierUnanswered(effect)


def _taken(effect: Any, answer: Answer) -> Any:
    match answer:
        case Reply():
            return AssignmentTaken(effect)
        case Refuse(error=error):
            return AssignmentRefused(error, effect)
    return AssignmentRefused(None, effect)
