"""Drafter and verifier, machine to machine: together they decode as the target alone, whatever is drafted or lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdcp.machines.drafter import DrafterSession
from sdcp.machines.drafter_joining import DraftModel
from sdcp.machines.effects import Draft, EndSession, FetchOutput, Refuse, Reply, SendProposal, SetTimer, WriteRows
from sdcp.machines.inputs import (
    AssignmentReceived,
    Drafted,
    OutputFetched,
    ProposalReceived,
    ProposalRefused,
    ProposalUnanswered,
    RowsWritten,
    TimerFired,
    VerdictReceived,
)
from sdcp.messages.contract import Action
from sdcp.messages.output import Output
from sdcp.messages.round import Assignment, Verdict
from tests.unit.machines.verifier_world import CONTRACT, PROMPT, Client, V, World, greedy

PATIENT = replace(CONTRACT, stop=(), fallback=(Action.REDUCE,) * 30)
"""A contract under which no session is taken from its drafter."""


class Pair:
    """A drafter session whose every effect is answered at once, by this class or by the verifier's world."""

    def __init__(self, world: World, data: st.DataObject) -> None:
        self.world = world.started()
        self.data = data
        contract = world.contract
        self.drafter = DrafterSession(DraftModel(model=b"m" * 32, tokenizer=contract.tokenizer, width=V))
        self.ended = False
        self.losses = 10  # answers that may be lost: fewer than would make the drafter give up

    def run(self, assignment: Assignment) -> None:
        """Hand in the assignment; go on until nothing is left to answer."""
        effects = self.drafter.handle(AssignmentReceived(1, assignment))
        for _ in range(500):
            answers = [answer for effect in effects if (answer := self.answer(effect)) is not None]
            if not answers:
                return
            (answer,) = answers
            effects = self.drafter.handle(answer)
        raise AssertionError("no end")

    def answer(self, effect: Any) -> Any:
        match effect:
            case Draft(round=number, count=count):
                return Drafted(number, self.tokens(effect, count), 1.0)
            case WriteRows(round=number):
                return RowsWritten(number, "mlc:rows", 1.0)
            case SendProposal():
                return self.propose(effect)
            case FetchOutput(start=start):
                output = self.world.answers[self.world.output(start, client=Client())]
                assert isinstance(output, Reply)
                assert isinstance(output.message, Output)
                return OutputFetched(start, output.message.tokens, output.message.epoch, output.message.final)
            case SetTimer(name=name):
                return TimerFired(name)
            case EndSession():
                self.ended = True
        return None

    def tokens(self, effect: Draft, count: int) -> tuple[int, ...]:
        """Right up to somewhere, then anything."""
        right = greedy(effect.prefix[effect.length - 1], count)
        good = self.data.draw(st.integers(0, count))
        return right[:good] + tuple(self.data.draw(st.integers(0, V - 1)) for _ in range(count - good))

    def propose(self, effect: SendProposal) -> Any:
        request = self.world.ask(ProposalReceived, effect.message, Client())
        answer = self.world.answers[request]
        if self.losses and self.data.draw(st.integers(0, 3)) == 0:
            self.losses -= 1
            return ProposalUnanswered(effect.message.round)
        if isinstance(answer, Refuse):
            return ProposalRefused(effect.message.round, answer.error, answer.state.round if answer.state else None)
        assert isinstance(answer.message, Verdict)
        return VerdictReceived(answer.message, 5.0)


@pytest.mark.requirement("S1.3-output-unaffected", "S6.4-greedy-output", "S6.9-lost-verdict-retried")
@pytest.mark.decision("D9a", "D12", "D32-exact")
@settings(max_examples=40)
@given(st.data(), st.integers(1, 20), st.integers(1, 8))
def test_greedy_output_is_plain_decoding_whatever_is_drafted_or_lost(
    data: st.DataObject, max_new: int, m_max: int
) -> None:
    pair = Pair(World(replace(PATIENT, max_new=max_new, m_max=m_max)), data)
    pair.run(pair.world.assignment())
    assert pair.ended
    assert pair.world.log.tokens == greedy(PROMPT[-1], max_new)


@pytest.mark.requirement("S6.3-base-check", "S6.9-problem-stale-base")
@pytest.mark.decision("D2", "D9a")
@settings(max_examples=40)
@given(st.data())
def test_a_drafter_that_starts_from_an_old_assignment_catches_up(data: st.DataObject) -> None:
    pair = Pair(World(PATIENT), data)
    old = pair.world.assignment()
    pair.world.play(pair.world.right(2), pair.world.right(1))
    pair.run(old)
    assert pair.ended
    assert pair.world.log.tokens == greedy(PROMPT[-1], PATIENT.max_new)
