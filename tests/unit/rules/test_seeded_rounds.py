"""A seeded round in full: which value of 6.4 serves which position and purpose, and top-p over what top-k has left."""

from __future__ import annotations

import hmac

import numpy as np
import pytest

from sdcp.messages.contract import Sampling
from sdcp.rules.acceptance import accept_speculative
from sdcp.rules.draws import Luck, seeded_luck
from sdcp.rules.profile import target_distribution

SEED, SESSION, ROUND, M = 0x0102030405060708, bytes(range(16)), 3, 4


def derived(position: int, purpose: int) -> float:
    """The formula of 6.4, written down again."""
    place = ROUND.to_bytes(4, "big") + position.to_bytes(4, "big") + bytes((purpose,))
    mac = hmac.digest(SEED.to_bytes(8, "big"), b"SDCP-VERIFY-1\x00" + SESSION + place, "sha256")
    return int(f"{int.from_bytes(mac, 'big'):0256b}"[:53], 2) / 2**53


@pytest.mark.requirement("S6.4-seed-derivation", "S6.4-seed-purpose", "S6.4-seed-53-bits")
@pytest.mark.decision("D24-position")
def test_a_round_has_purpose_0_at_positions_1_to_m_and_purpose_1_at_1_to_m_and_one_more():
    luck = seeded_luck(SEED, SESSION, ROUND, M)
    assert luck.acceptance == tuple(derived(position, 0) for position in (1, 2, 3, 4))
    assert luck.additional == tuple(derived(position, 1) for position in (1, 2, 3, 4, 5))


@pytest.mark.requirement("S6.4-seed-purpose")
@pytest.mark.decision("D24-position")
@pytest.mark.parametrize("accepted", [0, 1, 2])
def test_the_additional_token_after_a_accepted_ones_is_drawn_with_the_value_of_a_plus_1(accepted: int):
    """p is even over four tokens; q is certain of a token of its own, which only the acceptance value lets through."""
    tokens = (0, 0)
    q = np.tile(np.array([1, 0, 0, 0], np.float32), (2, 1))
    tests = tuple(0.1 if position < accepted else 0.9 for position in range(2))
    luck = Luck(tests, (0.1, 0.5, 0.9))
    outcome = accept_speculative(np.zeros((3, 4)), tokens, q, Sampling(), luck)
    # The residual after a rejection is even over 1, 2 and 3; after two accepted tokens all four are.
    assert (outcome.accepted, outcome.additional) == (accepted, (1, 2, 3)[accepted])


@pytest.mark.requirement("S4.1-profile-order")
@pytest.mark.decision("D22-order")
def test_top_p_is_taken_of_what_top_k_has_left_renormalized():
    """Of 0.4, 0.3, 0.2, 0.1 top-k 2 leaves 4/7 and 3/7, and the first of these alone reaches one half."""
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1]))
    p = target_distribution(logits, Sampling(top_k=2, top_p_milli=500))
    assert p.tolist() == [1.0, 0.0, 0.0, 0.0]
