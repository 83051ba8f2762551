"""What an instance reports of itself (5.2, 6.1, D7)."""

from __future__ import annotations

from dataclasses import dataclass

from sdcp.messages.contract import HASH32
from sdcp.messages.fields import TEXT, Message, member, uint

DRAFTER = 1
VERIFIER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Status(Message):
    """PUT instances/{id}/status. `base`, `model` and `tokenizer` are ours (D7); load in percent, ttl in ms."""

    instance: str = member(TEXT)
    role: int = member(uint(1, 2))
    load: int = member(uint(0, 100))
    queue: int = member(uint())
    accept_milli: int | None = member(uint(0, 1000), optional=True)
    cache_mbps: int | None = member(uint(), optional=True)
    ttl_ms: int = member(uint())
    base: str | None = member(TEXT, optional=True)
    model: bytes | None = member(HASH32, optional=True)
    tokenizer: bytes | None = member(HASH32, optional=True)
