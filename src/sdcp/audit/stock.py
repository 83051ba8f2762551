"""`sdcp cache ls|stat|gc`: what a cache holds, in all and one by one, and letting go of what nobody needs.

Everything goes through listings (docs/mlc.md), so it is the same for every kind of cache.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field

from rich.console import Console
from rich.table import Table

from sdcp.audit.place import Access, asked, opened
from sdcp.ports import Cache, Entry, Kind

KINDS: tuple[Kind, ...] = ("objects", "logs", "leases")
PAGE = 1000
AT_ONCE = 16


@dataclass(slots=True)
class Stock:
    """Counts and octets. `levels`: octets of objects by where they are; `leased` and `unleased`: octets of objects."""

    objects: int = 0
    octets: int = 0
    leased_objects: int = 0
    leased_octets: int = 0
    logs: int = 0
    log_octets: int = 0
    leases: int = 0
    levels: dict[str, int] = field(default_factory=dict)

    def count(self, kind: Kind, entry: Entry) -> None:
        """Take one entry in."""
        if kind == "leases":
            self.leases += 1
        elif kind == "logs":
            self.logs += 1
            self.log_octets += entry.size
        else:
            self.objects += 1
            self.octets += entry.size
            self.leased_objects += entry.leased
            self.leased_octets += entry.size * entry.leased
            self.levels[entry.level or "-"] = self.levels.get(entry.level or "-", 0) + entry.size


def ls(uri: str | None, access: Access, kinds: tuple[Kind, ...], prefix: str, as_json: bool) -> int:
    """Print entries as they come, a line each. Returns the exit code; raises ConfigurationError."""

    async def work() -> None:
        async with opened(uri, access) as (cache, _):
            if not as_json:
                print(_LINE.format(*_HEAD))
            for kind in kinds:
                async for entry in everything(cache, kind, prefix):
                    print(
                        json.dumps({"kind": kind, **asdict(entry)}) if as_json else _LINE.format(*_cells(kind, entry))
                    )

    asked(work())
    return 0


def stat(uri: str | None, access: Access, as_json: bool) -> int:
    """Print the sums. Returns the exit code; raises ConfigurationError."""
    stock = Stock()

    async def work() -> str:
        async with opened(uri, access) as (cache, prefix):
            for kind in KINDS:
                async for entry in everything(cache, kind):
                    stock.count(kind, entry)
            return prefix

    prefix = asked(work())
    if as_json:
        print(json.dumps({"cache": prefix, **asdict(stock)}))
        return 0
    table = Table(prefix, "count", "octets", box=None)
    table.add_row("objects", f"{stock.objects:,}", f"{stock.octets:,}")
    table.add_row("  leased", f"{stock.leased_objects:,}", f"{stock.leased_octets:,}")
    for level, octets in sorted(stock.levels.items()):
        table.add_row(f"  in {level}", "", f"{octets:,}")
    table.add_row("logs", f"{stock.logs:,}", f"{stock.log_octets:,}")
    table.add_row("leases", f"{stock.leases:,}", "")
    Console().print(table)
    return 0


def gc(uri: str | None, access: Access, older_s: float, dry_run: bool, as_json: bool) -> int:
    """Let expired leases go, then delete unleased objects older than `older_s`. Returns the exit code.

    What is leased meanwhile stays. An object whose age the cache does not know stays too.
    """

    async def work() -> tuple[int, int]:
        async with opened(uri, access) as (cache, _):
            if not dry_run:
                await cache.sweep()
            found = [
                entry
                async for entry in everything(cache, "objects")
                if not entry.leased and entry.age_s is not None and entry.age_s >= older_s
            ]
            if not dry_run:
                await _delete(cache, found)
            return len(found), sum(entry.size for entry in found)

    count, octets = asked(work())
    if as_json:
        print(json.dumps({"objects": count, "octets": octets, "deleted": not dry_run}))
    else:
        print(f"{'would delete' if dry_run else 'deleted'} {count:,} objects of {octets:,} octets")
    return 0


async def everything(cache: Cache, kind: Kind, prefix: str = "") -> AsyncIterator[Entry]:
    """All entries, page by page."""
    after = ""
    while True:
        page = await cache.listing(kind, prefix, after, PAGE)
        for entry in page:
            yield entry
        if len(page) < PAGE:
            return
        after = page[-1].name


async def _delete(cache: Cache, entries: list[Entry]) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def delete(entry: Entry) -> None:
        async with gate:
            await cache.delete(cache.ref_of("objects", entry.name))

    await asyncio.gather(*map(delete, entries))


_HEAD = ("kind", "octets", "age", "lease", "level", "name")
_LINE = "{:<8} {:>14} {:>9} {:<9} {:<8} {}"


def _cells(kind: Kind, entry: Entry) -> tuple[str, ...]:
    lease = "leased" if entry.leased else _seconds(entry.expires_s)
    held = f"{entry.name} -> {' '.join(entry.objects)}" if entry.objects else entry.name
    return (kind, f"{entry.size:,}", _seconds(entry.age_s), lease, entry.level or "-", held)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} s"
