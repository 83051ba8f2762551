"""What is still to happen in a world without time: one queue of work, and timers that fire when it is empty.

Without luck the queue is first in, first out. With luck the next piece of work is any that is there, so everything that
is under way overtakes everything else, and `early` is the chance that a timer fires before the queue is empty. Timers
fire in the order in which they were set: their delays mean nothing here, but no timer waits for ever. `clock.Clock` is
an agenda with a time, to which delays, and parties that stand still, mean something.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

Act = Callable[..., None]
Owner = object


class Agenda:
    """`luck` chooses what comes next; None: first in, first out."""

    now_ms = 0.0

    def __init__(self, luck: Random | None = None, early: float = 0.0) -> None:
        self.early = early
        self._luck = luck
        self._work: deque[tuple[Act, tuple[Any, ...]]] = deque()
        self._timers: dict[tuple[Owner, str], Act] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing but timers is left."""
        return not self._work

    def add(self, act: Act, *arguments: Any) -> None:
        """Let `act` be called once, some time from now on."""
        self._work.append((act, arguments))

    def post(self, party: str, delay_ms: float, act: Act, *arguments: Any) -> None:
        """Let `act` be called once, as something that `party` does, after a delay."""
        self.add(act, *arguments)

    def set_timer(self, owner: Owner, name: str, fire: Act, delay_ms: float = 0.0, party: str = "") -> None:
        """Let `fire(name)` be called when nothing else is left to do; setting it again moves it."""
        self.cancel_timer(owner, name)
        self._timers[owner, name] = fire

    def cancel_timer(self, owner: Owner, name: str) -> None:
        """Forget a timer."""
        self._timers.pop((owner, name), None)

    def forget(self, owner: Owner) -> None:
        """Forget all timers of an owner."""
        self._timers = {key: fire for key, fire in self._timers.items() if key[0] is not owner}

    def step(self) -> bool:
        """Do the next piece of work, or fire the next timer. False: nothing is left at all."""
        if self._work and not self._hurries():
            act, arguments = self._take()
            act(*arguments)
        elif self._timers:
            self._fire()
        else:
            return False
        return True

    def _hurries(self) -> bool:
        return self._luck is not None and bool(self._timers) and self._luck.random() < self.early

    def _take(self) -> tuple[Act, tuple[Any, ...]]:
        if self._luck is not None:
            self._work.rotate(-self._luck.randrange(len(self._work)))
        return self._work.popleft()

    def _fire(self) -> None:
        owner, name = next(iter(self._timers))
        self._timers.pop((owner, name))(name)
