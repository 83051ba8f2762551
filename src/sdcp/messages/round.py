"""The messages of a round: assignment, proposal, verdict (5.2, 6.1 to 6.3)."""

from __future__ import annotations

from dataclasses import dataclass

from sdcp.messages.contract import ACTION, HASH32, SESSION_ID, Action, Contract, Sampling
from sdcp.messages.fields import SOME_TOKENS, TEXT, TOKENS, TOKENS_OR_REF, Message, member, uint
from sdcp.messages.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment(Message):
    """PUT sessions/{id}/drafter and POST assignments: who drafts, and from where (6.1)."""

    session: bytes = member(SESSION_ID)
    epoch: int = member(uint())
    contract: Contract = member(Contract.as_member())
    verifier: str = member(TEXT)
    drafter: str = member(TEXT)
    prompt: tuple[int, ...] | str = member(TOKENS_OR_REF)
    round: int = member(uint())
    sampling: Sampling | None = member(Sampling.as_member(), optional=True)
    committed: int = member(uint())
    digest: bytes = member(HASH32)
    committed_tokens: str | None = member(TEXT, optional=True)
    m_init: int = member(uint())


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal(Message):
    """POST proposals: M tokens that extend the committed prefix of length `base` (6.2)."""

    session: bytes = member(SESSION_ID)
    epoch: int = member(uint())
    round: int = member(uint())
    drafter: str = member(TEXT)
    base: int = member(uint())
    base_digest: bytes = member(HASH32)
    tokens: tuple[int, ...] = member(SOME_TOKENS)
    q_rows: str | None = member(TEXT, optional=True)
    draft_kv: str | None = member(TEXT, optional=True)
    status: Status = member(Status.as_member())


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(Message):
    """The answer to a proposal: a accepted, tokens committed, the next limit and action (6.3, D14, D15)."""

    session: bytes = member(SESSION_ID)
    epoch: int = member(uint())
    round: int = member(uint())
    accepted: int = member(uint())
    emitted: tuple[int, ...] = member(TOKENS)
    committed: int = member(uint())
    digest: bytes = member(HASH32)
    action: Action = member(ACTION)
    m_cap: int = member(uint())
    low: int = member(uint())
    load: int = member(uint(0, 100))
