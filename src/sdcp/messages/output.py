"""What leaves the verifier beside verdicts: committed output and events (5.2, 6.7, D17)."""

from __future__ import annotations

from dataclasses import dataclass

from sdcp.messages.contract import ACTION, HASH32, SESSION_ID, Action
from sdcp.messages.fields import BOOLEAN, TOKENS, Message, member, uint


@dataclass(frozen=True, slots=True, kw_only=True)
class Output(Message):
    """GET sessions/{id}/output: committed tokens at output indices `from_` and later (6.7)."""

    session: bytes = member(SESSION_ID)
    epoch: int = member(uint())
    from_: int = member(uint())
    tokens: tuple[int, ...] = member(TOKENS)
    final: bool = member(BOOLEAN)
    finish: Action | None = member(ACTION, optional=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(Message):
    """POST events: a session needs a drafter again (kinds 2, 3; 0 as D17) or has ended (4, 5)."""

    session: bytes = member(SESSION_ID)
    epoch: int = member(uint())
    kind: Action = member(ACTION)
    committed: int = member(uint())
    digest: bytes = member(HASH32)
