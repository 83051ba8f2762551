"""Two thousand seeds: sessions in worlds with a clock, in which everything goes wrong that a seed can think of.

At every step the invariants of `sdcp.testing.checks` hold, and those of the end when the faults have stopped. What a
failing seed says can be seen with `sdcp simulate --seed SEED --trace`; without --trace the shortest run is looked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from sdcp.simulate import Tally, run_seeds
from sdcp.testing.scenario import scenario_of
from sdcp.testing.world import World

SEEDS, BLOCK = 2_000, 100

LEAST_PAIRS = {"verifier": 130, "drafter": 22, "router": 210}
"""Pairs of state and input that come up at least, in these seeds: a tamer world would show here."""


@pytest.fixture(scope="module")
def tally() -> Tally:
    """All that the seeds of this file came across."""
    return Tally()


@pytest.mark.requirement("S1.3-sole-commit-authority", "S1.3-output-unaffected", "S6.3-append-before-release")
@pytest.mark.requirement("S6.3-commit-atomic", "S6.3-idempotency", "S6.3-idempotency-in-flight", "S6.3-base-check")
@pytest.mark.requirement("S6.7-only-recorded", "S6.7-stable-indices", "S6.7-from-index", "S4.2-chain-step")
@pytest.mark.requirement("S6.8-fence-refuses-older", "S6.8-commit-record-follows", "S6.8-read-back", "S6.9-fence-first")
@pytest.mark.requirement("S6.4-greedy-output", "S6.6-committed-unchanged", "S6.9-lost-verdict-retried", "S6.9-resume")
@pytest.mark.decision("D14", "D15", "D16", "D17", "D19", "D20", "D21", "D27", "D28", "D29", "D35", "D39")
@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_whatever_happens_the_invariants_hold_and_the_session_ends(tally: Tally, first: int) -> None:
    block = run_seeds(range(first, first + BLOCK))
    tally.add(block)
    told = [f"sdcp simulate --seed {seed} --trace: {fault}" for seed, fault in block.faults.items()]
    assert not told, "\n".join(told)


def test_the_seeds_are_as_wild_as_they_should_be(tally: Tally) -> None:
    if tally.schedules < SEEDS:
        pytest.skip("not all seeds of this file were run")
    met = {name: pairs for name, (pairs, _) in tally.coverage().items()}
    assert all(met[name] >= least for name, least in LEAST_PAIRS.items()), met
    assert set(tally.ends) == {"finish", "fail", "refused"}
    assert min(tally.ends.values()) > SEEDS / 50, tally.ends
    assert tally.rounds > 6 * SEEDS


def test_what_seeds_bring_is_of_every_kind() -> None:
    """Contracts and settings that matter come up often enough, in whatever seeds are run."""
    scenarios = [scenario_of(seed) for seed in range(400)]
    met = {
        "no tokens at all": sum(each.contract.max_new == 0 for each in scenarios),
        "few tokens": sum(0 < each.contract.max_new < 4 for each in scenarios),
        "one token a proposal": sum(each.contract.m_max == 1 for each in scenarios),
        "a stop token": sum(bool(each.contract.stop) for each in scenarios),
        "a long ladder": sum(len(each.contract.fallback) > 8 for each in scenarios),
        "rule 2": sum(each.contract.rule == 2 for each in scenarios),
        "a seed": sum(each.contract.profile.seed is not None for each in scenarios),
        "an empty prompt": sum(not each.prompt for each in scenarios),
        "a prompt as an object": sum(len(each.prompt) > each.inline_prompt for each in scenarios),
        "a store without fences": sum(not each.enforces_fences for each in scenarios),
        "messages as bytes": sum(each.encoded for each in scenarios),
        "a manifest": sum(each.keeps for each in scenarios),
        "little patience": sum(each.impatient for each in scenarios),
        "liars": sum(any(getattr(each.liars, name) for name in each.liars.__slots__) for each in scenarios),
    }
    happening = [incident.what for each in scenarios for incident in each.incidents]
    met |= {what: happening.count(what) for what in happening}
    assert len(met) == 14 + 9, met
    assert min(met.values()) >= 12, met


@pytest.mark.requirement("S6.9-fence-first", "S6.9-resume", "S6.9-drafter-expired")
def test_worlds_fail_over_stand_still_and_come_back() -> None:
    """What a run is to come across now and then, by what its machines say of themselves."""
    met = dict.fromkeys(("failed over", "often", "self-decoded", "switched", "reduced", "took long", "stepped in"), 0)
    for seed in range(3_000, 3_120):
        world = World(scenario_of(seed)).play()
        records = [record.action.name for record in world.watch.records.values() if record.action is not None]
        met["failed over"] += world.router.machine.epoch > 1
        met["often"] += world.router.machine.epoch > 3
        met["self-decoded"] += any(record.accepted is None for record in world.watch.records.values())
        met["switched"] += "SWITCH" in records
        met["reduced"] += "REDUCE" in records
        met["took long"] += world.clock.now_ms > 10_000
        met["stepped in"] += any(given == "VerifierLost" for given in map(_name, world.recorder.moments))
    assert min(met.values()) >= 3, met


def _name(moment: tuple[object, ...]) -> str:
    return type(moment[2]).__name__


# ---- replay ----------------------------------------------------------------------------------------------------------


def test_a_seed_replays_a_run() -> None:
    again = [World(scenario_of(seed)).play().recorder for seed in (3, 44, 3, 44)]
    assert [each.digest() for each in again[:2]] == [each.digest() for each in again[2:]]
    assert again[0].lines() == again[2].lines()
    assert again[0].digest() != again[1].digest()


def test_a_seed_replays_a_run_in_any_process() -> None:
    """Whatever order sets have there, and wherever objects lie."""
    command = [sys.executable, "-m", "sdcp.cli", "simulate", "--seeds", "25", "--start", "40", "--json"]
    said = [
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, check=True, text=True
        )
        for hash_seed in ("1", "2")
    ]
    first, second = (json.loads(each.stdout)["digest"] for each in said)
    assert first == second == run_seeds(range(40, 65)).digest
