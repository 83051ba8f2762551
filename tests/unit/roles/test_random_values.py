"""Without a seed a verifier's random values come from the operating system's generator, 53 bits each (6.4)."""

from __future__ import annotations

import secrets

import pytest

from sdcp.machines.effects import DrawRandom
from sdcp.roles.verifying import _draw_random


@pytest.mark.requirement("S6.4-unseeded", "S6.4-random-independent")
def test_values_are_53_bits_of_the_cryptographic_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    bits = iter([0, 2**52, 2**53 - 1])
    monkeypatch.setattr(secrets, "randbits", lambda count: next(bits) if count == 53 else -1)
    drawn = _draw_random(DrawRandom(7, 3))
    assert (drawn.round, drawn.values) == (7, (0.0, 0.5, 1 - 2**-53))


@pytest.mark.requirement("S6.4-unseeded", "S6.4-random-independent")
def test_no_round_has_the_values_of_another() -> None:
    values = [value for round_ in range(1, 9) for value in _draw_random(DrawRandom(round_, 8)).values]
    assert len(set(values)) == len(values)
    assert all(0 <= value < 1 for value in values)
