"""A network with a clock: messages take their time, and a sender waits for an answer until a deadline and no longer.

Two parties can be cut off from each other: nothing goes from one to the other, either way, until the cut is mended, and
neither learns more than that no answer comes. A party can be down: who calls it hears at once that nobody is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from sdcp.testing.clock import Clock
from sdcp.testing.fate import CALM_MS, Fate
from sdcp.testing.network import SILENCE, Answer, Call, Network

DEADLINE_MS: Final = 3_000.0
"""Longer than a front end's long poll."""

WORK_MS: Final = 1.0


class Wires(Network):
    """`fate` says what befalls messages; calls without named parties are cut off from nobody."""

    def __init__(self, clock: Clock, fate: Fate, *, encoded: bool = False) -> None:
        super().__init__(clock, None, encoded=encoded)
        self.fate = fate
        self.down: set[str] = set()
        self._clock = clock
        self._waiting: deque[tuple[float, Call]] = deque()  # all deadlines are equally long: in the order of sending
        self._cuts: dict[tuple[str, str], int] = {}

    # ---- cuts --------------------------------------------------------------------------------------------------------

    def cut(self, one: str, other: str) -> None:
        """Cut two parties off from each other, until `mend` was called as often as this."""
        for pair in ((one, other), (other, one)):
            self._cuts[pair] = self._cuts.get(pair, 0) + 1

    def mend(self, one: str, other: str) -> None:
        """Undo one cut."""
        for pair in ((one, other), (other, one)):
            self._cuts[pair] -= 1
            if not self._cuts[pair]:
                del self._cuts[pair]

    # ---- messages ----------------------------------------------------------------------------------------------------

    def send(self, call: Call, arrive: Callable[[Call], None], to: str = "") -> None:
        """Let a request travel: `arrive(call)` is called none, one or two times."""
        call.receiver = to
        clock = self._clock
        if not self._waiting:
            clock.watch_for("", DEADLINE_MS, self._deadline)
        self._waiting.append((clock.now_ms + DEADLINE_MS, call))
        stroke = self.fate.befalls("request", call.sender, to)
        if self._cuts and (call.sender, to) in self._cuts:
            return
        if stroke is None:
            clock.post(to, CALM_MS, self._arrive, call, arrive)
        elif stroke.what != "lost":
            clock.post(to, stroke.ms if stroke.what == "slow" else CALM_MS, self._arrive, call, arrive)
            if stroke.what == "twice":
                clock.post(to, stroke.ms, self._arrive, call, arrive)
            elif stroke.what == "late":
                clock.watch_for(call.sender, stroke.ms, self._expire, call)

    def answer(self, call: Call, answer: Answer) -> None:
        """Let an answer travel back."""
        if not call.open or (self._cuts and (call.receiver, call.sender) in self._cuts):
            return
        stroke = self.fate.befalls("answer", call.receiver, call.sender)
        if stroke is None:
            self._clock.post(call.sender, CALM_MS, self.settle, call, answer)
        elif stroke.what == "slow":
            self._clock.post(call.sender, stroke.ms, self.settle, call, answer)

    def give_up(self, call: Call) -> None:
        """The sender waits no longer; a receiver that still has the request learns it after a while."""
        self.settle(call, SILENCE)
        if call.cancel is not None:
            self._clock.post(call.receiver, CALM_MS, call.cancel)

    def local(self, call: Call, act: Callable[..., None], *arguments: Any) -> None:
        """Let something be done by the sender itself."""
        stroke = self.fate.befalls("work", call.sender, call.sender)
        self._clock.post(call.sender, WORK_MS if stroke is None else stroke.ms, act, call, *arguments)

    def _arrive(self, call: Call, arrive: Callable[[Call], None]) -> None:
        if call.receiver in self.down:
            self._clock.post(call.sender, CALM_MS, self.settle, call, SILENCE)
        else:
            arrive(call)

    def _deadline(self) -> None:
        """Give up the calls whose time is up; come back when that of the next one is."""
        waiting, clock = self._waiting, self._clock
        while waiting and (waiting[0][0] <= clock.now_ms or not waiting[0][1].open):
            call = waiting.popleft()[1]
            if call.open:
                clock.watch_for(call.sender, 0.0, self._expire, call)
        if waiting:
            clock.watch_for("", waiting[0][0] - clock.now_ms, self._deadline)

    def _expire(self, call: Call) -> None:
        if call.open:
            self.give_up(call)
