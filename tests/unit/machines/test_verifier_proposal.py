"""Steps 1 to 5 of 6.3: who may propose, what is refused, in which order, and what a refusal leaves (D12, D13, D25)."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from sdcp import errors
from sdcp.machines.effects import DrawRandom, FetchRows, Verify
from sdcp.machines.inputs import ProposalReceived, RequestCancelled, RowsObtained, RowsRefused, StopRequested
from sdcp.messages.contract import Action, Sampling
from sdcp.messages.session import State
from sdcp.rules.draws import seeded_luck
from tests.unit.machines.verifier_world import CONTRACT, DRAFTER, OTHER, SESSION, STATUS, Client, V, World, of

SPECULATIVE = replace(CONTRACT, rule=2)


def busy(world: World | None = None, *tokens: int) -> tuple[World, int]:
    """A round under verification, its scoring held."""
    world = world or World()
    world.started()
    world.hold = {Verify}
    return world, world.propose(*tokens)


# ---- step 1, authorization -------------------------------------------------------------------------------------------


@pytest.mark.decision("D9-same-drafter")
@pytest.mark.requirement("S6.3-authorization", "S6.1-latest-assignment-only")
@pytest.mark.parametrize(
    ("client", "members"),
    [
        (Client((OTHER,)), {}),
        (Client((OTHER,)), {"drafter": OTHER}),
        (Client(()), {}),
        (Client((DRAFTER,)), {"drafter": OTHER}),  # D9: the proposal's drafter must be the same
    ],
)
def test_only_the_drafter_of_the_latest_assignment_proposes(client: Client, members: dict[str, Any]) -> None:
    world = World().started()
    assert isinstance(world.refusal(world.propose(client=client, **members)), errors.NotAssigned)


def test_before_an_assignment_nobody_proposes() -> None:
    world = World()
    world.open()
    assert isinstance(world.refusal(world.propose(4)), errors.NotAssigned)


@pytest.mark.requirement("S6.9-failed-drafter-rejected")
def test_a_drafter_that_was_replaced_is_refused() -> None:
    world = World().started()
    world.assign(OTHER)
    assert isinstance(world.refusal(world.propose(4)), errors.NotAssigned)
    assert world.verdict(world.propose(4, client=Client((OTHER,)), drafter=OTHER)).accepted == 1


# ---- step 2, fencing -------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.3-fencing", "S6.9-older-epoch-rejected", "S6.9-problem-stale-epoch")
@pytest.mark.parametrize("epoch", [0, 2, 2**63])
def test_another_epoch_is_stale(epoch: int) -> None:
    world = World().started()
    assert isinstance(world.refusal(world.propose(4, epoch=epoch)), errors.StaleEpoch)


# ---- step 3, idempotency ---------------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.3-idempotency", "S6.9-lost-verdict-retried")
def test_a_round_that_has_a_verdict_gets_it_again_unchanged() -> None:
    world = World().started()
    sent = [world.proposal(4, 5)]
    first = [world.verdict(world.propose(4, 5))]
    for _ in range(3):
        sent.append(world.proposal(*world.wrong()))
        first.append(world.verdict(world.propose(*world.wrong())))
    state, log = world.state, world.log.data
    for proposal, verdict in zip(sent, first, strict=True):
        assert world.verdict(world.ask(ProposalReceived, proposal, Client())) == verdict
    assert (world.state, world.log.data) == (state, log)


@pytest.mark.requirement("S6.3-idempotency-in-flight")
@pytest.mark.decision("D12-different")
def test_proposals_for_a_round_under_verification_wait_and_get_its_verdict() -> None:
    world, first = busy(None, 4, 5)
    identical = world.propose(4, 5, status=replace(STATUS, load=99))
    other = world.propose(7, base=5, base_digest=b"x" * 32)
    assert not {first, identical, other} & set(world.answers)
    assert len(world.held) == 1
    world.release()
    assert world.verdict(first) == world.verdict(identical) == world.verdict(other)
    assert len(world.log.records()) == 1


@pytest.mark.decision("D12-order")
def test_a_stored_verdict_answers_even_when_the_session_has_ended() -> None:
    world = World(contract=replace(CONTRACT, max_new=2)).started()
    [verdict] = world.play((4,))
    assert verdict.action == Action.FINISH
    again = world.propose(4, round=1, base=0, base_digest=world.digest())
    assert world.verdict(again) == verdict


def test_a_proposer_that_waits_and_goes_away_is_not_answered() -> None:
    world, first = busy(None, 4)
    second = world.propose(4)
    world.handle(RequestCancelled(second))
    world.release()
    assert world.verdict(first).accepted == 1
    assert second not in world.answers


# ---- 410, D13 --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.9-problem-session-closed")
@pytest.mark.decision("D12-order", "D13-new-round")
def test_a_session_that_has_ended_is_closed_whatever_the_base() -> None:
    world = World(contract=replace(CONTRACT, max_new=2)).started()
    world.play((4,))
    assert isinstance(world.refusal(world.propose(6)), errors.SessionClosed)
    assert isinstance(world.refusal(world.propose(6, base=0, round=9)), errors.SessionClosed)


@pytest.mark.requirement("S6.5.2-switch-stops-drafter")
@pytest.mark.decision("D13-replay", "D13-new-round")
def test_after_switch_the_drafter_gets_stored_verdicts_and_no_new_round() -> None:
    world = World(contract=replace(CONTRACT, low_rounds=1, fallback=(Action.SWITCH,))).started()
    [verdict] = world.play(world.wrong())
    assert world.state.state == State.WAITING
    assert isinstance(world.refusal(world.propose()), errors.NotAssigned)
    assert world.verdict(world.propose(round=1, base=0, base_digest=world.digest())) == verdict
    world.assign(OTHER, round=1)
    assert isinstance(world.refusal(world.propose()), errors.NotAssigned)


# ---- step 4, base check ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.3-base-check", "S6.3-round-check", "S4.2-other-prefix-detected", "S6.9-problem-stale-base")
@pytest.mark.parametrize(
    "members",
    [
        {"base": 1},
        {"base": 3},
        {"base_digest": b"x" * 32},
        {"base": 0, "base_digest": World().digest()},  # an older prefix
        {"round": 3},
        {"round": 2**64 - 1},
    ],
)
def test_a_proposal_that_does_not_extend_the_prefix_is_told_the_state(members: dict[str, Any]) -> None:
    world = World().started()
    world.play((4,))
    request = world.propose(**members)
    assert isinstance(world.refusal(request), errors.StaleBase)
    assert world.answers[request].state == world.state  # type: ignore[union-attr]


def test_round_0_never_had_a_verdict() -> None:
    world = World().started()
    assert isinstance(world.refusal(world.propose(4, round=0)), errors.StaleBase)


# ---- limit and tokens ------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.2-m-range", "S6.2-m-cap-source", "S6.9-problem-limit")
@pytest.mark.decision("D12", "D16")
def test_more_tokens_than_m_cap_are_over_the_limit() -> None:
    world = World().started(m_init=2)
    assert isinstance(world.refusal(world.propose(4, 5, 6)), errors.Limit)
    assert isinstance(world.refusal(world.propose(*[V] * 9)), errors.Limit)  # limit before tokens
    assert world.verdict(world.propose(4, 5)).m_cap == 3
    assert world.verdict(world.propose(*world.right(3))).accepted == 3


@pytest.mark.decision("D5-proposed")
def test_a_proposed_token_not_below_v_is_refused() -> None:
    world = World().started()
    assert isinstance(world.refusal(world.propose(4, V)), errors.BadProposal)
    assert isinstance(world.refusal(world.propose(2**64 - 1)), errors.BadProposal)


@pytest.mark.requirement("S6.4-q-rows-carried", "S6.9-problem-bad-proposal")
def test_rule_2_needs_q_rows() -> None:
    world = World(contract=SPECULATIVE).started()
    assert isinstance(world.refusal(world.propose(4, q_rows=None)), errors.BadProposal)
    assert not of(world.seen, DrawRandom)


@pytest.mark.decision("D25-rule-1")
def test_rule_1_ignores_q_rows() -> None:
    world = World().started()
    assert world.verdict(world.propose(4, q_rows="rows")).accepted == 1
    assert not of(world.seen, FetchRows)


# ---- the order of the steps (D12) ------------------------------------------------------------------------------------

FAULTS: list[tuple[dict[str, Any], Client, type[errors.ProblemError]]] = [
    ({}, Client((OTHER,)), errors.NotAssigned),
    ({"epoch": 7}, Client(), errors.StaleEpoch),
    ({"base": 9}, Client(), errors.StaleBase),
    ({"tokens": (4,) * 9}, Client(), errors.Limit),
    ({"tokens": (V,)}, Client(), errors.BadProposal),
    ({"q_rows": "absent"}, Client(), errors.QUnavailable),
]


@pytest.mark.requirement("S6.3-step-order")
@pytest.mark.decision("D12-order")
@pytest.mark.parametrize("first", range(len(FAULTS)))
def test_of_several_faults_the_first_in_order_is_told(first: int) -> None:
    world = World(contract=SPECULATIVE).started()
    world.hold = {FetchRows}
    members: dict[str, Any] = {}
    for given, _, _ in reversed(FAULTS[first:]):
        members |= given
    request = world.propose(client=FAULTS[first][1], **members)
    if world.held:
        world.release(RowsRefused(1, errors.QUnavailable("evicted")))
    assert isinstance(world.refusal(request), FAULTS[first][2])


# ---- step 5, rows and random values ----------------------------------------------------------------------------------


@pytest.mark.requirement("S6.3-rows-before-random", "S6.4-unseeded", "S6.3-fetch-while-scoring", "S6.3-scoring")
@pytest.mark.decision("D12-before-random", "D27-fixed")
def test_rows_are_here_before_a_random_value_is_drawn_and_all_are_drawn_before_scoring() -> None:
    world = World(contract=SPECULATIVE, hold={FetchRows, DrawRandom, Verify}).started()
    world.propose(4, 5)
    assert [type(effect) for effect in world.held] == [FetchRows]
    assert world.held[0] == FetchRows(1, "rows", (4, 5))
    world.luck.extend([0.1, 0.2, 0.3])
    world.release()
    assert [type(effect) for effect in world.held] == [DrawRandom]
    assert world.held[0].count == 3
    world.release()
    [verify] = world.held
    assert (verify.tokens, verify.luck, verify.length, verify.room) == ((4, 5), (0.1, 0.2, 0.3), 3, 20)


@pytest.mark.requirement("S6.4-seed-derivation", "S6.4-seed-purpose")
@pytest.mark.decision("D24", "D27-fixed")
def test_with_a_seed_every_value_is_derived() -> None:
    world = World(contract=replace(SPECULATIVE, sampling=Sampling(seed=7)), hold={Verify}).started()
    world.propose(4, 5)
    [verify] = world.held
    assert verify.luck == seeded_luck(7, SESSION, 1, 2).values
    assert not of(world.seen, DrawRandom)


@pytest.mark.requirement("S6.3-q-unavailable", "S6.4-zero-q-rejected", "S6.9-problem-q-unavailable")
@pytest.mark.parametrize("error", [errors.QUnavailable("evicted"), errors.BadProposal("zero")])
def test_refused_rows_refuse_the_round_and_commit_nothing(error: errors.ProblemError) -> None:
    world = World(contract=SPECULATIVE, hold={FetchRows}).started()
    requests = [world.propose(4), world.propose(4)]
    world.release(RowsRefused(1, error))
    assert [world.refusal(request) for request in requests] == [error, error]
    assert not of(world.seen, DrawRandom)
    assert (world.log.data, world.state.round) == (b"", 0)
    world.hold.clear()
    world.luck.extend([0.5, 0.5])
    assert world.verdict(world.propose(4)).round == 1  # the round is still to be had


@pytest.mark.decision("D12-identical")
def test_another_proposal_that_waited_is_tried_when_the_rows_of_the_first_are_refused() -> None:
    world = World(contract=SPECULATIVE, hold={FetchRows}).started()
    first, second, third = world.propose(4, q_rows="gone"), world.propose(5), world.propose(6, q_rows="more")
    world.release(RowsRefused(1, errors.QUnavailable("evicted")))
    assert isinstance(world.refusal(first), errors.QUnavailable)
    assert world.held == [FetchRows(1, "rows", (5,))]
    world.luck.extend([0.999, 0.0])
    world.release()
    assert world.verdict(second) == world.verdict(third)


def test_answers_for_another_round_or_stage_change_nothing() -> None:
    world = World(contract=SPECULATIVE, hold={FetchRows, DrawRandom}).started()
    world.propose(4)
    assert world.handle(RowsObtained(2)) == []
    assert world.handle(RowsRefused(2, errors.QUnavailable(""))) == []
    world.release()
    assert world.handle(RowsObtained(1)) == []
    assert world.handle(RowsRefused(1, errors.QUnavailable(""))) == []
    assert [type(effect) for effect in world.held] == [DrawRandom]


# ---- what a refusal leaves -------------------------------------------------------------------------------------------


def test_a_verifier_that_goes_down_begins_no_round_and_ends_the_one_it_has() -> None:
    world, first = busy(None, 4)
    world.handle(StopRequested())
    assert world.machine.working
    world.release()
    assert world.verdict(first).accepted == 1
    assert not world.machine.working
    assert isinstance(world.refusal(world.propose()), errors.Overloaded)
    again = world.propose(4, round=1, base=0, base_digest=world.digest())
    assert world.verdict(again) == world.verdict(first)


@pytest.mark.parametrize(("members", "client", "kind"), FAULTS[:5])
def test_a_refused_proposal_changes_nothing(
    members: dict[str, Any], client: Client, kind: type[errors.ProblemError]
) -> None:
    world = World(contract=SPECULATIVE).started()
    twin = copy.deepcopy(world.machine)
    assert isinstance(world.refusal(world.propose(client=client, **members)), kind)
    good = ProposalReceived(99, world.proposal(4), Client())
    assert _plain(world.machine.handle(good)) == _plain(twin.handle(good))
    assert world.machine.state == twin.state


def _plain(effects: list[Any]) -> list[Any]:
    return [effect if not hasattr(effect, "prefix") else replace(effect, prefix=()) for effect in effects]
