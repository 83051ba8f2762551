"""The drafter session in random company: whatever comes in whatever order, what 6.2 forbids does not happen."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp import errors
from sdcp.machines.drafter import DrafterSession
from sdcp.machines.drafter_joining import DraftModel
from sdcp.machines.effects import (
    Abandon,
    CancelTimer,
    Draft,
    EndSession,
    FetchOutput,
    FetchTokens,
    Refuse,
    ReleaseRows,
    Reply,
    SendProposal,
    SetTimer,
    WriteRows,
)
from sdcp.machines.inputs import (
    AssignmentReceived,
    Drafted,
    DraftFailed,
    OutputFetched,
    OutputUnavailable,
    ProposalRefused,
    ProposalUnanswered,
    RowsWritten,
    StopRequested,
    TimerFired,
    TokensFetched,
    TokensUnavailable,
    VerdictReceived,
)
from sdcp.messages.contract import Action, Contract, Sampling
from sdcp.messages.round import Assignment, Proposal, Verdict
from sdcp.rules.digest import contract_digest, extend_all, prefix_digest

SESSION = b"s" * 16
MODEL = DraftModel(model=b"m" * 32, tokenizer=b"t" * 32, width=10)
PROMPT = (1, 2)
AWAITED = (Draft, WriteRows, SendProposal, FetchOutput, FetchTokens)
REFUSALS: list[type[errors.ProblemError]] = [
    errors.StaleBase,
    errors.QUnavailable,
    errors.Limit,
    errors.BadProposal,
    errors.Overloaded,
    errors.StaleEpoch,
]


def contract_of(rule: int) -> Contract:
    return Contract(
        target=b"T" * 32,
        tokenizer=b"t" * 32,
        rule=rule,
        m_max=5,
        max_new=30,
        stop=(),
        low_rounds=2,
        fallback=(Action.SWITCH,),
    )


class World:
    """The true session, the peers, and the shell of one drafter; every effect is checked as it comes."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.contract = contract_of(self.draw(st.sampled_from([1, 2])))
        self.machine = DrafterSession(MODEL)
        self.output: tuple[int, ...] = ()
        self.epoch, self.round = 1, 0
        self.limit = 5
        self.awaited: Any = None
        self.timer = False
        self.rows: set[int] = set()
        self.sent: dict[tuple[int, int, int], Proposal] = {}
        self.redrawn = False
        self.requests = 0
        self.open: set[int] = set()

    def draw(self, strategy: st.SearchStrategy[Any]) -> Any:
        return self.data.draw(strategy)

    def digest(self, length: int) -> bytes:
        start = prefix_digest(contract_digest(self.contract.to_plain()), PROMPT)
        return extend_all(start, self.output[:length])

    # -- the shell ---------------------------------------------------------------------------------------------------

    def tell(self, event: Any) -> list[Any]:
        effects = self.machine.handle(event)
        for effect in effects:
            self.perform(effect)
        return effects

    def perform(self, effect: Any) -> None:
        match effect:
            case Draft() | WriteRows() | SendProposal() | FetchOutput() | FetchTokens():
                assert self.awaited is None, "two things under way at once"
                self.awaited = effect
                self.check(effect)
            case SetTimer():
                assert self.awaited is None
                self.timer = True
            case CancelTimer():
                self.timer = False
            case Abandon():
                self.awaited = None
            case ReleaseRows(round=number):
                self.rows.discard(number)
            case Reply(request=request) | Refuse(request=request):
                self.open.remove(request)
            case EndSession():
                assert not self.rows, "rows were left leased"
                self.awaited, self.timer = None, False
                self.redrawn = True  # whoever takes the session up again draws again
                assert self.machine.epoch is None

    def check(self, effect: Any) -> None:
        if isinstance(effect, Draft):
            assert 1 <= effect.count <= min(self.contract.m_max, max(self.limit, 1))
            assert effect.length <= len(effect.prefix)
        elif isinstance(effect, SendProposal):
            self.check_proposal(effect.message)

    def check_proposal(self, message: Proposal) -> None:
        assert 1 <= len(message.tokens) <= self.contract.m_max
        assert (message.q_rows is not None) == (self.contract.rule == 2)
        assert message.base <= len(self.output)
        assert message.base_digest == self.digest(message.base)
        before = self.sent.get((message.epoch, message.round, message.base))
        if before is not None and not self.redrawn:
            assert message.tokens == before.tokens[: len(message.tokens)], "one prefix, two samples (D31)"
        self.sent[message.epoch, message.round, message.base] = message

    # -- the peers ---------------------------------------------------------------------------------------------------

    def step(self) -> None:
        moves = [self.assign]
        if self.awaited is not None:
            moves += [self.answer] * 6
        if self.timer:
            moves += [self.fire] * 3
        moves += [self.stray]
        self.draw(st.sampled_from(moves))()

    def assign(self) -> None:
        """The router assigns: usually the truth, sometimes an old story, a new epoch or a new profile."""
        change = self.draw(st.sampled_from(["again", "again", "epoch", "old", "policy"]))
        epoch = self.epoch
        if change == "epoch":
            self.epoch = epoch = epoch + 1
        elif change == "old":
            epoch = max(0, epoch - 1)
        elsewhere = self.machine.epoch is None or change == "epoch"
        if elsewhere:
            self.limit = 3
        self.requests += 1
        self.open.add(self.requests)
        held = self.machine.epoch
        message = Assignment(
            session=SESSION,
            epoch=epoch,
            contract=self.contract,
            verifier="https://v",
            drafter="https://d",
            prompt=self.draw(st.sampled_from([PROMPT, "mlc:p"])),
            round=self.round,
            sampling=Sampling(top_k=self.requests) if change == "policy" else None,
            committed=len(self.output),
            digest=self.digest(len(self.output)),
            committed_tokens=self.draw(st.sampled_from([None, "mlc:o"])),
            m_init=3,
        )
        self.tell(AssignmentReceived(self.requests, message))
        if held is not None and epoch < held:
            assert self.machine.epoch == held

    def answer(self) -> None:
        effect, self.awaited = self.awaited, None
        match effect:
            case FetchTokens(ref=ref):
                gone = TokensUnavailable(ref, errors.Overloaded("gone"))
                self.tell(gone if self.seldom() else TokensFetched(ref, PROMPT if ref == "mlc:p" else self.output))
            case FetchOutput(start=start):
                lost = OutputUnavailable(None)
                self.tell(lost if self.seldom() else OutputFetched(start, self.output, self.epoch, False))
            case Draft(round=number, count=count):
                tokens = tuple(self.draw(st.lists(st.integers(0, 9), max_size=count + 1)))
                if self.contract.rule == 2:
                    self.rows.add(number)
                self.tell(DraftFailed(number, "no") if self.seldom() else Drafted(number, tokens, 1.0))
            case WriteRows(round=number):
                assert number in self.rows, "rows were written that are not held"
                failed = DraftFailed(number, "full")
                self.tell(failed if self.seldom() else RowsWritten(number, f"mlc:{self.requests}", 1.0))
            case SendProposal(message=message):
                self.judge(message)

    def judge(self, message: Proposal) -> None:
        """The verifier: lost answers, refusals with and without reason, and verdicts by the rules of 6.3."""
        kind = self.draw(st.sampled_from(["verdict", "verdict", "verdict", "lost", "lost after commit", "refused"]))
        if message.epoch != self.epoch:
            self.tell(ProposalRefused(message.round, errors.StaleEpoch("old")))
        elif (message.base, message.round) != (len(self.output), self.round + 1):
            self.tell(ProposalRefused(message.round, errors.StaleBase("behind"), last_round=self.round))
        elif kind == "refused":
            self.refuse(message)
        elif kind == "lost":
            self.tell(ProposalUnanswered(message.round))
        else:
            verdict = self.commit(message)
            if kind == "lost after commit":
                self.tell(ProposalUnanswered(message.round))
                self.replay(verdict)
            else:
                self.tell(VerdictReceived(verdict, 5.0))

    def replay(self, verdict: Verdict) -> None:
        """The same proposal comes again, and gets the stored verdict (6.3 step 3)."""
        if self.timer:
            self.fire()
            again, self.awaited = self.awaited, None
            assert again.message == self.sent[again.message.epoch, again.message.round, again.message.base]
            assert again.message.round == verdict.round
            self.tell(VerdictReceived(verdict, 5.0))

    def refuse(self, message: Proposal) -> None:
        kind = self.draw(st.sampled_from(REFUSALS))
        self.redrawn = self.redrawn or kind in (errors.BadProposal, errors.StaleBase)
        self.tell(ProposalRefused(message.round, kind("because"), last_round=self.round))

    def commit(self, message: Proposal) -> Verdict:
        accepted = self.draw(st.integers(0, len(message.tokens)))
        room = self.contract.max_new - len(self.output)
        emitted = (*message.tokens[:accepted], self.draw(st.integers(0, 9)))[:room]
        self.output += emitted
        self.round += 1
        self.redrawn = False
        self.limit = self.draw(st.integers(0, 9))
        action = Action.CONTINUE if len(self.output) < self.contract.max_new else Action.FINISH
        if self.seldom():
            action = self.draw(st.sampled_from(Action))
        return Verdict(
            session=SESSION,
            epoch=self.epoch,
            round=self.round,
            accepted=accepted,
            emitted=emitted,
            committed=len(self.output),
            digest=self.digest(len(self.output)),
            action=action,
            m_cap=self.limit,
            low=0,
            load=0,
        )

    def seldom(self) -> bool:
        return bool(self.draw(st.integers(0, 5)) == 0)

    def fire(self) -> None:
        self.timer = False
        self.tell(TimerFired("again"))

    def stray(self) -> None:
        """An answer that nobody waits for has no effect at all."""
        other = 1 + (getattr(self.awaited, "round", 0) or 0) + 1000
        stray = self.draw(
            st.sampled_from(
                [
                    Drafted(other, (1,), 1.0),
                    DraftFailed(other, "?"),
                    RowsWritten(other, "mlc:x", 1.0),
                    ProposalRefused(other, errors.StaleEpoch("?")),
                    ProposalUnanswered(other),
                    TokensFetched("mlc:x", (1,)),
                ]
            )
        )
        awaited, epoch = copy.copy(self.awaited), self.machine.epoch
        assert self.tell(stray) == []
        assert (self.awaited, self.machine.epoch) == (awaited, epoch)


@pytest.mark.requirement("S6.2-one-outstanding", "S6.2-m-range", "S6.2-proposal-base", "S6.2-leases-until-verdict")
@pytest.mark.decision("D31-one-sample")
@given(st.data())
def test_in_any_interleaving_the_drafter_keeps_its_rules(data: st.DataObject) -> None:
    world = World(data)
    world.assign()
    for _ in range(data.draw(st.integers(5, 40))):
        world.step()
    world.tell(StopRequested())
    while world.awaited is not None or world.timer:
        world.fire() if world.timer else world.answer()
    assert world.machine.epoch is None
    assert not world.open, "a request was never answered"
