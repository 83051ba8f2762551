"""What a verifier that takes a session over restores, and what a new profile leaves of the old one (D20, D21)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sdcp.machines.effects import DrawRandom, Verify
from sdcp.messages.contract import Action, Sampling
from sdcp.messages.record import CommitRecord
from tests.unit.machines.verifier_world import CONTRACT, World, of

LADDER = replace(CONTRACT, low_rounds=2, fallback=(Action.REDUCE, Action.SWITCH))


def taken_over(**members: Any) -> World:
    """A session of one round, whose record has these members, opened under epoch 2."""
    world = World(contract=LADDER)
    world.log.put(CommitRecord(epoch=1, round=1, tokens=(4,), committed=1, digest=world.digest((4,)), **members))
    world.open(world.resume())
    world.assign()
    return world


def actions(world: World, *rounds: str) -> list[Action]:
    """Of low and good rounds."""
    return [
        verdict.action for each in rounds for verdict in world.play(world.wrong if each == "low" else world.right(1))
    ]


@pytest.mark.requirement("S6.5.2-j-persists")
@pytest.mark.decision("D20-restored")
def test_c_g_and_j_go_on_from_the_last_record() -> None:
    assert actions(taken_over(accepted=0, low=1, g=0, j=0), "low") == [Action.REDUCE]  # c was 1
    assert actions(taken_over(accepted=0, low=0, g=0, j=1), "low", "low") == [Action.CONTINUE, Action.SWITCH]  # j was 1
    after_one = taken_over(accepted=1, low=0, g=1, j=1)  # g was 1: one good round more resets j
    assert actions(after_one, "good", "low", "low")[-1] == Action.REDUCE


@pytest.mark.decision("D20-restored")
def test_a_record_without_counters_starts_them_at_zero() -> None:
    world = taken_over()
    assert actions(world, "low", "low") == [Action.CONTINUE, Action.REDUCE]
    assert world.log.records()[-1].j == 1


@pytest.mark.decision("D20-restored")
def test_our_own_record_holds_all_that_is_restored() -> None:
    world = World(contract=LADDER).started()
    world.play(world.wrong)
    plain = world.log.records()[-1].to_plain()
    assert {"accepted", "action", "m_cap", "low", "load", "g", "j"} < plain.keys()
    assert (plain["accepted"], plain["action"], plain["low"], plain["g"], plain["j"]) == (0, 0, 1, 0, 0)


@pytest.mark.decision("D21-whole")
def test_a_profile_without_a_seed_ends_the_seeded_rounds() -> None:
    contract = replace(CONTRACT, rule=2, sampling=Sampling(seed=7, top_k=3))
    world = World(contract=contract).started()
    world.policy(2, temperature_milli=900)
    world.play((4,))
    assert not of(world.seen, DrawRandom)
    world.luck.extend([0.0, 0.5])
    world.play(world.right(1))
    assert len(of(world.seen, DrawRandom)) == 1
    assert [verify.profile for verify in of(world.seen, Verify)] == [
        Sampling(seed=7, top_k=3),
        Sampling(temperature_milli=900),
    ]
