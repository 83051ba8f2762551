"""The router of a world: the real machine of one session, and whom it may choose.

One that keeps a manifest may crash: the next life finds the session in the cache, or it was never promised to anybody
(D45). Several lives of it may be there at once, when an old one was given up for dead and is not; of those the last one
is asked, and takes the session up again if another has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from sdcp.machines.effects import (
    AppendLog,
    AppendManifest,
    ChooseDrafter,
    ChooseVerifier,
    EndSession,
    LetGo,
    ReadLog,
    ReadManifest,
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
    LogRead,
    LogUnanswered,
    ManifestAnswered,
    ProfileChanged,
    RequestSubmitted,
    RequestWithdrawn,
    StateReceived,
    StoreFailed,
    TakenUp,
    TokensStored,
    VerifierChosen,
    VerifierLost,
    VerifierRefused,
    VerifierUnanswered,
)
from sdcp.machines.manifest import Manifest, request_records
from sdcp.machines.manifest_log import ManifestLog
from sdcp.machines.router import Patience, RouterSession
from sdcp.machines.router_kept import KeptSession
from sdcp.messages.contract import Contract, Sampling
from sdcp.messages.manifest import RequestRecord, TakenRecord
from sdcp.messages.output import Event
from sdcp.messages.request import GenerationRequest
from sdcp.messages.session import SessionState
from sdcp.testing.drafting import DrafterInstance
from sdcp.testing.driven import Driven, Perform
from sdcp.testing.network import SILENCE, Answer, Call
from sdcp.testing.surroundings import CACHE, ROUTER, Surroundings
from sdcp.testing.verifying import VerifierInstance

NEVER = 1 << 40
LOG = "memory:/logs/session"
WAKES_MS = 2_000.0
"""After so long a life that was given up for dead thinks that it has lost its verifier: nobody reports to it."""


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
        *,
        keeps: bool = False,
    ) -> None:
        """`keeps`: whether it keeps a manifest."""
        self._around = around
        self._terms = (contract, prompt, patience)
        self._verifiers = dict(verifiers)
        self._drafters = dict(drafters)
        self._lives = count(1)
        self._life = next(self._lives)
        self._names = count(1)
        self._looks = self._astray = self._admits = False
        self._old: list[Driven] = []
        self.machine = self._session()
        self._held = self._driven(self._kept(self.machine) if keeps else self.machine)

    # ---- its lives (D45) ---------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """It loses all it knows. `start_again` begins the next life."""
        self._held.die()

    def start_again(self) -> None:
        """Look for the session in the cache."""
        self._life, self._looks, self._astray = next(self._lives), True, False
        self._look_for(self._life)

    def split(self) -> None:
        """The next life begins while the old one goes on, to which nobody talks any more."""
        old = self._held
        self._old.append(old)
        self._around.agenda.set_timer(old, "wakes", lambda _: old.handle(VerifierLost()), WAKES_MS, ROUTER)
        self.start_again()

    def _look_for(self, life: int) -> None:
        if life != self._life:
            return
        call = Call(lambda answer: self._found(life, answer), sender=ROUTER)
        network, store = self._around.network, self._around.store
        network.send(call, lambda call: network.answer(call, store.all_manifests()), CACHE)

    def _found(self, life: int, answer: Answer) -> None:
        if answer is SILENCE:
            self._look_for(life)
        elif life == self._life:
            self._take_up(answer)

    def _take_up(self, found: Mapping[str, LogRead]) -> None:
        """Of several the one that was opened: what nobody was told of may have come late."""
        self._looks = False
        told: dict[str, Manifest] = {}
        for ref, read in found.items():
            manifest = Manifest()
            manifest.take(read.data)
            if manifest.whole:
                told[ref] = manifest
        if not told:
            self._none_found()
            return
        ref, manifest = max(told.items(), key=lambda item: item[1].opened is not None)
        taken = TakenRecord(router=ROUTER, life=_octets(self._life))
        log = ManifestLog(ref, manifest, found[ref].etag)
        self._held = self._driven(KeptSession(self._anew(), log, (taken,), manifest))
        self._held.handle(TakenUp())

    def _none_found(self) -> None:
        """Take the request for a new one, if it comes again; no older life may make a session of it any more."""
        self._astray = not self._admits or bool(self._around.store.manifests)
        if not self._astray:
            for old in self._old:
                old.die()
            self._held = self._driven(self._kept(self._anew()))

    def _anew(self) -> RouterSession:
        self.machine = self._session()
        return self.machine

    def _session(self) -> RouterSession:
        contract, prompt, patience = self._terms
        return RouterSession(self._around.session, contract, prompt, LOG, patience)

    def _kept(self, session: RouterSession) -> KeptSession:
        contract, prompt, _ = self._terms
        first = RequestRecord(
            router=ROUTER,
            life=_octets(self._life),
            owner="front end",
            session=session.session,
            contract=contract,
            commit_log=LOG,
            request=GenerationRequest(
                request=_octets(0), prompt=prompt, max_new=contract.max_new, stop=contract.stop, rule=contract.rule
            ),
            prompt_length=len(prompt),
        )
        return KeptSession(session, ManifestLog(f"memory:/manifests/{next(self._names)}"), request_records(first))

    def _driven(self, machine: RouterSession | KeptSession) -> Driven:
        around = self._around
        held = Driven(machine, around.agenda, around.network, party=ROUTER, observer=around.observer)
        return held.able(self._performers(held))

    # ---- requests, and what it learns by itself ----------------------------------------------------------------------

    def submitted(self, call: Call) -> None:
        """POST requests."""
        self._admits = True
        self._ask(call, RequestSubmitted)

    def located(self, epoch: int | None, wait_ms: int) -> Callable[[Call], None]:
        """GET requests/{id}."""
        return lambda call: self._ask(call, lambda request: LocationRequested(request, epoch, wait_ms))

    def changed(self, sampling: Sampling, from_round: int | None) -> Callable[[Call], None]:
        """POST requests/{id}/policy."""
        return lambda call: self._ask(call, lambda request: ProfileChanged(request, sampling, from_round))

    def withdrawn(self, call: Call) -> None:
        """DELETE requests/{id}."""
        self._ask(call, RequestWithdrawn)

    def told(self, event: Event) -> Callable[[Call], None]:
        """POST events."""
        carried = self._around.network.carried(event)

        def arrive(call: Call) -> None:
            if self.machine.verifier is None:  # so it has none that an event may come from (D10)
                self._around.network.answer(call, SILENCE)
            else:
                self._ask(call, lambda request: EventReceived(request, carried))

        return arrive

    def _ask(self, call: Call, make: Callable[[int], Any]) -> None:
        if self._astray:  # somebody wants it of us
            self.start_again()
        if self._looks:
            self._around.network.answer(call, SILENCE)
        else:
            self._held.ask(call, make)

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
            AppendManifest: lambda effect: held.send(
                lambda call: answers(call, store.append_manifest(effect)),
                lambda answer: ManifestAnswered(_or_unanswered(answer), effect),
                CACHE,
            ),
            ReadManifest: lambda effect: held.send(
                lambda call: answers(call, store.read_manifest(effect)),
                lambda answer: ManifestAnswered(_or_unanswered(answer), effect),
                CACHE,
            ),
            LetGo: lambda _: self._lets_go(held),
            SendOpen: lambda effect: self._tell(held, effect, self._verifiers[effect.verifier].opens),
            SendDrafter: lambda effect: self._tell(held, effect, self._verifiers[effect.verifier].assigns),
            SendPolicy: lambda effect: self._tell(held, effect, self._verifiers[effect.verifier].updates),
            SendAssignment: lambda effect: held.send(
                self._drafters[effect.drafter].assigned(effect.message),
                lambda answer: _taken(effect, answer),
                effect.drafter,
            ),
            EndSession: lambda _: None,  # an ended session stays known for a while
        }

    def _tell(self, held: Driven, effect: Any, how: Callable[[Any], Callable[[Call], None]]) -> None:
        held.send(how(effect.message), lambda answer: _verifier_said(effect, answer), effect.verifier)

    def _lets_go(self, held: Driven) -> None:
        held.die()
        self._astray = self._astray or held is self._held

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


def _octets(number: int) -> bytes:
    return number.to_bytes(16, "big")


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
