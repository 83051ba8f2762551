"""The models of the simulated worlds: reference models (docs/reference-model.md), written once for all tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from sdcp.engines.bigram import BigramDrafter, BigramTarget
from sdcp.engines.mixed import MixedDrafter
from sdcp.engines.ngram import NgramDrafter
from sdcp.ports import Drafter
from sdcp.testing.engines import bigram, contrary, cycle_logits, guesses, random_logits

V = 24


@dataclass(frozen=True)
class Models:
    """A target and what may draft for it: the same model, a worse one, half of its table, lookup, and so on."""

    target: BigramTarget
    drafters: dict[str, Callable[[], Drafter]]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def models(folder: Path) -> Models:
    """A target whose greedy output is V different tokens over and over, so that every position can be told apart."""
    logits = cycle_logits(V, seed=7) + 0.2 * random_logits(V, seed=8)
    start = np.zeros(V, np.float32)
    start[3] = 1.0
    return family(folder / "cycle", logits, start)


@pytest.fixture(scope="session")
def wild(folder: Path) -> Models:
    """A target with a random table: its greedy output soon runs in a short circle."""
    return family(folder / "wild", random_logits(V, seed=5), random_logits(V, seed=6)[0])


def family(path: Path, logits: np.ndarray, start: np.ndarray) -> Models:
    path.mkdir()
    target = bigram(path / "target", logits, start=start)
    bigram(path / "noisy", logits + 1.2 * random_logits(V, seed=9), start=start)
    bigram(path / "half", logits[: V // 2, : V // 2])

    def load(name: str) -> Callable[[], Drafter]:
        return lambda: BigramDrafter(path / name, V, generator=np.random.default_rng(11))

    def lookup() -> NgramDrafter:
        return NgramDrafter(V, target.tokenizer)

    return Models(
        target,
        {
            "same": load("target"),
            "noisy": load("noisy"),
            "half": load("half"),
            "lookup": lookup,
            "mixed": lambda: MixedDrafter(lookup(), load("half")()),
            "guesses": lambda: guesses(V, 13),
            "contrary": lambda: contrary(target),
        },
    )
