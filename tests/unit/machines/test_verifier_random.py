"""A verifier session in random company: whatever comes in whatever order, what the draft forbids does not happen.

Inputs, answers, lost answers, stale writers and fences in any order; after each step the log and all that was answered
are compared. The invariants are at `check`.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp import errors
from sdcp.machines.commit_log import TIMER
from sdcp.machines.effects import AppendLog, DrawRandom, FetchRows, ReadLog, Refuse, Reply, SelfDecode, Verify
from sdcp.machines.inputs import (
    EngineFailed,
    EventDelivered,
    LogUnanswered,
    OpenReceived,
    ProposalReceived,
    RequestCancelled,
    RowsRefused,
    StopRequested,
    Superseded,
)
from sdcp.machines.reader import LogReader
from sdcp.messages.contract import Action
from sdcp.messages.output import Output
from sdcp.messages.record import CommitRecord, FenceRecord
from sdcp.messages.round import Verdict
from tests.unit.machines.verifier_world import CONTRACT, DRAFTER, OTHER, Client, Log, World, greedy

HELD = {AppendLog, DrawRandom, FetchRows, ReadLog, SelfDecode, Verify}
STEPS = ["propose"] * 4 + ["answer"] * 8 + ["assign", "policy", "output", "cancel", "open", "repeat", "lose", "timer"]
RARE = ["fence", "stale", "break", "rows", "superseded", "stop", "event"]


class Story:
    """One run. `draw` chooses; `world` holds every effect of the shell until the story answers it."""

    def __init__(self, draw: st.DrawFn, rule: int) -> None:
        self.draw = draw
        contract = replace(
            CONTRACT,
            rule=rule,
            max_new=draw(st.integers(1, 12)),
            low_rounds=draw(st.integers(1, 2)),
            fallback=tuple(draw(st.lists(st.sampled_from([1, 2, 3, 5]).map(Action), min_size=1, max_size=4))),
            self_load=50,
            self_max=draw(st.sampled_from([None, 1, 2])),
        )
        self.world = World(contract=contract, log=Log(enforces=draw(st.booleans()))).started()
        self.world.hold = HELD
        self.world.luck.extend([0.1, 0.9, 0.5, 0.3, 0.7] * 100)
        self.sent: list[Any] = []
        self.drafter = DRAFTER

    def step(self, name: str) -> None:
        getattr(self, name)()

    def give(self, given: Any) -> None:
        """Hand in a request; one that is refused at once must have changed nothing."""
        before = pickle.dumps(self.world.machine)
        effects = self.world.handle(given)
        if len(effects) == 1 and isinstance(effects[0], Refuse):
            assert pickle.dumps(self.world.machine) == before

    def number(self) -> int:
        self.world.requests += 1
        return self.world.requests

    # ---- requests

    def propose(self) -> None:
        world = self.world
        tokens = self.draw(st.sampled_from([world.right(1), world.right(3), world.wrong()]))
        fault = self.draw(st.sampled_from([{}] * 6 + [{"epoch": 2}, {"base": 1}, {"round": 2}, {"tokens": (9,)}]))
        client = Client((self.draw(st.sampled_from([self.drafter] * 5 + [OTHER])),))
        message = world.proposal(*tokens, **{"drafter": client.bases[0], **fault})
        self.sent.append(message)
        self.give(ProposalReceived(self.number(), message, client))

    def repeat(self) -> None:
        if self.sent:
            message = self.draw(st.sampled_from(self.sent))
            self.give(ProposalReceived(self.number(), message, Client((message.drafter,))))

    def assign(self) -> None:
        self.drafter = self.draw(st.sampled_from([DRAFTER, OTHER]))
        self.world.assign(self.drafter, round=self.draw(st.integers(0, 3)), m_init=self.draw(st.integers(0, 8)))

    def policy(self) -> None:
        self.world.policy(self.draw(st.integers(0, 9)), top_k=self.draw(st.integers(1, 3)))

    def output(self) -> None:
        self.world.output(self.draw(st.integers(0, 6)), self.draw(st.sampled_from([0, 1000])))

    def open(self) -> None:
        epoch = self.draw(st.sampled_from([0, 1, 1, 2]))
        self.give(OpenReceived(self.number(), self.world.session_open(epoch=epoch)))

    def cancel(self) -> None:
        self.world.handle(RequestCancelled(self.draw(st.integers(1, self.world.requests))))

    # ---- answers and accidents

    def answer(self) -> None:
        if self.world.held:
            self.world.load = self.draw(st.sampled_from([0, 0, 0, 60, 95]))
            self.world.release(index=self.draw(st.integers(0, len(self.world.held) - 1)))

    def lose(self) -> None:
        """A log's answer is lost; the append was done or not."""
        for index, effect in enumerate(self.world.held):
            if isinstance(effect, (AppendLog, ReadLog)):
                if isinstance(effect, AppendLog) and self.draw(st.booleans()):
                    self.world.log.append(effect)
                self.world.release(LogUnanswered(), index)
                return

    def timer(self) -> None:
        if self.world.timers:
            self.world.fire(self.draw(st.sampled_from(sorted(self.world.timers))))

    def rows(self) -> None:
        for index, effect in enumerate(self.world.held):
            if isinstance(effect, FetchRows):
                self.world.release(RowsRefused(effect.round, errors.QUnavailable("evicted")), index)
                return

    def fence(self) -> None:
        self.world.log.put(FenceRecord(epoch=max(2, self.world.log.fence)))

    def stale(self) -> None:
        """A verifier of no valid epoch appends; a store that knows fences refuses it itself."""
        if not self.world.log.enforces and self.world.log.fence > 1:
            self.world.log.put(CommitRecord(epoch=1, round=77, tokens=(7,), committed=77, digest=b"x" * 32))

    def superseded(self) -> None:
        self.world.handle(Superseded())

    def stop(self) -> None:
        self.world.handle(StopRequested())

    def event(self) -> None:
        for event in self.world.events:
            self.world.handle(EventDelivered(event))

    def settle(self) -> None:
        """Answer everything until nothing is under way."""
        self.world.load = 0
        self.world.handle(StopRequested())
        for _ in range(100):
            while self.world.held:
                self.world.release()
            if TIMER not in self.world.timers:
                return
            self.world.fire(TIMER)
        raise AssertionError("it never settles")


def check(story: Story) -> None:
    """What must hold after every step."""
    world = story.world
    LogReader(world.digest()).read(world.log.data)  # rounds consecutive, chain whole, one token an index
    records = {record.round: record for record in world.log.records()}
    output = world.log.tokens
    assert len(output) <= world.contract.max_new
    if world.contract.rule == 1:
        assert output == greedy(3, len(output))
    verdicts: dict[int, Verdict] = {}
    for answer in world.answers.values():
        if not isinstance(answer, Reply):
            continue
        match answer.message:
            case Verdict() as verdict:  # only after the append, and the same to everyone
                record = records[verdict.round]
                assert (record.epoch, record.tokens, record.digest) == (1, verdict.emitted, verdict.digest)
                assert verdicts.setdefault(verdict.round, verdict) == verdict
                assert 1 <= verdict.m_cap <= world.contract.m_max
            case Output() as read:  # released output is a part of the log
                assert output[read.from_ : read.from_ + len(read.tokens)] == read.tokens
                assert not read.final or read.finish in (Action.FINISH, Action.FAIL)


@pytest.mark.requirement(
    "S6.3-append-before-release",
    "S6.3-commit-atomic",
    "S6.3-fenced-append",
    "S6.7-only-recorded",
    "S6.7-stable-indices",
    "S6.5.2-self-decode-rounds",
    "S6.9-lost-verdict-retried",
    "S1.3-output-unaffected",
)
@pytest.mark.decision("D12-before-random", "D27", "D28", "D29")
@pytest.mark.parametrize("rule", [1, 2])
@given(data=st.data())
def test_nothing_forbidden_happens(data: st.DataObject, rule: int) -> None:
    story = Story(data.draw, rule)
    names = data.draw(st.lists(st.sampled_from(STEPS * 3 + RARE), max_size=40))
    for name in names:
        if name == "break":
            break_engine(story)
        else:
            story.step(name)
        check(story)
    story.settle()
    check(story)
    assert not story.world.machine.working


def break_engine(story: Story) -> None:
    for index, effect in enumerate(story.world.held):
        if isinstance(effect, (Verify, SelfDecode)):
            story.world.release(EngineFailed(effect.round, "broken"), index)
            return
