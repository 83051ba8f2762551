"""KV is published beside the rounds and handed on, wherever a verifier dies, and changes nothing (6.3, 6.9, D44)."""

from __future__ import annotations

from random import Random

import pytest

from sdcp.machines.effects import Prefill
from sdcp.messages.contract import Action
from sdcp.testing.network import Faults
from sdcp.testing.pair import Pair
from sdcp.testing.verifying import VerifierInstance
from tests.simulation.conftest import Models
from tests.simulation.test_durability import SHAPES, Shape, plain, world

INTERVAL = 2


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """What each open of a verifier is to load."""
    seen: list[str | None] = []
    prefill = VerifierInstance._prefill

    def noted(self: VerifierInstance, effect: Prefill) -> object:
        seen.append(effect.kv)
        return prefill(self, effect)

    monkeypatch.setattr(VerifierInstance, "_prefill", noted)
    return seen


def named(pair: Pair) -> list[str]:
    """The KV that valid records name, in order."""
    return [record.kv for _, record in sorted(pair.watch.records.items()) if record.kv is not None]


@pytest.mark.decision("D44-named", "D44-resume")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_wherever_the_verifier_dies_the_next_one_is_given_the_newest_kv(
    models: Models, shape: Shape, loaded: list[str | None]
) -> None:
    quiet = world(models, shape, kv_interval=INTERVAL).run()
    assert named(quiet), "otherwise nothing is tried here"
    given = 0
    for boundary in range(1, quiet.boundaries + 1):
        pair = world(models, shape, verifiers=2, kv_interval=INTERVAL, crash_at=boundary)
        loaded.clear()
        known: list[str] = []
        while pair.step():
            known = named(pair) if pair.watch.fence < 2 else known  # up to the fence
        assert pair.output == plain(pair)
        assert pair.front_end.finish is Action.FINISH
        if len(loaded) == 2:
            assert loaded == [None, known[-1] if known else None]
            given += bool(known)
    assert given


@pytest.mark.decision("D44-beside", "D44-named")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_same_in_any_order_with_answers_lost(models: Models, shape: Shape) -> None:
    faults = Faults(lost=0.05, late=0.1, twice=0.1, unanswered=0.1)
    met = 0
    for seed in range(40):
        luck = Random(seed)
        pair = world(
            models, shape, verifiers=2, kv_interval=1, luck=luck, faults=faults, crash_at=luck.randint(1, 60)
        ).run()
        assert pair.output == plain(pair)[: len(pair.output)]
        assert pair.front_end.finish is Action.FAIL or pair.output == plain(pair)
        met += len(named(pair))
    assert met > 40
