"""The effect loop: one machine, fed with inputs, its effects carried out in the order given.

A *performer* carries out one class of effect. A plain function acts at once; a coroutine function runs as a task of its
own. Either may return an input, which the machine then handles. Inputs that arrive while the machine is being driven
queue up: a machine is never entered twice at once, so what it does to its state is atomic (6.3 step 8) without a lock.
Requests of peers, timers, and nothing else, are handled here; sockets, stores and engines belong to the performers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from itertools import count
from typing import Any, Protocol

from sdcp.errors import Overloaded
from sdcp.machines.effects import Abandon, CancelTimer, Refuse, Reply, SetTimer
from sdcp.machines.inputs import RequestCancelled, TimerFired

Input = Any
Effect = Any
Performer = Callable[[Any], "Awaitable[Input | None] | Input | None"]
Answer = Reply | Refuse
Fault = Callable[[BaseException], None]


class Machine(Protocol):
    """Any of `sdcp.machines`."""

    def handle(self, event: Input, /) -> Sequence[Effect]:
        """Take one input; return what has to happen, in order."""
        ...


class Driver:
    """Drives one machine on the running event loop.

    `performers` maps effect classes to performers; Reply, Refuse, SetTimer, CancelTimer and Abandon are built in.
    `on_fault` is told of an exception that a performer or the machine let through: a bug, never a peer's doing.
    """

    def __init__(self, machine: Machine, performers: Mapping[type, Performer], on_fault: Fault) -> None:
        self.machine = machine
        self._performers: dict[type, Performer] = {
            Reply: self.answer,
            Refuse: self.answer,
            SetTimer: self._set_timer,
            CancelTimer: self._cancel_timer,
            Abandon: self._abandon,
            **performers,
        }
        self._on_fault = on_fault
        self._inputs: deque[Input] = deque()
        self._driving = False
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._numbers = count(1)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[Input | None]] = set()
        self._closed = False

    def handle(self, event: Input) -> None:
        """Give the machine one input and carry out what follows; nested inputs wait their turn."""
        if self._closed:
            return
        self._inputs.append(event)
        if self._driving:
            return
        self._driving = True
        try:
            while self._inputs:
                for effect in self.machine.handle(self._inputs.popleft()):
                    self._perform(effect)
        except Exception as fault:
            self._inputs.clear()
            self._on_fault(fault)
        finally:
            self._driving = False

    async def ask(self, make: Callable[[int], Input]) -> Answer:
        """Hand in a peer's request, built by `make(request number)`, and wait for its Reply or Refuse.

        Cancelling the wait tells the machine that the peer went away (RequestCancelled), and ends nothing else (D27).
        """
        if self._closed:
            return Refuse(0, Overloaded("This instance is going down; ask again elsewhere or in a moment."))
        request = next(self._numbers)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[request] = answer
        self.handle(make(request))
        try:
            return await answer
        except asyncio.CancelledError:
            self.handle(RequestCancelled(request))
            raise
        finally:
            self._waiting.pop(request, None)

    def answer(self, given: Answer) -> None:
        """Answer a waiting request; one that no longer waits is fine. A performer may do so in the machine's stead."""
        future = self._waiting.get(given.request)
        if future is not None and not future.done():
            future.set_result(given)

    async def settle(self) -> None:
        """Wait until no performer is under way: a drain finishes rounds, it does not break them (D27)."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def close(self) -> None:
        """Stop: waiting requests are refused, timers and tasks end, later inputs are ignored."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        for request, answer in self._waiting.items():
            if not answer.done():
                answer.set_result(Refuse(request, Overloaded("This instance is going down; ask again elsewhere.")))

    def _perform(self, effect: Effect) -> None:
        outcome = self._performers[type(effect)](effect)
        if asyncio.iscoroutine(outcome):
            self._spawn(outcome)
        elif outcome is not None:
            self._inputs.append(outcome)

    def _spawn(self, work: Coroutine[Any, Any, Input | None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[Input | None]) -> None:
        wanted = task in self._tasks
        self._tasks.discard(task)
        if task.cancelled():
            return
        fault = task.exception()
        if fault is not None:
            self._on_fault(fault)
        elif wanted and (event := task.result()) is not None:
            self.handle(event)

    def _abandon(self, _: Abandon) -> None:
        """Whoever is done already, but not yet heard, is not heard any more either."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    def _set_timer(self, effect: SetTimer) -> None:
        self._cancel_timer(CancelTimer(effect.name))
        loop = asyncio.get_running_loop()
        self._timers[effect.name] = loop.call_later(effect.delay_ms / 1000, self._fire, effect.name)

    def _cancel_timer(self, effect: CancelTimer) -> None:
        timer = self._timers.pop(effect.name, None)
        if timer is not None:
            timer.cancel()

    def _fire(self, name: str) -> None:
        self._timers.pop(name, None)
        self.handle(TimerFired(name))
