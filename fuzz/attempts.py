"""Calls that may be refused: what came of one, as a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


class Attempt(NamedTuple, Generic[T, E]):
    """The value of a call that succeeded, or why it was refused."""

    value: T | None
    refusal: E | None


def attempt(call: Callable[[], T], *documented: type[E]) -> Attempt[T, E]:
    """Make a call; only the `documented` exceptions are a refusal, any other is a finding and goes on."""
    try:
        return Attempt(call(), None)
    except documented as refusal:
        return Attempt(None, refusal)
