"""A lease on objects of the multi-level cache (docs/mlc.md); who takes it is in the certificate, not here."""

from __future__ import annotations

from dataclasses import dataclass

from sdcp.messages.fields import TEXT, Message, array, member, uint

MAX_TTL_MS = 24 * 60 * 60 * 1000  # longer would be a leak with a date: a lease is renewed while it is needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease(Message):
    """PUT leases/{id}: the names of the objects that must not go, and for how long from receipt."""

    objects: tuple[str, ...] = member(array(TEXT))
    ttl_ms: int = member(uint(1, MAX_TTL_MS))
