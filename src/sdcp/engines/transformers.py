"""Target and drafter on torch and transformers, on the CPU or a GPU (6.2, 6.3).

Many sessions are scored in one ragged pass; each keeps the KV of its accepted prefix and goes back to it by forgetting
tokens. Rule 1 is judged on the device; rule 2 on the host in float64, position by position, up to the first rejection.

Not here: the arithmetic of passes (`ragged`), loading (`causal`), who holds KV (`sessions`), KV as octets (`kv`), KV
for sessions to come (`prefixes`), the worker's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sdcp.engines.causal import CausalModel
from sdcp.engines.digests import model_digest
from sdcp.engines.prefixes import PAGE, PrefixStore
from sdcp.engines.ragged import Piece, SessionKV
from sdcp.engines.rounds import certain, draft_row, evaluated, judge, sample
from sdcp.engines.sessions import Sessions
from sdcp.errors import ConfigurationError
from sdcp.ports import DraftJob, DraftResult, PrefillJob, VerifyJob, VerifyResult
from sdcp.rules.acceptance import GREEDY
from sdcp.wire.kv_object import KvBlock

KV_CACHE_BYTES = 256 << 20
"""Octets of KV that a target keeps for sessions to come, unless it is told otherwise."""

CHUNK = 256
"""Tokens of one pass while a session catches up on a prefix that nobody prefilled."""


class _Transformers:
    """What target and drafter share: the model, its sessions, and catching up."""

    def __init__(
        self, path: Path, tokenizer: bytes, capacity: int, device: str, precision: str, threads: int | None, lean: bool
    ) -> None:
        if capacity < 1 or (threads is not None and threads < 1):
            raise ConfigurationError("`capacity` and `threads` must be at least 1.")
        if threads is not None:
            torch.set_num_threads(threads)
        self.model = model_digest(path)
        self.tokenizer = tokenizer
        self._causal = CausalModel(path, device, precision, lean)
        self.context = self._causal.context

    def _catch_up(self, missing: list[tuple[SessionKV, list[int]]], budget: int) -> list[bool]:
        """Compute the first `budget` of the missing tokens, in order, in one pass; tell where none is left."""
        pieces, complete = [], []
        for kv, tokens in missing:
            taken = tokens[:budget]
            budget -= len(taken)
            complete.append(len(taken) == len(tokens))
            if taken:
                pieces.append(Piece(kv, taken))
        if pieces:
            self._causal.run(pieces)
        return complete

    def _near(self, kv: SessionKV, job: VerifyJob | DraftJob) -> list[int]:
        """Catch up until what is missing fits in one pass; return it."""
        pending = kv.pending(job.prefix, job.length)
        while len(pending) > CHUNK:
            self._catch_up([(kv, pending[:-1])], CHUNK)
            pending = kv.pending(job.prefix, job.length)
        return pending


class TransformersTarget(_Transformers):
    """A target model.

    capacity: sessions that hold KV at once. kv_cache_bytes: octets of KV, on the device, kept besides for sessions that
    begin as others did (D44). device: "cpu", "cuda" or "cuda:1". precision: "auto", "float32",
    "bfloat16", "float16" (GPU) or "packed-float16" (CPU). threads: of PyTorch. lean: our own forward for Llamas.
    """

    def __init__(
        self,
        path: Path,
        tokenizer: bytes,
        *,
        capacity: int = 32,
        device: str = "cpu",
        precision: str = "auto",
        threads: int | None = None,
        lean: bool = True,
        kv_cache_bytes: int = KV_CACHE_BYTES,
    ) -> None:
        super().__init__(path, tokenizer, capacity, device, precision, threads, lean)
        if kv_cache_bytes < 0:
            raise ConfigurationError("`kv_cache_bytes` must not be negative.")
        if self._causal.output_ids is not None:
            raise ConfigurationError(f"{path} has a head over part of the vocabulary: it can draft, not be a target.")
        self.capacity = capacity
        self.vocabulary = self._causal.width
        self.kv_layout = self._causal.form.layout
        self._sessions = Sessions(self._causal, capacity, evicts=False)
        self._prefixes = PrefixStore(kv_cache_bytes)

    @property
    def takes_empty_prompt(self) -> bool:
        """Whether the model has a BOS token (D26)."""
        return self._causal.bos is not None

    def close(self, session: bytes) -> None:
        """Give the session's KV back; what it holds stays for others as far as there is room."""
        kv = self._sessions.close(session)
        if kv is not None:
            self._prefixes.put(kv, len(kv.tokens))

    def prefill(self, jobs: Sequence[PrefillJob], budget: int) -> list[bool]:
        """Compute all but the last token of each prefix, at most `budget` tokens in all. Overloaded when full.

        What others have computed since the last chunk is taken over first, and full pages are shared at once: prompts
        that begin alike and are computed in turns are computed once.
        """
        missing = [(kv, self._unknown(kv, job)) for job in jobs for kv in [self._sessions[job]]]
        complete = self._catch_up(missing, budget)
        for (kv, _), done in zip(missing, complete, strict=True):
            held = len(kv.tokens)
            self._prefixes.put(kv, held if done else held - held % PAGE)
        return complete

    def verify(self, jobs: Sequence[VerifyJob]) -> list[VerifyResult]:
        """Score all jobs in one ragged pass and judge each; keep the KV of the accepted prefix."""
        pieces = []
        for job in jobs:
            kv = self._begun(job)
            pending = self._near(kv, job)
            wanted = evaluated(job)
            pieces.append(Piece(kv, [*pending, *job.tokens[: wanted - 1]], wanted))
        logits = self._causal.run(pieces)
        assert logits is not None  # every job wants at least one row
        parts = logits.split([piece.wanted for piece in pieces])
        return [self._judged(job, piece, part) for job, piece, part in zip(jobs, pieces, parts, strict=True)]

    def next_logits(self, session: bytes, prefix: Sequence[int], length: int) -> NDArray[np.float32]:
        """Run the last token alone and return the logits [V] after it (D32)."""
        kv = self._begun(PrefillJob(session, prefix, length))
        while not self._catch_up([(kv, kv.pending(prefix, length)[:-1])], CHUNK)[0]:
            pass
        logits = self._causal.run([Piece(kv, kv.pending(prefix, length), wanted=1)])
        assert logits is not None  # one row is wanted
        return np.asarray(logits[0].float().cpu())

    def held_kv(self, session: bytes, prefix: Sequence[int], length: int, *, empty_prompt: bool = False) -> int:
        """Let a session begin with what is known of its prefix; return how many tokens of it that are."""
        kv = self._sessions[PrefillJob(session, prefix, length, empty_prompt)]
        rows = [*kv.head, *prefix[:length]]
        held = kv.agreed(prefix, len(rows))
        if held < len(rows):
            kv.cut(held)
            held += self._prefixes.take(kv, rows)
        return max(held - len(kv.head), 0)

    def export_kv(self, session: bytes, prefix: Sequence[int], length: int) -> KvBlock | None:
        """Copy the KV of `prefix[:length]` to the host; None if the session holds less, or there is nothing."""
        kv = self._sessions.get(session)
        rows = length + len(kv.head) if kv is not None else 0
        if kv is None or not rows or kv.agreed(prefix, rows) < rows:
            return None
        return self._causal.form.block(kv, length)

    def import_kv(
        self, session: bytes, prefix: Sequence[int], length: int, block: KvBlock, *, empty_prompt: bool = False
    ) -> int:
        """Let a session hold the KV of `prefix[:length]`; return how many tokens need not be computed."""
        kv = self._sessions[PrefillJob(session, prefix, length, empty_prompt)]
        if (block.length, block.head) != (length, len(kv.head)):
            raise ValueError(f"the KV is of {block.length} tokens and {block.head} before them, not of this prefix")
        held = kv.agreed(prefix, block.rows)
        layers = self._causal.form.layers_of(block, held, self._causal.device)
        if held == block.rows:
            return 0
        kv.cut(held)
        kv.extend([*kv.head, *prefix[:length]][held:], [layers])
        return block.rows - held

    def _begun(self, job: PrefillJob | VerifyJob) -> SessionKV:
        """Find or admit a session; one that holds nothing begins with what is known of its prefix."""
        kv = self._sessions[job]
        if not kv.tokens:
            self._unknown(kv, job)
        return kv

    def _unknown(self, kv: SessionKV, job: PrefillJob | VerifyJob) -> list[int]:
        """Take over what is known of a job's prefix; return what is not, but for the last token."""
        pending = kv.pending(job.prefix, job.length)[:-1]
        return pending[self._prefixes.take(kv, [*kv.tokens, *pending]) :] if pending else []

    def _judged(self, job: VerifyJob, piece: Piece, logits: Tensor) -> VerifyResult:
        result = judge_greedy(job, logits) if job.rule == GREEDY else judge(job, _Rows(logits))
        piece.kv.cut(len(piece.kv.head) + job.length + result.accepted)
        return result


class TransformersDrafter(_Transformers):
    """A draft model; options as TransformersTarget.

    vocabulary: V of the target, where it differs (D5). generator: for tests; by default seeded by the operating system.
    """

    def __init__(
        self,
        path: Path,
        tokenizer: bytes,
        *,
        capacity: int = 256,
        device: str = "cpu",
        precision: str = "auto",
        threads: int | None = None,
        lean: bool = True,
        vocabulary: int | None = None,
        generator: np.random.Generator | None = None,
    ) -> None:
        super().__init__(path, tokenizer, capacity, device, precision, threads, lean)
        self.vocabulary = vocabulary or self._causal.width
        self._ids = self._outputs()
        self._sessions = Sessions(self._causal, capacity, evicts=True)
        self._generator = generator or np.random.default_rng()

    def close(self, session: bytes) -> None:
        """Give the session's KV back."""
        self._sessions.close(session)

    def draft(self, jobs: Sequence[DraftJob]) -> list[DraftResult]:
        """Draft one position of all jobs per pass; the first pass also takes in what was committed since.

        Past its context the latest token is proposed again: without proposals there is no round.
        """
        drafts = [_Draft(job, self._count(job)) for job in jobs]
        active = [draft for draft in drafts if draft.count]
        fed = [(draft, self._opening(draft.job)) for draft in active]
        while fed:
            logits = self._causal.run([piece for _, piece in fed])
            assert logits is not None  # every piece wants its last row
            self._choose([draft for draft, _ in fed], logits[:, : len(self._ids)])
            fed = [(draft, Piece(piece.kv, draft.tokens[-1:], 1)) for draft, piece in fed if draft.goes_on]
        return [draft.result(self._ids, self.vocabulary) for draft in drafts]

    def _outputs(self) -> NDArray[np.intp]:
        """Tokens that the head's outputs stand for, as far as the target knows them: ascending."""
        ids = np.arange(self._causal.width) if self._causal.output_ids is None else np.array(self._causal.output_ids)
        return ids[ids < self.vocabulary]

    def _count(self, job: DraftJob) -> int:
        return job.count if self.context is None else max(0, min(job.count, self.context - job.length - 1))

    def _opening(self, job: DraftJob) -> Piece:
        """What the session has not seen of its prefix."""
        kv = self._sessions[job]
        return Piece(kv, self._near(kv, job), 1)

    def _choose(self, drafts: Sequence[_Draft], logits: Tensor) -> None:
        """Add one token to each draft from logits [drafts, outputs]."""
        best = _best(logits) if any(draft.job.rule == GREEDY for draft in drafts) else []
        for index, draft in enumerate(drafts):
            if draft.job.rule == GREEDY:
                output = best[index]
            else:
                draft.rows.append(draft_row(_on_host(logits[index]), draft.job.profile))
                output = sample(draft.rows[-1], self._generator)
            draft.tokens.append(int(self._ids[output]))


class _Draft:
    """A draft under way. `rows` are over the head's outputs, and those sampled from."""

    def __init__(self, job: DraftJob, count: int) -> None:
        self.job, self.count = job, count
        self.tokens: list[int] = []
        self.rows: list[NDArray[np.float32]] = []

    @property
    def goes_on(self) -> bool:
        return len(self.tokens) < self.count

    def result(self, ids: NDArray[np.intp], vocabulary: int) -> DraftResult:
        """Spread the rows over the target's vocabulary; what the head lacks has probability zero (D5)."""
        if not self.count:
            return certain((self.job.prefix[self.job.length - 1] % vocabulary,), self.job.rule, vocabulary)
        if not self.rows:
            return DraftResult(tuple(self.tokens), None)
        rows = np.zeros((len(self.rows), vocabulary), np.float32)
        rows[:, ids] = self.rows
        return DraftResult(tuple(self.tokens), rows)


class _Rows:
    """Logits [n, V] on their device, brought to the host one position at a time."""

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        return _on_host(self._logits[index])


def judge_greedy(job: VerifyJob, logits: Tensor) -> VerifyResult:
    """Rule 1 on the device: `rules.accept_greedy` for logits [evaluated positions, V]."""
    best = _best(logits)
    limit = min(len(job.tokens), job.room)
    accepted = next((index for index in range(limit) if job.tokens[index] != best[index]), limit)
    return VerifyResult(accepted, best[accepted] if accepted < len(best) else None)


def _best(logits: Tensor) -> list[int]:
    """Return the argmax of each row, the smallest identifier of equals (D22). ValueError for a NaN."""
    values, indices = logits.max(-1)  # the first of equals; a NaN outranks every number
    if values.isnan().any():
        raise ValueError("the model's logits hold a NaN")
    found: list[int] = indices.tolist()
    return found


def _on_host(logits: Tensor) -> NDArray[np.float32]:
    host: NDArray[np.float32] = logits.float().cpu().numpy()
    return host
