"""What every engine does with logits in host memory: judge a round, and sample a draft token (5.2, 6.2, 6.4, D5, D25).

An engine that judges on its device uses this for what it brings to the host, one position at a time. Drafter randomness
comes from a generator that the operating system seeds: it has nothing to do with the contract's seed (6.4, D31).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sdcp.messages.contract import Sampling
from sdcp.ports import DraftResult, VerifyJob, VerifyResult
from sdcp.rules.acceptance import GREEDY, Scores, accept
from sdcp.rules.draws import draw
from sdcp.rules.profile import target_distribution


def judge(job: VerifyJob, scores: Scores) -> VerifyResult:
    """Apply the rule of a job to `scores` (logits [V] by index 0..M), reading no further than the first rejection."""
    outcome = accept(job.rule, scores, job.tokens, job.rows, job.profile, job.luck, room=job.room)
    return VerifyResult(outcome.accepted, outcome.additional)


def evaluated(job: VerifyJob) -> int:
    """Return how many positions need logits: M + 1, but none beyond the room (D14)."""
    return min(len(job.tokens) + 1, job.room)


def fit(logits: NDArray[np.floating], vocabulary: int) -> NDArray[np.floating]:
    """Cut the last axis of logits to V entries, or pad it with tokens that are never drawn (D5)."""
    missing = vocabulary - logits.shape[-1]
    if missing <= 0:
        return logits[..., :vocabulary]
    return np.pad(logits, [(0, 0)] * (logits.ndim - 1) + [(0, missing)], constant_values=-np.inf)


def draft_row(logits: NDArray[np.floating], profile: Sampling) -> NDArray[np.float32]:
    """Return the draft distribution [V] in binary32: what is published is what is sampled from (D22, D25)."""
    return target_distribution(logits, profile).astype(np.float32)


def sample(row: NDArray[np.float32], generator: np.random.Generator) -> int:
    """Draw a token from the binary32 row [V] itself."""
    return draw(row.astype(np.float64), generator.random())


def certain(tokens: tuple[int, ...], rule: int, vocabulary: int) -> DraftResult:
    """Propose tokens that were certain before anything was drawn: under rule 2 their rows [M, V] are one-hot (D31)."""
    if rule == GREEDY:
        return DraftResult(tokens, None)
    rows = np.zeros((len(tokens), vocabulary), np.float32)
    rows[np.arange(len(tokens)), tokens] = 1.0
    return DraftResult(tokens, rows)
