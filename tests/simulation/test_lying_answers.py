"""What each lie is answered with, when it comes at a moment when nothing else goes on (Table 2, D3, D12, D19 to D21).

A session is brought to its third round; then one lie is told, and the answer is looked at, and that it changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sdcp.errors import (
    BadContract,
    BadProposal,
    Conflict,
    InvalidContent,
    Limit,
    NotAssigned,
    ProblemError,
    QUnavailable,
    StaleBase,
    StaleEpoch,
)
from sdcp.machines.effects import AppendLog, Reply
from sdcp.machines.inputs import LogFenced
from sdcp.messages.contract import Sampling
from sdcp.messages.record import FenceRecord
from sdcp.messages.round import Proposal, Verdict
from sdcp.messages.session import Policy, SessionState
from sdcp.messages.status import DRAFTER, Status
from sdcp.testing.engines import contract_for
from sdcp.testing.lying import HONEST, Script
from sdcp.testing.lying_drafter import SPOILS
from sdcp.testing.lying_router import LyingRouter
from sdcp.testing.network import Call
from sdcp.testing.pair import Pair, Setting
from sdcp.testing.routing import LOG
from sdcp.testing.surroundings import Client
from sdcp.wire.rows import encode_rows
from tests.simulation.conftest import Models, V

PROMPT = (1, 2)
ONE, TWO = "https://drafter-1.test/", "https://drafter-2.test/"
AT, OTHER = "https://verifier-1.test/", "https://verifier-2.test/"


class Scene:
    """A session after two rounds, its drafter gone: what is said to the verifiers from now on, the test says."""

    def __init__(self, models: Models, rule: int = 1, **contract_members: Any) -> None:
        contract = contract_for(models.target, rule=rule, m_max=4, max_new=40, **contract_members)
        drafters = [models.drafters["same"](), models.drafters["noisy"]()]
        self.pair = Pair(contract, PROMPT, models.target, drafters, Setting(m_init=2, verifiers=2))
        self.pair.run(lambda: len(self.pair.watch.verdicts) == 2)
        for drafter in self.pair.drafters.values():
            drafter.crash()
        self.settle()
        self.router = LyingRouter(Script(HONEST, None), self.pair.setting.session, PROMPT, LOG)

    def settle(self) -> None:
        while not self.pair.agenda.idle:
            self.pair.agenda.step()

    def ask(self, arrive: Callable[[Call], None]) -> Any:
        """Send a request; return the message of the answer, or the error."""
        answers: list[Any] = []
        arrive(Call(answers.append))
        while not answers:
            self.pair.agenda.step()
        (answer,) = answers
        return answer.message if isinstance(answer, Reply) else answer.error

    def propose(self, proposal: Proposal, client: str = ONE) -> Any:
        return self.ask(self.pair.verifiers[AT].proposes(proposal, Client(client)))

    @property
    def proposal(self) -> Proposal:
        """What the drafter could say now."""
        watch = self.pair.watch
        tokens = (0, 1)
        rows = np.full((2, V), 1 / V, np.float32)
        return Proposal(
            session=self.pair.setting.session,
            epoch=1,
            round=3,
            drafter=ONE,
            base=len(watch.tokens),
            base_digest=watch.digests[-1],
            tokens=tokens,
            q_rows=self.pair.store.put(encode_rows(rows)) if watch.contract.rule == 2 else None,
            status=Status(instance=ONE, role=DRAFTER, load=0, queue=0, ttl_ms=0),
        )

    @property
    def held(self) -> tuple[Any, ...]:
        """What a refused lie leaves as it is."""
        machine = self.pair.verifiers[AT].machine(1)
        assert machine is not None
        return machine.state, machine.phase, bytes(self.pair.store.logs[LOG].octets)


@pytest.fixture(params=[1, 2])
def scene(models: Models, request: pytest.FixtureRequest) -> Scene:
    return Scene(models, request.param)


def test_what_the_drafter_may_say_is_judged(scene: Scene) -> None:
    verdict = scene.propose(scene.proposal)
    assert isinstance(verdict, Verdict)
    assert verdict.round == 3


# ---- a drafter -------------------------------------------------------------------------------------------------------

Change = dict[str, Any]
PROPOSALS: list[tuple[str, Callable[[Proposal], Change], type[ProblemError]]] = [
    ("an earlier base", lambda right: {"base": right.base - 1}, StaleBase),
    ("a base to come", lambda right: {"base": right.base + 1}, StaleBase),
    ("another digest", lambda _: {"base_digest": bytes(32)}, StaleBase),
    ("a round to come", lambda _: {"round": 4}, StaleBase),
    ("round 0", lambda _: {"round": 0}, StaleBase),
    ("an old epoch", lambda _: {"epoch": 0}, StaleEpoch),
    ("an epoch to come", lambda _: {"epoch": 2}, StaleEpoch),
    ("more tokens than m_max", lambda _: {"tokens": (0, 1, 2, 3, 4)}, Limit),
    ("the token V", lambda _: {"tokens": (0, V)}, BadProposal),
    ("a token of 64 bits", lambda _: {"tokens": ((1 << 64) - 1, 0)}, BadProposal),
    ("another name", lambda _: {"drafter": TWO}, NotAssigned),
]


@pytest.mark.requirement("S6.3-base-check", "S6.3-round-check", "S6.3-fencing", "S6.3-authorization", "S6.2-m-range")
@pytest.mark.decision("D5", "D9", "D12")
@pytest.mark.parametrize(("change", "error"), [each[1:] for each in PROPOSALS], ids=[each[0] for each in PROPOSALS])
def test_a_lie_in_a_proposal_is_refused_by_its_own_type_and_changes_nothing(
    scene: Scene, change: Callable[[Proposal], Change], error: type[ProblemError]
) -> None:
    before, right = scene.held, scene.proposal
    assert type(scene.propose(replace(right, **change(right)))) is error
    assert scene.held == before
    assert isinstance(scene.propose(right), Verdict), "the honest proposal is judged all the same"


@pytest.mark.requirement("S6.3-authorization", "S6.1-latest-assignment-only")
def test_a_drafter_that_is_not_assigned_is_refused_whatever_it_calls_itself(scene: Scene) -> None:
    before = scene.held
    for name in (ONE, TWO):
        assert type(scene.propose(replace(scene.proposal, drafter=name), TWO)) is NotAssigned
    assert scene.held == before


@pytest.mark.requirement("S6.3-idempotency")
@pytest.mark.decision("D12")
@pytest.mark.parametrize("change", [{}, {"tokens": (7,)}, {"base": 0}, {"q_rows": None}, {"tokens": (V,) * 9}])
def test_a_round_that_has_its_verdict_has_no_other(scene: Scene, change: Change) -> None:
    """A repeat gets the verdict, also one that says something else, or something that could not be judged."""
    first = scene.propose(scene.proposal)
    before = scene.held
    assert scene.propose(replace(scene.proposal, **{"round": 3, **change})) == first
    assert scene.held == before


@pytest.mark.requirement("S6.3-idempotency-in-flight", "S6.2-one-outstanding", "S6.3-commit-atomic")
def test_of_two_proposals_at_once_for_a_round_one_is_judged_and_the_next_round_waits_for_neither(scene: Scene) -> None:
    right = scene.proposal
    lies = [right, replace(right, tokens=(5, 6)), replace(right, round=4), replace(right, tokens=(7,))]
    answers: list[Any] = [None] * len(lies)
    for place, lie in enumerate(lies):
        call = Call(lambda answer, place=place: answers.__setitem__(place, answer))
        scene.pair.verifiers[AT].proposes(lie, Client(ONE))(call)
    scene.settle()
    assert isinstance(answers[0].message, Verdict)
    assert answers[1].message == answers[3].message == answers[0].message
    assert isinstance(answers[2].error, StaleBase)
    assert len(scene.pair.watch.records) == 3


@pytest.mark.requirement("S6.4-zero-q-rejected", "S6.3-rows-before-random")
@pytest.mark.decision("D25")
@pytest.mark.parametrize("place", range(len(SPOILS)))
def test_rows_that_cannot_be_are_refused_and_rows_that_are_not_there_are_unavailable(
    models: Models, place: int
) -> None:
    scene = Scene(models, rule=2)
    right, objects = scene.proposal, scene.pair.store.objects
    assert right.q_rows is not None
    rows = np.frombuffer(objects[right.q_rows], "<f4").reshape(2, V).copy()
    objects["memory:/spoiled"] = SPOILS[place](rows, 1, right.tokens)
    before = scene.held
    assert type(scene.propose(replace(right, q_rows="memory:/spoiled"))) is BadProposal
    assert type(scene.propose(replace(right, q_rows=None))) is BadProposal
    assert type(scene.propose(replace(right, q_rows="memory:/evicted"))) is QUnavailable
    assert scene.held == before


@pytest.mark.requirement("S6.5.2-switch-stops-drafter", "S6.3-authorization")
@pytest.mark.decision("D13")
def test_after_switch_the_drafter_that_goes_on_is_not_assigned(models: Models) -> None:
    scene = Scene(models, low_rounds=1, low_ratio=100, fallback=(2, 5))
    wrong = replace(scene.proposal, tokens=((scene.pair.watch.tokens[-1] + 1) % V,) * 2)
    verdict = scene.propose(wrong)
    assert isinstance(verdict, Verdict)
    assert verdict.action == 2
    assert type(scene.propose(replace(scene.proposal, round=4))) is NotAssigned
    assert scene.propose(wrong) == verdict


# ---- a second router -------------------------------------------------------------------------------------------------


def put(scene: Scene, **change: Any) -> Any:
    message = replace(scene.router.assignment(scene.pair, TWO), **change)
    return scene.ask(scene.pair.verifiers[AT].assigns(message))


@pytest.mark.requirement("S4.1-contract-never-modified", "S6.3-fencing")
@pytest.mark.decision("D28")
def test_an_assignment_with_another_contract_or_epoch_changes_nothing(scene: Scene) -> None:
    before, contract = scene.held, scene.pair.watch.contract
    assert type(put(scene, contract=replace(contract, max_new=41))) is BadContract
    for epoch in (0, 2, 1000):
        assert type(put(scene, epoch=epoch)) is StaleEpoch
    assert scene.held == before
    assert isinstance(scene.propose(scene.proposal), Verdict), "the drafter is still the one before"


@pytest.mark.requirement("S6.1-latest-assignment-only")
@pytest.mark.decision("D28")
@pytest.mark.parametrize("round", [0, 3, 9])
def test_of_conflicting_assignments_the_latest_rules_and_moves_nothing_that_is_committed(
    scene: Scene, round: int
) -> None:
    """A router says who drafts, and nothing else: what it says of rounds and digests is not believed."""
    before = scene.held
    state = put(scene, round=round, committed=round, digest=bytes(32), committed_tokens=None)
    assert isinstance(state, SessionState)
    assert scene.held == before
    assert type(scene.propose(scene.proposal)) is NotAssigned
    assert isinstance(scene.propose(replace(scene.proposal, drafter=TWO), TWO), Verdict)


def opens(scene: Scene, epoch: int, at: str = OTHER, **change: Any) -> Any:
    message = replace(scene.router.resumption(scene.pair, epoch), **change)
    return scene.ask(scene.pair.verifiers[at].opens(message))


@pytest.mark.requirement("S6.9-fence-first")
@pytest.mark.decision("D19")
def test_a_session_is_opened_elsewhere_behind_its_own_fence_alone(scene: Scene) -> None:
    before = scene.held
    for at in (AT, OTHER):
        assert type(opens(scene, 2, at)) is Conflict
    assert type(opens(scene, 1)) is Conflict
    assert type(opens(scene, 1, resume=None)) is Conflict, "the log has records"
    assert scene.held == before
    scene.pair.store.append(AppendLog(LOG, FenceRecord(epoch=3).encode(), scene.pair.store.logs[LOG].etag))
    assert type(opens(scene, 2)) is StaleEpoch
    assert type(opens(scene, 4)) is Conflict
    assert isinstance(opens(scene, 3), SessionState)


@pytest.mark.requirement("S4.2-chain-step")
@pytest.mark.decision("D19")
def test_a_session_is_resumed_where_its_log_ends_and_as_what_it_was(scene: Scene) -> None:
    scene.pair.store.append(AppendLog(LOG, FenceRecord(epoch=2).encode(), scene.pair.store.logs[LOG].etag))
    right = scene.router.resumption(scene.pair, 2)
    assert right.resume is not None
    contract, tokens = right.contract, tuple(scene.pair.watch.tokens)
    others = scene.pair.store.put_tokens((*tokens[:-1], (tokens[-1] + 1) % V))
    lies: list[tuple[type[ProblemError], Change]] = [
        (Conflict, {"prompt": (1, 3)}),
        (Conflict, {"contract": replace(contract, max_new=41)}),
        (Conflict, {"resume": replace(right.resume, round=1)}),
        (Conflict, {"resume": replace(right.resume, committed=right.resume.committed - 1)}),
        (Conflict, {"resume": replace(right.resume, digest=bytes(32))}),
        (Conflict, {"resume": replace(right.resume, committed_tokens=others)}),
        (InvalidContent, {"prompt": (1, V)}),
        (BadContract, {"contract": replace(contract, target=bytes(32))}),
    ]
    for error, change in lies:
        assert type(opens(scene, 2, **change)) is error, change
    assert isinstance(opens(scene, 2), SessionState)


@pytest.mark.requirement("S6.6-from-round")
@pytest.mark.decision("D21")
def test_a_policy_for_a_round_that_is_over_changes_nothing(scene: Scene) -> None:
    before = scene.held
    for from_round in (0, 1, 2):
        message = Policy(
            session=scene.pair.setting.session, from_round=from_round, sampling=Sampling(temperature_milli=0)
        )
        assert type(scene.ask(scene.pair.verifiers[AT].updates(message))) is Conflict
    assert scene.held == before


@pytest.mark.requirement("S6.8-fence-refuses-older", "S6.3-fenced-append")
def test_fences_of_wrong_epochs_are_refused_by_the_log_and_one_of_a_higher_ends_the_epoch(scene: Scene) -> None:
    store = scene.pair.store
    for epoch in (0, 1):
        answer = store.append(AppendLog(LOG, FenceRecord(epoch=epoch).encode(), store.logs[LOG].etag))
        assert isinstance(answer, LogFenced)
    before = store.logs[LOG].octets[:]
    store.append(AppendLog(LOG, FenceRecord(epoch=7).encode(), store.logs[LOG].etag))
    assert type(scene.propose(scene.proposal)) is StaleEpoch, "its record came too late"
    assert store.logs[LOG].octets == before + FenceRecord(epoch=7).encode()
    assert type(scene.propose(scene.proposal)) is StaleEpoch


@pytest.mark.requirement("S6.1-latest-assignment-only")
@pytest.mark.decision("D20", "D28")
def test_a_drafter_takes_no_assignment_whose_prefix_is_not_what_it_says(scene: Scene) -> None:
    right = scene.router.assignment(scene.pair, ONE)
    drafter = scene.pair.drafters[ONE]
    lies: list[Change] = [
        {"digest": bytes(32)},
        {"contract": replace(right.contract, max_new=41)},
        {"prompt": (1, 3)},
        {"committed": right.committed - 1},
        {"prompt": (1, V)},
    ]
    for change in lies:
        assert type(scene.ask(drafter.assigned(replace(right, **change)))) is InvalidContent, change
        assert drafter.epoch is None


@pytest.mark.requirement("S6.1-latest-assignment-only", "S6.3-authorization")
def test_of_two_drafters_assigned_at_once_one_gets_on(models: Models) -> None:
    """POST assignments to both: only the one that the verifier was told of commits."""
    scene = Scene(models)
    for uri in (ONE, TWO):
        assert scene.ask(scene.pair.drafters[uri].assigned(scene.router.assignment(scene.pair, uri))) is None
    scene.pair.run()
    assert len(scene.pair.output) == 40
    assert scene.pair.drafters[TWO].epoch is None
