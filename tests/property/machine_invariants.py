"""What must be so of a machine in whatever state, after whatever it was told: the invariants, machine by machine.

They look inside the machines, since what they say need not show at once.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from sdcp.machines import effects
from sdcp.machines.drafter import DrafterSession
from sdcp.machines.inputs import LogAppended, LogRead, ProposalReceived
from sdcp.machines.router import RouterSession
from sdcp.machines.router_steps import HAS_NO_VERIFIER, Step
from sdcp.machines.verifier import VerifierSession
from sdcp.machines.verifier_round import Stage
from sdcp.machines.verifier_serving import ENDED, Phase, Serving
from sdcp.messages.contract import Action
from sdcp.messages.fields import Message
from sdcp.messages.output import Output
from sdcp.messages.record import CommitRecord, FenceRecord
from sdcp.messages.round import Verdict
from sdcp.rules.digest import contract_digest, extend_all, prefix_digest
from sdcp.testing.states import PAUSING_STEPS

Effects = list[Any]
ANSWERS = (effects.Reply, effects.Refuse)
KV = (effects.PublishKv, effects.DropOlderKv)
QUIET = (*ANSWERS, effects.SetTimer, effects.CancelTimer, effects.SendEvent, effects.ReplayVerdict, *KV)
NEXT_PHASES = {
    Phase.DRAFTING: {Phase.DRAFTING, Phase.WAITING, Phase.SELF_DECODING, *ENDED},
    Phase.WAITING: {Phase.WAITING, Phase.DRAFTING, Phase.FENCED},
    Phase.SELF_DECODING: {Phase.SELF_DECODING, Phase.WAITING, Phase.DRAFTING, *ENDED},
    Phase.FINISHED: {Phase.FINISHED, Phase.FENCED},
    Phase.FAILED: {Phase.FAILED, Phase.FENCED},
    Phase.FENCED: {Phase.FENCED},
}
"""The table at the head of `sdcp.machines.verifier`; a round that commits may also be followed by its assignments."""


def check_effects(wanted: Effects) -> None:
    """Every effect is one of `sdcp.machines.effects`, a request is answered once, and every message has its octets."""
    answered = [effect.request for effect in wanted if isinstance(effect, ANSWERS)]
    assert len(set(answered)) == len(answered), f"answered twice: {wanted}"
    for effect in wanted:
        assert type(effect).__module__ == effects.__name__, effect
        for field in dataclasses.fields(effect):
            message = getattr(effect, field.name)
            if isinstance(message, Message):
                assert type(message).decode(message.encode()) == message


# ---- the verifier ----------------------------------------------------------------------------------------------------


def check_verifier(before: VerifierSession, given: Any, wanted: Effects, after: VerifierSession) -> None:
    """The state after an input, and what changed on the way to it."""
    if after._serving is None:
        opens = [each for each in wanted if isinstance(each, (effects.FetchTokens, effects.ReadLog, effects.Prefill))]
        assert len(opens) <= 1
        assert (after._opening is None) == (after._wanted is None) == (after._first is None)
        return
    _check_serving(after._serving)
    if before._serving is not None:
        _check_step(before._serving, given, wanted, after._serving)


def _check_serving(now: Serving) -> None:
    committed, contract, log = now._committed, now._committed.contract, now._rounds._log
    history, counters = committed.history, committed.counters
    assert 1 <= committed.m_cap <= contract.m_max
    assert 0 <= counters.c < contract.low_rounds
    assert 0 <= counters.j <= len(contract.fallback)
    assert history.committed <= contract.max_new
    start = prefix_digest(contract_digest(contract.to_plain()), history[: history.prompt_length])
    assert committed.digest == extend_all(start, history.output())
    assert 0 <= committed.account.accepted <= committed.account.proposed
    round = now._rounds.current
    if round is None:
        assert log.awaited is None or now.phase is Phase.FENCED
    else:
        assert now.phase in (Phase.DRAFTING, Phase.SELF_DECODING)
        assert (round.proposal is None) == (now.phase is Phase.SELF_DECODING)
        assert round.number == committed.round + 1
        assert (log.awaited is not None) == (round.stage is Stage.RECORDING)
    assert not now._assigning or round is not None
    assert not (now._desk.ended and now._desk._waiting)
    assert all(start >= history.committed for start in now._desk._waiting.values())


def _check_step(old: Serving, given: Any, wanted: Effects, new: Serving) -> None:
    before, after = old._committed, new._committed
    assert after.history.output()[: before.history.committed] == before.history.output()
    assert after.round in (before.round, before.round + 1)
    if after.round != before.round:  # only on the log's word (6.3 step 8)
        assert isinstance(given, (LogAppended, LogRead))
    else:
        assert (after.digest, after.counters) == (before.digest, before.counters)
    phases = set(NEXT_PHASES[old.phase])
    assert new.phase in phases, f"{old.phase!r} to {new.phase!r} by {given}"
    if old.phase in ENDED:
        assert after.round == before.round
        assert not new.working
    for effect in wanted:
        match effect:
            case effects.Reply(message=Verdict() as verdict):
                assert isinstance(given, (LogAppended, LogRead, ProposalReceived))
                assert verdict.round <= after.round
            case effects.Reply(message=Output() as output):
                assert output.tokens == after.history.output(output.from_)
            case effects.AppendLog():
                assert CommitRecord.decode(effect.data).epoch == after.epoch
    assert sum(not isinstance(effect, QUIET) for effect in wanted) <= 2  # a work, or an end


# ---- the drafter -----------------------------------------------------------------------------------------------------


WORK = (effects.Draft, effects.WriteRows, effects.SendProposal, effects.FetchOutput, effects.FetchTokens)


def check_drafter(before: DrafterSession, given: Any, wanted: Effects, after: DrafterSession) -> None:
    """The state after an input, and what is wanted on the way to it."""
    work = [each for each in wanted if isinstance(each, WORK)]
    assert len(work) <= 1, "two things under way at once (6.2)"
    assert (after._held is None) == (after._joining is None and after._rounds is None)
    assert after._joining is None or after._rounds is None
    if before.epoch is not None and after.epoch is not None:
        assert after.epoch >= before.epoch
    rounds = after._rounds
    if rounds is None:
        assert after._joining is not None or not any(isinstance(each, WORK) for each in wanted)
        return
    contract, prefix = rounds._contract, rounds._prefix
    assert not rounds.ended
    assert 1 <= rounds._m_cap <= contract.m_max
    start = prefix_digest(contract_digest(contract.to_plain()), prefix.tokens[: prefix.tokens.prompt_length])
    assert prefix.digest == extend_all(start, prefix.tokens.output())
    for effect in work:
        match effect:
            case effects.Draft():
                assert 1 <= effect.count <= min(rounds._m_cap, max(1, contract.max_new - prefix.committed))
            case effects.SendProposal(message=message):
                assert 1 <= len(message.tokens) <= contract.m_max
                assert (message.base, message.base_digest) == (prefix.committed, prefix.digest)
                assert (message.q_rows is not None) == (contract.rule == 2)


# ---- the router ------------------------------------------------------------------------------------------------------

ASKED = (
    effects.ChooseVerifier,
    effects.ChooseDrafter,
    effects.SendOpen,
    effects.SendDrafter,
    effects.SendPolicy,
    effects.SendAssignment,
    effects.StoreTokens,
    effects.AppendLog,
)


def check_router(before: RouterSession, given: Any, wanted: Effects, after: RouterSession) -> None:
    """The state after an input, and what is wanted on the way to it."""
    step = after._step
    asked = [each for each in wanted if isinstance(each, ASKED)]
    assert len(asked) <= 1, asked
    assert after.epoch >= before.epoch
    assert (after.ended is not None) == (step is Step.ENDED)
    assert (after._awaited is None) == (step in (Step.NEW, Step.RUNNING, Step.FENCING, Step.ENDED))
    assert not after._pausing or step in PAUSING_STEPS
    assert step in HAS_NO_VERIFIER or after.verifier is not None
    assert len(after._recorded.tokens) >= len(before._recorded.tokens)
    assert after._recorded.digest == extend_all(after._recorded._start_digest, after._recorded.tokens)
    if before.ended is not None:
        assert after.ended is before.ended
        assert not asked
    for effect in asked:
        _check_asked(before, effect, after)


def _check_asked(before: RouterSession, effect: Any, after: RouterSession) -> None:
    match effect:
        case effects.SendOpen(message=message):
            assert message.epoch == after.epoch
            if before._may_commit:  # somewhere it is open: the same open again, or behind a fence (D19)
                assert message == before._open
                assert effect.verifier == before.verifier
        case effects.SendDrafter() | effects.SendAssignment():
            assert effect.message.epoch == after.epoch
            assert effect.message.committed == 0 or effect.message.committed_tokens or effect.message.round
        case effects.AppendLog():
            assert FenceRecord.decode(effect.data).epoch == after._fencing.epoch > before.epoch


def finish_of(machine: Any) -> Action | None:
    """How a router's session has ended."""
    return machine.ended if isinstance(machine, RouterSession) else None
