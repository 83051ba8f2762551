"""How a check says what it found: it fails with one sentence that tells what was expected and what came."""

from __future__ import annotations

from typing import Any


class Failed(Exception):
    """The subject did something else than expected; the text is one sentence."""


class NotApplicable(Exception):
    """The check has nothing to judge here, for example because the subject does not do what it MAY do."""


def ensure(condition: object, sentence: str) -> None:
    """Fail with this sentence unless the condition holds."""
    if not condition:
        raise Failed(sentence)


def expect(actual: Any, expected: Any, what: str) -> None:
    """Fail unless both are equal. `what` names the value, such as `committed of the verdict of round 2`."""
    if actual != expected:
        raise Failed(f"{what}: expected {shown(expected)}, came {shown(actual)}")


def shown(value: Any) -> str:
    """A value for people: octets in hex, long things cut."""
    if isinstance(value, bytes):
        return value.hex() if len(value) <= 32 else f"{value[:32].hex()}… ({len(value)} octets)"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
