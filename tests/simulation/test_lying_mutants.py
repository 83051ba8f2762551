"""What lying peers are for: faults of a verifier that honest peers never show.

Each fault removes one check of 6.3. Over the same seeds, a world with honest peers goes on as if nothing were, and one
with the lie that the check is against breaks a claim. Only that any drafter may propose is seen with honest ones too:
one that was replaced may still have a proposal on its way.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from sdcp.errors import StaleBase
from sdcp.machines import verifier_serving
from sdcp.machines.verifier_checks import check_content
from sdcp.machines.verifier_committed import Committed
from sdcp.testing import store
from sdcp.testing.checks import Broken
from sdcp.testing.engines import contract_for, plain_greedy
from sdcp.testing.lying import HONEST, Liars
from sdcp.testing.network import Faults
from sdcp.testing.pair import Pair, Setting
from tests.simulation.conftest import Models

SEEDS = range(12)
PROMPT = (1, 2)


def world(models: Models, seed: int, liars: Liars, rule: int) -> Pair:
    """Two drafters, a network that repeats and reorders, and no other upheaval: what breaks is due to the peers."""
    contract = contract_for(models.target, rule=rule, m_max=4, max_new=30)
    plain = plain_greedy(models.target, PROMPT, 30) if rule == 1 else None
    return Pair(
        contract,
        PROMPT,
        models.target,
        [models.drafters["noisy"](), models.drafters["same"]()],
        Setting(m_init=2, plain=plain, liars=liars),
        luck=Random(seed),
        faults=Faults(twice=0.1, unanswered=0.1),
    )


def breaks(models: Models, liars: Liars, rule: int) -> int:
    """In how many of the seeds a claim does not hold."""
    broken = 0
    for seed in SEEDS:
        pair = world(models, seed, liars, rule)
        try:
            while pair.steps < 300 and not pair.finished and pair.step():
                pass
        except (Broken, RuntimeError):  # a machine that does what it must not falls apart
            broken += 1
    return broken


def remove(name: str, put: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(verifier_serving, name, put)


def no_base_check(proposal: Any, committed: Committed) -> None:
    if proposal.round != committed.round + 1:
        raise StaleBase("Only the round is looked at.")


def no_digest_check(proposal: Any, committed: Committed) -> None:
    if (proposal.base, proposal.round) != (committed.history.committed, committed.round + 1):
        raise StaleBase("The digest is not looked at.")


def no_round_check(proposal: Any, committed: Committed) -> None:
    if (proposal.base, proposal.base_digest) != (committed.history.committed, committed.digest):
        raise StaleBase("The round is not looked at.")


def no_limit_check(proposal: Any, committed: Committed, vocabulary: int) -> None:
    m_cap, committed.m_cap = committed.m_cap, 1 << 20
    try:
        check_content(proposal, committed, vocabulary)
    finally:
        committed.m_cap = m_cap


def no_token_check(proposal: Any, committed: Committed, vocabulary: int) -> None:
    check_content(proposal, committed, 1 << 64)


def no_idempotency(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verifier_serving.Serving, "_replay", lambda *_: False)


def no_row_check(patch: pytest.MonkeyPatch) -> None:
    def check(rows: np.ndarray, tokens: Any) -> None:
        """All but that q(x) is not zero."""

    patch.setattr(store, "check_rows", check)


FAULTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Liars, int]] = {
    "base": (remove("check_extends", no_base_check), Liars(base=0.3), 1),
    "digest": (remove("check_extends", no_digest_check), Liars(digest=0.3), 1),
    "round": (remove("check_extends", no_round_check), Liars(round=0.3), 1),
    "epoch": (remove("check_epoch", lambda *_: None), Liars(epoch=0.3), 1),
    "assignment": (remove("check_proposer", lambda *_: None), Liars(uncalled=0.05), 1),
    "name": (remove("check_proposer", lambda *_: None), Liars(misnamed=0.3), 1),
    "limit": (remove("check_content", no_limit_check), Liars(over=0.3), 1),
    "tokens": (remove("check_content", no_token_check), Liars(foreign=0.3), 1),
    "rows": (no_row_check, Liars(spoiled=0.3), 2),
    "idempotency": (no_idempotency, Liars(changed=0.3), 1),
}
SHOWN_BY_HONEST = ("assignment", "name")


@pytest.mark.requirement("S6.3-authorization", "S6.3-fencing", "S6.3-idempotency", "S6.3-base-check")
@pytest.mark.requirement("S6.3-round-check", "S6.4-zero-q-rejected", "S6.2-m-range", "S1.3-output-unaffected")
@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_verifier_without_a_check_breaks_a_claim_when_peers_lie_and_none_when_they_do_not(
    models: Models, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    break_it, liars, rule = FAULTS[fault]
    assert breaks(models, liars, rule) == 0, "the lie breaks a claim although the check is there"
    break_it(monkeypatch)
    assert breaks(models, HONEST, rule) == 0 or fault in SHOWN_BY_HONEST
    assert breaks(models, liars, rule) >= 2
