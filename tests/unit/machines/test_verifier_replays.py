"""Who gets a stored verdict: idempotency is the third step of 6.3, after authorization and fencing (D12)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sdcp import errors
from sdcp.machines.inputs import ProposalReceived
from tests.unit.machines.verifier_world import OTHER, Client, World


def judged() -> World:
    """Two rounds have a verdict."""
    world = World().started()
    world.play((4,), (5,))
    return world


@pytest.mark.requirement("S6.3-step-order", "S6.3-authorization", "S6.9-failed-drafter-rejected")
@pytest.mark.decision("D12-order")
@pytest.mark.parametrize("round_", [1, 2])
def test_a_drafter_that_was_replaced_gets_no_stored_verdict(round_: int) -> None:
    world = judged()
    again = replace(world.proposal(4), round=round_, base=0, base_digest=world.digest())
    assert world.verdict(world.ask(ProposalReceived, again, Client())).round == round_
    world.assign(OTHER)
    assert isinstance(world.refusal(world.ask(ProposalReceived, again, Client())), errors.NotAssigned)
    by_the_new_one = world.ask(ProposalReceived, replace(again, drafter=OTHER), Client((OTHER,)))
    assert world.verdict(by_the_new_one).round == round_


@pytest.mark.requirement("S6.3-step-order", "S6.3-fencing", "S6.9-older-epoch-rejected")
@pytest.mark.decision("D12-order")
@pytest.mark.parametrize("epoch", [0, 2])
@pytest.mark.parametrize("round_", [1, 2])
def test_a_repeat_under_another_epoch_gets_no_stored_verdict(round_: int, epoch: int) -> None:
    world = judged()
    again = replace(world.proposal(4), round=round_, base=0, base_digest=world.digest(), epoch=epoch)
    assert isinstance(world.refusal(world.ask(ProposalReceived, again, Client())), errors.StaleEpoch)


@pytest.mark.requirement("S6.3-idempotency")
@pytest.mark.decision("D12-order")
@pytest.mark.parametrize("round_", [1, 2])
@pytest.mark.parametrize(
    "changed",
    [{"tokens": (9, 9, 9)}, {"base": 7}, {"base_digest": bytes(32)}, {"q_rows": "https://cache/objects/rows"}],
)
def test_a_changed_repeat_gets_the_stored_verdict_and_changes_nothing(round_: int, changed: dict[str, object]) -> None:
    world = judged()
    first = replace(world.proposal(4), round=round_, base=0, base_digest=world.digest())
    verdict = world.verdict(world.ask(ProposalReceived, first, Client()))
    state, log = world.state, world.log.data
    assert world.verdict(world.ask(ProposalReceived, replace(first, **changed), Client())) == verdict
    assert (world.state, world.log.data) == (state, log)
