"""Records as verifiers and routers write them (6.8, D20)."""

from __future__ import annotations

from sdcp.messages.record import CommitRecord, FenceRecord


def commit(epoch: int, round_: int = 1, tokens: int = 3) -> bytes:
    return CommitRecord(
        epoch=epoch, round=round_, tokens=tuple(range(tokens)), committed=round_ * tokens, digest=bytes(32)
    ).encode()


def fence(epoch: int) -> bytes:
    return FenceRecord(epoch=epoch).encode()
