"""Who plays in a world: honest instances, or those that lie as `Liars` says. Not here: what the lies are."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from sdcp.machines.drafter_rounds import Patience
from sdcp.ports import Drafter
from sdcp.testing.drafting import DrafterInstance
from sdcp.testing.lying import HONEST, Liars
from sdcp.testing.store import Store
from sdcp.testing.surroundings import Surroundings
from sdcp.testing.verifying import VerifierInstance


class Troupe:
    """The instances of one world. `liars` may change at any time: HONEST from now on is honesty from now on."""

    def __init__(self, liars: Liars, luck: Random | None) -> None:
        self.liars = liars
        self._luck = luck

    def store(self, *, enforces_fences: bool, appended: Callable[[bytes], None]) -> Store:
        """Return the cache of the world."""
        return Store(enforces_fences=enforces_fences, appended=appended)

    def drafter(
        self,
        uri: str,
        engine: Drafter,
        around: Surroundings,
        verifiers: Callable[[str], VerifierInstance],
        patience: Patience,
    ) -> DrafterInstance:
        """Return a drafter of the world."""
        return DrafterInstance(uri, engine, around, verifiers, patience)

    def meddle(self, world: Any) -> None:
        """Before a step: let those lie who need no occasion for it. `world` is the `Pair`."""
        luck, store = self._luck, world.store
        if luck is None or self.liars is HONEST:
            return
        if store.objects and luck.random() < self.liars.evict:
            store.delete(luck.choice([*store.objects]))
