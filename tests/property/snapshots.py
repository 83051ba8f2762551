"""Machines kept as they were in a state, to be brought back as often as a test wants, and compared part by part."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sdcp.machines.verifier import VerifierSession


@dataclass(frozen=True)
class Snapshot:
    """One machine in one state: by its octets, or, while a verifier opens, by what it was told so far."""

    state: str
    octets: bytes
    told: tuple[bytes, ...] = ()

    def revive(self) -> Any:
        """A machine of its own, as it was then."""
        machine = pickle.loads(self.octets)
        for given in self.told:
            machine.handle(pickle.loads(given))
        return machine


class Album:
    """Takes snapshots of machines as they are told things: at most `most` of each class and state.

    It is told of every input before the machine is. What a verifier is told while it opens is kept, since a generator
    has no octets.
    """

    def __init__(self, state_of: Callable[[Any], str], most: int) -> None:
        self.snapshots: dict[type, dict[str, list[Snapshot]]] = {}
        self.pairs: set[tuple[type, str, type]] = set()
        self._state_of = state_of
        self._most = most
        self._begun: dict[int, tuple[Any, bytes, list[bytes]]] = {}  # holds the machine, so that its id stays its own

    def before(self, machine: Any, given: Any) -> None:
        """A machine is about to be told something."""
        state = self._state_of(machine)
        self.pairs.add((type(machine), state, type(given)))
        if isinstance(machine, VerifierSession) and not machine.phase:
            self._before_open(machine, state, given)
        else:
            self._keep(machine, state, lambda: Snapshot(state, pickle.dumps(machine)))

    def _before_open(self, machine: VerifierSession, state: str, given: Any) -> None:
        if state == "new":
            self._begun[id(machine)] = (machine, pickle.dumps(machine), [])
        _, octets, told = self._begun[id(machine)]
        self._keep(machine, state, lambda: Snapshot(state, octets, tuple(told)))
        told.append(pickle.dumps(given))

    def _keep(self, machine: Any, state: str, take: Callable[[], Snapshot]) -> None:
        taken = self.snapshots.setdefault(type(machine), {}).setdefault(state, [])
        if len(taken) < self._most:
            taken.append(take())


def parts(machine: Any) -> bytes:
    """All that a machine consists of, for comparison with itself earlier."""
    if not isinstance(machine, VerifierSession) or machine._opening is None:
        return pickle.dumps(machine)
    members = {name: value for name, value in vars(machine).items() if name != "_opening"}
    return pickle.dumps((members, [*_places(machine._opening)]))


def _places(generator: Any) -> Any:
    """Where a generator stands, and the one inside it on which it waits."""
    while generator is not None:
        yield generator.gi_frame.f_lasti
        generator = generator.gi_yieldfrom
