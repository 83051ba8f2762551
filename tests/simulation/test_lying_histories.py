"""Random histories with peers that lie, each from a seed: what is claimed in `sdcp.testing.lying` holds at every step.

The faults of honest worlds happen too. When faults and lies stop, the session comes to its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from random import Random
from typing import Any

import pytest

from sdcp.testing.lying import FATAL, HONEST, STEPWISE, Liars, Script, some_liars
from sdcp.testing.pair import Pair
from tests.simulation.conftest import Models
from tests.simulation.test_histories import TROUBLED, assert_ended, some_world

NAMES = sorted(field.name for field in fields(Liars))


def trouble(pair: Pair) -> None:
    while pair.steps < TROUBLED and not pair.finished and pair.step():
        pass


@pytest.mark.requirement("S1.3-sole-commit-authority", "S1.3-output-unaffected", "S6.4-greedy-output")
@pytest.mark.requirement("S6.1-latest-assignment-only", "S6.3-base-check", "S6.3-append-before-release")
@pytest.mark.parametrize("seed", range(20_000, 20_080))
def test_whoever_lies_the_claims_hold_and_the_session_ends_when_the_lies_do(models: Models, seed: int) -> None:
    pair = some_world(models, seed, liars=some_liars(Random(seed)), inline_prompt=seed % 2 * 9)
    trouble(pair)
    pair.calm()
    pair.run(most=20_000)
    assert_ended(pair)


@pytest.mark.requirement("S1.3-sole-commit-authority", "S1.3-output-unaffected", "S6.4-greedy-output")
@pytest.mark.parametrize("seed", range(21_000, 21_025))
def test_a_cache_that_garbles_logs_stops_sessions_and_changes_none(models: Models, seed: int) -> None:
    """Nothing is claimed of the end: the router may have given the session up, and the output may stand still."""
    pair = some_world(models, seed, liars=replace(some_liars(Random(seed)), garble=0.05))
    trouble(pair)
    pair.calm()
    for _ in range(500):
        pair.step()
    assert pair.output == tuple(pair.watch.tokens[: len(pair.output)])


@pytest.mark.parametrize("name", NAMES)
def test_every_lie_is_told(models: Models, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A lie that is never told proves nothing; one that is told in every world leaves no world to be lied to."""
    told: Counter[bool] = Counter()
    asked = Script.lies

    def lies(script: Script, lie: str) -> bool:
        told[answer := asked(script, lie)] += lie == name
        return answer

    monkeypatch.setattr(Script, "lies", lies)
    got_on = 0
    for seed in (0, 5, 6):  # two of them under rule 2
        pair = some_world(models, seed, liars=replace(HONEST, **{name: 0.01 if name in STEPWISE else 0.5}))
        if name in STEPWISE:
            assert pair.troupe.script.stepwise == [(name, 0.01)]
        trouble(pair)
        got_on += len(pair.watch.records) > 1
    assert told[True] or name in STEPWISE
    assert got_on or name in FATAL


def test_a_seed_replays_its_lies(models: Models) -> None:
    def run() -> list[Any]:
        pair = some_world(models, 7, liars=some_liars(Random(7)))
        trouble(pair)
        return [pair.steps, pair.watch.tokens, *pair.watch.records.values()]

    assert run() == run()


def test_some_liars_are_of_every_kind_and_fatal_ones_are_asked_for(models: Models) -> None:
    def kinds(**members: Any) -> Mapping[str, int]:
        met: Counter[str] = Counter()
        for seed in range(200):
            liars = some_liars(Random(seed), **members)
            met.update(name for name in NAMES if getattr(liars, name))
        return met

    assert set(kinds(fatal=True)) == set(NAMES)
    assert set(kinds()) == set(NAMES) - FATAL
    assert min(kinds().values()) >= 30
