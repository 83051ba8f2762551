"""Who plays in a world: instances that can lie as `Liars` says, and a watch that knows of it. See `lying`.

Without luck, and with HONEST, everybody is honest; the watch is as wary all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from sdcp.machines.drafter_rounds import Patience
from sdcp.machines.inputs import DrafterAssigned, ProposalReceived
from sdcp.machines.verifier import VerifierSession
from sdcp.messages.contract import Contract
from sdcp.messages.round import Assignment, Proposal
from sdcp.messages.session import SessionOpen
from sdcp.messages.status import DRAFTER, Status
from sdcp.ports import Drafter, Target
from sdcp.testing.driven import Driven
from sdcp.testing.lying import SAID_BY_ROUTER, Liars, Script
from sdcp.testing.lying_drafter import LyingDrafter
from sdcp.testing.lying_router import LyingRouter
from sdcp.testing.lying_store import LyingStore
from sdcp.testing.lying_watch import WaryWatch
from sdcp.testing.network import Call
from sdcp.testing.routing import LOG
from sdcp.testing.surroundings import Client, Surroundings
from sdcp.testing.verifying import Events, Habits, VerifierInstance


class Troupe:
    """The instances of one world. `liars` may change at any time: HONEST from now on is honesty from now on."""

    def __init__(self, liars: Liars, luck: Random | None, session: bytes, *, watched: bool = True) -> None:
        """`watched`: whether the watch is to hear what verifiers hear; it keeps all of it."""
        self.script = Script(liars, luck)
        self._session = session
        self._watched = watched

    @property
    def liars(self) -> Liars:
        """The chances now."""
        return self.script.liars

    @liars.setter
    def liars(self, liars: Liars) -> None:
        self.script.liars = liars

    def watch(
        self,
        contract: Contract,
        prompt: tuple[int, ...],
        plain: Sequence[int] | None,
        *,
        enforces_fences: bool,
        width: int,
    ) -> WaryWatch:
        """Return the watch of the world. `width` is V."""
        self._watch = WaryWatch(contract, prompt, plain, enforces_fences=enforces_fences)
        self._watch.width, self._watch.doubtful = width, not self.script.honest
        self._router = LyingRouter(self.script, self._session, prompt, LOG)
        return self._watch

    def store(self, *, enforces_fences: bool, appended: Callable[[bytes], None]) -> LyingStore:
        """Return the cache of the world."""
        served = self._watch.served if self._watched else None
        return LyingStore(self.script, enforces_fences=enforces_fences, appended=appended, served=served)

    def verifier(
        self,
        uri: str,
        target: Target,
        around: Surroundings,
        habits: Habits,
        events: Events,
        performed: Callable[[], None],
    ) -> VerifierInstance:
        """Return a verifier of the world: an honest one, that lets the watch hear what is said to it."""
        if not self._watched:
            return VerifierInstance(uri, target, around, habits, events, performed)
        return OverheardVerifier(self._watch, self._router, uri, target, around, habits, events, performed)

    def drafter(
        self,
        uri: str,
        engine: Drafter,
        around: Surroundings,
        verifiers: Callable[[str], VerifierInstance],
        patience: Patience,
    ) -> LyingDrafter:
        """Return a drafter of the world."""
        return LyingDrafter(self.script, self._watch.verdicts, uri, engine, around, verifiers, patience)

    def meddle(self, world: Any) -> None:
        """Before a step: let those lie who need no occasion for it. `world` is the `Pair`."""
        for name, chance in self.script.stepwise:
            if self.script.luck.random() >= chance:
                continue
            if name == "uncalled":
                self._call_out(world)
            elif name in ("evict", "evict_tokens"):
                world.store.evict(tokens=name == "evict_tokens")
            elif name in SAID_BY_ROUTER:
                self._router.lie(world, name)

    def _call_out(self, world: Any) -> None:
        """Some drafter, assigned or not, says what the assigned one could say now."""
        luck, watch = self.script.luck, self._watch
        drafter: LyingDrafter = luck.choice([*world.drafters.values()])
        verifier = world.router.machine.verifier
        if verifier is None:
            return
        tokens = tuple(luck.randrange(watch.width) for _ in range(luck.randint(1, 3)))
        proposal = Proposal(
            session=self._session,
            epoch=world.router.machine.epoch,
            round=len(watch.records) + 1,
            drafter=drafter.uri,
            base=len(watch.tokens),
            base_digest=watch.digests[-1],
            tokens=tokens,
            q_rows=drafter.rows_for(tokens) if watch.contract.rule == 2 else None,
            status=Status(instance=drafter.uri, role=DRAFTER, load=0, queue=0, ttl_ms=0),
        )
        drafter.say(verifier, proposal)


class OverheardVerifier(VerifierInstance):
    """A VerifierInstance: `watch` is told of what is handed to it, `router` of what the other router says."""

    def __init__(self, watch: WaryWatch, router: LyingRouter, *arguments: Any) -> None:
        self._watch = watch
        self._router = router
        super().__init__(*arguments)

    def opens(self, message: SessionOpen) -> Callable[[Call], None]:
        """POST sessions."""
        self._router.opens.append(message)
        return super().opens(message)

    def assigns(self, message: Assignment) -> Callable[[Call], None]:
        """PUT sessions/{id}/drafter."""
        self._router.puts.append(message)

        def make(request: int, carried: Assignment) -> DrafterAssigned:
            held = self._serving()
            if held is not None and _machine(held).phase is not None:  # one that is being opened takes none
                self._watch.assigned(held, _machine(held).epoch, carried)
            return DrafterAssigned(request, carried)

        return self._request(message, make)

    def proposes(self, message: Proposal, client: Client) -> Callable[[Call], None]:
        """POST proposals."""

        def make(request: int, carried: Proposal) -> ProposalReceived:
            held = self._serving()
            if held is not None:
                self._watch.proposed(held, _machine(held).epoch, client.uri, carried)
            return ProposalReceived(request, carried, client)

        return self._request(message, make)


def _machine(held: Driven) -> VerifierSession:
    assert isinstance(held.machine, VerifierSession)
    return held.machine
