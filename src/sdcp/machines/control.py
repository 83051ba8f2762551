"""Closing a round: truncation, the digest chain, the control step, and the commit record (5.2, 6.3 steps 7 to 9, 6.5).

Pure: what stands now and what the engine found come in, the complete commit record comes out. The record is all there
is to a commit: applying it moves the session on, writing it makes it durable, reading it back restores it (D20). The
control step (step 9) is therefore computed before the append (step 8): its result rides in the record, and nothing of
either step leaves before the append has succeeded.
Not here: the append, and anything that follows from an action.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sdcp.machines.verifier_committed import Committed
from sdcp.messages.contract import Action
from sdcp.messages.record import CommitRecord
from sdcp.rules import escalation, limit
from sdcp.rules.acceptance import Outcome, truncate
from sdcp.rules.digest import extend_all


@dataclass(frozen=True, slots=True)
class Busy:
    """When the verifier's own load makes long proposals costly (6.5.1): at `load` percent and above.

    Then m_cap is not restored, and is lowered to `cap` at most; below, it comes back by one per round.
    """

    load: int = 90
    cap: int = 4


def close_round(
    now: Committed, tokens: Sequence[int], accepted: int, additional: int | None, load: int, busy: Busy
) -> CommitRecord:
    """Return the record of a round of M = len(tokens); `accepted` is a as the rule yields it (D14)."""
    emitted, finished = _truncate(now, Outcome(accepted, additional).emitted(tokens))
    judged = len(tokens), accepted  # M and a
    if finished:  # outranks the control step and leaves counters and limit alone (D15)
        return _record(now, emitted, judged, Action.FINISH, now.counters, now.m_cap, load)
    contract = now.contract
    low = escalation.is_low(accepted, len(tokens), contract.low_ratio)
    counters, action = escalation.after_round(now.counters, low, contract, load)
    return _record(now, emitted, judged, action, counters, _m_cap(now, action, low, load, busy), load)


def close_self_decoded(now: Committed, token: int, load: int) -> CommitRecord:
    """Return the record of a self-decoding round: no verdict, counters and limit as they are (D29).

    Its action is self_decode, so that a verifier that takes over waits for a drafter (D20), or finish.
    """
    emitted, finished = _truncate(now, (token,))
    action = Action.FINISH if finished else Action.SELF_DECODE
    return _record(now, emitted, (None, None), action, now.counters, now.m_cap, load)


def _truncate(now: Committed, emitted: Sequence[int]) -> tuple[tuple[int, ...], bool]:
    return truncate(emitted, now.stop, now.history.committed, now.contract.max_new)


def _m_cap(now: Committed, action: Action, low: bool, load: int, busy: Busy) -> int:
    is_busy = load >= busy.load
    m_cap = limit.after_round(now.m_cap, now.contract.m_max, action, low, load_permits=not is_busy)
    return min(m_cap, busy.cap) if is_busy else m_cap


def _record(
    now: Committed,
    emitted: tuple[int, ...],
    judged: tuple[int, int] | tuple[None, None],
    action: Action,
    counters: escalation.Counters,
    m_cap: int,
    load: int,
) -> CommitRecord:
    proposed, accepted = judged
    return CommitRecord(
        epoch=now.epoch,
        round=now.round + 1,
        tokens=emitted,
        committed=now.history.committed + len(emitted),
        digest=extend_all(now.digest, emitted),
        proposed=proposed,
        accepted=accepted,
        action=action,
        m_cap=m_cap,
        low=counters.c,
        load=load,
        g=counters.g,
        j=counters.j,
        kv=now.kv,
    )
