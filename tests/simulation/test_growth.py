"""A long session costs no more per round at its end than at its beginning: neither memory nor work (6.3, 4.2).

The bound: beyond the prompt, a verifier and a drafter together keep at most 32 octets for each round and 8 for each
committed token (two histories of four octets a token), and a fixed amount on top. Work is counted, not timed: calls of
functions, octets hashed, tokens copied out of a history, octets of the log written and read.
"""

from __future__ import annotations

import gc
import hashlib
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import pytest

import sdcp.rules.digest
import sdcp.testing
from sdcp.engines.bigram import BigramDrafter
from sdcp.machines.history import History
from sdcp.messages.contract import ContractSampling
from sdcp.testing.engines import bigram, contract_for, random_logits
from sdcp.testing.pair import Pair, Setting
from sdcp.testing.routing import LOG

V, M = 4, 2
EARLY, LATE = 1_000, 20_000
PER_ROUND, PER_TOKEN, FIXED = 32, 8, 16_384


def session(folder: Path, **members: object) -> Pair:
    """A session without end in sight, in which all is accepted: M + 1 tokens a round. Nothing looks on."""
    path = folder / f"tiny-{len(members)}"
    target = bigram(path, random_logits(V, 1))
    contract = contract_for(target, max_new=1 << 20, m_max=M, **members)
    return Pair(contract, (1,), target, [BigramDrafter(path)], Setting(watched=False))


def rounds(pair: Pair) -> int:
    """Rounds committed; without faults each is one append."""
    return pair.store.logs[LOG].version if LOG in pair.store.logs else 0


def play(pair: Pair, until: int) -> None:
    pair.run(lambda: rounds(pair) >= until, most=1_000_000)


def tokens(pair: Pair) -> int:
    return len(pair.output)


# ---- counting work ---------------------------------------------------------------------------------------------------


class Meter:
    """Counts what happens while it is on."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] += number

    def seen(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self.count(f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}")
        elif event == "c_call":
            self.count(f"{getattr(argument, '__module__', '')}.{argument.__qualname__}")


def measured(pair: Pair, count: int) -> dict[str, int]:
    """The work of the next `count` rounds, from one append to another."""
    meter, store, end = Meter(), pair.store, rounds(pair) + count
    before = store.octets_written, store.octets_read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sdcp.rules.digest, "hashlib", SimpleNamespace(sha256=_hashing(meter)))
        patch.setattr(History, "__getitem__", _copying(meter, History.__getitem__))
        patch.setattr(History, "output", _copying(meter, History.output))
        sys.setprofile(meter.seen)
        try:
            play(pair, end)
        finally:
            sys.setprofile(None)
    meter.count("octets written", store.octets_written - before[0])
    meter.count("octets read", store.octets_read - before[1])
    return dict(meter.counts)


def _hashing(meter: Meter) -> Callable[[bytes], Any]:
    def sha256(data: bytes) -> Any:
        meter.count("octets hashed", len(data))
        return hashlib.sha256(data)

    return sha256


def _copying(meter: Meter, original: Callable[..., Any]) -> Callable[..., Any]:
    def copying(*arguments: Any) -> Any:
        taken = original(*arguments)
        meter.count("tokens copied", 1 if isinstance(taken, int) else len(taken))
        return taken

    return copying


# ---- weighing memory -------------------------------------------------------------------------------------------------


def weight(*roots: object) -> int:
    """Octets of all objects that can be reached from some, code and modules apart."""
    seen: dict[int, object] = {}
    waiting = list(roots)
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, type | ModuleType | FunctionType):
            continue
        seen[id(found)] = found
        waiting += gc.get_referents(found)
    return sum(map(sys.getsizeof, seen.values()))


@dataclass(frozen=True)
class Moment:
    """What was measured after so many rounds. `blocks`: small objects of the whole process."""

    rounds: int
    tokens: int
    blocks: int
    weight: int
    work: dict[str, int]


def moment(pair: Pair) -> Moment:
    machines = [pair.verifiers[uri].machine(1) for uri in pair.verifiers]
    machines += [drafter._machine for drafter in pair.drafters.values()]
    gc.collect()
    at = rounds(pair), tokens(pair), sys.getallocatedblocks(), weight(*machines)
    return Moment(*at, measured(pair, 3))


@pytest.fixture(scope="module")
def moments(folder: Path) -> tuple[Moment, Moment]:
    pair = session(folder)
    play(pair, EARLY)
    early = moment(pair)
    play(pair, LATE)
    return early, moment(pair)


@pytest.mark.requirement("S4.2-verifier-keeps-digest", "S4.2-chain-step")
def test_a_round_is_as_much_work_at_20000_as_at_1000(moments: tuple[Moment, Moment]) -> None:
    early, late = moments
    assert (early.rounds, late.rounds) == (EARLY, LATE)
    assert late.tokens == 3 * LATE - 3
    assert early.work["octets hashed"] > 0
    assert early.work["tokens copied"] > 0
    assert early.work["octets written"] > 0
    assert late.work == early.work


@pytest.mark.requirement("S4.2-verifier-keeps-digest")
def test_what_the_machines_hold_grows_by_its_tokens_and_little_more(moments: tuple[Moment, Moment]) -> None:
    early, late = moments
    grown = late.weight - early.weight
    assert grown <= PER_ROUND * (late.rounds - early.rounds) + PER_TOKEN * (late.tokens - early.tokens)
    assert late.tokens - early.tokens == 3 * (LATE - EARLY)
    assert 4 * (late.tokens - early.tokens) < grown, "the histories were not weighed"


@pytest.mark.requirement("S6.3-leases-released")
def test_no_object_survives_its_round(moments: tuple[Moment, Moment]) -> None:
    early, late = moments
    assert abs(late.blocks - early.blocks) < (late.rounds - early.rounds) / 10  # what was measured takes some, too


def test_memory_of_the_whole_process_grows_within_the_bound(folder: Path) -> None:
    """Every allocation, wherever it was made, but those of the fake world: its store keeps the log."""
    pair = session(folder)
    play(pair, 10)
    tracemalloc.start()
    try:
        play(pair, 300)  # from here on tables and caches are warm
        first = _traced(pair)
        play(pair, 1_300)
        last = _traced(pair)
    finally:
        tracemalloc.stop()
    assert last[0] - first[0] <= PER_ROUND * 1_000 + PER_TOKEN * (last[1] - first[1]) + FIXED


def _traced(pair: Pair) -> tuple[int, int]:
    gc.collect()
    world = str(Path(sdcp.testing.__file__).parent / "*")
    ours = [tracemalloc.Filter(False, name) for name in (world, __file__, tracemalloc.__file__)]
    snapshot = tracemalloc.take_snapshot().filter_traces(ours)
    return sum(trace.size for trace in snapshot.traces), tokens(pair)


@pytest.mark.requirement("S6.3-leases-released", "S6.2-leases-until-verdict")
def test_rows_are_kept_for_one_round_only(folder: Path) -> None:
    pair = session(folder, rule=2, sampling=ContractSampling(seed=7))
    held = []
    for end in range(50, 500, 50):
        play(pair, end)
        held.append((len(pair.store.objects), len(next(iter(pair.drafters.values()))._rows)))
    assert max(held) <= (1, 1)
