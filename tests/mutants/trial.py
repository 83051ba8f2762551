"""One run of a tier against one mutant: a copy of the package with the fault in it, and a process that imports it.

The process is forked from this one, which has imported everything but `sdcp`; the copy stands first on `sys.path`, and
on PYTHONPATH for the processes that tests start, so it goes before the installed package. Both are looked at: a trial
that ran anything else says so and counts nothing.

A mutant is *caught* when a test fails. Tests that cannot be collected, or a process that ends by itself, are *broken*:
nothing was learned. A test that runs for longer than `TEST_S` fails for that; one that has to fail so *hangs*.
"""

from __future__ import annotations

import compileall
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import pytest

from tests.mutants.mutant import ROOT, SOURCE, Mutant
from tests.mutants.tiers import (
    CONFORMANCE,
    SEEDS,
    SEEDS_TRIED,
    SHELLS,
    VECTOR_FILES,
    VECTORS,
    Tier,
    conformance_command,
)

TEST_S = 30.0
MEMORY = 4 << 30
CAUGHT, SURVIVED, HANGS, BROKEN, SKIPPED = "caught", "survived", "hangs", "broken", "skipped"
PLUGINS = ("pytest_asyncio.plugin", "_hypothesis_pytestplugin")
WHERE = "import sdcp; print(sdcp.__file__)"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trial showed. `by`: the test or check that failed first, or why nothing was learned."""

    status: str
    by: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Trial:
    """A tier against a mutant (None: the package as it is); `tests` are run instead of the whole tier, if given.

    Without `fail_fast` all that fails is told, a line each. `without`: tests that are not run.
    """

    mutant: Mutant | None
    tier: Tier
    tests: tuple[str, ...] = ()
    fail_fast: bool = True
    without: tuple[str, ...] = ()


def _linked(source: str, target: str) -> None:
    """A link takes no time, where both are in one file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


class Runner:
    """Runs trials below `folder`, at most `jobs` at once, against the package as it is when this is made."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self._folder = folder
        self._jobs = jobs
        self._package = folder / "unchanged" / "sdcp"
        shutil.copytree(SOURCE, self._package)
        compileall.compile_dir(self._package, quiet=2)  # once, not in every process

    def run(self, trials: Iterable[Trial], done: Callable[[Trial, Outcome], None]) -> None:
        """Run all; `done` is told of each as it ends."""
        running: dict[int, _Running] = {}
        waiting = list(enumerate(trials))
        while waiting or running:
            while waiting and len(running) < self._jobs:
                number, trial = waiting.pop(0)
                try:
                    started = self._start(number, trial)
                except ValueError as fault:
                    done(trial, Outcome(BROKEN, str(fault)))
                else:
                    running[started.pid] = started
            for pid in [pid for pid, each in running.items() if each.over()]:
                ended = running.pop(pid)
                done(ended.trial, ended.outcome())
            time.sleep(0.01)

    def _start(self, number: int, trial: Trial) -> _Running:
        texts = trial.mutant.texts(self._package) if trial.mutant else {}
        folder = self._folder / str(number)
        shutil.copytree(self._package, folder / "sdcp", copy_function=_linked)
        for file, text in texts.items():
            path = folder / "sdcp" / file
            path.unlink()  # it is a link to the unchanged one
            path.write_text(text, encoding="utf-8")
            for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
                compiled.unlink()
        pid = os.fork()
        if pid == 0:
            _child(trial, folder, tuple(texts))
        return _Running(pid, trial, folder, time.monotonic())


@dataclass(slots=True)
class _Running:
    pid: int
    trial: Trial
    folder: Path
    began: float
    _exit: int | None = None
    _late: bool = False

    def over(self) -> bool:
        """Whether the process has ended; one that is over its time is ended."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0 and time.monotonic() - self.began > self.trial.tier.limit_s:
            self._late = True
            self._kill()
            pid, status = os.waitpid(self.pid, 0)
        if pid == 0:
            return False
        self._exit = status
        self._kill()  # what it may have left running
        return True

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def outcome(self) -> Outcome:
        """Read what the process has written, and forget its folder."""
        try:
            status, by = json.loads((self.folder / "outcome.json").read_text())
        except (OSError, ValueError):
            late = f"not done in {self.trial.tier.limit_s:g} s"
            status, by = (HANGS, late) if self._late else (BROKEN, f"the process ended with {self._exit}")
        if status == BROKEN:
            by += "\n" + (self.folder / "log").read_text(errors="replace")[-3000:]
        shutil.rmtree(self.folder, ignore_errors=True)
        return Outcome(status, by, time.monotonic() - self.began)


# -- in the process ----------------------------------------------------------------------------------------------------


def _child(trial: Trial, folder: Path, files: Sequence[str]) -> NoReturn:
    """Run the trial and leave its outcome in the folder."""
    os.setsid()
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    for stream in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDONLY) if stream == 0 else log, stream)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    try:
        status, by = _tried(trial, folder, files)
    except BaseException as fault:
        status, by = BROKEN, f"{type(fault).__name__}: {fault}"
    sys.stdout.flush()
    sys.stderr.flush()
    (folder / "outcome.json").write_text(json.dumps([status, by]))
    os._exit(0)


def _tried(trial: Trial, folder: Path, files: Sequence[str]) -> tuple[str, str]:
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = str(folder)
    os.environ["HYPOTHESIS_PROFILE"] = "mutants"
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    sys.dont_write_bytecode = False  # else every process would compile every test
    assert "sdcp" not in sys.modules
    sys.path.insert(0, str(folder))
    ran = []
    if trial.tier in (SHELLS, CONFORMANCE):  # they start processes
        ran.append(
            subprocess.run([sys.executable, "-c", WHERE], capture_output=True, text=True, check=True).stdout.strip()
        )
    if trial.tier is CONFORMANCE:
        result = _conformance(trial, folder)
    elif trial.tier is VECTORS:
        result = _vectors(trial.tests or VECTOR_FILES)
    elif trial.tier is SEEDS:
        result = _seeds([int(test.removeprefix("seed ")) for test in trial.tests] or range(SEEDS_TRIED))
    else:
        result = _tests(trial, files)
    if "sdcp" in sys.modules:
        ran.append(str(sys.modules["sdcp"].__file__))
    if set(ran) != {str(folder / "sdcp" / "__init__.py")}:
        raise RuntimeError(f"not the copy was run, but {ran}")
    return result


class _Hang(BaseException):
    """The test takes too long."""


@contextmanager
def _limited() -> Generator[list[bool]]:
    """End what takes longer than TEST_S by _Hang; the list then has an entry."""
    late: list[bool] = []

    def end(signal_number: int, frame: FrameType | None) -> None:
        late.append(True)
        raise _Hang

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, TEST_S)
    try:
        yield late
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class _Watch:
    """A pytest plugin: what failed, and a limit to each test."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.hung = False
        self.uncollected = ""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, Any, Any]:
        with _limited() as late:
            yield
        self.hung = self.hung or bool(late)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.uncollected = f"{report.nodeid} cannot be collected"


def _tests(trial: Trial, files: Sequence[str]) -> tuple[str, str]:
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile(  # the same examples as in the suite, without looking for smaller ones
        "mutants",
        deadline=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate),
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow],
    )
    options = ["-q", "--no-header", "--no-summary", "-p", "no:cacheprovider", *(["-x"] if trial.fail_fast else [])]
    options += [f"-p{plugin}" for plugin in PLUGINS]
    options += [f"--deselect={test}" for test in trial.without]
    failed: list[str] = []
    for part in [[*trial.tests]] if trial.tests else trial.tier.parts(files):
        watch = _Watch()
        code = pytest.main([*options, *part], plugins=[watch])
        if code == pytest.ExitCode.USAGE_ERROR and trial.mutant is None:
            return CAUGHT, "\n".join(test for test in part if pytest.main([*options, test]))
        if watch.uncollected or code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return BROKEN, watch.uncollected or f"pytest: {code!r}"
        failed += watch.failed
        if failed and trial.fail_fast:
            return HANGS if watch.hung else CAUGHT, failed[0]
    return (CAUGHT, "\n".join(failed)) if failed else (SURVIVED, "")


def _vectors(files: Sequence[str]) -> tuple[str, str]:
    from sdcp import vectors

    for file in files:
        code = vectors.run([file])
        if code == 2:
            return BROKEN, f"{file} cannot be read"
        if code:
            return CAUGHT, file
    return SURVIVED, ""


def _seeds(seeds: Sequence[int]) -> tuple[str, str]:
    from sdcp.testing.scenario import scenario_of
    from sdcp.testing.shrink import attempt

    for seed in seeds:
        try:
            with _limited():
                failure = attempt(scenario_of(seed))
        except _Hang:  # a run that does not end is no good one either, and there is no other test to ask instead
            return CAUGHT, f"seed {seed}"
        if failure is not None:
            print(failure.fault)
            return CAUGHT, f"seed {seed}"
    return SURVIVED, ""


def _conformance(trial: Trial, folder: Path) -> tuple[str, str]:
    command = conformance_command(trial.mutant.role if trial.mutant else None)
    if command is None:
        return SKIPPED, "sdcp-conformance is not installed"
    report, expected = folder / "conformance.json", folder / "expected.txt"
    expected.write_text("\n".join(trial.without))
    command += ["--json", str(report), "--baseline", str(expected), *(["--fail-fast"] if trial.fail_fast else [])]
    command += [part for check in trial.tests for part in ("--only", check)]
    subprocess.run(command, check=False)
    failed = json.loads(report.read_text())["unexpected_failures"]
    if trial.fail_fast:
        failed = failed[:1]
    return (CAUGHT, "\n".join(failed)) if failed else (SURVIVED, "")
