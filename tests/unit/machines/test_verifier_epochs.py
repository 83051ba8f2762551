"""After a failover everything that a verifier says carries the epoch of now (6.7, 6.8, 6.9)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sdcp.messages.contract import Action
from tests.unit.machines.verifier_world import CONTRACT, World


@pytest.mark.requirement("S6.7-epoch-carried", "S6.8-record-epoch", "S6.8-commit-record-follows", "S6.9-resume")
@pytest.mark.decision("D8-all-indices")
@pytest.mark.parametrize("epoch", [2, 7])
def test_output_verdicts_records_states_and_events_carry_the_epoch_of_the_resumed_session(epoch: int) -> None:
    world = World(contract=replace(CONTRACT, low_rounds=1, fallback=(Action.SWITCH,))).started()
    world.play((4,), (6,))
    again = World(contract=world.contract, log=world.log)
    assert again.told(again.open(again.resume(epoch))).epoch == epoch
    output = again.read(again.output())
    assert (output.epoch, output.tokens) == (epoch, world.log.tokens)
    assert again.told(again.assign(epoch=epoch, round=2)).epoch == epoch
    request = again.propose(*again.wrong(), epoch=epoch)
    assert again.verdict(request).epoch == epoch
    assert again.log.records()[-1].epoch == epoch
    assert [event.epoch for event in again.events] == [epoch]
    assert again.read(again.output(len(world.log.tokens))).epoch == epoch
