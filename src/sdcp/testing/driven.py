"""A machine and the shell around it: the synchronous twin of `sdcp.roles.drive.Driver`.

The effects of one input are carried out in order before the next input is handed in; what they ask of others is
answered through the agenda, one piece of work each, so that a machine is never entered twice at once. `die` ends the
machine between two effects, as a process ends: what it has not done by then never happens, what it has sent is under
way, and those who wait for its answer hear nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Protocol

from sdcp.machines.effects import Abandon, CancelTimer, Refuse, Reply, SetTimer
from sdcp.machines.inputs import RequestCancelled, TimerFired
from sdcp.testing.agenda import Agenda
from sdcp.testing.network import SILENCE, Answer, Call, Network

Input = Any
Effect = Any
Perform = Callable[[Any], None]
Read = Callable[[Answer], Input]


class Machine(Protocol):
    """Any of `sdcp.machines`."""

    def handle(self, event: Input, /) -> Sequence[Effect]:
        """Take one input; return what has to happen, in order."""
        ...


class Observer(Protocol):
    """Whoever looks on at all machines of a world."""

    def handle(self, driven: Driven, given: Input) -> Sequence[Effect]:
        """Hand `given` to the machine and return its effects, unchanged."""
        ...

    def performed(self, driven: Driven) -> None:
        """An effect has been carried out."""
        ...


class Driven:
    """One machine. `watch` sees each answer to a peer as it leaves; `performed` is called after each effect.

    `party` is the process that it runs in; `observer` looks on.
    """

    def __init__(
        self,
        machine: Machine,
        agenda: Agenda,
        network: Network,
        *,
        watch: Callable[[Reply | Refuse], None] | None = None,
        performed: Callable[[], None] | None = None,
        party: str = "",
        observer: Observer | None = None,
    ) -> None:
        self.party = party
        self.machine = machine
        self.gone = False
        self.performers: dict[type, Perform] = {
            Reply: self.answer,
            Refuse: self.answer,
            SetTimer: lambda effect: agenda.set_timer(self, effect.name, self._fire, effect.delay_ms, party),
            CancelTimer: lambda effect: agenda.cancel_timer(self, effect.name),
            Abandon: lambda _: self._abandon(),
        }
        self._agenda = agenda
        self._network = network
        self._watch = watch
        self._performed = performed
        self._observer = observer
        self._numbers = count(1)
        self._waiting: dict[int, Call] = {}
        self._calls: set[Call] = set()

    def able(self, performers: Mapping[type, Perform]) -> Driven:
        """Add performers of effects; return itself."""
        self.performers.update(performers)
        return self

    def handle(self, given: Input) -> None:
        """Hand one input in and carry out what follows, as far as the process lives."""
        if self.gone:
            return
        observer = self._observer
        for effect in self.machine.handle(given) if observer is None else observer.handle(self, given):
            self.performers[type(effect)](effect)
            if self._performed is not None:
                self._performed()
            if observer is not None:
                observer.performed(self)
            if self.gone:
                return

    # ---- as a server -------------------------------------------------------------------------------------------------

    def ask(self, call: Call, make: Callable[[int], Input]) -> None:
        """Hand in a peer's request, built by `make(request number)`; the answer goes to the call."""
        request = next(self._numbers)
        self._waiting[request] = call
        call.cancel = lambda: self._cancel(request)
        self.handle(make(request))

    def answer(self, answer: Reply | Refuse) -> None:
        """Carry out Reply and Refuse. A request is answered once, and not after its peer went away."""
        call = self._waiting.pop(answer.request, None)
        if self._watch is not None:
            self._watch(answer)
        if call is not None:
            self._network.answer(call, answer)

    def _cancel(self, request: int) -> None:
        if self._waiting.pop(request, None) is not None:
            self.handle(RequestCancelled(request))

    # ---- as a client -------------------------------------------------------------------------------------------------

    def send(self, arrive: Callable[[Call], None], read: Read, to: str = "") -> None:
        """Send a request to a party; `read` makes an input of its answer."""
        self._network.send(self._call(read), arrive, to)

    def work(self, act: Callable[[], Input]) -> None:
        """Let something of this process be done when its turn comes; it returns the input."""
        self._network.local(self._call(_itself), self._finish, act)

    def _call(self, read: Read) -> Call:
        call = Call(lambda answer: self._hear(call, read, answer), sender=self.party)
        self._calls.add(call)
        return call

    def _hear(self, call: Call, read: Read, answer: Answer) -> None:
        self._calls.discard(call)
        given = None if self.gone else read(answer)
        if given is not None:
            self.handle(given)

    def _finish(self, call: Call, act: Callable[[], Input]) -> None:
        if call.open and not self.gone:
            self._network.settle(call, act())

    def _abandon(self) -> None:
        for call in self._calls:
            call.open = False
        self._calls.clear()

    def _fire(self, name: str) -> None:
        self.handle(TimerFired(name))

    # ---- the end -----------------------------------------------------------------------------------------------------

    def die(self) -> None:
        """The process ends here and now."""
        self.gone = True
        self._agenda.forget(self)
        for call in self._waiting.values():
            self._network.answer(call, SILENCE)
        self._waiting.clear()


def _itself(given: Input) -> Input:
    return given
