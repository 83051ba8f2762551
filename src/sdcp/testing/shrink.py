"""The shortest run that still goes wrong: incidents, strokes of fate and lies are left out while the fault remains.

The scenario is made plainer, and everything that can be left out is tried in halves, then in smaller and smaller parts
(Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002), until neither helps. A run counts as
going wrong in the same way when the fault says the same, numbers apart. What is found is small, not the smallest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from sdcp.testing.fate import Name, Stroke
from sdcp.testing.incidents import Incident
from sdcp.testing.lying import HONEST, Liars
from sdcp.testing.observer import short
from sdcp.testing.scenario import Scenario
from sdcp.testing.world import World

Part = Incident | tuple[Name, Stroke]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that went wrong: what was to happen in it, and how it went wrong.

    `left_out` of all parts were not needed; `runs` were tried.
    """

    scenario: Scenario
    strokes: tuple[tuple[Name, Stroke], ...]
    fault: str
    left_out: int = 0
    runs: int = 1

    def trace(self) -> list[str]:
        """Play it once more and tell it to the moment at which it goes wrong, one line for each input and effect."""
        world = World(self.scenario, dict(self.strokes))
        with suppress(Exception):  # the fault is known
            world.play()
        return world.recorder.lines()

    def happenings(self) -> list[str]:
        """Say what happens in it from outside, one line each."""
        lies = [f"lies: {name} {chance}" for name, chance in _lies(self.scenario.liars)]
        return [*map(str, self.scenario.incidents), *(_said(*each) for each in self.strokes), *lies]


def attempt(scenario: Scenario, strokes: Sequence[tuple[Name, Stroke]] | None = None) -> Failure | None:
    """Play a scenario, with these strokes or its own; None: nothing went wrong."""
    world = World(scenario, None if strokes is None else dict(strokes))
    try:
        world.play()
    except Exception as fault:  # whatever a machine raises is a fault, too
        said = str(fault) if isinstance(fault, AssertionError) and str(fault) else f"{type(fault).__name__}: {fault}"
        met = tuple(world.wires.fate.met.items())
        return Failure(scenario, met, said)
    return None


def shrink(first: Failure, may_go_on: Callable[[], bool]) -> Failure:
    """Return a smaller run that goes wrong in the same way, as far as `may_go_on` allowed to look for it."""
    search = _Search(first, may_go_on)
    before = None
    while search.best is not before:
        before = search.best
        search.simplify()
        search.leave_out()
    parts = len(first.scenario.incidents) + len(first.strokes)
    best = search.best
    left_out = parts - len(best.scenario.incidents) - len(best.strokes)
    return replace(best, left_out=left_out, runs=search.runs)


class _Search:
    """The best run so far."""

    def __init__(self, first: Failure, may_go_on: Callable[[], bool]) -> None:
        self.best = first
        self.runs = 0
        self._kind = _kind(first.fault)
        self._may_go_on = may_go_on

    def leave_out(self) -> None:
        """Leave out parts: as many at once as possible."""
        pieces = 1
        while self._may_go_on() and (parts := self._parts()):
            size = max(1, len(parts) // pieces)
            if any(self._without(parts, start, size) for start in range(0, len(parts), size)):
                pieces = max(pieces - 1, 1)
            elif size == 1:
                return
            else:
                pieces *= 2

    def simplify(self) -> None:
        """Make the scenario plainer, as often as that helps."""
        while any(self._try(plainer, self.best.strokes) for plainer in _plainer(self.best.scenario)):
            pass

    def _parts(self) -> list[Part]:
        return [*self.best.scenario.incidents, *self.best.strokes]

    def _without(self, parts: list[Part], start: int, size: int) -> bool:
        kept = parts[:start] + parts[start + size :]
        incidents = tuple(each for each in kept if isinstance(each, Incident))
        strokes = tuple(each for each in kept if not isinstance(each, Incident))
        return self._try(replace(self.best.scenario, incidents=incidents), strokes)

    def _try(self, scenario: Scenario, strokes: Sequence[tuple[Name, Stroke]]) -> bool:
        if not self._may_go_on():
            return False
        self.runs += 1
        found = attempt(scenario, strokes)
        if found is None or _kind(found.fault) != self._kind:
            return False
        self.best = found
        return True


def _kind(fault: str) -> str:
    return re.sub(r"[0-9a-f]+", "", fault)[:60]


def _said(name: Name, stroke: Stroke) -> str:
    kind, sender, receiver, number = name
    between = short(sender) if kind == "work" else f"{short(sender) or 'somebody'} to {short(receiver) or 'somebody'}"
    when = "" if stroke.what in ("lost", "unanswered") else f", {stroke.ms:.1f} ms"
    return f"{kind} {number} of {between}: {stroke.what}{when}"


def _lies(liars: Liars) -> list[tuple[str, float]]:
    return [(field.name, chance) for field in fields(Liars) if (chance := getattr(liars, field.name))]


def _plainer(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios in which one thing is as it usually is, or there is less of it."""
    if scenario.liars is not HONEST:
        yield replace(scenario, liars=HONEST)
    for name, _ in _lies(scenario.liars):
        yield replace(scenario, liars=_or_honest(replace(scenario.liars, **{name: 0.0})))
    usual: dict[str, Any] = {
        "encoded": False,
        "busy_verifiers": False,
        "impatient": False,
        "enforces_fences": True,
        "inline_prompt": 8192,
        "drafters": scenario.drafters[:1],
        "verifiers": max(1, scenario.verifiers - 1),
        "prompt": scenario.prompt[:1],
        "models": scenario.models,
    }
    for name, value in usual.items():
        if getattr(scenario, name) != value:
            yield replace(scenario, **{name: value})
    contract = scenario.contract
    if contract.max_new > 1:
        yield replace(scenario, contract=replace(contract, max_new=contract.max_new // 2))
    if contract.stop:
        yield replace(scenario, contract=replace(contract, stop=()))
    if len(contract.fallback) > 1:
        yield replace(scenario, contract=replace(contract, fallback=contract.fallback[:1]))


def _or_honest(liars: Liars) -> Liars:
    return HONEST if liars == HONEST else liars
