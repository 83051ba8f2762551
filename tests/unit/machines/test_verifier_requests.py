"""PUT drafter and POST policy at a verifier (6.1, 6.6, D21, D28)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp import errors
from sdcp.machines.effects import AppendLog, SelfDecode, Verify
from sdcp.machines.inputs import DrafterAssigned
from sdcp.machines.verifier_policy import Profiles
from sdcp.messages.contract import Action, Sampling
from sdcp.messages.session import State
from tests.unit.machines.verifier_world import CONTRACT, OTHER, Client, World, of

# ---- PUT drafter -----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.1-verifier-informed-first")
def test_an_assignment_is_answered_with_the_state() -> None:
    world = World()
    world.open()
    assert world.told(world.assign()) == world.state


@pytest.mark.requirement("S4.1-contract-fixed", "S4.1-contract-never-modified")
@pytest.mark.decision("D28-refused")
@pytest.mark.parametrize(
    ("members", "kind"),
    [
        ({"epoch": 0}, errors.StaleEpoch),
        ({"epoch": 2}, errors.StaleEpoch),
        ({"contract": replace(CONTRACT, m_max=7)}, errors.BadContract),
        ({"contract": replace(CONTRACT, sampling=Sampling())}, errors.BadContract),
    ],
)
def test_another_epoch_or_contract_is_refused_and_changes_nothing(members: dict[str, Any], kind: type) -> None:
    world = World().started()
    assert isinstance(world.refusal(world.assign(OTHER, **members)), kind)
    assert world.verdict(world.propose(4)).accepted == 1  # the former drafter goes on


@pytest.mark.requirement("S6.3-commit-atomic")
@pytest.mark.decision("D28-during-verification")
@pytest.mark.parametrize("stage", [Verify, AppendLog])
def test_during_verification_it_waits_for_the_commit(stage: type) -> None:
    world = World(hold={stage}).started()
    proposal, assigning = world.propose(4), world.assign(OTHER)
    assert assigning not in world.answers
    world.release()
    world.hold.clear()
    while world.held:
        world.release()
    state = world.told(assigning)
    assert (state.round, state.committed, state.digest) == (1, 2, world.verdict(proposal).digest)
    assert isinstance(world.refusal(world.propose()), errors.NotAssigned)  # no later round of the former drafter


@pytest.mark.decision("D28-during-verification")
def test_of_several_that_wait_the_last_one_is_the_latest() -> None:
    world = World(hold={Verify}).started()
    world.propose(4)
    requests = [world.assign(OTHER), world.assign("https://third.example/", m_init=1)]
    world.release()
    assert [world.told(request).round for request in requests] == [1, 1]
    client = Client(("https://third.example/",))
    assert isinstance(world.refusal(world.propose(client=Client((OTHER,)), drafter=OTHER)), errors.NotAssigned)
    world.hold.clear()
    assert world.verdict(world.propose(client=client, drafter="https://third.example/")).m_cap == 2


@pytest.mark.decision("D28-repeat")
def test_a_repeat_changes_nothing() -> None:
    world = World(contract=replace(CONTRACT, low_rounds=1, fallback=(Action.SWITCH,)))
    world.open()
    message = world.assignment()
    world.ask(DrafterAssigned, message)
    world.play(world.wrong)
    state = world.told(world.ask(DrafterAssigned, message))
    assert state.state == State.WAITING
    assert isinstance(world.refusal(world.propose()), errors.NotAssigned)


@pytest.mark.requirement("S6.1-latest-assignment-only")
def test_a_router_may_come_back_to_an_earlier_drafter() -> None:
    world = World().started()
    world.assign(OTHER)
    world.assign()
    assert world.verdict(world.propose(4)).accepted == 1


@pytest.mark.decision("D28-behind")
def test_a_round_behind_is_accepted() -> None:
    world = World().started()
    world.play((4,))
    assert world.told(world.assign(OTHER, round=0)).round == 1


@pytest.mark.decision("D28-repeat")
def test_an_ended_session_answers_a_repeat_and_takes_no_other() -> None:
    world = World(contract=replace(CONTRACT, max_new=2)).started()
    world.play((4,))
    assert world.told(world.assign()).state == State.FINISHED
    assert isinstance(world.refusal(world.assign(OTHER)), errors.SessionClosed)


def test_an_assignment_during_a_finishing_round_is_refused_as_closed() -> None:
    world = World(contract=replace(CONTRACT, max_new=2), hold={Verify}).started()
    world.propose(4)
    assigning = world.assign(OTHER)
    world.release()
    assert isinstance(world.refusal(assigning), errors.SessionClosed)


# ---- POST policy -----------------------------------------------------------------------------------------------------


def profile_of(world: World, *tokens: int) -> Sampling:
    """The profile under which the next round is verified."""
    world.play(tokens or world.right(1))
    found: Sampling = of(world.seen, Verify)[-1].profile
    return found


@pytest.mark.requirement("S6.6-from-round", "S6.6-applies-from-round", "S4.1-sampling-at-boundary")
@pytest.mark.decision("D21-last-received", "D21-whole")
def test_a_profile_rules_its_round_and_later_ones() -> None:
    world = World(contract=replace(CONTRACT, sampling=Sampling(top_k=1))).started()
    assert world.told(world.policy(2, temperature_milli=500)) == world.state
    assert profile_of(world) == Sampling(top_k=1)
    assert profile_of(world) == Sampling(temperature_milli=500)  # it replaces the profile whole
    assert profile_of(world) == Sampling(temperature_milli=500)


@pytest.mark.requirement("S6.6-from-round")
@pytest.mark.decision("D3-409", "D21-current")
def test_from_round_must_be_greater_than_the_current_round() -> None:
    world = World().started()
    world.play((4,))
    for from_round in (0, 1):
        assert type(world.refusal(world.policy(from_round, top_k=2))) is errors.Conflict
    world.hold = {Verify}
    world.propose()
    assert type(world.refusal(world.policy(2, top_k=2))) is errors.Conflict  # under verification: the current round
    world.told(world.policy(3, top_k=2))
    world.release()
    world.hold.clear()
    assert profile_of(world) == Sampling(top_k=2)


@pytest.mark.requirement(
    "S6.6-committed-unchanged", "S6.6-rule-unchanged", "S4.1-contract-never-modified", "S4.1-digest-once"
)
def test_committed_output_rule_and_contract_stay() -> None:
    world = World().started()
    world.play((4, 5))
    before = world.log.data, world.state
    world.policy(2, seed=3)
    assert (world.log.data, world.state) == before
    profile_of(world)
    assert {effect.rule for effect in of(world.seen, Verify)} == {1}
    assert world.told(world.assign(OTHER, round=2)).digest == world.digest(world.log.tokens)


@pytest.mark.decision("D21-last-received")
def test_self_decoding_rounds_have_the_profile_too() -> None:
    contract = replace(CONTRACT, low_rounds=1, fallback=(Action.SELF_DECODE,), self_load=100, self_max=2)
    world = World(contract=contract).started()
    world.policy(3, top_k=4)
    world.play(world.wrong)
    assert [effect.profile for effect in of(world.seen, SelfDecode)] == [Sampling(), Sampling(top_k=4)]


@pytest.mark.decision("D21")
def test_after_resume_the_router_tells_the_profile_in_force_before_the_drafter() -> None:
    first = World().started()
    first.play((4,))
    world = World(log=first.log)
    world.open(world.resume())
    assert world.told(world.policy(2, top_k=3)).round == 1
    world.assign()
    assert profile_of(world) == Sampling(top_k=3)


@pytest.mark.decision("D3")
def test_not_more_than_64_updates_wait_for_their_rounds() -> None:
    """One that makes others void needs no room, and a round that begins gives room."""
    world = World().started()
    for number in range(64):
        assert world.told(world.policy(number + 2, seed=number)).round == 0
    assert isinstance(world.refusal(world.policy(99, top_k=1)), errors.Conflict)
    assert world.told(world.policy(65, top_k=1)).round == 0
    assert isinstance(world.refusal(world.policy(99, top_k=1)), errors.Conflict)
    world.play((4,))
    world.play((4,))
    assert world.told(world.policy(99, top_k=2)).round == 2


def test_an_ended_session_takes_no_policy() -> None:
    world = World(contract=replace(CONTRACT, max_new=2)).started()
    world.play((4,))
    assert isinstance(world.refusal(world.policy(9, top_k=1)), errors.SessionClosed)


@pytest.mark.decision("D21-last-received")
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 99))), st.data())
def test_of_updates_up_to_a_round_the_last_received_rules_it(
    updates: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Against the plain twin: keep everything, search from the end. Rounds are asked in order, as they happen."""
    profiles, received = Profiles(Sampling()), [(0, Sampling())]
    for round in range(1, 14):
        while updates and data.draw(st.booleans()):
            from_round, seed = updates.pop()
            from_round = max(from_round, round)
            profiles.update(from_round, Sampling(seed=seed))
            received.append((from_round, Sampling(seed=seed)))
        assert profiles.take(round) == [profile for from_round, profile in received if from_round <= round][-1]
