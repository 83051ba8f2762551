"""Fake engines for many short runs: the reference model as a table in memory, with what is asked often kept ready.

The target is judged by the rules of the product (`sdcp.engines.rounds`); that only the last token counts, and that
nothing is ever computed twice, is what makes it a fake. Drafters share a table and have luck of their own. Not here:
files (docs/reference-model.md), KV, and capacity.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from sdcp.engines.digests import IDENTITY_TOKENIZER
from sdcp.engines.no_kv import NoKv
from sdcp.engines.rounds import draft_row, judge
from sdcp.errors import Overloaded
from sdcp.messages.contract import Sampling
from sdcp.ports import DraftJob, DraftResult, PrefillJob, VerifyJob, VerifyResult
from sdcp.rules.acceptance import GREEDY

Row = NDArray[np.float32]
Shape = tuple[int | None, int | None, int | None]
"""What of a profile makes the distribution: temperature, top-k, top-p."""


class Table:
    """Logits [V, V] by the last token, and `start` [V] after an empty prefix."""

    def __init__(self, name: str, logits: Row, start: Row) -> None:
        self.model = hashlib.sha256(name.encode()).digest()
        self.vocabulary = len(logits)
        self.rows: list[Row] = [*logits, start]
        self.best = [int(np.argmax(row)) for row in self.rows]
        self._drafts: dict[tuple[int, Shape], tuple[Row, list[float]]] = {}

    def last(self, prefix: Sequence[int], length: int) -> int:
        """Return the row to look at after `prefix[:length]`."""
        return prefix[length - 1] if length else -1

    def plain(self, prompt: Sequence[int], max_new: int, stop: Sequence[int]) -> tuple[int, ...]:
        """Decode greedily, one token after the other."""
        tokens: list[int] = []
        last = self.last(prompt, len(prompt))
        while len(tokens) < max_new:
            last = self.best[last]
            tokens.append(last)
            if last in stop:
                break
        return tuple(tokens)

    def draft_row(self, last: int, profile: Sampling) -> tuple[Row, list[float]]:
        """Return the draft distribution [V] after a token, and its running sums."""
        key = (last, (profile.temperature_milli, profile.top_k, profile.top_p_milli))
        found = self._drafts.get(key)
        if found is None:
            row = draft_row(self.rows[last], profile)
            found = self._drafts[key] = (row, np.cumsum(row, dtype=np.float64).tolist())
        return found


class TableTarget(NoKv):
    """A table as target. While `broken`, it scores nothing."""

    context: int | None = None
    tokenizer = IDENTITY_TOKENIZER
    takes_empty_prompt = True
    capacity = 1024

    def __init__(self, table: Table) -> None:
        self.table = table
        self.broken = False
        self.model = table.model
        self.vocabulary = table.vocabulary

    def close(self, session: bytes) -> None:
        """Nothing is held."""

    def prefill(self, jobs: Sequence[PrefillJob], budget: int) -> list[bool]:
        """All jobs are complete at once. Overloaded while broken."""
        if self.broken:
            raise Overloaded("The engine is broken.")
        return [True] * len(jobs)

    def verify(self, jobs: Sequence[VerifyJob]) -> list[VerifyResult]:
        """Judge each job by the rules. ValueError while broken."""
        if self.broken:
            raise ValueError("the engine is broken")
        return [judge(job, _Positions(self.table, job)) for job in jobs]

    def next_logits(self, session: bytes, prefix: Sequence[int], length: int) -> Row:
        """Return the row after the last token."""
        return self.table.rows[self.table.last(prefix, length)]


class _Positions:
    """The logits of a job's positions."""

    def __init__(self, table: Table, job: VerifyJob) -> None:
        self._rows, self._job, self._first = table.rows, job, table.last(job.prefix, job.length)

    def __getitem__(self, index: int) -> Row:
        return self._rows[self._job.tokens[index - 1] if index else self._first]


class TableDrafter:
    """A table as drafter: proposes what its table says, at most `most` tokens a round.

    `follows`: under the profile of the session; else plain softmax, as a drafter may. While `broken`, it fails.
    """

    context: int | None = None
    tokenizer = IDENTITY_TOKENIZER

    def __init__(self, table: Table, luck: Random, *, most: int = 64, follows: bool = True) -> None:
        self.broken = False
        self.model = table.model
        self.vocabulary = table.vocabulary
        self._table, self._luck, self._most, self._follows = table, luck, most, follows

    def close(self, session: bytes) -> None:
        """Nothing is held."""

    def draft(self, jobs: Sequence[DraftJob]) -> list[DraftResult]:
        """Draft for each job. ValueError while broken."""
        if self.broken:
            raise ValueError("the engine is broken")
        return [self._greedy(job) if job.rule == GREEDY else self._sampled(job) for job in jobs]

    def _greedy(self, job: DraftJob) -> DraftResult:
        best, last = self._table.best, self._table.last(job.prefix, job.length)
        tokens: list[int] = []
        for _ in range(min(job.count, self._most)):
            last = best[last]
            tokens.append(last)
        return DraftResult(tuple(tokens), None)

    def _sampled(self, job: DraftJob) -> DraftResult:
        profile, last = job.profile if self._follows else Sampling(), self._table.last(job.prefix, job.length)
        tokens, rows = list[int](), list[Row]()
        for _ in range(min(job.count, self._most)):
            row, sums = self._table.draft_row(last, profile)
            last = min(bisect_right(sums, self._luck.random() * sums[-1]), len(sums) - 1)
            tokens.append(last)
            rows.append(row)
        return DraftResult(tuple(tokens), np.stack(rows))
