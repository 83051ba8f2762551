"""Nothing leaves a verifier before it is durable, and no crash, partition or retry shows in the output (6.3, 6.7, 6.9).

The invariants themselves are checked at every step by `sdcp.testing.checks`: an answer that says more than the log
holds raises there.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from sdcp.machines.verifier import VerifierSession
from sdcp.machines.verifier_serving import Phase
from sdcp.messages.contract import Action, ContractSampling
from sdcp.testing.engines import contract_for, plain_greedy
from sdcp.testing.network import Faults
from sdcp.testing.pair import Pair, Setting, Upheavals
from tests.simulation.conftest import Models, V

PROMPT = (4, 9)
MAX_NEW = 12


@dataclass(frozen=True)
class Shape:
    """A kind of session whose output is plain greedy decoding, whatever happens in it."""

    name: str
    drafters: tuple[str, ...] = ("noisy",)
    members: dict[str, object] = field(default_factory=dict)
    enforces_fences: bool = True

    def __str__(self) -> str:
        return self.name


SHAPES = (
    Shape("greedy"),
    Shape("reading back", enforces_fences=False),
    Shape("stop token", members={"stop": (17,)}),
    Shape("switching", ("contrary", "same"), {"fallback": (Action.SWITCH,), "low_rounds": 2}),
    Shape("self-decoding", ("contrary",), {"fallback": (3, 3, 3), "low_rounds": 2, "self_load": 9, "self_max": 3}),
    Shape("with rows", ("noisy",), {"rule": 2, "sampling": ContractSampling(temperature_milli=0)}),
)


def world(models: Models, shape: Shape, *, verifiers: int = 1, kv_interval: int = 0, **more: object) -> Pair:
    contract = contract_for(models.target, **{"max_new": MAX_NEW, "m_max": 3, **shape.members})
    plain = plain_greedy(models.target, PROMPT, MAX_NEW, contract.stop)
    setting = Setting(plain=plain, verifiers=verifiers, enforces_fences=shape.enforces_fences, kv_interval=kv_interval)
    drafters = [models.drafters[name]() for name in shape.drafters]
    return Pair(contract, PROMPT, models.target, drafters, setting, **more)  # type: ignore[arg-type]


def plain(pair: Pair) -> tuple[int, ...]:
    assert pair.setting.plain is not None
    return tuple(pair.setting.plain)


def boundaries(models: Models, shape: Shape) -> range:
    """The ends of all effects that the verifiers of such a session carry out."""
    return range(1, world(models, shape).run().boundaries + 1)


@pytest.mark.requirement(
    "S6.3-append-before-release", "S6.3-commit-atomic", "S6.7-only-recorded", "S6.7-stable-indices"
)
@pytest.mark.requirement("S6.9-fence-first", "S6.9-resume", "S6.9-reassigned-after-resume")
@pytest.mark.decision("D19", "D20")
@pytest.mark.parametrize("verifiers", [1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_verifier_that_dies_at_any_moment_changes_nothing(models: Models, shape: Shape, verifiers: int) -> None:
    epochs = set()
    for boundary in boundaries(models, shape):
        pair = world(models, shape, verifiers=verifiers, crash_at=boundary).run()
        assert pair.output == plain(pair)
        assert pair.front_end.finish is Action.FINISH
        epochs.add(pair.router.machine.epoch)
    assert epochs == {1, 2}  # 1: it died after its last word


@pytest.mark.requirement(
    "S6.8-fence-refuses-older", "S6.3-fenced-append", "S6.8-read-back", "S6.9-lost-verdict-retried"
)
@pytest.mark.decision("D27")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_same_in_any_order_with_answers_lost(models: Models, shape: Shape) -> None:
    """What a dead verifier has sent may still arrive: before the fence, after it, twice, or never."""
    faults = Faults(lost=0.05, late=0.1, twice=0.1, unanswered=0.1)
    ends = set()
    for boundary in boundaries(models, shape):
        pair = world(models, shape, verifiers=2, luck=Random(boundary), faults=faults, crash_at=boundary).run()
        ends.add(pair.front_end.finish)
        assert pair.output == plain(pair)[: len(pair.output)]
        assert pair.front_end.finish is Action.FAIL or pair.output == plain(pair)
    assert Action.FINISH in ends


@pytest.mark.requirement("S6.3-append-before-release", "S6.7-only-recorded")
def test_a_record_whose_verifier_died_before_it_could_say_so_counts(models: Models) -> None:
    """Between the append and everything that follows from it: the tokens are committed, and nobody knows yet."""
    pair = world(models, SHAPES[0])
    pair.run(lambda: bool(pair.watch.records))
    committed = list(pair.watch.tokens)
    assert not pair.watch.verdicts
    assert committed
    assert not pair.output
    pair.crash_verifier()
    pair.run()
    assert pair.output[: len(committed)] == tuple(committed)
    assert pair.output == plain(pair)
    assert 1 not in [number for _, number in pair.watch.verdicts], "verdicts of earlier epochs are not replayed (D20)"


@pytest.mark.requirement(
    "S6.9-fence-first", "S6.3-fenced-append", "S6.9-older-epoch-rejected", "S1.3-sole-commit-authority"
)
@pytest.mark.decision("D30")
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[1]], ids=str)
def test_a_verifier_taken_for_dead_commits_nothing_after_the_fence(models: Models, shape: Shape) -> None:
    """A partition: the old verifier goes on, with its drafter, until it meets the fence."""
    fenced = []
    for moment in range(5, 60, 2):
        pair = world(models, shape, verifiers=2)
        for _ in range(moment):
            pair.step()
        pair.suspect_verifier()
        pair.run()
        assert pair.output == plain(pair)
        fenced += [_phase(pair, 1)]
    assert Phase.FENCED in fenced


@pytest.mark.requirement("S6.9-drafter-expired", "S6.9-new-drafter-starts", "S6.9-failed-drafter-rejected")
@pytest.mark.requirement("S6.1-latest-assignment-only", "S6.1-verifier-informed-first")
@pytest.mark.decision("D28")
@pytest.mark.parametrize("crash", [False, True], ids=["taken for dead", "dead"])
@pytest.mark.parametrize("name", ["greedy", "with rows"])
def test_a_change_of_drafter_at_any_moment_changes_nothing(models: Models, name: str, crash: bool) -> None:
    (shape,) = (replace(each, drafters=("noisy", "guesses")) for each in SHAPES if each.name == name)
    for moment in range(world(models, shape).run().steps):
        pair = world(models, shape)
        for _ in range(moment):
            pair.step()
        (pair.crash_drafter if crash else pair.change_drafter)()
        pair.run()
        assert pair.output == plain(pair)
        assert pair.router.machine.epoch == 1
        pair.settle()
        assert not [ref for ref in pair.store.objects if len(pair.store.objects[ref]) >= 4 * V], "rows are left"


def _phase(pair: Pair, epoch: int) -> Phase | None:
    machines = [verifier.machine(epoch) for verifier in pair.verifiers.values()]
    held = next((machine for machine in machines if machine is not None), None)
    return held.phase if isinstance(held, VerifierSession) else None


@pytest.mark.requirement("S6.7-from-index", "S6.7-epoch-carried", "S6.7-stable-indices", "S6.9-older-output-discarded")
@pytest.mark.parametrize("seed", range(20))
def test_a_front_end_that_retries_never_loses_repeats_or_reorders(models: Models, seed: int) -> None:
    """Half of what it asks goes wrong, and the verifier with it now and then."""
    faults = Faults(lost=0.1, late=0.3, twice=0.2, unanswered=0.3)
    pair = world(
        models, SHAPES[0], verifiers=2, luck=Random(seed), faults=faults, upheavals=Upheavals(crash=0.003, early=0.1)
    )
    seen: list[tuple[int, ...]] = [()]
    while not pair.finished:
        assert pair.step()
        if pair.output != seen[-1]:
            seen.append(pair.output)
        assert pair.steps < 100_000
    assert all(later[: len(sooner)] == sooner for sooner, later in itertools.pairwise(seen))
    assert pair.output == plain(pair)


@pytest.mark.requirement(
    "S6.3-idempotency", "S6.3-idempotency-in-flight", "S6.9-lost-verdict-retried", "S6.2-one-outstanding"
)
@pytest.mark.parametrize("seed", range(20))
def test_no_round_is_committed_twice_when_verdicts_are_lost(models: Models, seed: int) -> None:
    faults = Faults(twice=0.5, unanswered=0.5)
    pair = world(models, SHAPES[5], luck=Random(seed), faults=faults).run()
    assert pair.output == plain(pair)
    assert not sum(drafter.resyncs for drafter in pair.drafters.values()), "a stored verdict was not given again"
    assert pair.router.machine.epoch == 1 or pair.watch.fence == pair.router.machine.epoch
    assert sorted(pair.watch.records) == list(range(1, len(pair.watch.records) + 1))
