"""`sdcp simulate`: many sessions in simulated worlds, each from a seed, with every invariant checked at every step.

The machines are the real ones; network, cache, engines and time are fakes (`sdcp.testing.world`). For a seed that
breaks an invariant it looks for the shortest run that still does, and prints what happens in that. Without a fault the
exit code is 0, with one it is 1.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from sdcp.errors import ConfigurationError
from sdcp.machines.drafter import DrafterSession
from sdcp.machines.router import RouterSession
from sdcp.machines.verifier import VerifierSession
from sdcp.testing.lying import HONEST
from sdcp.testing.scenario import scenario_of
from sdcp.testing.shrink import Failure, attempt, shrink
from sdcp.testing.states import INPUTS, STATES, unreachable
from sdcp.testing.world import World

MACHINES = {"verifier": VerifierSession, "drafter": DrafterSession, "router": RouterSession}
SHRINK_S = 20.0
BLOCK = 25
SHOWN_LINES = 120
"""Of the shortest trace; all of it is there with --trace."""

Pair = tuple[str, str, str]
"""The name of a class of machine, of one of its states, and of a class of input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to run. `seed`: this one alone; `tokens`: sessions of exactly so many, under an ordinary contract."""

    seeds: int = 200
    start: int = 0
    seed: int | None = None
    tokens: int | None = None
    workers: int = 1
    trace: bool = False
    as_json: bool = False


@dataclass(slots=True)
class Tally:
    """What came of the runs. `digest` is over the trace digests of all seeds, in order."""

    schedules: int = 0
    steps: int = 0
    rounds: int = 0
    tokens: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    pairs: Counter[Pair] = field(default_factory=Counter)
    digests: list[str] = field(default_factory=list)
    faults: dict[int, str] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Add the runs of later seeds."""
        self.schedules += other.schedules
        self.steps += other.steps
        self.rounds += other.rounds
        self.tokens += other.tokens
        self.ends += other.ends
        self.pairs += other.pairs
        self.digests += other.digests
        self.faults |= other.faults

    @property
    def digest(self) -> str:
        """SHA-256 over the digests of the traces."""
        return hashlib.sha256("".join(self.digests).encode()).hexdigest()

    def plainest(self, tokens: int | None) -> int:
        """Return the first seed with a fault; one in which nobody lies, if there is one, shrinks best."""
        return min(self.faults, key=lambda seed: (scenario_of(seed, tokens).liars is not HONEST, seed))

    def coverage(self) -> dict[str, tuple[int, int]]:
        """Return for each machine how many of its pairs of state and input came up, and how many there can be."""
        found = {}
        for name, machine in MACHINES.items():
            possible = [
                (machine.__name__, state, given.__name__)
                for state in STATES[machine]
                for given in INPUTS[machine]
                if unreachable(machine, state, given) is None
            ]
            found[name] = (sum(pair in self.pairs for pair in possible), len(possible))
        return found


def run(order: Order) -> int:
    """Run the seeds and print what came of it. Returns the exit code; raises ConfigurationError."""
    _check(order)
    began = time.perf_counter()
    tally = Tally()
    for block in _blocks(order):
        tally.add(block)
        _progress(tally, _count(order), began)
    seconds = time.perf_counter() - began
    failure = _shortest(tally.plainest(order.tokens), order.tokens) if tally.faults else None
    if order.as_json:
        print(json.dumps(_plain(order, tally, seconds, failure)))
    else:
        _print(order, tally, seconds, failure)
    return 1 if tally.faults else 0


def _check(order: Order) -> None:
    if order.trace and order.seed is None:
        raise ConfigurationError("--trace shows one run: say which one with --seed")
    if order.trace and order.as_json:
        raise ConfigurationError("--trace is for reading; leave out --json")
    if order.workers > (os.cpu_count() or 1):
        raise ConfigurationError(f"--workers {order.workers}: this machine has {os.cpu_count() or 1} cores")


# ---- running ---------------------------------------------------------------------------------------------------------


def _count(order: Order) -> int:
    return order.seeds if order.seed is None else 1


def _blocks(order: Order) -> Iterator[Tally]:
    """The runs in blocks, in order of their seeds."""
    first = order.start if order.seed is None else order.seed
    ranges = [
        range(start, min(start + BLOCK, first + _count(order))) for start in range(first, first + _count(order), BLOCK)
    ]
    if order.workers == 1 or len(ranges) == 1:
        yield from (run_seeds(seeds, order.tokens) for seeds in ranges)
        return
    with ProcessPoolExecutor(order.workers) as pool:
        yield from pool.map(run_seeds, ranges, [order.tokens] * len(ranges))


def run_seeds(seeds: Sequence[int], tokens: int | None = None) -> Tally:
    """Run each seed; a fault does not stop the others."""
    tally = Tally()
    was_enabled = gc.isenabled()
    gc.disable()  # worlds are rings of objects; once for all of them is enough
    try:
        for seed in seeds:
            _run_seed(seed, tokens, tally)
    finally:
        if was_enabled:
            gc.enable()
        gc.collect(0)  # the young ones, which are all that came since; the modules are none of them
    return tally


def _run_seed(seed: int, tokens: int | None, tally: Tally) -> None:
    world = World(scenario_of(seed, tokens))
    try:
        world.play()
    except Exception as fault:  # whatever a machine raises is a fault, too
        tally.faults[seed] = str(fault) or type(fault).__name__
    end = world.front_end.finish
    tally.schedules += 1
    tally.steps += world.steps
    tally.rounds += len(world.watch.records)
    tally.tokens += len(world.watch.tokens)
    tally.ends[end.name.lower() if end is not None else "refused" if world.finished else "none"] += 1
    for (machine, state, given), number in world.recorder.pairs.items():
        tally.pairs[machine.__name__, state, given.__name__] += number
    tally.digests.append(world.recorder.digest())


def _shortest(seed: int, tokens: int | None) -> Failure | None:
    """Look for the shortest run that goes wrong as this seed does."""
    first = attempt(scenario_of(seed, tokens))
    if first is None:
        return None
    until = time.monotonic() + SHRINK_S
    return shrink(first, lambda: time.monotonic() < until)


# ---- telling ---------------------------------------------------------------------------------------------------------


def _progress(tally: Tally, count: int, began: float) -> None:
    if not sys.stderr.isatty() or count == 1:
        return
    rate = tally.schedules / max(time.perf_counter() - began, 1e-9)
    end = "\n" if tally.schedules == count else ""
    print(f"\r{tally.schedules}/{count} schedules, {rate:.0f}/s ", end=end, file=sys.stderr, flush=True)


def _print(order: Order, tally: Tally, seconds: float, failure: Failure | None) -> None:
    if order.trace and order.seed is not None:
        _print_trace(order.seed, order.tokens)
    ends = ", ".join(f"{number} {end}" for end, number in sorted(tally.ends.items()))
    print(f"{tally.schedules} schedules in {seconds:.1f} s, {tally.schedules / seconds:.0f} a second ({ends})")
    per = max(tally.schedules, 1)
    print(
        f"a schedule has {tally.tokens / per:.1f} tokens, {tally.rounds / per:.1f} rounds and {tally.steps / per:.0f} "
        "steps on average"
    )
    covered = ", ".join(f"{name} {met} of {possible}" for name, (met, possible) in tally.coverage().items())
    print(f"pairs of state and input: {covered}")
    print(f"trace digest {tally.digest}")
    if not tally.faults:
        print("no invariant was broken")
        return
    print(
        f"BROKEN: {len(tally.faults)} of {tally.schedules} schedules; seeds {', '.join(map(str, sorted(tally.faults)))}"
    )
    seed = tally.plainest(order.tokens)
    _print_failure(seed, tally.faults[seed], failure, order.tokens)


def _print_failure(seed: int, fault: str, failure: Failure | None, tokens: int | None) -> None:
    print(f"\nseed {seed}: {fault}")
    again = f"sdcp simulate --seed {seed} --trace" + (f" --tokens {tokens}" if tokens is not None else "")
    if failure is None:
        print(f"it did not happen again; try: {again}")
        return
    happenings = failure.happenings()
    print(f"shortest run found ({failure.left_out} faults left out, {failure.runs} runs tried):")
    print(f"  {_setting(failure)}")
    print("\n".join(f"  {each}" for each in happenings or ["nothing happens to anybody"]))
    trace = failure.trace()
    if len(trace) > SHOWN_LINES:
        print(f"  ... {len(trace) - SHOWN_LINES} lines")
    print("\n".join(trace[-SHOWN_LINES:]))
    print(f"** {failure.fault}")
    print(f"the whole run: {again}")


def _setting(failure: Failure) -> str:
    scenario, contract = failure.scenario, failure.scenario.contract
    return (
        f"rule {contract.rule}, m_max {contract.m_max}, max_new {contract.max_new}, stop {list(contract.stop)}, "
        f"low_rounds {contract.low_rounds}, low_ratio {contract.low_ratio}, "
        f"fallback {list(map(int, contract.fallback))}, "
        f"{scenario.verifiers} verifiers, drafters {', '.join(scenario.drafters)}, "
        f"a store that {'enforces' if scenario.enforces_fences else 'knows no'} fences"
    )


def _print_trace(seed: int, tokens: int | None) -> None:
    world = World(scenario_of(seed, tokens))
    try:
        world.play()
    except Exception as fault:
        world.recorder.remark("", f"BROKEN {fault}")
    print("\n".join(world.recorder.lines()))


def _plain(order: Order, tally: Tally, seconds: float, failure: Failure | None) -> dict[str, Any]:
    return {
        "order": asdict(order),
        "schedules": tally.schedules,
        "seconds": round(seconds, 3),
        "per_second": round(tally.schedules / seconds, 1),
        "steps": tally.steps,
        "rounds": tally.rounds,
        "tokens": tally.tokens,
        "ends": dict(sorted(tally.ends.items())),
        "coverage": {name: {"met": met, "possible": all_} for name, (met, all_) in tally.coverage().items()},
        "digest": tally.digest,
        "faults": [{"seed": seed, "fault": fault} for seed, fault in sorted(tally.faults.items())],
        "shortest": None if failure is None else _plain_failure(failure),
    }


def _plain_failure(failure: Failure) -> dict[str, Any]:
    return {
        "seed": failure.scenario.seed,
        "fault": failure.fault,
        "happenings": failure.happenings(),
        "left_out": failure.left_out,
        "runs": failure.runs,
        "trace": failure.trace(),
    }
