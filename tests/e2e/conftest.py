"""A whole system of real processes on the reference model, for the tests of this folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from sdcp.engines.bigram import write_bigram
from sdcp.fleet import Fleet, Plan

V = 64


def table(seed: int, *, sharpness: float = 3.0) -> np.ndarray:
    """Logits [V, V] of a reference model; no two of a row are close, so that no numerics decide."""
    generator = np.random.default_rng(seed)
    return (generator.permuted(np.tile(np.arange(V), (V, 1)), axis=1) * sharpness / V).astype(np.float32)


def plain_greedy(logits: np.ndarray, prompt: list[int], count: int) -> list[int]:
    """Greedy decoding by the target alone."""
    tokens: list[int] = []
    last = prompt[-1]
    for _ in range(count):
        last = int(logits[last].argmax())
        tokens.append(last)
    return tokens


class System(Fleet):
    """A fleet whose members a test may kill; `watch` restarts them as `sdcp up` does."""

    def __init__(self, plan: Plan, logits: np.ndarray) -> None:
        super().__init__(plan)
        self.logits = logits
        self._stop = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    def begin_watch(self) -> None:
        self._watching = asyncio.create_task(self.watch(self._stop))

    def kill(self, name: str) -> None:
        self._processes[name].kill()

    async def end(self) -> None:
        self._stop.set()
        if self._watching is not None:
            await self._watching
        await self.stop()


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    """Cache, router, verifier, two drafters (one good, one random) and gateway, each its own process."""
    logits = table(1)
    write_bigram(tmp_path / "target.safetensors", logits)
    near = logits + np.random.default_rng(2).normal(0, 0.05, logits.shape).astype(np.float32)
    write_bigram(tmp_path / "near.safetensors", near)
    write_bigram(tmp_path / "random.safetensors", table(3))
    plan = Plan(
        targets=(tmp_path / "target.safetensors",),
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
    try:
        await system.start()
        system.begin_watch()
        yield system
    finally:
        await system.end()
