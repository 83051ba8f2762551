"""A mutant: one deliberate fault of `src/sdcp`, as an exact replacement of text (`faults/*.toml`).

    name      kebab-case, unique
    breaks    ids of the requirements (spec/requirements.toml) and decisions (docs/decisions.md) that it breaks
    wire      whether it shows on the wire to a peer that plays the other roles
    fault     one sentence
    role      (the name of its file) whose fault it is: verifier, drafter, router, or rules and wire, which several have
    file      below src/sdcp; `before` stands in it exactly once and is replaced by `after`
    also      further replacements, where a fault needs more than one: maps of file, before, after

Not here: running anything against it (`trial`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "sdcp"
FAULTS = Path(__file__).parent / "faults"


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement in a file below src/sdcp."""

    file: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """One deliberate fault; see the head of this module. `edits`: `file`, `before` and `after`, then `also`."""

    name: str
    breaks: tuple[str, ...]
    wire: bool
    fault: str
    role: str
    edits: tuple[Edit, ...]

    @property
    def mark(self) -> str:
        """A short digest of what it changes: results of another fault of the same name do not count."""
        return sha256(repr(self.edits).encode()).hexdigest()[:12]

    def texts(self, source: Path = SOURCE) -> dict[str, str]:
        """Return the changed files by path. ValueError where a `before` does not stand in its file exactly once."""
        texts: dict[str, str] = {}
        for edit in self.edits:
            text = texts.get(edit.file) or (source / edit.file).read_text(encoding="utf-8")
            found = text.count(edit.before)
            if found != 1:
                raise ValueError(
                    f"{self.name}: its `before` stands {found} times in {edit.file}: {edit.before.strip()!r}"
                )
            texts[edit.file] = text.replace(edit.before, edit.after)
        return texts


def read() -> list[Mutant]:
    """All mutants, in the order of their files."""
    return [
        _mutant(path.stem, **entry)
        for path in sorted(FAULTS.glob("*.toml"))
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    ]


def _mutant(
    role: str,
    *,
    name: str,
    breaks: Iterable[str],
    wire: bool,
    fault: str,
    file: str,
    before: str,
    after: str,
    also: Iterable[dict[str, Any]] = (),
) -> Mutant:
    edits = (Edit(file, before, after), *(Edit(**each) for each in also))
    return Mutant(name, tuple(breaks), wire, fault, role, edits)


def known_ids() -> set[str]:
    """The ids of all requirements and decisions."""
    ledger = tomllib.loads((ROOT / "spec" / "requirements.toml").read_text(encoding="utf-8"))
    decisions = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    return {entry["id"] for entry in ledger["requirement"]} | set(
        re.findall(r"^- \*\*(D\d+a?)\b", decisions, re.MULTILINE)
    )
