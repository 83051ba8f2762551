"""Times and bounds that the decisions name are the defaults of settings and of machines alike."""

from __future__ import annotations

import pytest

from sdcp.machines.router_steps import Patience
from sdcp.messages.contract import Action
from sdcp.roles import config, router
from sdcp.roles.config import ContractDefaults
from sdcp.roles.verifier import VerifierFacts


@pytest.mark.requirement("S6.7-long-poll")
@pytest.mark.decision("D8-wait", "D8-retention")
def test_output_waits_25_seconds_and_stays_readable_for_ten_minutes() -> None:
    facts, limits = VerifierFacts(), config.VerifierLimits()
    assert (facts.wait_ms, limits.wait_ms) == (25_000, 25_000)
    assert (facts.retention_s, limits.retention_s) == (600.0, 600.0)


@pytest.mark.decision("D33-location")
def test_a_front_end_waits_at_most_25_seconds_for_news() -> None:
    assert router.LOCATION_WAIT_MS == 25_000


@pytest.mark.decision("D37-repeated")
def test_a_drafter_is_reminded_every_five_seconds() -> None:
    assert Patience().reminder_ms == 5_000


@pytest.mark.decision("D36-ladder")
def test_a_ladder_has_at_most_4096_turns() -> None:
    ladder = router._ladder(ContractDefaults(fallback=("reduce",), low_rounds=1), 2**64 - 1)
    assert ladder == (Action.REDUCE, *(Action.SELF_DECODE, Action.SWITCH) * 4096)
