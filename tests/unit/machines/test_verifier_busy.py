"""What a busy verifier does to m_cap (6.5.1): it lowers it, and does not restore it until its load permits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sdcp.machines.control import Busy
from tests.unit.machines.verifier_world import CONTRACT, World

CONTRACT_OF_8 = replace(CONTRACT, m_max=8, max_new=60, stop=())


@pytest.mark.requirement("S6.5.1-lowered-under-load", "S6.5.1-restored-gradually")
@pytest.mark.decision("D16-moves")
def test_m_cap_is_lowered_under_load_stays_while_it_lasts_and_comes_back_by_one_a_round() -> None:
    world = World(contract=CONTRACT_OF_8, busy=Busy(load=90, cap=3)).started(m_init=6)
    limits = []
    for load in (0, 90, 100, 95, 89, 0):
        world.load = load
        [verdict] = world.play(world.right(1))
        limits.append(verdict.m_cap)
    assert limits == [7, 3, 3, 3, 4, 5]


@pytest.mark.requirement("S6.5.1-restored-gradually")
@pytest.mark.decision("D16-moves")
def test_a_limit_below_the_busy_one_is_not_restored_under_load() -> None:
    world = World(contract=CONTRACT_OF_8, busy=Busy(load=90, cap=4)).started(m_init=2)
    world.load = 90
    assert [verdict.m_cap for verdict in world.play(world.right(1), world.right(2))] == [2, 2]
    world.load = 0
    assert [verdict.m_cap for verdict in world.play(world.right(1))] == [3]
