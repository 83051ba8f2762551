"""What caught each mutant when it was last tried (`caught.json`), and the table made of it (`docs/mutants.md`).

caught.json: {name: {"of": mark of the mutant, tier: the first test or check that failed, or false where none did}}. A
tier that was not tried is absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.tiers import TIERS, Tier

CAUGHT = Path(__file__).parent / "caught.json"
TABLE = ROOT / "docs" / "mutants.md"

Found = Mapping[str, str | bool]
"""Tier to the test that catches, or False."""

HEAD = """\
# Mutants

Deliberate faults of `sdcp`, one for each behaviour that an implementer could forget, and the tiers of our checks that
catch each of them. `python -m tests.mutants` makes a copy of the package with the fault in it and runs a tier until the
first failure; `python -m tests.mutants --recorded` runs for each mutant the one test that is on record for its cheapest
tier, and fails when it passes. The faults are in `tests/mutants/faults/`, the tests on record in
`tests/mutants/caught.json`. Made by `python -m tests.mutants --write`; do not edit.
"""


def load(mutants: Sequence[Mutant]) -> dict[str, dict[str, str | bool]]:
    """What is on record of these mutants, tiers alone; results of a fault that has changed since are left out."""
    kept = json.loads(CAUGHT.read_text(encoding="utf-8")) if CAUGHT.exists() else {}
    found = {}
    for mutant in mutants:
        entry = dict(kept.get(mutant.name, {}))
        found[mutant.name] = entry if entry.pop("of", mutant.mark) == mutant.mark else {}
    return found


def save(mutants: Sequence[Mutant], found: Mapping[str, Found]) -> None:
    """Write caught.json and docs/mutants.md."""
    entries = {mutant.name: {"of": mutant.mark, **_in_order(found[mutant.name])} for mutant in mutants}
    CAUGHT.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    TABLE.write_text(table(mutants, found), encoding="utf-8")


def cheapest(found: Found) -> tuple[Tier, str] | None:
    """The first tier that catches, and the test that does."""
    for tier in TIERS:
        by = found.get(tier.name)
        if isinstance(by, str):
            return tier, by
    return None


def _in_order(found: Found) -> Found:
    return {tier.name: found[tier.name] for tier in TIERS if tier.name in found}


def table(mutants: Sequence[Mutant], found: Mapping[str, Found]) -> str:
    """docs/mutants.md as it should be."""
    lines = [HEAD, "Tiers, cheapest first:\n", *(f"- **{tier.name}**: {tier.about}" for tier in TIERS), ""]
    lines += ["In the table: ● catches it, – does not, blank: was not tried. *Wire*: shows to a peer.\n"]
    lines += [_row("mutant", "what is wrong", "breaks", "wire", *(tier.name for tier in TIERS)), "|---" * 10 + "|"]
    for mutant in mutants:
        signs = (_sign(found[mutant.name], tier) for tier in TIERS)
        wire = "yes" if mutant.wire else ""
        lines.append(_row(f"`{mutant.name}`", mutant.fault, ", ".join(mutant.breaks), wire, *signs))
    caught = sum(cheapest(found[mutant.name]) is not None for mutant in mutants)
    return "\n".join([*lines, "", f"{len(mutants)} mutants, {caught} caught.", ""])


def _sign(found: Found, tier: Tier) -> str:
    by = found.get(tier.name)
    return "" if by is None else "●" if by else "–"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
