"""Front ends that wait to hear where a session is served (D33): part of a router session, sans-IO.

A location is good news for a waiter when it is of a greater epoch than the one that serves it no longer, or when the
session has ended. A wait that runs out is answered with what is known, so that a front end always learns something.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sdcp.errors import Overloaded, ProblemError
from sdcp.machines.effects import CancelTimer, Refuse, Reply, SetTimer
from sdcp.messages.contract import Action
from sdcp.messages.request import Location

TIMER = "location "

Effects = Sequence[Any]


class Locating:
    """`location` is the last one known, None until a verifier has opened the session."""

    def __init__(self) -> None:
        self.location: Location | None = None
        self._waiting: dict[int, int | None] = {}

    def ask(self, request: int, epoch: int | None, wait_ms: int | None) -> Effects:
        """Answer now or later; `wait_ms` None: only when there is news."""
        if self.news_for(epoch):
            return [Reply(request, self.location)]
        self._waiting[request] = epoch
        return [] if wait_ms is None else [SetTimer(f"{TIMER}{request}", wait_ms)]

    def news_for(self, epoch: int | None) -> bool:
        """Whether there is a location that somebody wants whom `epoch` serves no longer."""
        known = self.location
        return known is not None and (known.ended is not None or epoch is None or known.epoch > epoch)

    def beyond(self, epoch: int | None) -> bool:
        """Whether the session has ended, and the last epoch that it had serves somebody no longer."""
        known = self.location
        return known is not None and known.ended is not None and epoch is not None and epoch >= known.epoch

    def moved(self, location: Location) -> Effects:
        """The session is served there from now on."""
        self.location = location
        return self._answer([request for request, epoch in self._waiting.items() if self.news_for(epoch)])

    def ended(self, action: Action) -> Effects:
        """The session has ended; nothing to say if no verifier ever had it."""
        return [] if self.location is None else self.moved(replace(self.location, ended=action))

    def refuse(self, error: ProblemError) -> Effects:
        """Refuse everybody who waits."""
        requests = list(self._waiting)
        self._waiting.clear()
        return [effect for each in requests for effect in (CancelTimer(f"{TIMER}{each}"), Refuse(each, error))]

    def fired(self, timer: str) -> Effects:
        """A wait is over."""
        request = int(timer.removeprefix(TIMER))
        if request not in self._waiting:
            return []
        if self.location is None:
            del self._waiting[request]
            return [Refuse(request, Overloaded("No verifier has opened the session yet; ask again."))]
        return self._answer([request])

    def forget(self, request: int) -> Effects:
        """The front end went away."""
        if request not in self._waiting:
            return []
        del self._waiting[request]
        return [CancelTimer(f"{TIMER}{request}")]

    def _answer(self, requests: list[int]) -> Effects:
        for request in requests:
            del self._waiting[request]
        return [effect for each in requests for effect in (CancelTimer(f"{TIMER}{each}"), Reply(each, self.location))]
