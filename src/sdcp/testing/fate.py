"""What befalls messages on their way, and work: each piece of luck has a name, so that it can be taken away again.

A *stroke* is what befalls one message or one piece of work. Its name says between whom, and the how manieth of its
kind: so strokes that are left keep their place when others are taken away, as far as the run stays the same. A run that
went wrong is played again with a part of its strokes, until no more can be left out (`shrink`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from sdcp.testing.network import SOUND, Faults

CALM_MS: Final = 2.0
"""How long a message, and work that is worth mentioning, takes when nothing befalls it."""

SLOW_MS: Final = (8.0, 40.0, 250.0, 1_500.0, 4_500.0)
"""How long, at most, what is slow takes."""

Name = tuple[str, str, str, int]
"""`request`, `answer` or `work`; sender; receiver; the how manieth, from 1."""


@dataclass(frozen=True, slots=True)
class Stroke:
    """What befalls: lost, unanswered, late, twice or slow; `ms` when it arrives, or when its sender gives up."""

    what: str
    ms: float = CALM_MS


class Fate:
    """Draws strokes from luck, or deals those of a `script`; `met` are those that there were, by name."""

    def __init__(self, luck: Random, faults: Faults, script: Mapping[Name, Stroke] | None = None) -> None:
        self.met: dict[Name, Stroke] = {}
        self._luck = luck
        self._script = script
        self._counts: dict[tuple[str, str, str], int] = {}
        self._chances = _chances(faults)
        self._over = faults == SOUND and script is None

    def befalls(self, kind: str, sender: str, receiver: str) -> Stroke | None:
        """Return what befalls the next message, or work, of this kind; None: nothing does."""
        if self._over:
            return None
        place = (kind, sender, receiver)
        number = self._counts[place] = self._counts.get(place, 0) + 1
        stroke = self._draw(kind) if self._script is None else self._script.get((*place, number))
        if stroke is not None:
            self.met[*place, number] = stroke
        return stroke

    def calm(self) -> None:
        """From now on nothing befalls anything any more."""
        self._over = True

    def _draw(self, kind: str) -> Stroke | None:
        chances = self._chances[kind]
        if not chances:
            return None
        roll = self._luck.random()
        for what, below in chances:
            if roll < below:
                return Stroke(what, self._luck.random() * self._luck.choice(SLOW_MS))
        return None


def _chances(faults: Faults) -> dict[str, list[tuple[str, float]]]:
    """For each kind, what may befall it: below which roll."""
    kinds = {
        "request": ("lost", "late", "twice", "slow"),
        "answer": ("unanswered", "slow"),
        "work": ("slow",),
    }
    table: dict[str, list[tuple[str, float]]] = {}
    for kind, names in kinds.items():
        below, rows = 0.0, []
        for name in names:
            chance = getattr(faults, name)
            below += chance
            rows += [(name, below)] if chance else []
        table[kind] = rows
    return table
