"""Opening a session, its state, and a change of its sampling profile (5.2, 6.1, 6.6)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from sdcp.messages.contract import HASH32, SESSION_ID, Contract, Sampling
from sdcp.messages.fields import TEXT, TOKENS_OR_REF, Message, member, uint


class State(IntEnum):
    """Values of session-state's `state` (D18)."""

    DRAFTING = 0
    WAITING = 2
    SELF_DECODING = 3
    FINISHED = 4
    FAILED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(Message):
    """Where a session goes on after a failover (6.9, D19)."""

    round: int = member(uint())
    committed: int = member(uint())
    digest: bytes = member(HASH32)
    committed_tokens: str = member(TEXT)
    target_kv: str | None = member(TEXT, optional=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOpen(Message):
    """POST sessions (6.1). `prompt` is token ids or the URI of an object that holds them (D20)."""

    session: bytes = member(SESSION_ID)
    epoch: int = member(uint())
    contract: Contract = member(Contract.as_member())
    prompt: tuple[int, ...] | str = member(TOKENS_OR_REF)
    prompt_kv: str | None = member(TEXT, optional=True)
    commit_log: str = member(TEXT)
    resume: Resume | None = member(Resume.as_member(), optional=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState(Message):
    """Where a session stands: last round, committed length n, d[n] (5.2, D18)."""

    session: bytes = member(SESSION_ID)
    epoch: int = member(uint())
    round: int = member(uint())
    committed: int = member(uint())
    digest: bytes = member(HASH32)
    state: int | None = member(uint(), optional=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(Message):
    """POST sessions/{id}/policy: the profile of rounds `from_round` and later (6.6, D21)."""

    session: bytes = member(SESSION_ID)
    from_round: int = member(uint())
    sampling: Sampling = member(Sampling.as_member())
