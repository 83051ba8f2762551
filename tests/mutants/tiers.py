"""The tiers of the checks, cheapest first: what each runs, and how long it may take.

A tier is either a set of tests, the vectors, or a command. Of the tests those come first that are about the file that a
mutant changes, since a trial ends with the first failure.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutant import ROOT

TESTED_AS = {
    "control": "verifier",
    "fencing": "router",
    "history": "output",
    "memory": "contract",
    "profiles": "router",
    "recorded": "router",
    "segments": "journal",
    "stock": "commands",
    "table": "store",
    "verifying": "verifier",
}
"""Modules whose tests are called otherwise than the module's first word."""


@dataclass(frozen=True, slots=True)
class Tier:
    """`tests`: folders below the repository; `left_out`: files in them that measure instead of judging.

    `limit_s`: of the whole tier, on a machine that does other things too. `marks`: how what catches begins, where it is
    no test in one of the folders.
    """

    name: str
    about: str
    limit_s: float
    tests: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()

    def holds(self, test: str) -> bool:
        """Whether a test or check on record is one of this tier."""
        return test.startswith(self.marks or tuple(f"{folder}/" for folder in self.tests))

    def parts(self, files: Sequence[str]) -> list[list[str]]:
        """What pytest runs, one after the other, for a mutant of these files: the nearest tests first."""
        wanted = {Path(file).parts[0] for file in files}
        near = [folder for folder in self.tests if Path(folder).name in wanted]
        far = [folder for folder in self.tests if folder not in near]
        words = {TESTED_AS.get(stem, stem.partition("_")[0]) for stem in (Path(file).stem for file in files)}
        nearest = [
            path.relative_to(ROOT).as_posix()
            for folder in near
            for path in sorted((ROOT / folder).glob("test_*.py"))
            if path.stem.split("_")[1] in words
        ]
        left_out = [f"--ignore={file}" for file in self.left_out]
        told = [f"--ignore={file}" for file in nearest]
        return [[*part, *left_out] for part in (nearest, [*near, *told] if near else [], far) if part]


_FOLDERS = ("wire", "messages", "rules", "machines", "testing", "stores", "engines", "http", "roles", "audit")
UNIT = Tier(
    "unit",
    "tests of one module each",
    600,
    tuple(f"tests/unit/{folder}" for folder in _FOLDERS),
    ("tests/unit/stores/test_rot.py",),  # every single bit of small journals, and it takes its time
)
PROPERTY = Tier("property", "plain twins of the core", 300, ("tests/property",))
VECTORS = Tier("vectors", "`sdcp vectors` over tests/data/vectors", 60, marks=("tests/data/vectors/",))
SEEDS = Tier("seeds", "`sdcp simulate`: the first seeds", 300, marks=("seed ",))
SIMULATION = Tier(
    "simulation",
    "whole sessions over a network that fails, with peers that lie",
    400,
    ("tests/simulation",),
    ("tests/simulation/test_growth.py",),
)
SHELLS = Tier("shells", "processes of the real roles over HTTP/2 and TLS", 400, ("tests/shells",))
CONFORMANCE = Tier("conformance", "`sdcp-conformance`, which shares no code with us", 600, marks=("V-", "D-", "R-"))

TIERS = (UNIT, PROPERTY, VECTORS, SEEDS, SIMULATION, SHELLS, CONFORMANCE)
SEEDS_TRIED = 600
VECTOR_FILES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "data" / "vectors").glob("*.json"))


def conformance_command(role: str | None) -> list[str] | None:
    """How the kit is started for faults of that role, None: of any; None where it is not installed."""
    scripts = Path(sys.executable).parent
    kit = shutil.which("sdcp-conformance", path=str(scripts))
    if kit is None:
        return None
    judged = {"rules": "verifier", "wire": None}.get(role or "wire", role)
    return [kit, "run", "--subject", str(scripts / "sdcp"), *(["--role", judged] if judged else [])]
