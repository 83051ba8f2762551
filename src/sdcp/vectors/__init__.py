"""Check files of vectors against this implementation: the runner behind `sdcp vectors FILE...`.

A file is `{"kind", "about", "cases": [...]}` with byte strings in hex. Integers, bytes and token lists must be equal,
probabilities within 1e-9 with the same zeros, a uniform's `value` to the last bit. Members that a kind does not know
are ignored. The kinds are the keys of `KINDS`; conformance/docs/vectors.md says what each holds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from sdcp.vectors import arithmetic, wire
from sdcp.vectors.case import Case, FormError

KINDS: dict[str, Callable[[Case], Iterator[str]]] = arithmetic.KINDS | wire.KINDS


def run(paths: Iterable[str | Path]) -> int:
    """Check the files and print what differs and the counts.

    Returns 0 when all cases pass, 1 when any fails, 2 when a file cannot be read or is not of the form.
    """
    passed = failed = 0
    for path in paths:
        try:
            for place, difference in _check_file(Path(path)):
                passed, failed = (passed, failed + 1) if difference else (passed + 1, failed)
                if difference:
                    print(f"{path} case {place}: {difference}")
        except FormError as fault:
            print(f"{path}: {fault}", file=sys.stderr)
            return 2
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def _check_file(path: Path) -> Iterator[tuple[str, str | None]]:
    """Yield for each case its number, from 1, with its name if it has one, and what differs."""
    check, cases = _read(path)
    for number, members in enumerate(cases, start=1):
        try:
            differences = list(check(Case(members)))  # all of them, so that every member is read
        except FormError as fault:
            raise FormError(f"case {number}: {fault}") from None
        except (ValueError, TypeError, RecursionError) as fault:  # the rules refuse what the case gives them
            differences = [f"is refused: {fault}"]
        yield _place(number, members), differences[0] if differences else None


def _place(number: int, members: object) -> str:
    name = members.get("name") if isinstance(members, dict) else None
    return f"{number} ({name})" if name else str(number)


def _read(path: Path) -> tuple[Callable[[Case], Iterator[str]], list[object]]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as fault:
        raise FormError(f"cannot be read: {fault.strerror}") from None
    except (ValueError, RecursionError):
        raise FormError("is not JSON") from None
    if not isinstance(content, dict) or not isinstance(content.get("cases"), list):
        raise FormError('is no file of vectors: it must be a JSON object with "kind" and a list "cases"')
    kind = content.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise FormError(f"has the kind {kind!r}; the kinds known here are {', '.join(sorted(KINDS))}")
    return KINDS[kind], content["cases"]
