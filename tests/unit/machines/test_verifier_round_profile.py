"""A round is judged under the profile that was in force when its proposal came (6.6, D21, D27)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sdcp.machines.effects import DrawRandom, FetchRows, Verify
from sdcp.messages.contract import Sampling
from tests.unit.machines.verifier_world import CONTRACT, World, of


@pytest.mark.requirement("S6.6-applies-from-round", "S6.6-committed-unchanged")
@pytest.mark.decision("D27-fixed", "D21-current")
@pytest.mark.parametrize("held", [FetchRows, DrawRandom, Verify])
def test_a_policy_that_comes_while_a_round_is_under_way_does_not_rule_it(held: type) -> None:
    before = Sampling(temperature_milli=700)
    world = World(contract=replace(CONTRACT, rule=2, sampling=before)).started()
    world.luck.extend([0.5] * 10)
    world.hold = {held}
    request = world.propose(4, q_rows="rows")
    world.told(world.policy(2, temperature_milli=300, seed=5))
    world.hold = set()
    world.release()
    world.verdict(request)
    world.verdict(world.propose(*world.right(1), q_rows="rows"))
    first, second = of(world.seen, Verify)
    assert (first.profile, second.profile) == (before, Sampling(temperature_milli=300, seed=5))
    assert first.luck == (0.5, 0.5)
