"""One case of a file of vectors: its members, read by type.

Not here: what a kind makes of them (`arithmetic`, `wire`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sdcp.errors import ConfigurationError
from sdcp.messages.contract import Sampling


class FormError(ConfigurationError):
    """The file cannot be read, or has not the form of a file of vectors."""


class Case:
    """The members of one case, read by type. Raises FormError, naming the member."""

    def __init__(self, members: object) -> None:
        if not isinstance(members, dict):
            raise FormError("is not a JSON object")
        self._members: dict[str, Any] = members

    def _get(self, name: str, kind: type | tuple[type, ...], wanted: str) -> Any:
        value = self._members.get(name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise FormError(f'the member "{name}" must be {wanted}')
        return value

    def integer(self, name: str, most: int = 2**64 - 1) -> int:
        """An integer from 0 to `most`."""
        value: int = self._get(name, int, "an integer")
        if not 0 <= value <= most:
            raise FormError(f'the member "{name}" must be an integer from 0 to {most}')
        return value

    def optional(self, name: str) -> int | None:
        """An integer, or None when the member is absent or null."""
        return None if self._members.get(name) is None else self.integer(name)

    def number(self, name: str) -> float:
        """A number."""
        value: float = self._get(name, (int, float), "a number")
        return value

    def truth(self, name: str) -> bool:
        """True or false."""
        return bool(self._get(name, bool, "true or false"))

    def text(self, name: str) -> str:
        """A text."""
        value: str = self._get(name, str, "a text")
        return value

    def has(self, name: str) -> bool:
        """Whether a member is there, and not null."""
        return self._members.get(name) is not None

    def inner(self, name: str) -> Case:
        """A map with members of its own."""
        return Case(self._get(name, dict, "a map"))

    def octets(self, name: str) -> bytes:
        """A byte string, from hex."""
        return _octets(name, self._members.get(name))

    def chain(self, name: str) -> list[bytes]:
        """A list of byte strings."""
        return [_octets(name, item) for item in self._get(name, list, "a list of hex strings")]

    def tokens(self, name: str) -> list[int]:
        """A list of integers, not negative and below 2^64."""
        values: list[int] = self._get(name, list, "a list of integers")
        if any(type(value) is not int or not 0 <= value < 2**64 for value in values):
            raise FormError(f'the member "{name}" must be a list of integers from 0 to 2^64 - 1')
        return values

    def array(self, name: str, dimensions: int) -> NDArray[np.float64]:
        """Numbers as an array of so many dimensions, none of them empty."""
        values = self._get(name, list, "a list of numbers")
        try:
            array = np.array(values, dtype=np.float64)
        except (ValueError, TypeError, OverflowError):
            array = np.empty(0)
        if array.ndim != dimensions or array.size == 0:
            raise FormError(f'the member "{name}" must be an array of numbers in {dimensions} dimension(s)')
        return array

    def sampling(self) -> Sampling:
        """The sampling profile."""
        members = self.inner("sampling")
        return Sampling(
            temperature_milli=members.optional("temperature_milli"),
            top_k=members.optional("top_k"),
            top_p_milli=members.optional("top_p_milli"),
            seed=members.optional("seed"),
        )

    def seed(self) -> int:
        """The seed in the sampling profile."""
        seed = self.sampling().seed
        if seed is None:
            raise FormError('the member "sampling" must hold a seed')
        return seed

    def plain(self, name: str) -> dict[str, object]:
        """A map of plain values, in which `{"hex": …}` stands for a byte string."""
        value = _plain(name, self._get(name, dict, "a map"))
        if not isinstance(value, dict):
            raise FormError(f'the member "{name}" must be a map')
        return value

    def steps(self) -> list[Case]:
        """The steps of a case that runs through several."""
        return [Case(step) for step in self._get("steps", list, "a list of steps")]


def _octets(name: str, value: object) -> bytes:
    try:
        return bytes.fromhex(value)  # type: ignore[arg-type]  # a TypeError says that it is no string
    except (TypeError, ValueError):
        raise FormError(f'the member "{name}" must be a hex string') from None


def _plain(name: str, value: object) -> object:
    if isinstance(value, dict):
        return _octets(name, value["hex"]) if set(value) == {"hex"} else {k: _plain(name, v) for k, v in value.items()}
    return [_plain(name, item) for item in value] if isinstance(value, list) else value


def differ(name: str, got: object, expected: object) -> Iterator[str]:
    """Yield in words that a member is not what is expected, if it is not."""
    if got != expected:
        yield f"{name} is {_show(got)}, expected {_show(expected)}"


def _show(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
