"""For a drafter's machine in any state: inputs of every class, those that fit and those that do not.

What peers say may be anything that a message can say; answers of its own shell are such as a shell may give.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sdcp.errors import (
    BadProposal,
    InternalFault,
    Limit,
    NotAssigned,
    Overloaded,
    QUnavailable,
    StaleBase,
    StaleEpoch,
)
from sdcp.machines import inputs
from sdcp.machines.drafter import DrafterSession
from sdcp.machines.drafter_rounds import AGAIN
from sdcp.machines.effects import SendProposal
from sdcp.messages.contract import Action, Sampling
from sdcp.messages.round import Assignment, Verdict
from sdcp.rules.digest import extend_all
from tests.property.visits import assignment

U64, NEW = 2**64 - 1, 9_000
REFUSALS = (StaleBase, StaleEpoch, QUnavailable, Limit, BadProposal, NotAssigned, Overloaded, InternalFault)


def drafter_inputs(machine: DrafterSession) -> Iterator[Any]:
    """All inputs to try on a machine; they are made of what it is in the middle of."""
    held = machine._held or assignment()
    yield from (inputs.AssignmentReceived(NEW, each) for each in _assignments(held))
    yield from _fetched(held)
    yield from _of_round(machine)
    yield from (inputs.VerdictReceived(each, 2.5) for each in _verdicts(machine, held))
    yield from (inputs.TimerFired(name) for name in (AGAIN, "another"))
    yield from (inputs.RequestCancelled(request) for request in (NEW, 1))
    yield inputs.StopRequested()


def _assignments(held: Assignment) -> Iterator[Assignment]:
    yield held
    yield replace(held, sampling=Sampling(top_k=1), round=held.round + 9)
    for epoch in (held.epoch - 1, held.epoch, held.epoch + 1):
        yield replace(held, epoch=max(epoch, 0), m_init=0)
        yield replace(held, epoch=max(epoch, 0), contract=replace(held.contract, max_new=held.contract.max_new + 1))
    higher = replace(held, epoch=held.epoch + 1)
    yield replace(higher, prompt="memory:/objects/1")
    yield replace(higher, prompt=(U64,))
    yield replace(higher, committed=2, digest=b"x" * 32, round=U64)
    yield replace(higher, committed=2, committed_tokens="memory:/objects/2", m_init=U64)
    yield replace(higher, committed=U64)
    yield from (replace(higher, contract=replace(held.contract, **members)) for members in _contracts())


def _contracts() -> Iterator[dict[str, Any]]:
    yield {"rule": 3}
    yield {"tokenizer": b"?" * 32}
    yield {"drafters": (b"?" * 32,)}
    yield {"max_new": 0}


def _fetched(held: Assignment) -> Iterator[Any]:
    for ref in {held.prompt, held.committed_tokens, "elsewhere"}:
        if isinstance(ref, str):
            for tokens in ((), (1, 2, 3), (U64,)):
                yield inputs.TokensFetched(ref, tokens)
            yield inputs.TokensUnavailable(ref, Overloaded("gone"))
    for epoch in (held.epoch - 1, held.epoch, held.epoch + 1):
        for tokens in ((), (4, 5), (4, 5, 6, 7), (U64,), (2**32 - 1,) * 40):
            for final in (False, True):
                yield inputs.OutputFetched(0, tokens, epoch, final)
    yield inputs.OutputFetched(1, (4,), held.epoch, False)
    yield from (inputs.OutputUnavailable(error) for error in (None, *(kind("no") for kind in REFUSALS)))


def _of_round(machine: DrafterSession) -> Iterator[Any]:
    current = machine._rounds._round if machine._rounds else None
    number = current.number if current else 1
    for each in (number, number - 1, number + 1):
        for tokens in ((), (1,), (1, 2, 3), (1,) * 70):
            yield inputs.Drafted(each, tokens, 0.5)
        yield inputs.DraftFailed(each, "not now")
        yield inputs.RowsWritten(each, "memory:/objects/rows", 0.5)
        yield inputs.ProposalUnanswered(each)
        for kind in REFUSALS:
            yield from (inputs.ProposalRefused(each, kind("no"), last) for last in (None, number, U64))


def _verdicts(machine: DrafterSession, held: Assignment) -> Iterator[Verdict]:
    good = _verdict(machine, held)
    yield from (replace(good, action=action) for action in Action)
    yield from (replace(good, m_cap=m_cap) for m_cap in (0, 1, U64))
    yield from (replace(good, epoch=epoch) for epoch in (good.epoch - 1, good.epoch + 1) if epoch >= 0)
    yield from (replace(good, round=round) for round in (good.round - 1, good.round + 1, U64) if round >= 0)
    yield from (replace(good, accepted=accepted) for accepted in (0, 1, U64))
    yield from (replace(good, committed=committed) for committed in (0, good.committed + 1, U64))
    yield replace(good, digest=b"x" * 32)
    yield replace(good, emitted=(U64,))
    yield replace(good, emitted=())


def _verdict(machine: DrafterSession, held: Assignment) -> Verdict:
    """A verdict as the verifier would give it for what is proposed now: the first token held."""
    rounds = machine._rounds
    sent = rounds._awaited if rounds else None
    tokens = (*sent.message.tokens[:1], 6) if isinstance(sent, SendProposal) else (6,)
    committed, digest = (rounds._prefix.committed, rounds._prefix.digest) if rounds else (0, held.digest)
    return Verdict(
        session=held.session,
        epoch=held.epoch,
        round=sent.message.round if isinstance(sent, SendProposal) else 1,
        accepted=len(tokens) - 1,
        emitted=tokens,
        committed=committed + len(tokens),
        digest=extend_all(digest, tokens),
        action=Action.CONTINUE,
        m_cap=3,
        low=0,
        load=0,
    )
