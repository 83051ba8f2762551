"""A fake target that has KV: its next token follows from the KV of every token before it, so wrong KV shows.

The KV of a token is two numbers: the token, and one that follows from it and from all before it. What a session holds
is believed, as engines do. `computed` counts the tokens whose KV was computed here, `taken` those that were taken up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sdcp.engines.digests import IDENTITY_TOKENIZER
from sdcp.engines.rounds import judge
from sdcp.ports import PrefillJob, VerifyJob, VerifyResult
from sdcp.wire.kv_object import KvBlock

KV_LAYOUT = "kv1/chain/F32/1x1x1x1"
_MODULUS = 65_521  # a number below 2^16 is exact in binary32, and so is its product with a token in binary64

Kv = list[tuple[int, int]]
"""The token and its number, one pair for each token of the prefix."""


class KvTarget:
    """A target of V tokens for `capacity` sessions; it needs a prompt."""

    context: int | None = None
    tokenizer = IDENTITY_TOKENIZER
    takes_empty_prompt = False
    kv_layout: str | None = KV_LAYOUT

    def __init__(self, vocabulary: int = 64, capacity: int = 1024) -> None:
        self.vocabulary = vocabulary
        self.capacity = capacity
        self.model = hashlib.sha256(b"kv-target").digest()
        self.computed = 0
        self.taken = 0
        self._held: dict[bytes, Kv] = {}

    def close(self, session: bytes) -> None:
        """Forget the session's KV."""
        self._held.pop(session, None)

    def prefill(self, jobs: Sequence[PrefillJob], budget: int) -> list[bool]:
        """Compute all but the last token of each job, whatever the budget."""
        for job in jobs:
            self._catch_up(job.session, job.prefix, job.length - 1)
        return [True] * len(jobs)

    def verify(self, jobs: Sequence[VerifyJob]) -> list[VerifyResult]:
        """Judge each job by the rules, and keep the KV of what was accepted."""
        return [self._verified(job) for job in jobs]

    def next_logits(self, session: bytes, prefix: Sequence[int], length: int) -> NDArray[np.float32]:
        """Return the logits [V] after `prefix[:length]`."""
        return self._row(self._catch_up(session, prefix, length))

    def held_kv(self, session: bytes, prefix: Sequence[int], length: int, *, empty_prompt: bool = False) -> int:
        """See `Target.held_kv`."""
        return len(self._held.get(session, []))

    def export_kv(self, session: bytes, prefix: Sequence[int], length: int) -> KvBlock | None:
        """See `Target.export_kv`."""
        kv = self._held.get(session, [])
        if len(kv) < length:
            return None
        tokens, numbers = np.array(kv[:length], "<f4").reshape(length, 2).T
        return KvBlock(KV_LAYOUT, length, {"layer.0000.keys": tokens.tobytes(), "layer.0000.values": numbers.tobytes()})

    def import_kv(
        self, session: bytes, prefix: Sequence[int], length: int, block: KvBlock, *, empty_prompt: bool = False
    ) -> int:
        """See `Target.import_kv`."""
        if (block.layout, block.length) != (KV_LAYOUT, length):
            raise ValueError("the KV is of another layout or length")
        spared = length - len(self._held.get(session, []))
        tokens, numbers = (np.frombuffer(block.tensors[f"layer.0000.{each}"], "<f4") for each in ("keys", "values"))
        self._held[session] = [(int(token), int(number)) for token, number in zip(tokens, numbers, strict=True)]
        self.taken += spared
        return spared

    def _catch_up(self, session: bytes, prefix: Sequence[int], length: int) -> Kv:
        kv = self._held.setdefault(session, [])
        self.computed += max(0, length - len(kv))
        _extend(kv, prefix[len(kv) : length])
        return kv

    def _verified(self, job: VerifyJob) -> VerifyResult:
        kv = self._catch_up(job.session, job.prefix, job.length)
        positions: list[NDArray[np.float32]] = []
        for token in (*job.tokens, None):
            positions.append(self._row(kv))
            if token is not None:
                _extend(kv, (token,))
        result = judge(job, positions)
        del kv[job.length + result.accepted :]
        return result

    def _row(self, kv: Kv) -> NDArray[np.float32]:
        """Logits that prefer the tokens to which the sum of all numbers points."""
        place = sum(number for _, number in kv) + len(kv)
        row = np.zeros(self.vocabulary, np.float32)
        for rank, step in enumerate((0, 7, 31)):
            row[(place + step) % self.vocabulary] = 4.0 - rank
        return row


def _extend(kv: Kv, tokens: Sequence[int]) -> None:
    for token in tokens:
        before = kv[-1][1] if kv else 1
        kv.append((token, (31 * before + 17 * token + 1) % _MODULUS))
