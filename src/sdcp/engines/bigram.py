"""The reference model (docs/reference-model.md): a table of logits [V, V], as target and as drafter, in numpy.

Only the last token of the prefix matters, so there is no KV and nothing to prefill; capacity is a number to admit by.
Not here: the rules themselves (`sdcp.rules`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from sdcp.engines.digests import IDENTITY_TOKENIZER, file_digest
from sdcp.engines.no_kv import NoKv
from sdcp.engines.rounds import draft_row, fit, judge, sample
from sdcp.errors import ConfigurationError, InvalidContent
from sdcp.messages.contract import Sampling
from sdcp.ports import DraftJob, DraftResult, PrefillJob, VerifyJob, VerifyResult
from sdcp.rules.acceptance import GREEDY
from sdcp.rules.profile import argmax

Logits = NDArray[np.float32]

PLAIN = Sampling()
"""Softmax of the logits as they are."""


def write_bigram(path: Path, logits: Logits, start: Logits | None = None, context: int | None = None) -> None:
    """Write a reference model: logits [V, V], optionally start [V] and a context length."""
    tensors = {"logits": np.ascontiguousarray(logits, np.float32)}
    if start is not None:
        tensors["start"] = np.ascontiguousarray(start, np.float32)
    save_file(tensors, path, metadata=None if context is None else {"context": str(context)})


class Bigram:
    """The table in memory: what target and drafter share. `vocabulary` is V of the logits as given out (D5)."""

    def __init__(self, path: Path, vocabulary: int | None = None) -> None:
        logits, start, self.context = _read(path)
        self.vocabulary = vocabulary or len(logits)
        self.model = file_digest(path)
        self.tokenizer = IDENTITY_TOKENIZER
        self._logits = fit(logits, self.vocabulary)
        self._start = None if start is None else fit(start, self.vocabulary)

    def close(self, session: bytes) -> None:
        """Nothing is held."""

    def after(self, prefix: Sequence[int], length: int) -> Logits | None:
        """Return the logits [V] after `prefix[:length]`; None after an empty prefix without `start`.

        A token that the table does not know (a drafter narrower than its target) is treated as an empty prefix.
        """
        last = prefix[length - 1] if length else None
        return self._start if last is None or last >= len(self._logits) else self._logits[last]


class BigramTarget(NoKv, Bigram):
    """The reference model as target."""

    def __init__(self, path: Path, capacity: int = 1024) -> None:
        super().__init__(path)
        self.capacity = capacity

    @property
    def takes_empty_prompt(self) -> bool:
        """Whether the file has `start`."""
        return self._start is not None

    def prefill(self, jobs: Sequence[PrefillJob], budget: int) -> list[bool]:
        """All jobs are complete at once."""
        return [True] * len(jobs)

    def verify(self, jobs: Sequence[VerifyJob]) -> list[VerifyResult]:
        """Score and judge each job."""
        return [judge(job, _Positions(self, job)) for job in jobs]

    def next_logits(self, session: bytes, prefix: Sequence[int], length: int) -> Logits:
        """Return the table's row after the last token."""
        logits = self.after(prefix, length)
        if logits is None:
            raise InvalidContent("The model has no distribution after an empty prefix: give a prompt (D26).")
        return logits


class _Positions:
    """The logits of a job's positions, looked up when asked for."""

    def __init__(self, model: Bigram, job: VerifyJob) -> None:
        self._model, self._job = model, job

    def __getitem__(self, index: int) -> Logits:
        job = self._job
        prefix, length = (job.tokens, index) if index else (job.prefix, job.length)
        logits = self._model.after(prefix, length)
        if logits is None:
            raise InvalidContent("The model has no distribution after an empty prefix: give a prompt (D26).")
        return logits


class BigramDrafter(Bigram):
    """The reference model as drafter.

    Where its table has nothing to say it guesses, every token as likely as any other: without a proposal there is no
    round, hence neither output nor escalation.
    profile: follow the session's sampling profile (D22); otherwise plain softmax, as a drafter may that knows none.
    generator: for tests; by default seeded by the operating system.
    """

    def __init__(
        self,
        path: Path,
        vocabulary: int | None = None,
        profile: bool = True,
        generator: np.random.Generator | None = None,
    ) -> None:
        super().__init__(path, vocabulary)
        self._profile = profile
        self._generator = generator or np.random.default_rng()

    def draft(self, jobs: Sequence[DraftJob]) -> list[DraftResult]:
        """Draft for each job; no tokens only at the end of the context."""
        return [self._draft(job) for job in jobs]

    def _draft(self, job: DraftJob) -> DraftResult:
        tokens: list[int] = []
        rows: list[Logits] = []
        logits = self._guess(self.after(job.prefix, job.length))
        while len(tokens) < self._count(job):
            if job.rule == GREEDY:
                tokens.append(argmax(logits))
            else:
                rows.append(draft_row(logits, job.profile if self._profile else PLAIN))
                tokens.append(sample(rows[-1], self._generator))
            logits = self._guess(self.after(tokens, len(tokens)))
        return DraftResult(tuple(tokens), np.stack(rows) if rows else None)

    def _guess(self, logits: Logits | None) -> Logits:
        return np.zeros(self.vocabulary, np.float32) if logits is None else logits

    def _count(self, job: DraftJob) -> int:
        return job.count if self.context is None else min(job.count, self.context - job.length)


def _read(path: Path) -> tuple[Logits, Logits | None, int | None]:
    """Load and check a reference model. ConfigurationError says what is wrong with the file."""
    try:
        with safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            context = (file.metadata() or {}).get("context")
    except (OSError, SafetensorError) as error:
        raise ConfigurationError(f"Cannot read the reference model {path}: {error}.") from error
    logits, start = tensors.get("logits"), tensors.get("start")
    if logits is None or logits.dtype != np.float32 or logits.ndim != 2 or len(set(logits.shape)) != 1:
        raise ConfigurationError(f"{path} is no reference model: it needs a float32 tensor `logits` of shape [V, V].")
    if start is not None and (start.dtype != np.float32 or start.shape != logits.shape[:1]):
        raise ConfigurationError(f"{path} is no reference model: `start` must be float32 of shape [V].")
    if context is not None and not context.isdecimal():
        raise ConfigurationError(f"{path} is no reference model: `context` must be a decimal integer.")
    return logits, start, None if context is None else int(context)
