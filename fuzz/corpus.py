"""The corpus in the repository: for each target `corpus/TARGET.hex`, and `corpus/TARGET-found.hex` for what was found.

One input a line, in hex; a line that begins with `#` says what the next one was. The first file is made by the driver
(`--keep`), as few inputs as reach what all of them reach; the second is written by hand and never made smaller.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha1
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"
MOST_INPUTS = 200
MOST_OCTETS = 100 * 1024  # of a target, twice that in hex


def read(target: str) -> list[bytes]:
    """Every input that is kept for a target, found ones too."""
    return [*_lines(FOLDER / f"{target}.hex"), *read_found(target)]


def read_found(target: str) -> list[bytes]:
    """The inputs that were findings once."""
    return _lines(FOLDER / f"{target}-found.hex")


def _lines(path: Path) -> list[bytes]:
    if not path.exists():
        return []
    return [bytes.fromhex(line) for line in path.read_text().splitlines() if not line.startswith("#")]


def write(target: str, inputs: Iterable[bytes]) -> int:
    """Keep inputs, the shortest first, as many as there is room for; return how many."""
    kept: list[bytes] = []
    size = 0
    for each in sorted(set(inputs), key=lambda octets: (len(octets), octets)):
        size += len(each)
        if len(kept) == MOST_INPUTS or size > MOST_OCTETS:
            break
        kept.append(each)
    (FOLDER / f"{target}.hex").write_text("".join(f"{each.hex()}\n" for each in kept))
    return len(kept)


def unpack(inputs: Iterable[bytes], folder: Path) -> None:
    """Write inputs as files, which is what libFuzzer reads."""
    folder.mkdir(parents=True, exist_ok=True)
    for each in inputs:
        (folder / sha1(each).hexdigest()).write_bytes(each)
