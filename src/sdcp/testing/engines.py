"""Engines for worlds: the reference model from an array, plain greedy decoding, and drafters that are no good.

They follow `sdcp.ports`, and none of them is of use outside tests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from sdcp.engines.bigram import BigramTarget, write_bigram
from sdcp.engines.digests import IDENTITY_TOKENIZER
from sdcp.messages.contract import Action, Contract, Sampling
from sdcp.ports import DraftJob, DraftResult, Target, VerifyJob
from sdcp.rules.acceptance import GREEDY


def contract_for(target: Target, **members: object) -> Contract:
    """Return a contract with the target's digests, rule 1, and few surprises; `members` replace or add."""
    usual: dict[str, object] = {
        "target": target.model,
        "tokenizer": target.tokenizer,
        "rule": GREEDY,
        "m_max": 16,
        "max_new": 32,
        "stop": (),
        "low_rounds": 1 << 20,
        "fallback": (Action.FAIL,),
    }
    return Contract(**{**usual, **members})  # type: ignore[arg-type]


def bigram(path: Path, logits: NDArray[np.float32], **more: object) -> BigramTarget:
    """Write a reference model and load it as target; `more`: `start`, `context` (docs/reference-model.md)."""
    write_bigram(path, logits, **more)  # type: ignore[arg-type]
    return BigramTarget(path)


def random_logits(vocabulary: int, seed: int) -> NDArray[np.float32]:
    """Return a table [V, V] in which every token has some chance."""
    return np.random.default_rng(seed).normal(0.0, 2.0, (vocabulary, vocabulary)).astype(np.float32)


def cycle_logits(vocabulary: int, seed: int) -> NDArray[np.float32]:
    """Return a table [V, V] whose greedy decoding visits every token once before it repeats."""
    order = np.random.default_rng(seed).permutation(vocabulary)
    logits = np.zeros((vocabulary, vocabulary), np.float32)
    logits[order, np.roll(order, -1)] = 4.0
    return logits


def plain_greedy(target: Target, prompt: Sequence[int], max_new: int, stop: Sequence[int] = ()) -> tuple[int, ...]:
    """Decode with the target alone, one token a pass, to a stop token or max_new."""
    tokens = [*prompt]
    while len(tokens) < len(prompt) + max_new:
        job = VerifyJob(b"plain", tokens, len(tokens), (), GREEDY, Sampling(), (), None, 1)
        token = target.verify([job])[0].additional
        assert token is not None  # there was room for one
        tokens.append(token)
        if token in stop:
            break
    return tuple(tokens[len(prompt) :])


class Proposing:
    """A drafter that proposes what `choose` says: `choose(prefix, length, count)` gives tokens and rows, or no rows."""

    context: int | None = None

    def __init__(
        self,
        vocabulary: int,
        choose: Callable[[Sequence[int], int, int], tuple[Sequence[int], NDArray[np.float32] | None]],
        name: str = "proposing",
        tokenizer: bytes = IDENTITY_TOKENIZER,
    ) -> None:
        self.vocabulary = vocabulary
        self.tokenizer = tokenizer
        self.model = hashlib.sha256(name.encode()).digest()
        self._choose = choose

    def close(self, session: bytes) -> None:
        """Nothing is held."""

    def draft(self, jobs: Sequence[DraftJob]) -> list[DraftResult]:
        """Ask for each job."""
        return [self._draft(job) for job in jobs]

    def _draft(self, job: DraftJob) -> DraftResult:
        tokens, rows = self._choose(job.prefix, job.length, job.count)
        if rows is None and job.rule != GREEDY:
            rows = np.eye(self.vocabulary, dtype=np.float32)[list(tokens)]
        return DraftResult(tuple(tokens), rows)


def guesses(vocabulary: int, seed: int) -> Proposing:
    """Return a drafter that guesses: as many tokens as it may, each uniform over the vocabulary, with those rows."""
    luck = Random(seed)  # nothing here is secret
    row = np.full((1, vocabulary), 1 / vocabulary, np.float32)

    def choose(_: Sequence[int], __: int, count: int) -> tuple[Sequence[int], NDArray[np.float32]]:
        return [luck.randrange(vocabulary) for _ in range(count)], row.repeat(count, axis=0)

    return Proposing(vocabulary, choose, f"guesses {seed}")


def contrary(target: Target) -> Proposing:
    """Return a drafter that proposes as many tokens as it may, the first of them always wrong under rule 1."""

    def choose(prefix: Sequence[int], length: int, count: int) -> tuple[Sequence[int], None]:
        right = plain_greedy(target, prefix[:length], 1)[0]
        return [(right + 1) % target.vocabulary] * count, None

    return Proposing(target.vocabulary, choose, "contrary")
