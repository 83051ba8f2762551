"""What follows from a round: counters, ladder, limit, events, self-decoding (6.5, D15 to D17, D29)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sdcp import errors
from sdcp.machines.control import Busy
from sdcp.machines.effects import AppendLog, DrawRandom, SelfDecode, Verify
from sdcp.machines.inputs import EngineFailed, SelfDecoded, StopRequested, Verified
from sdcp.messages.contract import Action, Sampling
from sdcp.messages.session import State
from sdcp.rules.draws import seeded_luck
from tests.unit.machines.verifier_world import CONTRACT, OTHER, SESSION, Client, World, greedy, of, successor

VECTORS = Path(__file__).parents[2] / "data" / "vectors"
SELF = replace(CONTRACT, low_rounds=1, fallback=(Action.SELF_DECODE, Action.SWITCH), self_load=50, self_max=3)


def cases(name: str) -> list[Any]:
    found: list[Any] = json.loads((VECTORS / name).read_text())["cases"]
    return found


# ---- counters and ladder ---------------------------------------------------------------------------------------------


@pytest.mark.requirement(
    "S6.5.2-low-round",
    "S6.5.2-low-round-no-ratio",
    "S6.5.2-counters",
    "S6.5.2-after-low",
    "S6.5.2-after-not-low",
    "S6.5.2-ladder-restarts",
    "S6.5.2-ladder-entry",
    "S6.5.2-ladder-skips",
    "S6.5.2-c-reset",
    "S6.5.2-ladder-exhausted",
    "S6.5.2-otherwise-continue",
    "S6.5.2-load-decides",
    "S5.2-verdict-low",
)
@pytest.mark.decision("D15-low")
@pytest.mark.parametrize("case", cases("escalation.json"))
@pytest.mark.requirement("S6.3-control")
def test_the_machine_escalates_as_the_independent_reference(case: Any) -> None:
    members = {key: case[key] for key in ("low_rounds", "low_ratio", "self_load")}
    fallback = tuple(Action(entry) for entry in case["fallback"])
    contract = replace(CONTRACT, max_new=10**6, m_max=64, fallback=fallback, self_max=1, **members)
    world = World(contract=contract, target=replace(World().target, context=None))
    world.busy = Busy(load=101)  # the vectors' loads are about self-decoding alone
    world.__post_init__()
    world.started(m_init=64)
    for step in case["steps"]:
        _to_drafting(world)
        world.hold, world.load = {Verify}, step["load"]
        world.machine._serving._committed.m_cap = 64  # type: ignore[union-attr]
        request = world.propose(*[0] * step["m"])
        world.release(Verified(world.state.round + 1, step["accepted"], 0, step["load"]))
        verdict, record = world.verdict(request), _record_of(world, request)
        assert (verdict.action, verdict.low, record.g, record.j) == (
            step["action"],
            step["low"],
            step["g"],
            step["j"],
        )


def _record_of(world: World, request: int) -> Any:
    round = world.verdict(request).round
    return next(record for record in world.log.records() if record.round == round)


def _to_drafting(world: World) -> None:
    if world.state.state != State.DRAFTING:
        world.assign(round=world.state.round)


@pytest.mark.requirement("S6.5.1-m-cap-range", "S6.5.1-restored-gradually", "S6.5.2-reduce", "S6.5.2-continue")
@pytest.mark.decision("D16-moves")
def test_reduce_halves_the_limit_and_rounds_that_are_not_low_restore_it_by_one() -> None:
    world = World(contract=replace(CONTRACT, low_rounds=1, m_max=6, fallback=(Action.REDUCE,) * 4)).started(m_init=9)
    wrong, right = world.wrong, lambda: world.right(1)
    verdicts = world.play(wrong, wrong, wrong, right, right, wrong, right, right)
    assert [verdict.m_cap for verdict in verdicts] == [3, 1, 1, 2, 3, 1, 2, 3]
    assert [verdict.action for verdict in verdicts[3:5]] == [Action.CONTINUE, Action.CONTINUE]
    assert world.verdict(world.propose(*world.right(3))).m_cap == 4


@pytest.mark.requirement("S6.5.1-lowered-under-load")
def test_under_load_long_proposals_are_not_wanted() -> None:
    world = World(busy=Busy(load=80, cap=3)).started(m_init=6)
    caps = []
    for load in (79, 80, 100, 79, 79):
        world.load = load
        caps.append(world.play(world.right(1))[0].m_cap)
    assert caps == [7, 3, 3, 4, 5]


@pytest.mark.decision("D16-start")
def test_another_drafter_starts_at_its_own_limit_and_the_same_goes_on() -> None:
    world = World().started(m_init=2)
    world.play(world.right(1))
    world.assign(round=1, m_init=1)  # the same drafter
    assert world.verdict(world.propose(*world.right(3))).m_cap == 4
    world.assign(OTHER, round=2, m_init=0)
    client = Client((OTHER,))
    assert isinstance(world.refusal(world.propose(6, 7, client=client, drafter=OTHER)), errors.Limit)
    assert world.verdict(world.propose(client=client, drafter=OTHER)).m_cap == 2


@pytest.mark.requirement("S6.5.2-switch-event")
@pytest.mark.decision("D17-kinds")
def test_switch_tells_the_router_and_waits() -> None:
    world = World(contract=replace(CONTRACT, low_rounds=1, fallback=(Action.SWITCH,))).started()
    [verdict] = world.play(world.wrong)
    [event] = world.events
    assert (event.session, event.epoch, event.kind) == (SESSION, 1, Action.SWITCH)
    assert (event.committed, event.digest) == (verdict.committed, verdict.digest)
    assert world.told(world.assign(OTHER, round=1)).state == State.DRAFTING


@pytest.mark.requirement("S6.5.2-fail", "S6.7-final")
@pytest.mark.decision("D17-kinds")
def test_a_fail_of_a_round_ends_the_session_with_its_tokens() -> None:
    world = World(contract=replace(CONTRACT, low_rounds=1, fallback=(Action.FAIL,))).started()
    waiting = world.output(5, wait_ms=1000)
    [verdict] = world.play(world.wrong)
    assert (verdict.action, world.state.state) == (Action.FAIL, State.FAILED)
    assert [event.kind for event in world.events] == [Action.FAIL]
    assert (world.read(waiting).final, world.read(waiting).finish) == (True, Action.FAIL)
    assert world.read(world.output()).tokens == verdict.emitted


# ---- self-decoding (6.5.2, D29) --------------------------------------------------------------------------------------


@pytest.mark.requirement(
    "S6.5.2-self-decode",
    "S6.5.2-self-decode-rounds",
    "S6.5.2-self-decode-one-by-one",
    "S6.5.2-self-decode-ends",
    "S6.5.2-self-decode-event",
)
@pytest.mark.decision("D17-kinds", "D29")
def test_a_period_commits_self_max_tokens_one_by_one_and_asks_for_a_drafter() -> None:
    world = World(contract=SELF).started()
    [verdict] = world.play(world.wrong)
    assert verdict.action == Action.SELF_DECODE
    records = world.log.records()
    assert [record.round for record in records] == [1, 2, 3, 4]
    assert [len(record.tokens) for record in records[1:]] == [1, 1, 1]
    assert world.log.tokens == greedy(3, 4)
    assert [record.accepted for record in records[1:]] == [None] * 3
    assert [(event.kind, event.committed) for event in world.events] == [(Action.SELF_DECODE, 4)]
    assert world.state.state == State.WAITING


@pytest.mark.decision("D29-left-alone")
def test_it_leaves_counters_and_limit_alone() -> None:
    world = World(contract=replace(SELF, low_rounds=2)).started(m_init=5)
    world.play(world.right(1), world.wrong, world.wrong)
    verdict, *own = world.log.records()[2:]
    assert len(own) == 3
    for record in own:
        assert (record.low, record.g, record.j, record.m_cap) == (0, 0, 1, 6)
    assert (verdict.action, verdict.j) == (Action.SELF_DECODE, 1)


@pytest.mark.requirement("S6.5.2-j-persists")
def test_the_ladder_goes_on_where_it_was_after_the_period() -> None:
    world = World(contract=SELF).started()
    world.play(world.wrong)
    world.assign(OTHER, round=4)
    verdict = world.verdict(world.propose(*world.wrong(), client=Client((OTHER,)), drafter=OTHER))
    assert verdict.action == Action.SWITCH


@pytest.mark.requirement("S6.5.2-self-decode-permitted", "S6.5.2-load-decides")
@pytest.mark.parametrize(
    ("members", "load", "action"),
    [
        ({}, 50, Action.SELF_DECODE),
        ({}, 51, Action.SWITCH),
        ({"self_load": None}, 0, Action.SWITCH),
        ({"self_max": 0}, 0, Action.SWITCH),  # D29
    ],
)
def test_it_is_skipped_when_not_permitted(members: dict[str, Any], load: int, action: Action) -> None:
    world = World(contract=replace(SELF, **members), load=load).started()
    assert world.play(world.wrong)[0].action == action


@pytest.mark.requirement("S6.5.2-self-decode-ends")
@pytest.mark.decision("D29-load")
def test_load_is_looked_at_before_each_token() -> None:
    world = World(contract=replace(SELF, self_max=None), hold={AppendLog}).started()
    world.propose(*world.wrong())
    world.release()  # the verdict's round, at load 0
    world.release()
    world.load = 51
    world.release()
    assert [record.accepted for record in world.log.records()] == [0, None, None]
    assert world.state.state == State.WAITING
    assert [event.kind for event in world.events] == [Action.SELF_DECODE]


def test_load_that_rose_during_the_append_ends_the_period_before_its_first_token() -> None:
    world = World(contract=SELF, hold={AppendLog}).started()
    request = world.propose(*world.wrong())
    world.load = 90
    world.release()
    assert world.verdict(request).action == Action.SELF_DECODE
    assert not of(world.seen, SelfDecode)
    assert world.state.state == State.WAITING


@pytest.mark.decision("D13-replay", "D29-no-verdict")
def test_rounds_of_a_period_have_no_verdict_and_new_ones_are_not_taken() -> None:
    world = World(contract=SELF, hold={SelfDecode}).started()
    verdict = world.play(world.wrong)[0]
    first = {"base": 0, "base_digest": world.digest()}
    assert isinstance(world.refusal(world.propose()), errors.NotAssigned)
    world.release()
    assert isinstance(world.refusal(world.propose(round=2)), errors.StaleBase)
    assert world.verdict(world.propose(round=1, **first)) == verdict
    assert isinstance(world.refusal(world.propose()), errors.NotAssigned)


@pytest.mark.decision("D28", "D29-assignment")
def test_an_assignment_ends_the_period_at_the_next_token() -> None:
    world = World(contract=SELF, hold={SelfDecode}).started()
    world.play(world.wrong)
    request = world.assign(OTHER, round=1)
    assert request not in world.answers
    world.release()
    state = world.told(request)
    assert (state.round, state.committed, state.state) == (2, 2, State.DRAFTING)
    assert not world.events
    assert not world.held
    assert world.verdict(world.propose(client=Client((OTHER,)), drafter=OTHER)).round == 3


@pytest.mark.requirement("S6.5.2-finish")
@pytest.mark.parametrize("members", [{"max_new": 2}, {"stop": (5,)}])
def test_a_period_ends_with_the_session(members: dict[str, Any]) -> None:
    world = World(contract=replace(SELF, **members)).started()
    world.play(world.wrong)
    assert world.log.tokens == (4, 5)
    assert world.log.records()[-1].action == Action.FINISH
    assert [event.kind for event in world.events] == [Action.FINISH]
    assert world.read(world.output(2)).final


@pytest.mark.decision("D29-rule")
def test_under_rule_2_a_token_is_drawn() -> None:
    world = World(contract=replace(SELF, rule=2), hold={SelfDecode}).started()
    world.luck.extend([0.9999, 0.0, 0.25])
    world.play(world.wrong)
    [effect] = world.held
    assert (effect.rule, effect.luck, effect.length) == (2, (0.25,), 4)
    assert [draw.count for draw in of(world.seen, DrawRandom)] == [2, 1]


@pytest.mark.decision("D24", "D29")
def test_with_a_seed_its_value_is_derived() -> None:
    contract = replace(SELF, rule=2, sampling=Sampling(seed=5))
    world = World(contract=contract, hold={SelfDecode, Verify}).started()
    world.propose(*world.wrong())
    world.release(Verified(1, 0, 4, 0))
    [effect] = world.held
    assert effect.luck == seeded_luck(5, SESSION, 2, 0).values
    assert len(effect.luck) == 1


@pytest.mark.requirement("S6.5.2-self-decode-one-by-one")
def test_each_token_is_output_as_soon_as_it_is_recorded_and_not_before() -> None:
    world = World(contract=SELF, hold={AppendLog}).started()
    world.propose(*world.wrong())
    world.release()
    waiting = world.output(1, wait_ms=1000)
    assert world.handle(SelfDecoded(2, 7, 0)) == []  # scored already: what is recorded stays
    assert waiting not in world.answers
    world.release()
    assert world.read(waiting).tokens == (5,)


def test_an_engine_that_breaks_in_a_period_fails_the_session() -> None:
    world = World(contract=SELF, hold={SelfDecode}).started()
    world.play(world.wrong)
    world.release(EngineFailed(2, "broken"))
    assert world.state.state == State.FAILED
    assert world.log.tokens == (4,)


@pytest.mark.decision("D27")
def test_a_verifier_that_goes_down_finishes_the_token_and_begins_none() -> None:
    world = World(contract=SELF, hold={SelfDecode}).started()
    world.play(world.wrong)
    world.handle(StopRequested())
    world.release()
    assert world.log.tokens == (4, successor(4))
    assert not world.machine.working
    assert not world.held


def test_a_self_decoded_token_is_no_verdict_and_a_verdict_no_token() -> None:
    """Two ways to score a round: an answer to the one does not pass for the other."""
    world = World(contract=SELF, hold={SelfDecode, Verify}).started()
    world.propose(*world.wrong())
    assert world.handle(SelfDecoded(1, 4, 0)) == []
    world.release()
    assert world.handle(Verified(2, 0, 5, 0)) == []
    assert [record.round for record in world.log.records()] == [1]
