"""An agenda with a time: whatever happens, happens at a moment, and timers fire when their delay is over.

The clock goes from one moment to the next and never waits. What is due at the same moment happens in the order in
which it was asked for. A party can be made to stand still: what it was to do meanwhile, timers included, it does when
it goes on, late and in order, and it does not know how long it stood.

Not here: how long anything takes (`wires`).
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import Any

from sdcp.testing.agenda import Act, Agenda, Owner

Key = tuple[Owner, str]
Entry = tuple[float, int, str, Act, tuple[Any, ...], Key | None, bool]
"""When, in which order, whose, what, and for a timer its key; whether it is work, which somebody waits for."""


class Clock(Agenda):
    """`now_ms` is the time, in ms since the world began."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0.0
        self._heap: list[Entry] = []
        self._order = count()
        self._due: dict[Key, int] = {}
        self._busy = 0
        self._standing: dict[str, list[Entry]] = {}
        self._stops: dict[str, int] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing but timers and deadlines is left."""
        return not self._busy

    def add(self, act: Act, *arguments: Any) -> None:
        """Let `act` be called now, after all that is due now."""
        self.post("", 0.0, act, *arguments)

    def post(self, party: str, delay_ms: float, act: Act, *arguments: Any) -> None:
        """Let `act` be called after a delay, as something that `party` does."""
        self._busy += 1
        heappush(self._heap, (self.now_ms + delay_ms, next(self._order), party, act, arguments, None, True))

    def watch_for(self, party: str, delay_ms: float, act: Act, *arguments: Any) -> None:
        """The same for what nobody waits for: a deadline, or what is planned to happen to the world."""
        heappush(self._heap, (self.now_ms + delay_ms, next(self._order), party, act, arguments, None, False))

    def set_timer(self, owner: Owner, name: str, fire: Act, delay_ms: float = 0.0, party: str = "") -> None:
        """Let `fire(name)` be called after a delay; setting it again moves it."""
        key, order = (owner, name), next(self._order)
        self._due[key] = order
        heappush(self._heap, (self.now_ms + delay_ms, order, party, fire, (name,), key, False))

    def cancel_timer(self, owner: Owner, name: str) -> None:
        """Forget a timer."""
        self._due.pop((owner, name), None)

    def forget(self, owner: Owner) -> None:
        """Forget all timers of an owner."""
        for key in [key for key in self._due if key[0] is owner]:
            del self._due[key]

    # ---- parties that stand still ------------------------------------------------------------------------------------

    def stop(self, party: str) -> None:
        """Let a party stand still, until `go_on` was called as often as this."""
        self._stops[party] = self._stops.get(party, 0) + 1
        self._standing.setdefault(party, [])

    def go_on(self, party: str) -> None:
        """Let a party go on, with all that it was to do."""
        self._stops[party] -= 1
        if not self._stops[party]:
            for entry in self._standing.pop(party):
                heappush(self._heap, entry)

    def step(self) -> bool:
        """Go to the next moment at which something happens. False: nothing is left at all."""
        while self._heap:
            entry = heappop(self._heap)
            at_ms, order, party, act, arguments, key, is_work = entry
            if key is not None and self._due.get(key) != order:
                continue  # moved, or forgotten
            if party in self._standing:
                self._standing[party].append(entry)
                continue
            if key is not None:
                del self._due[key]
            self._busy -= is_work
            self.now_ms = max(self.now_ms, at_ms)
            act(*arguments)
            return True
        return False
