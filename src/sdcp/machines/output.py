"""Delivery of committed output: GET output with long polling (6.7, D8).

A token is in the committed state only after its commit record was written, so whatever is there may be read.
A reader asks from an output index (0-based) and waits while there is nothing at or past it. Once the session has ended
for its readers (`end`), every answer is final. Not here: who may ask, and when the end may be shown (D30).
"""

from __future__ import annotations

from typing import TypeAlias

from sdcp.errors import ProblemError
from sdcp.machines.effects import CancelTimer, Refuse, Reply, SetTimer
from sdcp.machines.inputs import OutputRequested
from sdcp.machines.verifier_committed import Committed
from sdcp.messages.contract import Action
from sdcp.messages.output import Output

TIMER_PREFIX = "output:"

Effect: TypeAlias = Reply | Refuse | SetTimer | CancelTimer


class OutputDesk:
    """Answers readers of one session's output. Effects are few: only readers that get something are touched."""

    def __init__(self, committed: Committed) -> None:
        self._committed = committed
        self._waiting: dict[int, int] = {}  # request: start
        self._finish: Action | None = None

    @property
    def ended(self) -> bool:
        """Whether readers have been shown the end."""
        return self._finish is not None

    def ask(self, given: OutputRequested) -> list[Effect]:
        """Answer a reader now, or let it wait at most its `wait_ms`."""
        if given.start < self._committed.history.committed or given.wait_ms <= 0 or self.ended:
            return [self._reply(given.request, given.start)]
        self._waiting[given.request] = given.start
        return [SetTimer(TIMER_PREFIX + str(given.request), given.wait_ms)]

    def release(self) -> list[Effect]:
        """Answer the readers for whom there are tokens now; called after a commit."""
        ready = [request for request, start in self._waiting.items() if start < self._committed.history.committed]
        return [effect for request in ready for effect in self._answer(request)]

    def end(self, finish: Action) -> list[Effect]:
        """Show the end, FINISH or FAIL, to those who wait and to all who will ask."""
        self._finish = finish
        return [effect for request in list(self._waiting) for effect in self._answer(request)]

    def expire(self, timer: str) -> list[Effect]:
        """Take a fired timer: its reader gets an empty answer and may ask again."""
        request = int(timer.removeprefix(TIMER_PREFIX))
        start = self._waiting.pop(request, None)
        return [] if start is None else [self._reply(request, start)]

    def forget(self, request: int) -> list[Effect]:
        """Drop a reader that went away."""
        if self._waiting.pop(request, None) is None:
            return []
        return [CancelTimer(TIMER_PREFIX + str(request))]

    def refuse_all(self, error: ProblemError) -> list[Effect]:
        """Refuse those who wait (D30)."""
        waiting, self._waiting = self._waiting, {}
        return [effect for request in waiting for effect in (_cancel(request), Refuse(request, error))]

    def _answer(self, request: int) -> list[Effect]:
        return [_cancel(request), self._reply(request, self._waiting.pop(request))]

    def _reply(self, request: int, start: int) -> Reply:
        now = self._committed
        message = Output(
            session=now.session,
            epoch=now.epoch,
            from_=start,
            tokens=now.history.output(start),
            final=self.ended,
            finish=self._finish,
            passes=now.round,
            proposed=now.account.proposed,
            accepted=now.account.accepted,
        )
        return Reply(request, message)


def _cancel(request: int) -> CancelTimer:
    return CancelTimer(TIMER_PREFIX + str(request))
