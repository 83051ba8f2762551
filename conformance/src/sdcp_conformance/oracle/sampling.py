"""The target distribution of a profile (4.1, D22), the verifier's uniform values (6.4, D24) and drawing (D23).

A profile is the plain map of a message: `temperature_milli`, `top_k`, `top_p_milli`, `seed`, each optional.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Mapping, Sequence

Profile = Mapping[str, int]
ACCEPTANCE, ADDITIONAL = 0, 1


def argmax(logits: Sequence[float]) -> int:
    """The token of the greatest logit; of equals the smallest identifier."""
    return max(range(len(logits)), key=lambda token: (logits[token], -token))


def target_distribution(logits: Sequence[float], profile: Profile) -> list[float]:
    """p over all tokens after temperature, top-k and top-p, in that order."""
    temperature = profile.get("temperature_milli", 1000)
    if temperature == 0:
        best = argmax(logits)
        return [1.0 if token == best else 0.0 for token in range(len(logits))]
    ranked = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    kept = ranked[: profile.get("top_k", 0) or len(ranked)]
    top = logits[ranked[0]] / (temperature / 1000)
    weights = {token: math.exp(logits[token] / (temperature / 1000) - top) for token in kept}
    total = math.fsum(weights.values())
    weights = {token: weight / total for token, weight in weights.items()}
    least = profile.get("top_p_milli", 1000)
    if least < 1000:
        kept = _shortest_prefix(kept, weights, least / 1000)
    total = math.fsum(weights[token] for token in kept)
    inside = set(kept)
    return [weights[token] / total if token in inside else 0.0 for token in range(len(logits))]


def _shortest_prefix(ranked: Sequence[int], weights: Mapping[int, float], least: float) -> list[int]:
    reached = 0.0
    for count, token in enumerate(ranked, start=1):
        reached += weights[token]
        if reached >= least:
            return list(ranked[:count])
    return list(ranked)


def uniform(seed: int, session: bytes, round_: int, position: int, purpose: int) -> float:
    """The verifier's value in [0, 1): the first 53 bits of the HMAC, divided by 2^53. `position` counts from 1."""
    text = b"SDCP-VERIFY-1\0" + session + round_.to_bytes(4, "big") + position.to_bytes(4, "big") + bytes([purpose])
    mac = hmac.digest(seed.to_bytes(8, "big"), text, hashlib.sha256)
    return float((int.from_bytes(mac[:8], "big") >> 11) / 2**53)


def draw(weights: Sequence[float], u: float) -> int:
    """The smallest token whose cumulative weight exceeds u times the total; else the last of positive weight."""
    limit, reached = u * sum(weights), 0.0
    for token, weight in enumerate(weights):
        reached += weight
        if reached > limit:
            return token
    return max(token for token, weight in enumerate(weights) if weight > 0)
