"""Runs targets under libFuzzer, each in a process of its own, and says what came of it.

Memory is checked twice: libFuzzer ends a worker that takes more than RSS_LIMIT_MIB, and a worker must not grow by more
than GROWTH_MIB between the end of its first third, when the interpreter, the corpus and libFuzzer's own tables are
there, and its end. Linux alone (`/proc`, and atheris' wheels). Not here: the targets (`fuzz.targets`).
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fuzz import corpus
from fuzz.targets import load

ROOT = Path(__file__).parents[1]
CRASHES = Path("fuzz/crashes")
RSS_LIMIT_MIB = 400
GROWTH_MIB = 32
LONGEST = 4096  # octets of an input
SLOWEST_S = 20  # of one input: what takes longer is a finding
TICK_S = 10
_STATUS = re.compile(r"#(\d+)\s+\w+\s+cov: (\d+) ft: (\d+) corp: (\d+)/")
_WRITTEN = re.compile(r"Test unit written to (\S+)")
_RAISED = re.compile(
    r"^(?:\w+\.)*\w*(?:Error|Exception|Warning|Fault|Body|Iteration|Lost)\b.*|^ERROR: libFuzzer.*", re.M
)
Say = Callable[[str], None]


@dataclass
class Run:
    """A worker's figures so far; memory in MiB."""

    target: str
    seconds: float
    begun: float = field(default_factory=time.monotonic)
    executions: int = 0
    edges: int = 0
    features: int = 0
    inputs: int = 0
    warm_mib: float | None = None
    now_mib: float = 0.0
    output: list[str] = field(default_factory=list)

    @property
    def elapsed(self) -> float:
        """Seconds since the worker was started."""
        return time.monotonic() - self.begun

    def take(self, line: str) -> None:
        """A line of libFuzzer's."""
        if found := _STATUS.search(line):
            self.executions, self.edges, self.features, self.inputs = map(int, found.groups())
        else:
            self.output = [*self.output[-400:], line]

    def measure(self, pid: int) -> None:
        """Note how much memory the worker has."""
        try:
            pages = int((Path("/proc") / str(pid) / "statm").read_text().split()[1])
        except OSError:
            return  # it has just ended
        if pages:
            self.now_mib = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
            if self.warm_mib is None and self.elapsed >= self.seconds / 3:
                self.warm_mib = self.now_mib

    def line(self) -> str:
        """The figures in one line."""
        speed = self.executions / max(self.elapsed, 0.001)
        return (
            f"{self.target}: {self.elapsed:.0f} s, {self.executions} executions, {speed:.0f}/s, {self.edges} edges, "
            f"{self.features} features, {self.inputs} inputs, {self.now_mib:.0f} MiB"
        )

    def finding(self, status: int) -> str | None:
        """One line that says what was found, or None."""
        output = "\n".join(self.output)
        if status:
            raised = _RAISED.findall(output)
            written = _WRITTEN.search(output)
            what = raised[0] if raised else f"the worker ended with status {status}"
            again = f"; again: python -m fuzz --replay {self.target} {written[1]}" if written else f"\n{output[-3000:]}"
            return f"{self.target}: FOUND {what}{again}"
        growth = self.now_mib - (self.warm_mib or self.now_mib)
        if growth > GROWTH_MIB:
            return (
                f"{self.target}: FOUND memory grew by {growth:.0f} MiB after a third of the time; {GROWTH_MIB} may be"
            )
        return None


async def fuzz(targets: Sequence[str], seconds: int, jobs: int, seed: int, keep: bool, say: Say) -> list[str]:
    """Run each target for so many seconds, `jobs` at a time; return the findings, one line each."""
    free = asyncio.Semaphore(jobs)

    async def one(target: str) -> str | None:
        async with free:
            return await _fuzz_one(target, seconds, seed, keep, say)

    return [found for found in await asyncio.gather(*map(one, targets)) if found]


async def _fuzz_one(target: str, seconds: int, seed: int, keep: bool, say: Say) -> str | None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "corpus"
        await asyncio.to_thread(_prepare, target, folder)
        run = Run(target, seconds)
        status = await _work(run, _options(target, seconds, seed), folder, say)
        found = run.finding(status)
        say(f"{run.line()}; {found or 'nothing found'}" if found is None else found)
        if keep and found is None:
            say(await _keep(target, folder, Path(place) / "least"))
    return found


def _prepare(target: str, folder: Path) -> None:
    """Begin with what is kept and with the seeds. In a thread, because seeds may need a loop of their own."""
    corpus.unpack([*corpus.read(target), *load(target).seeds()], folder)


def _options(target: str, seconds: int, seed: int) -> list[str]:
    (ROOT / CRASHES).mkdir(exist_ok=True)
    return [
        f"-max_total_time={seconds}",
        f"-seed={seed}",
        f"-max_len={LONGEST}",
        f"-timeout={SLOWEST_S}",
        f"-rss_limit_mb={RSS_LIMIT_MIB}",
        f"-artifact_prefix={CRASHES}/{target}-",
    ]


async def _work(run: Run, options: Sequence[str], folder: Path, say: Say) -> int:
    """One worker to its end; its exit status."""
    worker = await _started(run.target, [*options, str(folder)])
    reading = asyncio.create_task(_read(worker, run))
    told = run.begun
    try:
        while not reading.done():
            await asyncio.wait([reading], timeout=0.5)
            if worker.returncode is None:
                run.measure(worker.pid)
            if time.monotonic() - told >= TICK_S:
                told = time.monotonic()
                say(run.line())
        return await worker.wait()
    finally:
        if worker.returncode is None:
            worker.kill()
            if worker.stdout is not None:
                await worker.stdout.read()  # its end is not seen while anything is unread
            await worker.wait()


async def _started(target: str, arguments: Sequence[str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "fuzz.worker",
        target,
        *arguments,
        cwd=ROOT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        limit=1 << 20,
    )


async def _read(worker: asyncio.subprocess.Process, run: Run) -> None:
    assert worker.stdout is not None
    while line := await worker.stdout.readline():
        run.take(line.decode(errors="replace").rstrip())


async def _keep(target: str, found: Path, least: Path) -> str:
    """Replace the corpus by as few of the inputs as reach all that they reach."""
    await asyncio.to_thread(least.mkdir)
    run = Run(target, 0)
    worker = await _started(target, ["-set_cover_merge=1", f"-max_len={LONGEST}", str(least), str(found)])
    await _read(worker, run)
    if await worker.wait():
        return f"{target}: the corpus could not be made smaller, and stays as it was\n" + "\n".join(run.output[-5:])
    return await asyncio.to_thread(_replaced, target, found, least)


def _replaced(target: str, found: Path, least: Path) -> str:
    inputs = [path.read_bytes() for path in least.iterdir()]
    kept = corpus.write(target, inputs)
    return f"{target}: kept {kept} of {len(inputs)} inputs that cover what {len(list(found.iterdir()))} covered"
