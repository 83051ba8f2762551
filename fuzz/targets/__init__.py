"""The targets by name. Each is a module with the functions of `Target`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from random import Random
from typing import Protocol, cast

NAMES = ("cbor", "messages", "logs", "http", "cached", "host_memory")
Octets = Callable[[bytes, int], bytes]


class Target(Protocol):
    """What a target's module has."""

    def one(self, data: bytes) -> None:
        """Try one input; returning is success, whatever it raises is a finding."""
        ...

    def mutate(self, data: bytes, luck: Random, octets: Octets) -> bytes:
        """A changed input of the same kind; `octets(data, size)` changes octets blindly."""
        ...

    def seeds(self) -> Iterable[bytes]:
        """Sound inputs to begin with."""
        ...


def load(name: str) -> Target:
    """The target of that name; KeyError when there is none."""
    if name not in NAMES:
        raise KeyError(name)
    return cast(Target, import_module(f"fuzz.targets.{name}"))
