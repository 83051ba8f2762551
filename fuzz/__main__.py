"""`python -m fuzz [TARGET...] [--seconds N] [--jobs N]`: fuzz; 0 nothing found, 1 something found, 2 cannot be done."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import logging
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fuzz.driver import fuzz
from fuzz.targets import NAMES, load


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments say; return the exit code."""
    wanted = _parser().parse_args(arguments)
    if wanted.replay is not None:
        return _replay(*wanted.replay)
    if unknown := sorted(set(wanted.targets) - set(NAMES)):
        return _refuse(f"no target {unknown[0]!r}; there are {', '.join(NAMES)}")
    if importlib.util.find_spec("atheris") is None:
        return _refuse("atheris is not installed: pip install 'atheris>=3,<4' (Linux, CPython)")
    say = partial(print, flush=True)
    try:
        found = asyncio.run(fuzz(wanted.targets or NAMES, wanted.seconds, wanted.jobs, wanted.seed, wanted.keep, say))
    except KeyboardInterrupt:
        return _refuse("stopped")
    return 1 if found else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Coverage-guided fuzzing; see fuzz/README.md.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(NAMES)}; all when none is given")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default 60)")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time (default 1)")
    parser.add_argument("--seed", type=int, default=0, help="of libFuzzer's luck (default 0: another one each time)")
    parser.add_argument("--keep", action="store_true", help="make a new, least corpus in fuzz/corpus of what was found")
    parser.add_argument("--replay", nargs=2, metavar=("TARGET", "FILE"), help="try one input, without atheris")
    return parser


def _replay(target: str, path: str) -> int:
    if target not in NAMES:
        return _refuse(f"no target {target!r}; there are {', '.join(NAMES)}")
    if not Path(path).is_file():
        return _refuse(f"{path}: there is no such file")
    logging.disable(logging.CRITICAL)
    try:
        load(target).one(Path(path).read_bytes())
    except BaseException:
        traceback.print_exc()
        return 1
    print(f"{target}: nothing found")
    return 0


def _refuse(why: str) -> int:
    print(f"fuzz: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
