"""What a cache tells of what it keeps (docs/mlc.md): for routers that have lost their memory, and for operators."""

from __future__ import annotations

from dataclasses import dataclass

from sdcp.messages.fields import BOOLEAN, TEXT, Message, array, member, uint

MOST_ENTRIES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedEntry(Message):
    """One object, log or lease; `sdcp.ports.Entry` says what its members mean. Times in milliseconds."""

    name: str = member(TEXT)
    size: int = member(uint())
    version: int | None = member(uint(), optional=True)
    owner: str | None = member(TEXT, optional=True)
    age_ms: int | None = member(uint(), optional=True)
    leased: bool | None = member(BOOLEAN, optional=True)
    expires_ms: int | None = member(uint(), optional=True)
    objects: tuple[str, ...] | None = member(array(TEXT), optional=True)
    level: str | None = member(TEXT, optional=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Message):
    """The answer to GET objects, GET logs, GET leases: in the order of their names, at most MOST_ENTRIES."""

    entries: tuple[ListedEntry, ...] = member(array(ListedEntry.as_member()))
