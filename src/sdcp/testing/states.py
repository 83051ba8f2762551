"""The states of the machines by name, the inputs that each of them takes, and which of the pairs cannot happen.

What `sdcp simulate` counts and what the property tests visit: a *pair* is a state and a class of input. A state's name
says the phase of the session and, where that is more, what is under way; contents of the state (counters, tokens,
profiles) make no other state. Naming a state looks into the machine, so this module knows the machines' insides.

A pair is *unreachable* when no shell gives that input in that state, since an effect is answered once and only by what
it asks for: `unreachable` gives the reason. Such an input changes nothing all the same, which tests check too.

Not here: `Roster` and `Batcher`, which are called and not told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from sdcp.machines import effects, inputs
from sdcp.machines.commit_log import CommitLog
from sdcp.machines.drafter import DrafterSession
from sdcp.machines.router import RouterSession
from sdcp.machines.router_kept import KeptSession
from sdcp.machines.router_steps import Step
from sdcp.machines.verifier import VerifierSession
from sdcp.machines.verifier_round import Stage
from sdcp.machines.verifier_serving import Phase, Serving

Machine = Any
"""A VerifierSession, a DrafterSession, a RouterSession or a CommitLog."""


def bare(machine: Machine) -> Machine:
    """Return the machine that has the states: of a `KeptSession` the `RouterSession` in it."""
    return machine.session if isinstance(machine, KeptSession) else machine


def state_of(machine: Machine) -> str:
    """Return the name of the state that a machine is in: one of `STATES` of its class."""
    return _NAMERS[type(machine)](machine)


def unreachable(machine: type, state: str, given: type) -> str | None:
    """Return why a machine in this state is never given this input; None when it may be."""
    states = _ANSWERED[machine].get(given)
    if states is None or state in states:
        return None
    return f"in the state {state!r} no effect is outstanding that {given.__name__} answers"


# ---- the verifier ----------------------------------------------------------------------------------------------------

LOG_STATES = {effects.AppendLog: "appending", effects.ReadLog: "reading back", effects.SetTimer: "waiting for the log"}
ROUND_STATES = {Stage.ROWS: "fetching rows", Stage.RANDOM: "drawing", Stage.SCORING: "scoring"}
VERIFIER_STATES = (
    "new",
    "opening, fetching tokens",
    "opening, reading the log",
    "opening, prefilling",
    "drafting, no drafter yet",
    "drafting, idle",
    *(f"drafting, {each}" for each in (*ROUND_STATES.values(), *LOG_STATES.values())),
    "waiting",
    *(f"self-decoding, {each}" for each in ("drawing", "scoring", *LOG_STATES.values())),
    "self-decoding, stopped",
    "finished",
    "failed",
    "fenced",
)
_OPENING = {
    effects.FetchTokens: "opening, fetching tokens",
    effects.ReadLog: "opening, reading the log",
    effects.Prefill: "opening, prefilling",
}


def _verifier(machine: VerifierSession) -> str:
    if machine._serving is not None:
        return _serving(machine._serving)
    return "new" if machine._wanted is None else _OPENING[type(machine._wanted)]


def _serving(session: Serving) -> str:
    phase = session.phase.name.lower().replace("_", "-")
    round = session._rounds.current
    if round is not None:
        return f"{phase}, {_log(session._rounds._log) if round.stage is Stage.RECORDING else ROUND_STATES[round.stage]}"
    if session.phase is Phase.DRAFTING:
        return "drafting, no drafter yet" if session._drafter is None else "drafting, idle"
    return "self-decoding, stopped" if session.phase is Phase.SELF_DECODING else phase


# ---- the commit log --------------------------------------------------------------------------------------------------

COMMIT_LOG_STATES = ("idle", *LOG_STATES.values())


def _log(machine: CommitLog) -> str:
    return "idle" if machine.awaited is None else LOG_STATES[type(machine.awaited)]


# ---- the drafter -----------------------------------------------------------------------------------------------------

DRAFTER_WORK = {
    effects.Draft: "drafting",
    effects.WriteRows: "writing rows",
    effects.SendProposal: "proposing",
    effects.FetchOutput: "catching up",
}
DRAFTER_STATES = (
    "new",
    "joining, fetching an object",
    "joining, fetching output",
    *(f"{each}{pausing}" for each in DRAFTER_WORK.values() for pausing in ("", ", pausing")),
)


def _drafter(machine: DrafterSession) -> str:
    if machine._joining is not None:
        wanted = machine._joining.wants()
        return f"joining, fetching {'output' if isinstance(wanted, effects.FetchOutput) else 'an object'}"
    rounds = machine._rounds
    if rounds is None:
        return "new"
    return DRAFTER_WORK[type(rounds._awaited)] + (", pausing" if rounds._paused else "")


# ---- the router ------------------------------------------------------------------------------------------------------

FENCING_STATES = ("looking", "fencing", "reading")
PAUSING_STEPS = (
    Step.CHOOSING_VERIFIER,
    Step.OPENING,
    Step.STORING_RESUME,
    Step.UPDATING,
    Step.REFRESHING,
    Step.CHOOSING_DRAFTER,
    Step.PUTTING,
    Step.READING,
    Step.STORING_COMMITTED,
    Step.PROBING,
    Step.REMINDING,
)
"""The steps in which the router waits and does the same again. Fencing waits in a timer of its own, `looking`."""


def _word(step: Step) -> str:
    return step.name.lower().replace("_", " ")


ROUTER_STATES = (
    *(_word(step) for step in Step if step is not Step.FENCING),
    *(f"{_word(step)}, pausing" for step in PAUSING_STEPS),
    *(f"fencing, {each}" for each in FENCING_STATES),
)


def _router(machine: RouterSession) -> str:
    if machine._step is Step.FENCING and machine._fencing is not None:
        return f"fencing, {machine._fencing._step.name.lower()}"
    return _word(machine._step) + (", pausing" if machine._pausing else "")


# ---- the tables ------------------------------------------------------------------------------------------------------

STATES: Mapping[type, tuple[str, ...]] = MappingProxyType(
    {
        VerifierSession: VERIFIER_STATES,
        CommitLog: COMMIT_LOG_STATES,
        DrafterSession: DRAFTER_STATES,
        RouterSession: ROUTER_STATES,
    }
)
"""The names of the states of each class of machine."""

LOG_ANSWERS = (inputs.LogAppended, inputs.LogMoved, inputs.LogFenced, inputs.LogUnanswered, inputs.LogRead)

INPUTS: Mapping[type, tuple[type, ...]] = MappingProxyType(
    {
        VerifierSession: (
            inputs.OpenReceived,
            inputs.DrafterAssigned,
            inputs.ProposalReceived,
            inputs.PolicyReceived,
            inputs.OutputRequested,
            inputs.RequestCancelled,
            inputs.TokensFetched,
            inputs.TokensUnavailable,
            inputs.Prefilled,
            inputs.PrefillFailed,
            inputs.RowsObtained,
            inputs.RowsRefused,
            inputs.RandomDrawn,
            inputs.Verified,
            inputs.SelfDecoded,
            inputs.EngineFailed,
            inputs.KvPublished,
            *LOG_ANSWERS,
            inputs.Superseded,
            inputs.EventDelivered,
            inputs.TimerFired,
            inputs.StopRequested,
        ),
        CommitLog: (*LOG_ANSWERS, inputs.TimerFired),
        DrafterSession: (
            inputs.AssignmentReceived,
            inputs.RequestCancelled,
            inputs.TokensFetched,
            inputs.TokensUnavailable,
            inputs.Drafted,
            inputs.DraftFailed,
            inputs.RowsWritten,
            inputs.VerdictReceived,
            inputs.ProposalRefused,
            inputs.ProposalUnanswered,
            inputs.OutputFetched,
            inputs.OutputUnavailable,
            inputs.TimerFired,
            inputs.StopRequested,
        ),
        RouterSession: (
            inputs.RequestSubmitted,
            inputs.LocationRequested,
            inputs.RequestWithdrawn,
            inputs.RequestCancelled,
            inputs.ProfileChanged,
            inputs.EventReceived,
            inputs.VerifierChosen,
            inputs.StateReceived,
            inputs.VerifierRefused,
            inputs.VerifierUnanswered,
            inputs.VerifierLost,
            *LOG_ANSWERS,
            inputs.TokensStored,
            inputs.StoreFailed,
            inputs.DrafterChosen,
            inputs.AssignmentTaken,
            inputs.AssignmentRefused,
            inputs.DrafterLost,
            inputs.TimerFired,
        ),
    }
)
"""The classes of input that each class of machine takes."""

_Answered = Mapping[type, frozenset[str]]
"""For each input that answers an effect: the states in which that effect may be outstanding."""


def _pairs(*rows: tuple[tuple[type, ...], tuple[str, ...]]) -> _Answered:
    return MappingProxyType({given: frozenset(states) for kinds, states in rows for given in kinds})


def _of(phase: str, *work: str) -> tuple[str, ...]:
    return tuple(f"{phase}, {each}" for each in work)


def _both(*work: str) -> tuple[str, ...]:
    return _of("drafting", *work) + _of("self-decoding", *work)


# What a round or an open has asked may still be answered when a higher epoch has ended them: "fenced", and "new".
_VERIFIER_ANSWERED = _pairs(
    ((inputs.TokensFetched, inputs.TokensUnavailable), ("opening, fetching tokens", "new")),
    ((inputs.Prefilled, inputs.PrefillFailed), ("opening, prefilling", "new")),
    ((inputs.RowsObtained, inputs.RowsRefused), ("drafting, fetching rows", "fenced")),
    ((inputs.RandomDrawn,), (*_both("drawing"), "fenced")),
    ((inputs.Verified,), ("drafting, scoring", "fenced")),
    ((inputs.SelfDecoded,), ("self-decoding, scoring", "fenced")),
    ((inputs.EngineFailed,), (*_both("scoring"), "fenced")),
    ((inputs.KvPublished,), tuple(state for state in VERIFIER_STATES[5:])),  # asked for once a round was committed
    ((inputs.LogAppended, inputs.LogMoved, inputs.LogFenced), (*_both("appending"), "fenced")),
    ((inputs.LogRead,), ("opening, reading the log", "new", *_both("reading back"), "fenced")),
    ((inputs.LogUnanswered,), ("opening, reading the log", "new", *_both("appending", "reading back"), "fenced")),
    ((inputs.EventDelivered,), tuple(state for state in VERIFIER_STATES[5:])),  # none is sent before a drafter is there
    ((inputs.TimerFired,), tuple(state for state in VERIFIER_STATES[4:] if state not in ("finished", "fenced"))),
)
_COMMIT_LOG_ANSWERED = _pairs(
    ((inputs.LogAppended, inputs.LogMoved, inputs.LogFenced), ("appending",)),
    ((inputs.LogRead,), ("reading back",)),
    ((inputs.LogUnanswered,), ("appending", "reading back")),
    ((inputs.TimerFired,), ("waiting for the log",)),
)
# One that is told to stop waits for no more than a verdict: the rest may be answered when it is "new" again.
_DRAFTER_ANSWERED = _pairs(
    ((inputs.TokensFetched, inputs.TokensUnavailable), ("joining, fetching an object", "new")),
    ((inputs.OutputFetched, inputs.OutputUnavailable), ("joining, fetching output", "catching up", "new")),
    ((inputs.Drafted,), ("drafting", "new")),
    ((inputs.DraftFailed,), ("drafting", "writing rows", "new")),
    ((inputs.RowsWritten,), ("writing rows", "new")),
    ((inputs.VerdictReceived, inputs.ProposalRefused, inputs.ProposalUnanswered), ("proposing",)),
    ((inputs.TimerFired,), tuple(f"{each}, pausing" for each in DRAFTER_WORK.values())),
)
# A loss interrupts any step, so an answer may come in any later one.
_ROUTER_ANSWERED = _pairs(
    ((inputs.TokensStored, inputs.StoreFailed), tuple(state for state in ROUTER_STATES if state != "new")),
    (
        (
            inputs.VerifierChosen,
            inputs.StateReceived,
            inputs.VerifierRefused,
            inputs.VerifierUnanswered,
            *LOG_ANSWERS,
            inputs.DrafterChosen,
            inputs.AssignmentTaken,
            inputs.AssignmentRefused,
        ),
        tuple(state for state in ROUTER_STATES if state not in ("new", "storing prompt")),
    ),
)
_ANSWERED: Mapping[type, _Answered] = MappingProxyType(
    {
        VerifierSession: _VERIFIER_ANSWERED,
        CommitLog: _COMMIT_LOG_ANSWERED,
        DrafterSession: _DRAFTER_ANSWERED,
        RouterSession: _ROUTER_ANSWERED,
    }
)
_NAMERS: Mapping[type, Callable[[Any], str]] = MappingProxyType(
    {VerifierSession: _verifier, CommitLog: _log, DrafterSession: _drafter, RouterSession: _router}
)
