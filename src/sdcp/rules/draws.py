"""Random values of the verifier, and drawing a token with one of them (6.4, D23, D24, D27).

Words: a *uniform* is a float in [0, 1); the *luck* of a round is all uniforms it may use, fixed before any outcome is
computed. A self-decoding round is one of M = 0 tokens: a single uniform, position 1, additional token (D24).
Nothing here makes luck: without a seed, M + 1 uniforms come from a cryptographic generator outside. Drafters must not
use this derivation for their own sampling (6.4, D31).
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


LAST_ROUND = 2**32 - 1
"""The greatest number of a round: it has four octets in the derivation (6.4)."""


@dataclass(frozen=True, slots=True)
class Luck:
    """The uniforms of one round of M tokens.

    `acceptance[i - 1]` tests position i of 1..M; `additional[a]` draws the additional token after a of 0..M accepted.
    """

    acceptance: tuple[float, ...]
    additional: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float], m: int) -> Luck:
        """Read the flat form: M acceptance values, then the additional ones for a = 0..M.

        One additional value may stand for all, as it does without a seed: only one is ever used (D27). ValueError for
        another number of values.
        """
        acceptance, additional = tuple(values[:m]), tuple(values[m:])
        if len(acceptance) != m or len(additional) not in (1, m + 1):
            raise ValueError(f"{len(values)} random values are not those of a round of {m} tokens")
        return cls(acceptance, additional if len(additional) == m + 1 else additional * (m + 1))

    @property
    def values(self) -> tuple[float, ...]:
        """The flat form, 2 M + 1 values, in which a round's luck travels."""
        return self.acceptance + self.additional


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
