"""The reference model (docs/reference-model.md): a table of logits, written as safetensors and read by nobody here.

The tables of the kit have V = 16. After token t the target wants `follow(t)`; the permutation runs through all tokens.
After token 15 two tokens are equally good, so that ties are met on every path. The draft model agrees with the target
after most tokens.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from sdcp_conformance.oracle.sampling import argmax

V = 16
CONTEXT = 65_536
TOKENIZER = hashlib.sha256(b"sdcp-identity-tokenizer-1").digest()
DISAGREES_AFTER = (5, 11)
"""Tokens after which the draft model wants another token than the target."""


def follow(token: int) -> int:
    """The token that the target finds most probable after `token`."""
    return (5 * token + 3) % V


@dataclass(frozen=True)
class Bigram:
    """`rows[t]`: the logits that follow token t, exact in binary32."""

    rows: tuple[tuple[float, ...], ...]

    @property
    def file(self) -> bytes:
        """The safetensors file."""
        data = struct.pack(f"<{len(self.rows) ** 2}f", *(logit for row in self.rows for logit in row))
        size = len(self.rows)
        header = {
            "__metadata__": {"context": str(CONTEXT)},
            "logits": {"dtype": "F32", "shape": [size, size], "data_offsets": [0, len(data)]},
        }
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text + data

    @property
    def digest(self) -> bytes:
        """What contracts call the model."""
        return hashlib.sha256(self.file).digest()

    def after(self, prefix: Sequence[int]) -> tuple[float, ...]:
        """The logits that follow a prefix."""
        return self.rows[prefix[-1]]

    def along(self, prefix: Sequence[int], tokens: Sequence[int]) -> list[tuple[float, ...]]:
        """The logits of M + 1 positions: after the prefix and after each of the tokens."""
        return [self.rows[token] for token in (prefix[-1], *tokens)]

    def next_tokens(self, prefix: Sequence[int], count: int) -> list[int]:
        """The `count` tokens of plain greedy decoding."""
        tokens: list[int] = []
        while len(tokens) < count:
            tokens.append(argmax(self.rows[tokens[-1] if tokens else prefix[-1]]))
        return tokens


def _row(token: int) -> tuple[float, ...]:
    row = [((7 * token + 13 * other) % 11) / 4 for other in range(V)]
    row[follow(token)] = 4.0
    if token == V - 1:
        row[V - 1] = 4.0  # ties with the smaller follow(15) = 14
    return tuple(row)


TARGET = Bigram(tuple(_row(token) for token in range(V)))


def _draft_row(token: int) -> tuple[float, ...]:
    row = [logit / 2 for logit in TARGET.rows[token]]
    if token in DISAGREES_AFTER:
        row[(follow(token) + 1) % V] = 4.0
    return tuple(row)


DRAFT = Bigram(tuple(_draft_row(token) for token in range(V)))
