"""A router that keeps a manifest may crash between any two things it does, and may have two lives at once (D45, D33).

Whatever happens, the session comes to its end with the output of plain decoding, and the front end has all of it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from sdcp.messages.contract import Sampling
from sdcp.testing.incidents import VERIFIER, Incident
from sdcp.testing.network import Faults
from sdcp.testing.scenario import Scenario, scenario_of
from sdcp.testing.surroundings import ROUTER
from sdcp.testing.world import World

UNTIL_MS = 4_000.0
LOSSY = Faults(lost=0.05, late=0.05, twice=0.05, unanswered=0.05, slow=0.1)
CHANGE = Incident(what="change the profile", sampling=Sampling(temperature_milli=700), at_ms=40.0)
LOSS = Incident(what="crash", who=VERIFIER, at_ms=60.0, for_ms=20.0)


def scenario(seed: int, *incidents: Incident, faults: Faults = Faults()) -> Scenario:  # noqa: B008
    """An ordinary session of 64 tokens; the verifier is lost, and the profile changes."""
    return replace(
        scenario_of(seed, 64),
        verifiers=2,
        drafters=("near", "noisy"),
        keeps=True,
        impatient=False,
        incidents=(CHANGE, LOSS, *incidents),
        faults=faults,
        until_ms=UNTIL_MS,
    )


def crash(number: int, for_ms: float = 30.0) -> Incident:
    return Incident(what="crash", who=ROUTER, after_effects=number, for_ms=for_ms)


def lives_of(world: World) -> int:
    return world.router._life


@pytest.mark.requirement("S6.9-fence-first", "S6.9-resume", "S6.7-stable-indices")
@pytest.mark.decision("D45-restart", "D45-request-first", "D45-fence-or-remind")
def test_a_crash_between_any_two_effects_costs_nothing() -> None:
    undisturbed = World(scenario(1)).play()
    effects = undisturbed._effects[ROUTER]
    assert effects > 30
    lives = 0
    for number in range(1, effects + 1):
        world = World(scenario(1, crash(number))).play()
        lives += lives_of(world)
        assert tuple(world.front_end.tokens) == world.scenario.plain()
    assert lives > 1.8 * effects  # but for the last ones, after which nothing is left to do


@pytest.mark.decision("D45-restart", "D45-tag", "D45-late")
@pytest.mark.parametrize("seed", [1, 2])
def test_nor_do_crashes_in_the_middle_of_taking_up_and_lost_appends(seed: int) -> None:
    lives, runs = 0, 0
    for first in range(1, 40, 3):
        for more in (2, 5, 9):
            world = World(scenario(seed, crash(first), crash(first + more, 400.0), faults=LOSSY)).play()
            lives, runs = lives + lives_of(world), runs + 1
            assert tuple(world.front_end.tokens) == world.scenario.plain()
    assert lives > 1.25 * runs  # some of them crash twice, and some end before


@pytest.mark.decision("D45-looks", "D45-tag", "D45-asked")
@pytest.mark.parametrize("faults", [Faults(), LOSSY], ids=["sound", "lossy"])
def test_two_lives_at_once_do_not_quarrel(faults: Faults) -> None:
    """The old one is awake all the time, and is told nothing; it loses its verifier by and by."""
    for at_ms in range(2, 400, 14):
        split = Incident(what="begin another life of", who=ROUTER, at_ms=float(at_ms))
        world = World(scenario(2, split, faults=faults)).play()
        assert lives_of(world) >= 2
        assert tuple(world.front_end.tokens) == world.scenario.plain()
        assert world.router.machine.epoch <= 5


@pytest.mark.decision("D45-off")
def test_a_router_without_a_manifest_is_as_it_was() -> None:
    world = World(replace(scenario(1), keeps=False)).play()
    assert world.store.manifests == {}
    kept = World(scenario(1)).play()
    assert kept.store.manifests
    assert world.front_end.tokens == kept.front_end.tokens
