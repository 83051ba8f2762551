"""A front end of a world: it submits the request and reads the output to its end, whatever fails (6.7, D33).

It keeps what it has read: tokens it has are never asked for again, output of a lower epoch than it has seen is
discarded, and when a verifier does not answer it asks the router who serves the session now. It asks that too whenever
it has waited in vain: a verifier that the others take for dead, or a session that they have given up, may not know it,
and would let it wait for ever. Of a session that has ended it then takes the tokens that the router has.
"""

from __future__ import annotations

from collections.abc import Callable

from sdcp.errors import ProblemError
from sdcp.machines.effects import Refuse, Reply
from sdcp.messages.contract import Action, Sampling
from sdcp.messages.output import Output
from sdcp.messages.request import Location
from sdcp.messages.session import Policy
from sdcp.testing.network import Answer, Call
from sdcp.testing.routing import Router
from sdcp.testing.surroundings import FRONT_END, ROUTER, Surroundings
from sdcp.testing.verifying import VerifierInstance

WAIT_MS = 1000


class FrontEnd:
    """The one reader of the session.

    `tokens`: what it has read. `finish`: how the output ended. `failure`: the request was refused. `discarded`:
    outputs of a lower epoch that came in. `changes`: changes of the profile, as they were applied.
    """

    def __init__(
        self, around: Surroundings, router: Router, verifiers: Callable[[str], VerifierInstance], wait_ms: int = WAIT_MS
    ) -> None:
        self.tokens: list[int] = []
        self.epoch = 0
        self.finish: Action | None = None
        self.failure: ProblemError | None = None
        self.discarded = 0
        self.changes: list[Policy] = []
        self._network = around.network
        self._router = router
        self._verifiers = verifiers
        self._wait_ms = wait_ms

    def submit(self) -> None:
        """POST requests, until it is answered."""
        self._send(self._router.submitted, self._submitted, ROUTER)

    def change_profile(self, sampling: Sampling, from_round: int | None = None) -> None:
        """POST requests/{id}/policy, once."""
        self._send(self._router.changed(sampling, from_round), self._changed, ROUTER)

    def withdraw(self) -> None:
        """DELETE requests/{id}, until it is answered."""
        self._send(
            self._router.withdrawn, lambda answer: None if isinstance(answer, Reply) else self.withdraw(), ROUTER
        )

    def _changed(self, answer: Answer) -> None:
        if isinstance(answer, Reply) and isinstance(answer.message, Policy):
            self.changes.append(answer.message)

    def _submitted(self, answer: Answer) -> None:
        match answer:
            case Refuse(error=error):
                self.failure = error
            case Reply(message=Location() as location):
                self._read_at(location)
            case _:
                self.submit()

    def _read_at(self, location: Location) -> None:
        if location.tokens is not None:
            self.tokens += location.tokens[len(self.tokens) :]
            self.finish = location.ended
            return
        arrive = self._verifiers(location.verifier).reads(len(self.tokens), self._wait_ms)
        self._send(arrive, lambda answer: self._took(location, answer), location.verifier)

    def _took(self, location: Location, answer: Answer) -> None:
        if not isinstance(answer, Reply) or not isinstance(answer.message, Output):
            self._locate(location.epoch)
        elif answer.message.epoch < self.epoch:
            self.discarded += 1
            self._locate(answer.message.epoch)
        else:
            self._take(location, answer.message)

    def _take(self, location: Location, output: Output) -> None:
        self.epoch = output.epoch
        self.tokens += output.tokens
        self.finish = output.finish
        if output.tokens and not output.final:
            self._read_at(location)
        elif not output.final:
            self._locate(None)

    def _locate(self, epoch: int | None) -> None:
        """Ask the router who serves the session, now that `epoch` does not; None: whoever it is."""
        self._send(self._router.located(epoch, self._wait_ms), lambda answer: self._located(epoch, answer), ROUTER)

    def _located(self, epoch: int | None, answer: Answer) -> None:
        match answer:
            case Reply(message=Location(ended=ended, epoch=last)) if epoch is None and ended is not None:
                self._locate(last)
            case Reply(message=Location() as location):
                self._read_at(location)
            case _:
                self._locate(epoch)

    def _send(self, arrive: Callable[[Call], None], hear: Callable[[Answer], None], to: str) -> None:
        self._network.send(Call(hear, sender=FRONT_END), arrive, to)
