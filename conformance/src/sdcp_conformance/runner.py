"""Runs checks: one town for each role, one shared process of the subject for most checks, several checks at a time."""

from __future__ import annotations

import asyncio
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdcp_conformance.net.connection import TransportFault
from sdcp_conformance.outcome import Failed, NotApplicable
from sdcp_conformance.registry import Check
from sdcp_conformance.subject import NotOffered, Subject, SubjectError
from sdcp_conformance.town import Town
from sdcp_conformance.worlds.drafter import DrafterWorld
from sdcp_conformance.worlds.router import RouterWorld, Seat
from sdcp_conformance.worlds.verifier import VerifierWorld
from sdcp_conformance.worlds.world import World

PASSED, FAILED, NOT_OFFERED, NOT_APPLICABLE, NOT_RUN = "passed", "failed", "not offered", "not applicable", "not run"
CHECK_S = 90.0


@dataclass(frozen=True)
class Result:
    """What became of one check; `why` is a sentence when it did not pass."""

    check: Check
    outcome: str
    why: str = ""
    seconds: float = 0.0


@dataclass
class Plan:
    """What to run, against what. `tell` is called with every result as it comes."""

    command: str
    checks: Sequence[Check]
    jobs: int = 8
    patience_s: float = 10.0
    fail_fast: bool = False
    keep: Path | None = None
    tell: Callable[[Result], None] = lambda result: None
    expected: frozenset[str] = field(default_factory=frozenset)
    """Checks that a baseline expects to fail: they stop nothing."""
    broken: dict[str, str] = field(default_factory=dict)
    """Filled by the run: roles that could not be started at all, and why."""


async def run(plan: Plan) -> list[Result]:
    """Run all checks of the plan, role by role; all checks of a role that cannot be started fail."""
    results: list[Result] = []
    asyncio.get_running_loop().set_exception_handler(_unheard)
    for role in dict.fromkeys(check.role for check in plan.checks):
        checks = [check for check in plan.checks if check.role == role]
        with tempfile.TemporaryDirectory(prefix="sdcp-conformance-", ignore_cleanup_errors=True) as folder:
            place = Path(folder) if plan.keep is None else plan.keep / role
            place.mkdir(parents=True, exist_ok=True)
            town = Town(plan.command, role, place, plan.patience_s)
            ran = await _RoleRun(plan, town, checks).run()
        results += ran
        if plan.fail_fast and any(result.outcome == FAILED for result in ran if result.check.id not in plan.expected):
            break
    return results


class _RoleRun:
    """All checks of one role."""

    def __init__(self, plan: Plan, town: Town, checks: Sequence[Check]) -> None:
        self._plan = plan
        self._town = town
        self._checks = checks
        self._seats: dict[str, Seat] = {}
        self._results: dict[str, Result] = {}
        self._slots = asyncio.Semaphore(plan.jobs)
        self._stopping = False

    async def run(self) -> list[Result]:
        """Return one result for each check, in their order."""
        try:
            await self._town.start()
            await self._prepare()
            for last in (False, True):
                await asyncio.gather(*(self._guarded(check) for check in self._checks if check.last is last))
        except NotOffered as fault:
            for check in self._checks:
                self._done(Result(check, NOT_OFFERED, f"{fault}"))
        except SubjectError as fault:
            self._plan.broken[self._town.role] = str(fault)
            for check in self._checks:
                self._done(Result(check, FAILED, str(fault).splitlines()[0]))
        finally:
            await self._town.close()
            for seat in self._seats.values():
                seat.close()
        return [
            self._results.get(check.id, Result(check, NOT_RUN, "an earlier check failed")) for check in self._checks
        ]

    async def _prepare(self) -> None:
        """Seats before the router's settings are written, then the process that most checks share."""
        if self._town.role == "router":
            self._seats = {check.id: Seat(self._town) for check in self._checks}
            self._town.instances = [each for seat in self._seats.values() for each in seat.instances()]
        await self._town.shared_subject()

    async def _guarded(self, check: Check) -> None:
        async with self._slots:
            if self._stopping:
                return
            began = time.monotonic()
            outcome, why = await self._judge(check)
            self._done(Result(check, outcome, why, time.monotonic() - began))
            if outcome == FAILED and self._plan.fail_fast and check.id not in self._plan.expected:
                self._stopping = True

    def _done(self, result: Result) -> None:
        if result.check.id not in self._results:
            self._results[result.check.id] = result
            self._plan.tell(result)

    async def _judge(self, check: Check) -> tuple[str, str]:
        subject: Subject | None = None
        try:
            shared = await self._town.shared_subject()
            subject = await self._town.subject(check.limits) if check.own else shared
            return await self._in_world(check, subject)
        except SubjectError as fault:
            return FAILED, str(fault)
        finally:
            if subject is not None and check.own:
                await subject.stop()

    async def _in_world(self, check: Check, subject: Subject) -> tuple[str, str]:
        world = self._world(check, subject)
        try:
            async with asyncio.timeout(CHECK_S):
                await check.run(world)
            outcome, why = PASSED, ""
        except NotApplicable as reason:
            outcome, why = NOT_APPLICABLE, str(reason)
        except Failed as fault:
            outcome, why = FAILED, str(fault)
        except TransportFault as fault:
            outcome, why = FAILED, f"expected an answer: {fault}"
            await subject.wait(0.5)  # it may have ended, and nobody been told yet
        except TimeoutError:
            outcome, why = FAILED, f"expected the check to be over within {CHECK_S:g} s, it was not"
        except Exception as fault:
            outcome, why = FAILED, _unforeseen(fault)
        finally:
            await world.close()
        self._town.watch.not_deterministic += world.watch.not_deterministic
        if outcome != FAILED and world.watch.faults:
            outcome, why = FAILED, "; ".join(dict.fromkeys(world.watch.faults))
        if outcome == FAILED and not check.own and subject.exit_code is not None:
            why += f" (the {subject.role} ended with exit code {subject.exit_code}{subject.words()})"
        return outcome, why

    def _world(self, check: Check, subject: Subject) -> World:
        if check.role == "verifier":
            return VerifierWorld(self._town, subject)
        if check.role == "drafter":
            return DrafterWorld(self._town, subject)
        return RouterWorld(self._town, subject, self._seats[check.id])


def _unheard(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What a connection or a task says after its check has failed already is of no interest."""
    if not isinstance(context.get("exception"), Failed | NotApplicable | TransportFault | OSError):
        loop.default_exception_handler(context)


def _unforeseen(fault: Exception) -> str:
    """A message that lacks what the check looked for, most often; the place says where it looked."""
    frames = [frame for frame in traceback.extract_tb(fault.__traceback__) if "sdcp_conformance" in frame.filename]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "nowhere"
    return f"something came that the check cannot work with: {type(fault).__name__}: {fault} ({where})"
