"""What a role of the same host and `sdcp cache` say to each other about segments of shared memory (D40).

A ticket is had over mutual TLS; requests and replies are datagrams of the Unix socket that it names, each with at most
one descriptor beside it. An identifier of the client's tells which reply is to which request.
"""

from __future__ import annotations

from dataclasses import dataclass

from sdcp.messages.fields import TEXT, Kind, Message, Plain, array, member, octets, uint
from sdcp.messages.lease import MAX_TTL_MS

TICKET_OCTETS = 16

PUT = "put"
GET = "get"
LEASE = "lease"
RELEASE = "release"
DELETE = "delete"
_WORDS = (PUT, GET, LEASE, RELEASE, DELETE)


def _word(value: Plain) -> str:
    if value not in _WORDS:
        raise ValueError(f"one of {', '.join(_WORDS)}")
    return str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket(Message):
    """POST host-memory: the path of the socket, and what its first datagram must be; for one use, soon."""

    path: str = member(TEXT)
    ticket: bytes = member(octets(TICKET_OCTETS))


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRequest(Message):
    """PUT the segment beside this, of `size` octets, as object `name`; GET object `name`, of at most `size` octets;

    LEASE `objects` for `ttl_ms` under `name`; RELEASE the lease `name`; DELETE object `name`.
    """

    id: int = member(uint())
    do: str = member(Kind(_word))
    name: str = member(TEXT)
    size: int | None = member(uint(), optional=True)
    objects: tuple[str, ...] | None = member(array(TEXT), optional=True)
    ttl_ms: int | None = member(uint(1, MAX_TTL_MS), optional=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentReply(Message):
    """The status that the same request would have over HTTP; with a segment beside it, its `size`."""

    id: int = member(uint())
    status: int = member(uint(200, 599))
    size: int | None = member(uint(), optional=True)
    detail: str | None = member(TEXT, optional=True)
