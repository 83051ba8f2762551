"""The texts that the target wrote, as batches for distillation, and the output vocabulary that they need.

A shard (target_writer.save_shard) holds whole texts: prompt and answer with the chat template, as the drafter will see
them, and the target's TOP probabilities at each position of the answer. Texts whose prompt number is a multiple of
HELD_OUT are never trained on: early stopping looks at them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

HELD_OUT = 40


@dataclass(frozen=True)
class Text:
    """One text: all its tokens, where the answer starts, and the target's rows for each answer token."""

    tokens: NDArray[np.uint16]
    start: int
    top_ids: NDArray[np.uint16]
    top_probabilities: NDArray[np.float16]
    prompt: int
    greedy: bool


@dataclass(frozen=True)
class Batch:
    """tokens [B, T], padded on the right; `at` [P] flat positions whose next token the target has scored."""

    tokens: Tensor
    at: Tensor
    rows: Tensor  # [P, TOP] rows of the drafter's head, 0 where it has none
    weights: Tensor  # [P, TOP] probabilities over them, 0 where it has none
    best: Tensor  # [P] the row of the target's best token, -1 where the head has none


def texts(folder: Path) -> list[Text]:
    """Every text of every shard under the folder."""
    found: list[Text] = []
    for path in sorted(folder.glob("shard-*.npz")):
        with np.load(path) as shard:
            found += _texts_of({name: shard[name] for name in shard.files})
    return found


def _texts_of(shard: dict[str, NDArray[np.generic]]) -> Iterator[Text]:
    lengths, starts = shard["lengths"].astype(int), shard["prompt_lengths"].astype(int)
    ends, top_ends = np.cumsum(lengths), np.cumsum(lengths - starts)
    for index, (end, top_end) in enumerate(zip(ends, top_ends, strict=True)):
        span, top = slice(end - lengths[index], end), slice(top_end - lengths[index] + starts[index], top_end)
        rows = (shard["top_ids"][top], shard["top_probabilities"][top])
        yield Text(
            shard["tokens"][span], starts[index], *rows, int(shard["prompts"][index]), bool(shard["greedy"][index])
        )


def output_ids(found: list[Text], count: int, vocabulary: int) -> NDArray[np.int32]:
    """The `count` token ids with the most probability in the texts, in rising order; ties go to the lower id."""
    mass = np.zeros(vocabulary)
    for text in found:
        np.add.at(mass, text.top_ids.ravel(), text.top_probabilities.ravel().astype(float))
        np.add.at(mass, text.tokens, 0.05)  # words of prompts come back in answers
    return np.sort(np.argsort(-mass, kind="stable")[:count]).astype(np.int32)


class Batches:
    """Batches of about `size` tokens, of texts of like length, in an order that the seed decides."""

    def __init__(self, found: list[Text], ids: NDArray[np.int32], vocabulary: int, size: int) -> None:
        self.texts, self.size = found, size
        self.row_of = np.full(vocabulary, -1, dtype=np.int64)
        self.row_of[ids] = np.arange(len(ids))

    def epoch(self, seed: int) -> list[list[int]]:
        """Groups of text numbers, one group a batch."""
        random = np.random.default_rng(seed)
        lengths = np.array([len(text.tokens) for text in self.texts]) + random.uniform(0, 16, len(self.texts))
        groups: list[list[int]] = [[]]
        for index in np.argsort(lengths):
            if groups[-1] and (len(groups[-1]) + 1) * len(self.texts[index].tokens) > self.size:
                groups.append([])
            groups[-1].append(int(index))
        return [groups[index] for index in random.permutation(len(groups))]

    def batch(self, group: list[int]) -> Batch:
        chosen = [self.texts[index] for index in group]
        width = max(len(text.tokens) for text in chosen) - 1
        tokens = np.zeros((len(chosen), width), dtype=np.int64)
        for line, text in enumerate(chosen):
            tokens[line, : len(text.tokens) - 1] = text.tokens[:-1]
        at = [np.arange(text.start - 1, len(text.tokens) - 1) + line * width for line, text in enumerate(chosen)]
        rows = self.row_of[np.concatenate([text.top_ids for text in chosen])]
        weights = np.concatenate([text.top_probabilities for text in chosen]).astype(np.float32) * (rows >= 0)
        arrays = (tokens, np.concatenate(at), np.maximum(rows, 0), weights, rows[:, 0])
        return Batch(*(torch.from_numpy(array) for array in arrays))
