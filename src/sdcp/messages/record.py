"""Records of a commit log (6.3 step 8, 6.8, D20): a CBOR sequence of commit and fence records."""

from __future__ import annotations

from dataclasses import dataclass

from sdcp.messages.contract import ACTION, HASH32, Action
from sdcp.messages.fields import TEXT, TOKENS, Message, Plain, member, uint


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceRecord(Message):
    """Carries only an epoch: appends of a lower epoch must fail after it (6.8)."""

    epoch: int = member(uint())


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord(Message):
    """One committed round. The members after `digest` are ours, for takeover and replay of verdicts (D20, D39).

    `proposed` (M) and `accepted` are absent in a self-decoding round, which has no verdict (D29). `kv`: the URI of a
    target KV object that covers a part of what is committed, from its beginning (D44).
    """

    epoch: int = member(uint())
    round: int = member(uint())
    tokens: tuple[int, ...] = member(TOKENS)
    committed: int = member(uint())
    digest: bytes = member(HASH32)
    proposed: int | None = member(uint(), optional=True)
    accepted: int | None = member(uint(), optional=True)
    action: Action | None = member(ACTION, optional=True)
    m_cap: int | None = member(uint(), optional=True)
    low: int | None = member(uint(), optional=True)
    load: int | None = member(uint(0, 100), optional=True)
    g: int | None = member(uint(), optional=True)
    j: int | None = member(uint(), optional=True)
    kv: str | None = member(TEXT, optional=True)


Record = CommitRecord | FenceRecord


def parse_record(value: Plain) -> Record:
    """Read one record; a map with a `round` is a commit record. Raises MalformedBody."""
    if isinstance(value, dict) and "round" in value:
        return CommitRecord.parse(value)
    return FenceRecord.parse(value)
