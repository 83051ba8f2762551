"""A whole system of real processes on the reference model, for the tests of this folder."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from sdcp.engines.bigram import write_bigram
from sdcp.fleet import Fleet, Plan

V = 61
Table = NDArray[np.float32]


def cycle(seed: int) -> Table:
    """Logits [V, V] whose greedy path visits every token before it repeats: a lost or doubled token shows at once."""
    generator = np.random.default_rng(seed)
    logits = generator.uniform(0, 2, (V, V)).astype(np.float32)
    order = generator.permutation(V)
    logits[order, np.roll(order, -1)] = 4.0
    return logits


def near(logits: Table, seed: int) -> Table:
    """A drafter of that target: right at about three tokens of four."""
    wrong = np.random.default_rng(seed).choice(V, V // 4, replace=False)
    table = logits.copy()
    table[wrong, wrong] = 8.0
    return table


def plain_greedy(logits: Table, prompt: list[int], count: int) -> list[int]:
    """Greedy decoding by the target alone."""
    tokens: list[int] = []
    last = prompt[-1]
    for _ in range(count):
        last = int(logits[last].argmax())
        tokens.append(last)
    return tokens


class System(Fleet):
    """A fleet whose members a test may kill; `watch` restarts them as `sdcp up` does."""

    def __init__(self, plan: Plan, logits: Table) -> None:
        super().__init__(plan)
        self.logits = logits
        self._stop = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    def begin_watch(self) -> None:
        """Restart whatever dies from now on."""
        self._watching = asyncio.create_task(self.watch(self._stop))

    def kill(self, name: str) -> None:
        """SIGKILL: it can finish nothing and tell nobody. What it had written is with the kernel, and stays."""
        self._processes[name].kill()

    def pause(self, name: str) -> None:
        """SIGSTOP: it is there, its sockets too, and it does nothing; until `resume`."""
        self._processes[name].send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """SIGCONT: it goes on where it was, and knows nothing of what happened meanwhile."""
        self._processes[name].send_signal(signal.SIGCONT)

    @property
    def pids(self) -> dict[str, int]:
        """The process of each member, by name."""
        return {name: process.pid for name, process in self._processes.items()}

    async def end(self) -> None:
        """Stop everything; once more does nothing."""
        self._stop.set()
        if self._watching is not None:
            await self._watching
        await self.stop()


@pytest.fixture
def verifiers() -> int:
    """How many there are; a test may ask for more."""
    return 1


@pytest.fixture
def caches() -> str:
    """What `[cache]` of each member says; `@cache` is the fleet's own. A test may say more."""
    return 'prefixes = ["@cache"]'


@pytest.fixture
async def system(tmp_path: Path, verifiers: int, caches: str) -> AsyncIterator[System]:
    """Cache, router, verifiers, two drafters (one good, one random) and gateway, each its own process."""
    logits = cycle(1)
    tables = {"target": logits, "near": near(logits, 2), "random": cycle(3)}
    for name, table in tables.items():
        write_bigram(tmp_path / f"{name}.safetensors", table)
    plan = Plan(
        targets=(tmp_path / "target.safetensors",) * verifiers,
        drafts=(str(tmp_path / "near.safetensors"), str(tmp_path / "random.safetensors")),
        directory=tmp_path / "fleet",
        prompt=None,
        max_tokens=0,
        once=False,
        check=False,
        api="127.0.0.1:0",
    )
    system = System(plan, logits)
    system.prepare()
    own = system.bases["cache"]
    for settings in system.directory.glob("*.toml"):
        settings.write_text(settings.read_text().replace(f'prefixes = ["{own}"]', caches.replace("@cache", own)))
    try:
        await system.start()
        system.begin_watch()
        yield system
    finally:
        await system.end()
