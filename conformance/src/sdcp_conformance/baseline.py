"""Expected failures: one check id a line, `#` begins a comment. Strict: one that passes must be taken out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from sdcp_conformance.runner import FAILED, PASSED, Result


class BaselineError(Exception):
    """The file cannot be read, or names a check that does not exist."""


def read(path: Path, known: Collection[str]) -> frozenset[str]:
    """The ids of a baseline file. Raises BaselineError."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as fault:
        raise BaselineError(f"--baseline {path}: cannot be read: {getattr(fault, 'strerror', None) or fault}") from None
    ids = [line.partition("#")[0].strip() for line in lines]
    found = [each for each in ids if each]
    for number, each in enumerate(ids, start=1):
        if each and each not in known:
            raise BaselineError(f"--baseline {path}: line {number}: there is no check {each}")
    return frozenset(found)


@dataclass(frozen=True)
class Verdict:
    """`unexpected`: failures that no baseline names. `stale`: entries that passed."""

    unexpected: tuple[Result, ...]
    stale: tuple[Result, ...]

    @property
    def exit_code(self) -> int:
        """0 when all is as expected."""
        return 1 if self.unexpected or self.stale else 0


def judge(results: Sequence[Result], expected: Collection[str]) -> Verdict:
    """Hold results against a baseline."""
    return Verdict(
        tuple(each for each in results if each.outcome == FAILED and each.check.id not in expected),
        tuple(each for each in results if each.outcome == PASSED and each.check.id in expected),
    )
