"""`sdcp log show|verify`: what a commit log says, and whether it can be true.

Not here: the audit itself (`sdcp.audit.chain`, `sdcp.audit.greedy`) and where logs are (`sdcp.audit.place`).
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sdcp.audit.chain import Findings, audit, read
from sdcp.audit.greedy import differences, wrong
from sdcp.audit.place import Access, asked, opened
from sdcp.audit.session import MANIFEST, Session, of_file, of_manifest, records, session_of
from sdcp.check import Difference
from sdcp.errors import ConfigurationError, ProblemError
from sdcp.machines.reader import Entry
from sdcp.messages.record import CommitRecord
from sdcp.ports import Cache, LogDamagedError
from sdcp.wire.problem import to_json

COLUMNS = ("#", "octet", "record", "epoch", "round", "M", "a", "tokens", "n", "action", "m_cap", "g", "j", "digest")
SHOWN_TOKENS = 6
SHOWN_DIGEST = 8
WIDEST = 1000


def show(uri: str, access: Access, as_json: bool) -> int:
    """Print a log. Returns 0, or 1 when a record cannot be read; raises ConfigurationError."""
    log = asked(_fetched(uri, access, None, False))
    if log.ref.rpartition("/")[2].startswith(MANIFEST):
        return max(_show_manifest(log.ref, log.data), _say_damage(log))
    findings = read(log.data)
    if as_json:
        for index, entry in enumerate(findings.entries):
            print(json.dumps(_as_json(index, entry)))
    else:
        _print_whole(_table(findings))
    return max(_say_fault(log, findings), _say_damage(log))


def verify(uri: str, access: Access, opening: Path | None, model: Path | None, as_json: bool) -> int:
    """Audit a log. Returns 0, or 1 when something in it cannot be true; raises ConfigurationError."""
    log = asked(_fetched(uri, access, opening, True))
    session = log.session
    assert session is not None
    findings = audit(log.data, session.contract, session.prompt)
    found = differences(model, session.contract, session.prompt, findings.output) if model else None
    bad = wrong(found or [])
    if as_json:
        print(json.dumps(_report(log, findings, found)))
        return 1 if findings.fault or bad or log.damage else 0
    print(
        f"{len(findings.commits)} rounds in {len(findings.entries)} records commit {len(findings.output)} tokens; "
        f"d[{len(findings.output)}] = {findings.digest.hex()}"
    )
    if found is not None:
        for each in found:
            print(f"token {each.index}: {each.token}, plain decoding {each.plain}, gap {each.gap:.2e}")
        print(f"plain greedy decoding agrees but for {len(found) - len(bad)} near ties and {len(bad)} wrong tokens")
    return max(_say_fault(log, findings), _say_damage(log), 1 if bad else 0)


@dataclass(frozen=True, slots=True)
class _Log:
    """A log's octets: all of them, or, with `damage` said, those before it (D47)."""

    ref: str
    data: bytes
    damage: str | None
    session: Session | None


async def _fetched(uri: str, access: Access, opening: Path | None, needs_session: bool) -> _Log:
    async with opened(uri, access) as (cache, ref):
        if not cache.allows_log(ref):
            raise ConfigurationError(f"{uri}: is not the URI of a log, which ends in /logs/NAME")
        data, damage = await _octets(cache, ref)
        session = None
        if needs_session:
            session = of_file(opening) if opening else await of_manifest(cache, ref)
        return _Log(ref, data, damage, session)


async def _octets(cache: Cache, ref: str) -> tuple[bytes, str | None]:
    try:
        found = await cache.read_log(ref)
    except LogDamagedError as damage:
        return damage.data, f"{damage}; the {damage.intact} octets before that are intact"
    if found.etag is None:
        raise ConfigurationError(f"{ref}: there is no such log")
    return found.data, None


def _show_manifest(ref: str, data: bytes) -> int:
    """One JSON object a record, also without --json: a manifest has no columns.

    Into the first goes the whole prompt beside the contract: as a file it is good for --opening.
    """
    try:
        manifest = list(records(data))
        plain: list[Any] = [to_json(record.to_plain()) for record in manifest]
        plain[:1] = [{**first, "prompt": session_of(manifest).prompt} for first in plain[:1]]
    except (ProblemError, ValueError) as fault:
        print(f"{ref}: {getattr(fault, 'detail', fault)}", file=sys.stderr)
        return 1
    for each in plain:
        print(json.dumps(each))
    return 0


def _say_fault(log: _Log, findings: Findings) -> int:
    fault = findings.fault
    if fault is None:
        return 0
    print(f"{log.ref}: record {fault.index} at octet {fault.start} is bad: {fault.reason}", file=sys.stderr)
    return 1


def _say_damage(log: _Log) -> int:
    if log.damage is None:
        return 0
    print(f"{log.ref}: {log.damage}", file=sys.stderr)
    return 1


def _table(findings: Findings) -> Table:
    table = Table(*COLUMNS, box=None)
    for index, entry in enumerate(findings.entries):
        record = entry.record
        if not isinstance(record, CommitRecord):
            table.add_row(str(index), str(entry.start), "fence", str(record.epoch))
            continue
        tokens = " ".join(map(str, record.tokens[:SHOWN_TOKENS])) + (
            " ..." if len(record.tokens) > SHOWN_TOKENS else ""
        )
        action = "" if record.action is None else record.action.name.lower()
        cells = (record.epoch, record.round, record.proposed, record.accepted, tokens, record.committed, action)
        tail = (record.m_cap, record.g, record.j, record.digest.hex()[:SHOWN_DIGEST])
        kind = "void" if entry.void else "commit"
        table.add_row(*(_cell(each) for each in (index, entry.start, kind, *cells, *tail)))
    return table


def _print_whole(table: Table) -> None:
    """In a terminal as wide as that is; in a file or a pipe nothing is cut."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=Console(width=WIDEST).measure(table).maximum)
    console.print(table)


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def _as_json(index: int, entry: Entry) -> dict[str, Any]:
    kind = "commit" if isinstance(entry.record, CommitRecord) else "fence"
    members: Any = to_json(entry.record.to_plain())
    return {"index": index, "octet": entry.start, "record": kind, "void": entry.void, **members}


def _report(log: _Log, findings: Findings, found: list[Difference] | None) -> dict[str, Any]:
    fault = findings.fault
    return {
        "log": log.ref,
        "damage": log.damage,
        "records": len(findings.entries),
        "rounds": len(findings.commits),
        "committed": len(findings.output),
        "digest": findings.digest.hex(),
        "ended": findings.ended.name.lower() if findings.ended else None,
        "fault": None if fault is None else {"index": fault.index, "octet": fault.start, "reason": fault.reason},
        "near_ties": None if found is None else len(found) - len(wrong(found)),
        "wrong": None if found is None else [each.index for each in wrong(found)],
    }
