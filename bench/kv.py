"""Time to the first verdict with and without KV of the prefix: `python bench/kv.py [model folder]`.

What a verifier does at a takeover, at the engine alone: compute the prefix in chunks as between rounds, or check a KV
object and take it up (D44); then score a round of four tokens. Beside these, what a session pays that begins as one
before it in the same verifier, and what publishing costs: the copy between two passes, and the file. Fetching is not
in it; the last column says from which rate on a link fetching pays.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from sdcp.engines.registry import load_target
from sdcp.messages.contract import Sampling
from sdcp.ports import PrefillJob, Target, VerifyJob, VerifyResult
from sdcp.wire.kv_object import decode_kv, encode_kv, facts_of

LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
CHUNK = 128
"""Tokens of one chunk of a prefill, as the worker has it."""
M = 4
KEY = bytes(32)
BAR = 60


@dataclass(frozen=True, slots=True)
class Row:
    """Of one length: octets of the object, and times in ms."""

    precision: str
    length: int
    octets: int
    computed: float
    loaded: float
    checked: float
    reused: float
    copied: float
    written: float

    @property
    def ratio(self) -> float:
        return self.computed / self.loaded

    @property
    def link(self) -> float:
        """MB/s of a link over which fetching and loading takes as long as computing."""
        spared = self.computed - self.loaded
        return self.octets / spared / 1e3 if spared > 0 else float("inf")


class Bench:
    """Two engines of one model: one keeps nothing, the other keeps what sessions had."""

    def __init__(self, folder: Path, precision: str, threads: int, repeats: int) -> None:
        options: dict[str, Any] = {"precision": precision, "threads": threads, "capacity": 4}
        self.engine = load_target("transformers", folder, kv_cache_bytes=0, **options)
        self.keeping = load_target("transformers", folder, kv_cache_bytes=4 << 30, **options)
        self._precision, self._repeats = precision, repeats

    def row(self, length: int) -> Row:
        """Measure one length, each way on a fresh session; the medians, and the verdicts compared."""
        luck = random.Random(length)
        prefix = [luck.randrange(self.engine.vocabulary) for _ in range(length)]
        expected = self._verdict(self.engine, b"giver", prefix)
        copied, block = timed(lambda: self.engine.export_kv(b"giver", prefix, length - 1))
        assert block is not None
        self.engine.close(b"giver")
        assert self.engine.kv_layout is not None
        facts = facts_of(self.engine.model, self.engine.kv_layout, prefix, length - 1)
        written, data = timed(lambda: bytes(encode_kv(block, facts, KEY)))
        checked = median(timed(lambda: decode_kv(data, facts, KEY))[0] for _ in range(self._repeats))

        def load() -> VerifyResult:
            self.engine.import_kv(b"taker", prefix, length - 1, decode_kv(data, facts, KEY))
            return self._verdict(self.engine, b"taker", prefix)

        other = [*prefix[:-1], prefix[-1] ^ 1]
        self._verdict(self.keeping, b"earlier", prefix)
        self.keeping.close(b"earlier")
        return Row(
            precision=self._precision,
            length=length,
            octets=len(data),
            computed=self._median(self.engine, lambda: self._verdict(self.engine, b"taker", prefix), expected),
            loaded=self._median(self.engine, load, expected),
            checked=checked,
            reused=self._median(self.keeping, lambda: self._verdict(self.keeping, b"taker", other)),
            copied=copied,
            written=written,
        )

    def _median(self, engine: Target, call: Callable[[], VerifyResult], expected: VerifyResult | None = None) -> float:
        times = []
        for _ in range(self._repeats):
            spent, result = timed(call)
            assert expected in (None, result), "KV that was loaded changed a verdict"
            engine.close(b"taker")
            times.append(spent)
        return median(times)

    def _verdict(self, engine: Target, session: bytes, prefix: list[int]) -> VerifyResult:
        length = len(prefix)
        while not engine.prefill([PrefillJob(session, prefix, length)], CHUNK)[0]:
            pass
        tokens = tuple(range(M))
        return engine.verify([VerifyJob(session, prefix, length, tokens, 1, Sampling(), (), None, M + 1)])[0]


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Run a call; return its ms and result."""
    begun = time.perf_counter()
    result = call()
    return 1e3 * (time.perf_counter() - begun), result


def table(rows: list[Row]) -> Iterator[str]:
    yield (
        f"{'precision':15} {'tokens':>6} {'MiB':>7} | {'compute':>9} {'load':>8} {'ratio':>6} {'(check)':>8} | "
        f"{'reuse':>8} | {'copy':>7} {'write':>8} | {'link MB/s':>9}"
    )
    for row in rows:
        yield (
            f"{row.precision:15} {row.length:6} {row.octets / 2**20:7.1f} | {row.computed:9.1f} {row.loaded:8.1f} "
            f"{row.ratio:6.1f} {row.checked:8.1f} | {row.reused:8.1f} | {row.copied:7.1f} {row.written:8.1f} | "
            f"{row.link:9.0f}"
        )


def figure(rows: list[Row]) -> Iterator[str]:
    """Bars of time to the first verdict, on one scale for each precision."""
    for precision in dict.fromkeys(row.precision for row in rows):
        those = [row for row in rows if row.precision == precision]
        scale = BAR / max(row.computed for row in those)
        yield f"{precision}: time to the first verdict, computed (=) and loaded (#)"
        for row in those:
            yield f"{row.length:6} {'=' * max(1, round(row.computed * scale))} {row.computed:.0f} ms"
            yield f"{'':6} {'#' * max(1, round(row.loaded * scale))} {row.loaded:.0f} ms"


def break_even(rows: list[Row]) -> Iterator[str]:
    for precision in dict.fromkeys(row.precision for row in rows):
        winning = [row.length for row in rows if row.precision == precision and row.ratio > 1]
        yield f"{precision}: loading is quicker from {min(winning)} tokens on" if winning else f"{precision}: never"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=Path("models/SmolLM2-135M-Instruct"))
    parser.add_argument("--precision", action="append", help="default: packed-float16 and float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="those beyond the context are left out")
    parser.add_argument("--json", type=Path, help="write the figures there")
    given = parser.parse_args()
    rows: list[Row] = []
    for precision in given.precision or ("packed-float16", "float32"):
        bench = Bench(given.model, precision, given.threads, given.repeats)
        context = bench.engine.context or max(given.lengths)
        lengths = sorted({min(length, context - M - 1) for length in given.lengths})
        bench.row(lengths[0])  # what is slow once only
        for length in lengths:
            rows.append(bench.row(length))
            print(list(table(rows[-1:]))[-1], flush=True)
    print("\nms; load = check, take up and score\n")
    for line in (*table(rows), "", *figure(rows), "", *break_even(rows)):
        print(line)
    if given.json:
        given.json.write_text(json.dumps([asdict(row) | {"ratio": row.ratio} for row in rows], indent=1))


if __name__ == "__main__":
    main()
