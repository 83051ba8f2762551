"""Random values of the verifier, and drawing a token with one of them (6.4, D23, D24, D27).

Words: a *uniform* is a float in [0, 1); the *luck* of a round is all uniforms it may use, fixed before any outcome is
computed. Nothing here draws: without a seed the uniforms come in from a cryptographic generator outside. Drafters must
not use this derivation for their own sampling (6.4, D31).
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ACCEPTANCE, ADDITIONAL = 0, 1
"""The purposes of a uniform: the acceptance test of a position, and drawing the additional token."""


@dataclass(frozen=True, slots=True)
class Luck:
    """The uniforms of one round of M tokens.

    `acceptance[i - 1]` tests position i of 1..M; `additional[a]` draws the additional token after a of 0..M accepted.
    """

    acceptance: tuple[float, ...]
    additional: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.additional) != len(self.acceptance) + 1:
            raise ValueError("a round of M tokens takes M acceptance values and M + 1 additional ones")


def uniform(seed: int, session: bytes, round: int, i: int, purpose: int) -> float:
    """Derive one uniform from the profile's seed: HMAC-SHA-256, first 53 bits (6.4). i counts from 1 (D24).

    ValueError for a seed of more than 64 bits or a round of more than 32, which have no octets in the derivation.
    """
    try:
        key, place = struct.pack(">Q", seed), struct.pack(">IIB", round, i, purpose)
    except struct.error as fault:
        raise ValueError(f"no random value can be derived: {fault}") from None
    mac = hmac.digest(key, b"SDCP-VERIFY-1\x00" + session + place, "sha256")
    return (int.from_bytes(mac[:8], "big") >> 11) / 2**53


def seeded_luck(seed: int, session: bytes, round: int, m: int) -> Luck:
    """Return the luck of a round of M tokens under a seed: the same in every re-run."""
    return Luck(
        tuple(uniform(seed, session, round, i, ACCEPTANCE) for i in range(1, m + 1)),
        tuple(uniform(seed, session, round, i, ADDITIONAL) for i in range(1, m + 2)),
    )


def unseeded_luck(uniforms: Sequence[float]) -> Luck:
    """Return the luck of a round of M tokens from M + 1 fresh uniforms (D27).

    Only one additional token is ever drawn, so the last uniform serves wherever that turns out to be.
    """
    *acceptance, additional = uniforms
    return Luck(tuple(acceptance), (additional,) * len(uniforms))


def self_decode_uniform(seed: int, session: bytes, round: int) -> float:
    """Return the uniform of a self-decoding round: position 1, additional token (D24)."""
    return uniform(seed, session, round, 1, ADDITIONAL)


def draw(weights: NDArray[np.float64], u: float) -> int:
    """Return the smallest token whose cumulative weight exceeds u times the total (D23).

    `weights` [V] are not negative and need not sum to 1. Rounding past the end takes the last token of positive weight.
    ValueError when no weight is positive.
    """
    cumulative = np.cumsum(weights, dtype=np.float64)
    total = cumulative[-1]
    if not total > 0:
        raise ValueError("there is nothing to draw from: no weight is positive")
    token = int(np.searchsorted(cumulative, u * total, side="right"))
    return token if token < len(weights) else int(np.flatnonzero(weights)[-1])
