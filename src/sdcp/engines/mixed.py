"""Two drafters in one: prompt lookup where it matches well, a model elsewhere (6.2, D31).

Which of the two serves a round is decided from the committed prefix alone, before anything is drawn, so each token is
sampled from the row that is published for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

from sdcp.ports import Drafter, DraftJob, DraftResult

LEAST_MATCH = 2
"""A match of fewer tokens is left to the model."""


class Lookup(Drafter, Protocol):
    """A drafter that knows beforehand how well it will do."""

    def matched(self, job: DraftJob) -> int:
        """Return how many tokens its match has; 0: none."""
        ...


class MixedDrafter:
    """Lookup before a model. Its digest is of the lookup's and the model's together: a contract tells them apart."""

    def __init__(self, lookup: Lookup, model: Drafter) -> None:
        self._lookup, self._model = lookup, model
        self.vocabulary = model.vocabulary
        self.context = model.context
        self.tokenizer = model.tokenizer
        self.model = hashlib.sha256(lookup.model + model.model).digest()

    def close(self, session: bytes) -> None:
        """Give back what both hold."""
        self._lookup.close(session)
        self._model.close(session)

    def draft(self, jobs: Sequence[DraftJob]) -> list[DraftResult]:
        """Give each job to one of the two; the model's jobs ride in one batch."""
        looked_up = [self._lookup.matched(job) >= LEAST_MATCH for job in jobs]
        results = {
            True: iter(self._lookup.draft([job for job, yes in zip(jobs, looked_up, strict=True) if yes])),
            False: iter(self._drafted([job for job, yes in zip(jobs, looked_up, strict=True) if not yes])),
        }
        return [next(results[yes]) for yes in looked_up]

    def _drafted(self, jobs: list[DraftJob]) -> list[DraftResult]:
        return self._model.draft(jobs) if jobs else []
