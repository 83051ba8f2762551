"""Random histories: loss, repeats, any order, crashes, partitions, changes of drafter and profile, each from a seed.

After every step the invariants of `sdcp.testing.checks` hold; when the faults stop, the session comes to its end. Here
there is no time: whatever is under way may overtake everything else. Worlds with a clock are in `test_seeds`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

from sdcp.machines import drafter_rounds, router_steps
from sdcp.messages.contract import Action, Contract, ContractSampling
from sdcp.testing.engines import contract_for, plain_greedy
from sdcp.testing.network import Faults
from sdcp.testing.pair import Pair, Setting, Upheavals
from tests.simulation.conftest import Models, V

NAMES = ("same", "noisy", "half", "lookup", "mixed", "guesses", "contrary")
RUNGS = (Action.REDUCE, Action.SWITCH, Action.SELF_DECODE)
BLOCK = 10
TROUBLED = 500
"""Steps until the faults stop; most sessions have not ended by then."""


def some_contract(models: Models, luck: Random) -> Contract:
    return contract_for(
        models.target,
        rule=luck.choice((1, 1, 2)),
        sampling=luck.choice((None, ContractSampling(seed=luck.randrange(1 << 64)), ContractSampling(top_k=3))),
        m_max=luck.randint(1, 8),
        max_new=luck.randint(1, 60),
        stop=luck.choice(((), (luck.randrange(V),))),
        low_rounds=luck.randint(1, 4),
        low_ratio=luck.choice((None, 0, 50)),
        fallback=tuple(luck.choice(RUNGS) for _ in range(luck.randint(1, 8))),
        self_load=luck.choice((None, 60, 100)),
        self_max=luck.choice((None, 0, 1, 4)),
    )


IMPATIENT = (
    router_steps.Patience(attempts=2, verifier_wait_ms=600, recovery_wait_ms=600, drafter_wait_ms=2_000, failovers=2),
    drafter_rounds.Patience(tries=2),
)


def some_world(models: Models, seed: int, **setting_members: Any) -> Pair:
    luck = Random(seed)
    contract = some_contract(models, luck)
    prompt = tuple(luck.randrange(V) for _ in range(luck.randint(0, 5)))
    greedy = contract.rule == 1
    setting = Setting(
        m_init=luck.randint(0, 9),
        verifiers=luck.randint(1, 3),
        load=lambda: luck.randrange(101),
        enforces_fences=luck.random() < 0.7,
        encoded=luck.random() < 0.3,
        plain=plain_greedy(models.target, prompt, contract.max_new, contract.stop) if greedy else None,
        **setting_members,
    )
    drafters = [models.drafters[luck.choice(NAMES)]() for _ in range(luck.randint(1, 3))]
    return Pair(
        contract,
        prompt,
        models.target,
        drafters,
        setting,
        luck=luck,
        faults=some_faults(luck),
        upheavals=some_upheavals(luck),
    )


def some_faults(luck: Random) -> Faults:
    lost, late, twice, unanswered = (luck.choice((0.0, 0.05, 0.25)) for _ in range(4))
    return Faults(lost=lost, late=late, twice=twice, unanswered=unanswered)


def some_upheavals(luck: Random) -> Upheavals:
    crash, suspect, change, leave, profile = (luck.choice((0.0, 0.004, 0.02)) for _ in range(5))
    early = luck.choice((0.0, 0.02, 0.2))
    return Upheavals(crash=crash, suspect=suspect, change=change, leave=leave, profile=profile, early=early)


@pytest.mark.requirement("S1.3-sole-commit-authority", "S1.3-output-unaffected", "S6.3-append-before-release")
@pytest.mark.requirement(
    "S6.7-only-recorded", "S6.8-fence-refuses-older", "S6.8-commit-record-follows", "S4.2-chain-step"
)
@pytest.mark.requirement("S6.4-greedy-output", "S6.6-committed-unchanged", "S6.9-lost-verdict-retried")
@pytest.mark.decision("D17", "D19", "D20", "D27", "D28")
@pytest.mark.parametrize("first", range(0, 120, BLOCK))
def test_whatever_happens_the_invariants_hold_and_the_session_ends_when_the_faults_do(
    models: Models, first: int
) -> None:
    for seed in range(first, first + BLOCK):
        with named(seed):
            _trouble_and_end(models, seed)


def _trouble_and_end(models: Models, seed: int) -> None:
    pair = some_world(models, seed)
    while pair.steps < TROUBLED and not pair.finished and pair.step():
        pass
    pair.calm()
    pair.run(most=20_000)
    assert_ended(pair)


@contextmanager
def named(seed: int) -> Iterator[None]:
    """Let a failure say which seed it is of."""
    try:
        yield
    except Exception as fault:
        fault.add_note(f"seed {seed}")
        raise


def assert_ended(pair: Pair) -> None:
    front_end, watch = pair.front_end, pair.watch
    assert front_end.failure is None
    assert list(pair.output) == watch.tokens
    assert sorted(watch.records) == list(range(1, len(watch.records) + 1))
    if front_end.finish is Action.FINISH and pair.setting.plain is not None:
        assert pair.output == tuple(pair.setting.plain)
    pair.settle()
    assert list(pair.output) == watch.tokens, "something was committed after the end"


@pytest.mark.requirement("S1.3-sole-commit-authority", "S6.3-append-before-release", "S6.8-fence-refuses-older")
@pytest.mark.decision("D19", "D34-nothing-more")
@pytest.mark.parametrize("first", range(5000, 5040, BLOCK))
def test_a_router_or_a_reader_that_gives_up_leaves_nothing_behind(models: Models, first: int) -> None:
    """Routers and drafters lose patience, and half of the readers want no more at some time: the rest still holds."""
    for seed in range(first, first + BLOCK):
        with named(seed):
            _give_up(models, seed)


def _give_up(models: Models, seed: int) -> None:
    pair = some_world(models, seed, patience=IMPATIENT)
    withdrawn = Random(seed).randrange(2 * TROUBLED)
    while pair.steps < TROUBLED and not pair.finished and pair.step():
        if pair.steps == withdrawn:
            pair.front_end.withdraw()
    pair.calm()
    pair.run(most=20_000)
    if pair.front_end.failure is None:
        assert_ended(pair)
    assert pair.router.machine.ended is not None or pair.front_end.finish is not None


@pytest.mark.parametrize("seed", [3, 44])
def test_a_seed_replays_a_run(models: Models, seed: int) -> None:
    first, second = some_world(models, seed), some_world(models, seed)
    for _ in range(400):
        assert first.step() == second.step()
        assert first.watch.tokens == second.watch.tokens
    assert [*first.watch.records.values()] == [*second.watch.records.values()]
    assert first.boundaries == second.boundaries


def test_the_histories_are_as_wild_as_they_should_be(models: Models) -> None:
    """What the seeds above come across, so that a change of the world does not tame them unseen."""
    met: Counter[str] = Counter()
    for seed in range(1000, 1040):
        pair = some_world(models, seed)
        while pair.steps < TROUBLED and not pair.finished:
            pair.step()
        met["got on all the same"] += len(pair.watch.records) > 3
        met["was still troubled"] += not pair.finished
        pair.calm()
        pair.run()
        records = pair.watch.records.values()
        met["failed over"] += pair.router.machine.epoch > 1
        met["failed over often"] += pair.router.machine.epoch > 4
        met["self-decoded"] += any(record.accepted is None for record in records)
        met["switched"] += any(record.action is Action.SWITCH for record in records)
        met["reduced"] += any(record.action is Action.REDUCE for record in records)
        met["failed"] += pair.front_end.finish is Action.FAIL
        met["finished"] += pair.front_end.finish is Action.FINISH
    assert len(met) == 9
    assert min(met.values()) >= 3, met
