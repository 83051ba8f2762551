"""Who is alive, in a world with a clock: instances report their status, the router keeps a roster and looks at it.

The roster is the real one (`sdcp.machines.roster`), and so are its consequences: an instance is lost when its status
has expired, whatever became of it (6.1, 6.9, D7). Not here: what instances do otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sdcp.machines.effects import ChooseDrafter, ChooseVerifier
from sdcp.machines.inputs import DrafterChosen, DrafterLost, VerifierChosen, VerifierLost
from sdcp.machines.roster import Roster
from sdcp.messages.status import VERIFIER, Status
from sdcp.testing.network import Call
from sdcp.testing.routing import Router
from sdcp.testing.surroundings import ROUTER, Surroundings

TTL_MS: Final = 4_000
REPORT_MS: Final = 1_500.0
SWEEP_MS: Final = 1_000.0


class ReportedRouter(Router):
    """The router of a session; it knows of instances what they report."""

    def __init__(self, around: Surroundings, *rest: Any, **named: Any) -> None:
        super().__init__(around, *rest, **named)
        self._roster = Roster()
        around.agenda.set_timer(self, "sweep", self._sweep, SWEEP_MS, ROUTER)

    def reported(self, status: Status) -> Callable[[Call], None]:
        """PUT instances/{id}/status."""

        def arrive(call: Call) -> None:
            self._roster.report(status, self._now_ms)
            call.open = False  # nothing depends on the answer

        return arrive

    def knows(self, status: Status) -> None:
        """Begin with a status that was received before the world began."""
        self._roster.report(status, 0)

    def start_again(self) -> None:
        """Look for the session in the cache, and wait for statuses."""
        self._roster = Roster()
        super().start_again()

    def look(self) -> None:
        """Nothing is noticed by magic."""

    @property
    def _now_ms(self) -> int:
        return int(self._around.agenda.now_ms)

    def _sweep(self, name: str) -> None:
        self._around.agenda.set_timer(self, name, self._sweep, SWEEP_MS, ROUTER)
        for lost in self._roster.lost(self._now_ms):
            if lost.role == VERIFIER and self.machine.verifier == lost.base:
                self._held.handle(VerifierLost())
            elif lost.role != VERIFIER and self.machine.drafter == lost.base:
                self._held.handle(DrafterLost())

    def _choose_verifier(self, effect: ChooseVerifier) -> VerifierChosen:
        contract = effect.contract
        return VerifierChosen(
            self._roster.choose_verifier(contract.target, contract.tokenizer, effect.but, self._now_ms)
        )

    def _choose_drafter(self, effect: ChooseDrafter) -> DrafterChosen:
        return DrafterChosen(self._roster.choose_drafter(effect.contract, effect.but, self._now_ms))


class Reporter:
    """Reports the status of one instance, for as long as it is not down."""

    def __init__(self, status: Status, around: Surroundings, router: ReportedRouter, down: set[str]) -> None:
        assert status.base is not None
        self._uri: str = status.base
        self._status, self._around, self._router, self._down = status, around, router, down
        router.knows(status)
        self._again()

    def _again(self) -> None:
        self._around.agenda.set_timer(self, "report", self._report, REPORT_MS, self._uri)

    def _report(self, _: str) -> None:
        self._again()
        if self._uri not in self._down:
            call = Call(lambda _: None, sender=self._uri)
            self._around.network.send(call, self._router.reported(self._status), ROUTER)
