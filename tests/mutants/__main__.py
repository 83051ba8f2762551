"""`python -m tests.mutants [NAME...]`: is every deliberate fault caught, and by which tier?

NAME may be a pattern as of file names. Without --tier all tiers are tried. Exit code 1 when a mutant is caught by no
tier, now or on record, or when a trial taught nothing. See tests/mutants/__init__.py.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from dataclasses import replace
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: a process that is forked must have one thread

from _pytest.config import default_plugins

from tests.mutants import records
from tests.mutants.mutant import Mutant, read
from tests.mutants.tiers import CONFORMANCE, TIERS, Tier
from tests.mutants.trial import CAUGHT, HANGS, PLUGINS, SKIPPED, SURVIVED, Outcome, Runner, Trial

IMPORTED_ONCE = (
    *PLUGINS,
    *(f"_pytest.{name}" for name in default_plugins),
    *("numpy.typing", "hypothesis.strategies", "cryptography.x509", "httpx", "cbor2"),
)


def main() -> int:
    """Return the exit code."""
    arguments = _arguments()
    mutants = read()
    chosen = [mutant for mutant in mutants if _is_named(mutant, arguments.names)]
    if not chosen:
        print("no mutant has such a name", file=sys.stderr)
        return 2
    for name in IMPORTED_ONCE:
        import_module(name)
    with TemporaryDirectory(prefix="mutants-") as folder:
        runner = Runner(Path(folder), arguments.jobs)
        if arguments.recorded:
            return _check_recorded(runner, chosen, records.load(mutants))
        return _try(runner, mutants, chosen, arguments)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to try; all by default")
    parser.add_argument("--tier", action="append", choices=[tier.name for tier in TIERS], help="only this tier")
    parser.add_argument("--recorded", action="store_true", help="only the test on record for the cheapest tier")
    parser.add_argument("--missing", action="store_true", help="only what is not on record yet")
    parser.add_argument("--write", action="store_true", help="write caught.json and docs/mutants.md")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--jobs", type=int, default=1, choices=(1, 2), help="processes at once")
    return parser.parse_args()


def _is_named(mutant: Mutant, names: list[str]) -> bool:
    return not names or any(fnmatchcase(mutant.name, name) for name in names)


# -- whole tiers -------------------------------------------------------------------------------------------------------


def _try(runner: Runner, mutants: list[Mutant], chosen: list[Mutant], arguments: argparse.Namespace) -> int:
    found = records.load(mutants)
    tiers = [tier for tier in TIERS if not arguments.tier or tier.name in arguments.tier]
    trials = [
        Trial(mutant, tier)
        for tier in tiers
        for mutant in chosen
        if not (arguments.missing and tier.name in found[mutant.name]) and (mutant.wire or tier is not CONFORMANCE)
    ]
    faulty: dict[tuple[str, str], Outcome] = {}
    again: list[Trial] = []

    def done(trial: Trial, outcome: Outcome) -> None:
        assert trial.mutant is not None
        _tell(trial, outcome)
        if outcome.status in (CAUGHT, SURVIVED):
            found[trial.mutant.name][trial.tier.name] = outcome.by if outcome.status == CAUGHT else False
            faulty.pop((trial.mutant.name, trial.tier.name), None)
        elif outcome.status != SKIPPED:
            faulty[trial.mutant.name, trial.tier.name] = outcome
        test = outcome.by.partition("[")[0]
        if outcome.status == HANGS and trial.tier.holds(test) and test not in trial.without:  # one that fails is better
            again.append(replace(trial, without=(*trial.without, test)))
        if arguments.write:
            records.save(mutants, found)

    unsound: set[str] = set()
    while trials:
        runner.run(trials, done)
        unsound |= _unsound(runner, tiers, {str(found[each.name].get(tier.name)) for each in chosen for tier in tiers})
        trials = again + [
            Trial(mutant, tier, without=tuple(sorted(unsound)))
            for tier in tiers
            for mutant in chosen
            if found[mutant.name].get(tier.name) in unsound
        ]
        again = []
    survivors = [mutant.name for mutant in chosen if records.cheapest(found[mutant.name]) is None]
    _report(chosen, found, survivors, as_json=arguments.json)
    return 1 if survivors or faulty else 0


def _unsound(runner: Runner, tiers: list[Tier], killers: set[str]) -> set[str]:
    """Those tests that fail without any fault too: they catch nothing."""
    failing: set[str] = set()

    def done(trial: Trial, outcome: Outcome) -> None:
        if outcome.status != SURVIVED:
            _tell(trial, outcome)
            failing.update(outcome.by.splitlines() if outcome.status == CAUGHT else ())

    runner.run([trial for tier in tiers for trial in _without_fault(tier, killers)], done)
    return failing


def _without_fault(tier: Tier, killers: set[str]) -> list[Trial]:
    tests = tuple(sorted(killer for killer in killers if tier.holds(killer)))
    return [Trial(None, tier, tests, fail_fast=False)] if tests else []


def _tell(trial: Trial, outcome: Outcome) -> None:
    name = trial.mutant.name if trial.mutant else "(no fault)"
    print(
        f"{outcome.seconds:7.1f} s  {trial.tier.name:11} {name:38} {outcome.status:9} {outcome.by}",
        file=sys.stderr,
        flush=True,
    )


def _report(
    chosen: list[Mutant],
    found: dict[str, dict[str, str | bool]],
    survivors: list[str],
    *,
    as_json: bool,
) -> None:
    if as_json:
        print(
            json.dumps({"mutants": {each.name: found[each.name] for each in chosen}, "survivors": survivors}, indent=1)
        )
        return
    print(f"{'':38} " + " ".join(f"{tier.name:11}" for tier in TIERS))
    for mutant in chosen:
        words = (_word(found[mutant.name].get(tier.name)) for tier in TIERS)
        print(f"{mutant.name:38} " + " ".join(f"{word:11}" for word in words))
    counts = Counter(tier.name for tier in TIERS for each in chosen if found[each.name].get(tier.name))
    print(f"{len(chosen)} mutants; caught by " + ", ".join(f"{name} {count}" for name, count in counts.items()))
    print(f"survive: {', '.join(survivors)}" if survivors else "all are caught")


def _word(by: str | bool | None) -> str:
    return "" if by is None else "caught" if by else "-"


# -- what is on record -------------------------------------------------------------------------------------------------


def _check_recorded(runner: Runner, chosen: list[Mutant], found: dict[str, dict[str, str | bool]]) -> int:
    """Whether the recorded test of each mutant still fails with it, and passes without any."""
    began = time.monotonic()
    killers = {mutant.name: records.cheapest(found[mutant.name]) for mutant in chosen}
    wrong = [
        f"{name}: nothing is on record; run: python -m tests.mutants {name} --write"
        for name in killers
        if not killers[name]
    ]
    trials = [Trial(mutant, killer[0], (killer[1],)) for mutant in chosen if (killer := killers[mutant.name])]
    tests = {test for trial in trials for test in trial.tests}
    sound = [trial for tier in TIERS for trial in _without_fault(tier, tests)]

    def done(trial: Trial, outcome: Outcome) -> None:
        wanted = CAUGHT if trial.mutant else SURVIVED
        if outcome.status not in (wanted, SKIPPED):
            _tell(trial, outcome)
            name = trial.mutant.name if trial.mutant else f"{trial.tier.name} tests without any fault"
            wrong.append(f"{name}: {outcome.status} ({', '.join(trial.tests) if trial.mutant else outcome.by})")

    runner.run([*sound, *trials], done)
    print(f"{len(trials)} mutants, each by the test on record, in {time.monotonic() - began:.0f} s")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
