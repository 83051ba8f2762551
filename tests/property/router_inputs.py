"""For a router's machine in any state: inputs of every class, those that fit and those that do not.

What peers say may be anything that a message can say. An answer names the very effect that it answers: the one now
outstanding, or one of a step that was interrupted, as like to it as can be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sdcp import errors
from sdcp.machines import effects, inputs
from sdcp.machines.router import RouterSession
from sdcp.machines.router_steps import TIMER
from sdcp.messages.contract import Action, Sampling
from sdcp.messages.output import Event
from sdcp.messages.record import CommitRecord, FenceRecord
from sdcp.messages.session import SessionState
from sdcp.rules.digest import extend_all
from tests.property.visits import DRAFTER, OTHER

U64, NEW = 2**64 - 1, 9_000
TO_VERIFIER = (effects.SendOpen, effects.SendDrafter, effects.SendPolicy)
REFUSALS = (
    errors.Conflict,
    errors.StaleEpoch,
    errors.BadContract,
    errors.InvalidContent,
    errors.SessionClosed,
    errors.UnknownResource,
    errors.Overloaded,
    errors.InternalFault,
    errors.Forbidden,
)


def router_inputs(machine: RouterSession) -> Iterator[Any]:
    """All inputs to try on a machine; they are made of what it is in the middle of."""
    yield from _requests(machine)
    yield from (inputs.EventReceived(NEW, each) for each in _events(machine))
    yield from _verifier_answers(machine)
    yield from _other_answers(machine)
    yield from _log_answers(machine)
    yield from (inputs.VerifierChosen(uri) for uri in (None, "https://verifier-2.test/"))
    yield from (inputs.DrafterChosen(uri) for uri in (None, DRAFTER, OTHER))
    yield from (inputs.VerifierLost(), inputs.DrafterLost())
    yield from (inputs.TimerFired(name) for name in (TIMER, "fence", "reminder", f"location {NEW}", "location 1", "?"))


def _requests(machine: RouterSession) -> Iterator[Any]:
    yield inputs.RequestSubmitted(NEW)
    for epoch in (None, machine.epoch - 1, machine.epoch, U64):
        yield inputs.LocationRequested(NEW, epoch, 1000)
    yield inputs.RequestWithdrawn(NEW)
    waiting = [*machine._locating._waiting][:1] + [each.request for each in machine._changes[:1] if each.request]
    yield from (inputs.RequestCancelled(request) for request in (NEW, *waiting))
    for from_round in (None, 0, machine._point.round + 1, U64):
        yield inputs.ProfileChanged(NEW, Sampling(top_k=2), from_round)


def _events(machine: RouterSession) -> Iterator[Event]:
    point = machine._point
    for epoch in (machine.epoch - 1, machine.epoch, machine.epoch + 1):
        for kind in Action:
            for committed in (0, point.committed, U64):
                yield Event(session=machine.session, epoch=epoch, kind=kind, committed=committed, digest=point.digest)


def _answered(machine: RouterSession, kinds: tuple[type, ...]) -> Iterator[Any]:
    """The effect outstanding if it is of such a kind, and one that is not outstanding."""
    awaited = machine._awaited
    if isinstance(awaited, kinds):
        yield awaited
        yield replace(awaited)
    else:
        yield object()


def _verifier_answers(machine: RouterSession) -> Iterator[Any]:
    for effect in _answered(machine, TO_VERIFIER):
        yield from (inputs.StateReceived(state, effect) for state in _states(machine))
        yield from (inputs.VerifierRefused(kind("no"), effect) for kind in REFUSALS)
        yield inputs.VerifierUnanswered(effect)


def _states(machine: RouterSession) -> Iterator[SessionState]:
    point = machine._point
    good = SessionState(
        session=machine.session,
        epoch=machine.epoch,
        round=point.round,
        committed=point.committed,
        digest=point.digest,
    )
    yield from (replace(good, state=state) for state in (None, 0, 2, 4, 5, 77))
    yield replace(good, epoch=good.epoch + 1)
    yield replace(good, session=b"?" * 16)
    yield replace(good, round=good.round + 1, committed=good.committed + 2, digest=b"x" * 32)
    yield replace(good, round=U64, committed=U64)


def _other_answers(machine: RouterSession) -> Iterator[Any]:
    for effect in _answered(machine, (effects.StoreTokens,)):
        yield inputs.TokensStored("memory:/objects/9", effect)
        yield inputs.StoreFailed("full", effect)
    for effect in _answered(machine, (effects.SendAssignment,)):
        yield inputs.AssignmentTaken(effect)
        yield from (inputs.AssignmentRefused(each, effect) for each in (None, errors.InvalidContent("no")))


def _log_answers(machine: RouterSession) -> Iterator[Any]:
    yield from (inputs.LogAppended('"77"', 0), inputs.LogMoved(), inputs.LogFenced())
    yield from (inputs.LogUnanswered(), inputs.LogUnanswered("octets are gone"))
    recorded = machine._recorded
    for data in _tails(machine):
        yield inputs.LogRead(recorded.end, data, '"88"')
    yield inputs.LogRead(recorded.end + 1, b"\xff", '"88"')
    yield inputs.LogRead(0, b"", None)


def _tails(machine: RouterSession) -> Iterator[bytes]:
    """What may stand in the log behind what is known of it."""
    recorded = machine._recorded
    fences = [FenceRecord(epoch=epoch).encode() for epoch in (machine.epoch, machine.epoch + 1, U64)]
    yield from (b"", b"\xff", b"\x80", b"\xa0", *fences)
    for epoch in (max(recorded.fence, 1), U64):
        for tokens in ((), (4,), (5, 6, 7), (4,) * 99):
            record = CommitRecord(
                epoch=epoch,
                round=recorded.round + 1,
                tokens=tokens,
                committed=len(recorded.tokens) + len(tokens),
                digest=extend_all(recorded.digest, tokens),
                action=Action.SWITCH,
            )
            yield record.encode()
            yield record.encode() + fences[1]
    yield CommitRecord(epoch=U64, round=recorded.round + 1, tokens=(U64,), committed=1, digest=b"x" * 32).encode()
    yield CommitRecord(epoch=U64, round=U64, tokens=(1,), committed=U64, digest=b"x" * 32).encode()
