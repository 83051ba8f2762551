"""The effect loop: order, one input at a time, answers, timers, faults, and what a cancelled wait leaves alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from sdcp.errors import Conflict, Overloaded
from sdcp.machines.effects import Abandon, CancelTimer, Refuse, Reply, SetTimer
from sdcp.machines.inputs import RequestCancelled, TimerFired
from sdcp.roles.drive import Driver


@dataclass(frozen=True)
class Asked:
    request: int


@dataclass(frozen=True)
class Work:
    name: str


@dataclass(frozen=True)
class Done:
    name: str


@dataclass
class Scripted:
    """A machine that does what the test says."""

    script: Callable[[Any], list[Any]]
    seen: list[Any] = field(default_factory=list)
    inside: bool = False

    def handle(self, event: Any) -> list[Any]:
        assert not self.inside, "entered twice at once"
        self.inside = True
        self.seen.append(event)
        effects = self.script(event)
        self.inside = False
        return effects


def driver(script: Callable[[Any], list[Any]], **performers: Any) -> tuple[Driver, Scripted, list[BaseException]]:
    machine, faults = Scripted(script), []
    table = {Work: performers["work"]} if "work" in performers else {}
    return Driver(machine, table, faults.append), machine, faults


async def test_nested_inputs_wait_their_turn_and_keep_their_order() -> None:
    seen: list[str] = []

    def work(effect: Work) -> Done:
        seen.append(effect.name)
        return Done(effect.name)

    drive, machine, _ = driver(lambda e: [Work("a"), Work("b")] if isinstance(e, Asked) else [], work=work)
    drive.handle(Asked(0))
    assert seen == ["a", "b"]
    assert machine.seen == [Asked(0), Done("a"), Done("b")]


async def test_a_reply_goes_to_the_one_who_asked() -> None:
    drive, _, _ = driver(lambda e: [Refuse(e.request, Conflict("no"))] if e.request % 2 else [Reply(e.request, None)])
    first, second = await asyncio.gather(drive.ask(Asked), drive.ask(Asked))
    assert isinstance(first, Refuse)
    assert isinstance(second, Reply)


@pytest.mark.decision("D27-cancelled")
async def test_a_cancelled_wait_is_told_to_the_machine_and_ends_nothing_else() -> None:
    release = asyncio.Event()

    async def work(effect: Work) -> Done:
        await release.wait()
        return Done(effect.name)

    drive, machine, _ = driver(lambda e: [Work("round")] if isinstance(e, Asked) else [], work=work)
    asking = asyncio.create_task(drive.ask(Asked))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    release.set()
    await drive.settle()
    assert machine.seen == [Asked(1), RequestCancelled(1), Done("round")]


@pytest.mark.decision("D28")
async def test_what_is_abandoned_is_not_heard_even_when_it_was_done_already() -> None:
    ended: list[str] = []
    quick_ended = asyncio.Event()

    async def work(effect: Work) -> Done:
        try:
            if effect.name == "slow":
                await asyncio.Event().wait()
        finally:
            ended.append(effect.name)
            quick_ended.set()
        return Done(effect.name)

    script = {Asked(0): [Work("slow"), Work("quick")], Asked(1): [Abandon()], Asked(2): [Work("new")]}
    drive, machine, faults = driver(lambda e: script.get(e, []), work=work)
    drive.handle(Asked(0))
    await quick_ended.wait()
    drive.handle(Asked(1))  # "quick" has ended, and its answer has not been handed over yet
    drive.handle(Asked(2))
    await drive.settle()
    assert (ended, faults) == (["quick", "slow", "new"], [])
    assert machine.seen == [Asked(0), Asked(1), Asked(2), Done("new")]


async def test_timers_fire_move_and_are_forgotten() -> None:
    fired: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def script(event: Any) -> list[Any]:
        if isinstance(event, Asked):
            moved = [SetTimer("moved", 60_000), SetTimer("moved", 1)]
            return [SetTimer("gone", 0), CancelTimer("gone"), CancelTimer("unknown"), *moved]
        fired.set_result(event.name)
        return []

    drive, machine, _ = driver(script)
    drive.handle(Asked(0))
    assert await fired == "moved"
    assert machine.seen == [Asked(0), TimerFired("moved")]


async def test_a_fault_of_a_performer_is_reported_not_swallowed() -> None:
    async def work(effect: Work) -> None:
        raise KeyError(effect.name)

    def script(event: Any) -> list[Any]:
        if event == Asked(7):
            raise ZeroDivisionError
        return [Work("x")]

    drive, _, faults = driver(script, work=work)
    drive.handle(Asked(0))
    await drive.settle()
    drive.handle(Asked(7))
    await asyncio.sleep(0)
    assert {type(fault) for fault in faults} == {KeyError, ZeroDivisionError}


async def test_closing_refuses_who_waits_and_who_comes() -> None:
    drive, machine, _ = driver(lambda e: [SetTimer("late", 0)])
    waiting = asyncio.create_task(drive.ask(Asked))
    await asyncio.sleep(0)
    drive.close()
    for answer in (await waiting, await drive.ask(Asked)):
        assert isinstance(answer, Refuse)
        assert isinstance(answer.error, Overloaded)
    drive.handle(Asked(9))
    assert machine.seen == [Asked(1)]
