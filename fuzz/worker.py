"""One target under libFuzzer: `python -m fuzz.worker TARGET [libFuzzer options] [folders]`. The driver starts it.

Not here: what the figures mean (`fuzz.driver`), and the corpus in the repository (`fuzz.corpus`).
"""

from __future__ import annotations

import gc
import logging
import shlex
import sys
from random import Random

import atheris


def main() -> None:
    """Instrument the product, load the target, and fuzz until libFuzzer ends the process."""
    logging.disable(logging.CRITICAL)
    with atheris.instrument_imports(include=["sdcp"]):
        from fuzz.targets import load

        target = load(sys.argv[1])

    def mutated(data: bytes, longest: int, seed: int) -> bytes:
        return target.mutate(data, Random(seed), atheris.Mutate)[:longest]

    gc.collect()
    gc.freeze()
    # A merge starts workers of its own, and libFuzzer gives the first argument to a shell for that.
    again = shlex.join([sys.executable, "-m", "fuzz.worker", sys.argv[1]])
    atheris.Setup([again, *sys.argv[2:]], target.one, custom_mutator=mutated)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
