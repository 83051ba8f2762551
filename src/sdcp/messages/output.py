"""What leaves the verifier beside verdicts: committed output and events (5.2, 6.7, D17)."""

from __future__ import annotations

from dataclasses import dataclass

from sdcp.messages.contract import ACTION, HASH32, SESSION_ID, Action
from sdcp.messages.fields import BOOLEAN, TOKENS, Message, member, uint


@dataclass(frozen=True, slots=True, kw_only=True)
class Output(Message):
    """GET sessions/{id}/output: committed tokens at output indices `from_` and later (6.7).

    The members after `finish` are ours (D35), totals of the session so far for a front end's accounts; a verifier that
    knows them sends them in every output: `passes` rounds committed, self-decoding ones too; `proposed` and `accepted`
    tokens over the rounds that had a proposal.
    """

    session: bytes = member(SESSION_ID)
    epoch: int = member(uint())
    from_: int = member(uint())
    tokens: tuple[int, ...] = member(TOKENS)
    final: bool = member(BOOLEAN)
    finish: Action | None = member(ACTION, optional=True)
    passes: int | None = member(uint(), optional=True)
    accepted: int | None = member(uint(), optional=True)
    proposed: int | None = member(uint(), optional=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(Message):
    """POST events: a session needs a drafter again (kinds 2, 3; 0 as D17) or has ended (4, 5)."""

    session: bytes = member(SESSION_ID)
    epoch: int = member(uint())
    kind: Action = member(ACTION)
    committed: int = member(uint())
    digest: bytes = member(HASH32)
