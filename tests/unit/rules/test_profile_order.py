"""Temperature, then top-k, then top-p, each over what the one before left: places where the order shows (4.1, D22)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sdcp.messages.contract import Sampling
from sdcp.rules.profile import target_distribution

pytestmark = [pytest.mark.requirement("S4.1-profile-order"), pytest.mark.decision("D22-order")]


def kept(logits: list[float], **sampling: int) -> list[int]:
    p = target_distribution(np.array(logits), Sampling(**sampling))
    return [token for token, weight in enumerate(p) if weight > 0]


def test_top_p_counts_what_temperature_made() -> None:
    """The most probable token has 0.665 at temperature 1, 0.506 at 2 and 0.867 at 0.5."""
    logits = [0.0, 1.0, 2.0]
    assert kept(logits, top_p_milli=600) == [2]
    assert kept(logits, top_p_milli=600, temperature_milli=2000) == [1, 2]
    assert kept(logits, top_p_milli=800) == [1, 2]
    assert kept(logits, top_p_milli=800, temperature_milli=500) == [2]


def test_top_p_counts_what_top_k_left() -> None:
    """Of four equal tokens two are 0.5 of all, and each 0.5 of the two that top-k left."""
    assert kept([0.0] * 4, top_p_milli=500) == [0, 1]
    assert kept([0.0] * 4, top_p_milli=500, top_k=2) == [0]


def test_what_is_left_is_normalized_at_the_end() -> None:
    p = target_distribution(np.array([0.0, 1.0, 2.0, 9.0]), Sampling(temperature_milli=2000, top_k=3, top_p_milli=980))
    weights = [0.0, 0.0, math.exp(1.0), math.exp(4.5)]
    np.testing.assert_allclose(p, np.array(weights) / sum(weights), rtol=1e-12)
