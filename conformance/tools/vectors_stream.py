"""Inputs that anybody can draw again: numbers from SHA-256 over a label and a counter.

Not here: what is made of them (`vectors_arithmetic`, `vectors_control`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from vectors_rules import Unclear

Case = dict[str, Any]
CHOICES = (0, 300, 700, 1000, 1300)


class Stream:
    """Numbers from SHA-256 over a label and a counter."""

    def __init__(self, label: str) -> None:
        self._label, self._count = label, 0

    def octets(self) -> bytes:
        """32 octets."""
        self._count += 1
        return hashlib.sha256(f"{self._label} {self._count}".encode()).digest()

    def below(self, limit: int) -> int:
        """An integer from 0 to limit - 1."""
        return int.from_bytes(self.octets(), "big") % limit

    def between(self, low: float, high: float) -> float:
        """A number of three decimals."""
        return round(low + (high - low) * self.below(10**6) / 10**6, 3)

    def logits(self, width: int) -> list[float]:
        """Some of them equal."""
        found = [self.between(-4, 4) for _ in range(width)]
        found[self.below(width)] = found[self.below(width)]
        return found

    def sampling(self) -> Case:
        """Any profile without a seed."""
        found = {"temperature_milli": CHOICES[self.below(5)], "top_k": self.below(6), "top_p_milli": self.below(1001)}
        return {name: value for name, value in found.items() if self.below(3)}

    def seeded(self) -> Case:
        """A profile with a seed."""
        return {**self.sampling(), "seed": int.from_bytes(self.octets()[:8], "big")}


def clear(count: int, make: Callable[[Stream], Case], label: str) -> list[Case]:
    """`count` cases of `make` that rounding does not decide, named by their numbers."""
    stream = Stream(label)
    found: list[Case] = []
    while len(found) < count:
        try:
            found.append({"name": f"drawn {len(found) + 1}", **make(stream)})
        except Unclear:
            continue
    return found
