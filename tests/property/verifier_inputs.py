"""For a verifier's machine in any state: inputs of every class, those that fit and those that do not.

Answers of its own shell are such as a shell may give, if to another effect than the one outstanding; requests and logs
are as bad as peers can make them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sdcp.errors import BadProposal, InvalidContent, Overloaded, QUnavailable
from sdcp.machines import inputs
from sdcp.machines.commit_log import CommitLog
from sdcp.machines.verifier import VerifierSession
from sdcp.machines.verifier_serving import Serving
from sdcp.messages.contract import Action, Sampling
from sdcp.messages.output import Event
from sdcp.messages.record import CommitRecord, FenceRecord
from sdcp.messages.round import Assignment, Proposal
from sdcp.messages.session import Policy, SessionOpen
from tests.property.visits import DRAFTER, OTHER
from tests.unit.machines.verifier_world import STATUS, Client, V, World

U64, NEW = 2**64 - 1, 9_000
"""The greatest number there is, and that of a request that the machine has not seen."""


def verifier_inputs(machine: VerifierSession) -> Iterator[Any]:
    """All inputs to try on a machine; they are made of what it is in the middle of."""
    serving = machine._serving
    yield from _opens(machine)
    yield from _of_shell(serving)
    if serving is not None:
        yield from (inputs.ProposalReceived(NEW, *each) for each in proposals(serving))
        yield from (inputs.DrafterAssigned(NEW, each) for each in _assignments(serving))
        yield from (inputs.PolicyReceived(NEW, each) for each in _policies(serving))
        yield from _readers(serving)
        yield from _log_reads(serving)
    else:
        world = World()
        yield inputs.ProposalReceived(NEW, world.proposal(epoch=1), Client())
        yield inputs.DrafterAssigned(NEW, world.assignment(epoch=1))
        yield inputs.PolicyReceived(NEW, Policy(session=b"s" * 16, from_round=1, sampling=Sampling()))
        yield inputs.OutputRequested(NEW, 0, 1000)


def _opens(machine: VerifierSession) -> Iterator[Any]:
    first = machine._first or World().session_open()
    good = replace(first, prompt=_prompt(machine)) if machine._serving else first
    for message in (good, *_other_opens(good)):
        yield inputs.OpenReceived(NEW, message)


def _prompt(machine: VerifierSession) -> Any:
    assert machine._serving is not None
    history = machine._serving._committed.history
    return tuple(history[: history.prompt_length])


def _other_opens(good: SessionOpen) -> Iterator[SessionOpen]:
    for epoch in (0, good.epoch - 1, good.epoch + 1, U64):
        if epoch >= 0:
            yield replace(good, epoch=epoch)
    yield replace(good, commit_log="elsewhere")
    yield replace(good, prompt=(U64,))
    yield replace(good, prompt="elsewhere")
    yield replace(good, contract=replace(good.contract, rule=3))
    yield replace(good, contract=replace(good.contract, max_new=good.contract.max_new + 1))


# ---- answers of the shell --------------------------------------------------------------------------------------------


def _of_shell(serving: Serving | None) -> Iterator[Any]:
    round = serving._rounds.current if serving else None
    number = round.number if round else 1
    for each in (number, number + 1):
        yield inputs.RowsObtained(each)
        yield inputs.RowsRefused(each, QUnavailable("gone"))
        yield inputs.RowsRefused(each, BadProposal("negative"))
        yield inputs.RandomDrawn(each, (0.25,) * (len(round.tokens) + 1 if round else 1))
        yield inputs.EngineFailed(each, "broken")
        yield from _outcomes(serving, each)
    yield from _of_opening()
    yield from (inputs.KvPublished(length, ref) for length in _lengths(serving) for ref in (None, "memory:/objects/kv"))
    yield from (inputs.LogAppended('"77"', load) for load in (0, 95))
    yield from (inputs.LogMoved(), inputs.LogFenced(), inputs.LogUnanswered(), inputs.LogUnanswered("octets are gone"))
    yield from (inputs.TimerFired(name) for name in ("log", "output:1", f"output:{NEW}"))
    yield from (inputs.RequestCancelled(request) for request in _requests(serving))
    yield from (inputs.Superseded(), inputs.StopRequested())


def _outcomes(serving: Serving | None, number: int) -> Iterator[Any]:
    """What an engine finds: the rule accepts at most M, and no additional token beyond the room (D14)."""
    round = serving._rounds.current if serving else None
    m, room = (len(round.tokens), serving._committed.room) if serving and round else (1, 1)
    for accepted in {0, min(m, room) // 2, min(m, room)}:
        for load in (0, 60, 95):
            yield inputs.Verified(number, accepted, None if accepted == room else 3, load)
    for load in (0, 95):
        yield inputs.SelfDecoded(number, 2, load)


def _lengths(serving: Serving | None) -> Iterator[int]:
    """Of the KV that is being published, and of another."""
    yield U64
    if serving is not None and serving._kv.awaited is not None:
        yield serving._kv.awaited


def _of_opening() -> Iterator[Any]:
    for ref in ("memory:/objects/1", "memory:/objects/2", "elsewhere"):
        for tokens in ((), (1, 2), (V,), (U64,), tuple(range(V)) * 20):
            yield inputs.TokensFetched(ref, tokens)
        yield inputs.TokensUnavailable(ref, Overloaded("gone"))
        yield inputs.TokensUnavailable(ref, InvalidContent("no array"))
    yield inputs.Prefilled()
    yield inputs.PrefillFailed(Overloaded("no room"))
    yield from (inputs.LogRead(0, data, '"5"') for data in (b"", b"\xff", FenceRecord(epoch=2).encode()))
    yield inputs.LogRead(
        0, CommitRecord(epoch=1, round=1, tokens=(U64,), committed=1, digest=b"d" * 32).encode(), '"5"'
    )
    yield from (inputs.EventDelivered(_event(kind)) for kind in Action)


def _event(kind: Action) -> Event:
    return Event(session=b"sdcp-testing-one", epoch=1, kind=kind, committed=0, digest=b"d" * 32)


def _requests(serving: Serving | None) -> Iterator[int]:
    yield NEW
    if serving is not None:
        yield from [*serving._desk._waiting][:1]
        yield from [each.request for each in serving._assigning][:1]
        if serving._rounds.current:
            yield from [each.request for each in serving._rounds.current.waiting][:1]


# ---- the log ---------------------------------------------------------------------------------------------------------


def _log_reads(serving: Serving) -> Iterator[Any]:
    log, epoch = serving._rounds._log, serving._committed.epoch
    for data in _tails(serving, log, epoch):
        yield inputs.LogRead(log._reader.size, data, '"88"')
    yield inputs.LogRead(log._reader.size, b"", None)


def _tails(serving: Serving, log: CommitLog, epoch: int) -> Iterator[bytes]:
    """What may stand in the log behind what is known of it."""
    now, ours = serving._committed, log._data
    fence, equal = FenceRecord(epoch=epoch + 1).encode(), FenceRecord(epoch=epoch).encode()
    stale = CommitRecord(epoch=epoch - 1, round=77, tokens=(7,), committed=77, digest=b"x" * 32) if epoch else None
    other = CommitRecord(
        epoch=epoch,
        round=now.round + 1,
        tokens=(U64,),
        committed=now.history.committed + 1,
        digest=b"x" * 32,
    )
    yield from (b"", ours, ours[:-1], ours + fence, fence, fence + ours, equal, equal + ours, ours + ours)
    yield from (other.encode(), other.encode() + ours, b"\xff\x00", b"\xa0", b"\x80")
    if stale is not None and stale.epoch >= 0:
        yield equal + stale.encode() + ours


# ---- requests --------------------------------------------------------------------------------------------------------


def proposals(serving: Serving) -> Iterator[tuple[Proposal, Client]]:
    """Proposals, and who sends them."""
    good, me = _good_proposal(serving), Client((serving._drafter or DRAFTER,))
    now, current = serving._committed, serving._rounds.current
    yield good, me
    yield good, Client((OTHER, "https://nobody.test/"))
    for members in _changes(serving, good):
        yield replace(good, **members), me
    if current is not None and current.proposal is not None:
        yield current.proposal, me
        yield replace(current.proposal, status=replace(STATUS, load=55)), me
        yield replace(current.proposal, tokens=(0, 0, 0)), me
    for round in range(max(1, now.round - 3), now.round + 1):
        yield replace(good, round=round), me


def _changes(serving: Serving, good: Proposal) -> Iterator[dict[str, Any]]:
    now = serving._committed
    yield from ({"tokens": (1,) * m} for m in (now.m_cap, now.m_cap + 1, 65))
    yield from ({"tokens": (token,)} for token in (V, U64))
    yield from ({"epoch": epoch} for epoch in (0, good.epoch + 1, U64))
    yield from ({"round": round} for round in (0, good.round + 1, U64))
    yield from ({"base": base} for base in (good.base + 1, U64))
    yield {"base_digest": b"x" * 32}
    yield {"drafter": "https://nobody.test/"}
    yield {"q_rows": None}


def _good_proposal(serving: Serving) -> Proposal:
    now = serving._committed
    return Proposal(
        session=now.session,
        epoch=now.epoch,
        round=now.round + 1,
        drafter=serving._drafter or DRAFTER,
        base=now.history.committed,
        base_digest=now.digest,
        tokens=(1,),
        q_rows="memory:/objects/rows",
        status=STATUS,
    )


def _assignments(serving: Serving) -> Iterator[Assignment]:
    now = serving._committed
    good = Assignment(
        session=now.session,
        epoch=now.epoch,
        contract=now.contract,
        verifier="https://verifier-1.test/",
        drafter=serving._drafter or DRAFTER,
        prompt=tuple(now.history[: now.history.prompt_length]),
        round=now.round,
        committed=now.history.committed,
        digest=now.digest,
        m_init=3,
    )
    yield good
    yield from (each.message for each in serving._assigning[:1])
    yield from (replace(good, drafter=OTHER, m_init=m_init) for m_init in (0, 1, 64, U64))
    yield from (replace(good, epoch=epoch) for epoch in (0, good.epoch + 1))
    yield replace(good, contract=replace(good.contract, max_new=good.contract.max_new + 1))
    yield replace(good, round=0, committed=0, digest=b"x" * 32)


def _policies(serving: Serving) -> Iterator[Policy]:
    now = serving._committed
    for from_round in (0, now.round, now.round + 1, now.round + 2, U64):
        for sampling in (Sampling(), Sampling(temperature_milli=0, top_k=U64, top_p_milli=0, seed=U64)):
            yield Policy(session=now.session, from_round=from_round, sampling=sampling)


def _readers(serving: Serving) -> Iterator[Any]:
    n = serving._committed.history.committed
    for start in (0, n, n + 5, U64):
        for wait_ms in (0, 1000):
            yield inputs.OutputRequested(NEW, start, wait_ms)
    for uri in (serving._drafter or DRAFTER, "https://nobody.test/"):
        yield inputs.OutputRequested(NEW, n, 1000, Client((uri,)))
