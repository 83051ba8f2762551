"""The drafter: a small Llama with its own, cut head; made from the target's embeddings, distilled, written as a folder.

While it is trained, the rows of its embeddings and of its head are the target's embeddings through a learned map, plus
a learned correction (`Projected`): what the texts teach of one word moves the words like it, and a word that the texts
never show stays in its place among the others. Only the products are written.

The folder's format is fixed, since the product's engine reads it: `config.json` of a LlamaForCausalLM with the
extra key `output_vocabulary`, `model.safetensors` in binary16 with `lm_head.weight` [N, hidden] and `output_ids` [N].
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from drafter_data import Batch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel

from sdcp.engines.fetch_gguf import write_safetensors

SPREAD = 0.05  # standard deviation of the first embeddings


class Projected(nn.Module):
    """A matrix [rows, hidden] as wide @ map + correction; wide [rows, width] is the target's and stays."""

    def __init__(self, wide: Tensor, first_map: Tensor) -> None:
        super().__init__()
        self.register_buffer("wide", wide, persistent=False)
        self.map = nn.Parameter(first_map.clone())
        self.correction = nn.Parameter(torch.zeros(len(wide), first_map.shape[1]))

    def matrix(self) -> Tensor:
        return self.wide @ self.map + self.correction

    def forward(self, tokens: Tensor) -> Tensor:
        """Rows [..., hidden] of tokens [...]; the corrections have sparse gradients: a batch has few of all tokens."""
        return self.wide[tokens] @ self.map + nn.functional.embedding(tokens, self.correction, sparse=True)


class Drafter(nn.Module):
    """A LlamaModel, and a head over `output_ids` that is one matrix [N, hidden]."""

    def __init__(self, config: LlamaConfig, output_ids: NDArray[np.int32]) -> None:
        super().__init__()
        self.config, self.output_ids = config, output_ids
        self.model = LlamaModel(config)
        self.lm_head: nn.Module = nn.Linear(config.hidden_size, len(output_ids), bias=False)

    def forward(self, tokens: Tensor, at: Tensor) -> Tensor:
        """Logits [P, N] after the flat positions `at` of tokens [B, T]. Padding on the right needs no mask."""
        hidden: Tensor = self.model(input_ids=tokens, use_cache=False).last_hidden_state
        head = self.lm_head.matrix() if isinstance(self.lm_head, Projected) else self.lm_head.weight
        return nn.functional.linear(hidden.flatten(0, 1)[at], head)

    def tensors(self) -> dict[str, Tensor]:
        """The weights by their Hugging Face names, products multiplied out."""
        found = {name: value for name, value in self.state_dict().items() if not _of_projection(name)}
        parts = {"model.embed_tokens": self.model.embed_tokens, "lm_head": self.lm_head}
        found |= {f"{name}.weight": part.matrix() for name, part in parts.items() if isinstance(part, Projected)}
        return {name: value.detach() for name, value in found.items()}


def config_for(target: Path, hidden: int, layers: int, feed: int, heads: int) -> LlamaConfig:
    """The drafter's configuration: its own sizes, the target's vocabulary and special tokens."""
    known = json.loads((target / "config.json").read_text())
    kept = ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings", "rms_norm_eps")
    return LlamaConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        intermediate_size=feed,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        rope_theta=10000.0,
        tie_word_embeddings=False,
        **{key: known[key] for key in kept},
    )


def from_target(target: Path, config: LlamaConfig, output_ids: NDArray[np.int32]) -> Drafter:
    """A drafter whose embeddings and head start as the target's embeddings on their first principal axes."""
    drafter, wide = Drafter(config, output_ids), wide_embeddings(target)
    first = torch.eye(wide.shape[1], config.hidden_size)
    first *= SPREAD / wide[:, : config.hidden_size].std()
    drafter.model.embed_tokens = Projected(wide, first)
    drafter.lm_head = Projected(wide[torch.from_numpy(output_ids).long()], first)
    return drafter


def from_drafter(target: Path, drafter: Drafter) -> Drafter:
    """A loaded drafter made ready to be trained on: its rows again as the nearest map and the rest as corrections."""
    wide = wide_embeddings(target)
    own = wide[torch.from_numpy(drafter.output_ids).long()]
    drafter.model.embed_tokens = _explained(wide, drafter.model.embed_tokens.weight.detach())
    drafter.lm_head = _explained(own, drafter.lm_head.weight.detach())
    return drafter.train()


def wide_embeddings(target: Path) -> Tensor:
    """The target's embeddings [V, width]: mean 0, deviation 1, on their principal axes, largest first."""
    wide = load_file(target / "model.safetensors")["model.embed_tokens.weight"].float()
    wide = (wide - wide.mean(0)) / wide.std()
    return wide @ torch.linalg.eigh(wide.T @ wide).eigenvectors.flip(1)


def _explained(wide: Tensor, rows: Tensor) -> Projected:
    projected = Projected(wide, torch.linalg.lstsq(wide, rows).solution)
    with torch.no_grad():
        projected.correction.copy_(rows - wide @ projected.map)
    return projected


def distillation_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Cross-entropy against the target's probabilities on the ids that the head has, per unit of their mass."""
    loss: Tensor = _SparseCrossEntropy.apply(logits, batch.rows, batch.weights)
    return loss


class _SparseCrossEntropy(torch.autograd.Function):
    """Cross-entropy with few targets a row. By hand, since the gradient of `gather` fills a whole [P, N] with zeros."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
        chances = torch.softmax(logits, 1)
        ctx.chances, ctx.rows, ctx.weights = chances, rows, weights
        return -(weights * chances.gather(1, rows).clamp_min(1e-30).log()).sum() / weights.sum()

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None]:
        scaled = ctx.weights * (outer / ctx.weights.sum())
        gradient = ctx.chances.mul_(scaled.sum(1, keepdim=True)).scatter_add_(1, ctx.rows, -scaled)
        return gradient, None, None


@torch.no_grad()
def agreement(drafter: Drafter, batches: list[Batch]) -> tuple[float, float]:
    """(cross-entropy, share of positions where the drafter's best token is the target's) on held-out batches."""
    loss, same, count = 0.0, 0, 0
    for batch in batches:
        logits = drafter(batch.tokens, batch.at)
        loss += float(distillation_loss(logits, batch)) * len(batch.at)
        same += int((logits.argmax(1) == batch.best).sum())
        count += len(batch.at)
    return loss / count, same / count


def save(drafter: Drafter, target: Path, folder: Path) -> None:
    """Write the folder: config.json, model.safetensors, tokenizer.json and what belongs to the tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    own = {"architectures": ["LlamaForCausalLM"], "dtype": "float16", "output_vocabulary": len(drafter.output_ids)}
    keys = drafter.config.to_dict() | own | {"rope_theta": 10000.0}
    keys.pop("transformers_version", None)
    (folder / "config.json").write_text(json.dumps(keys, indent=2, sort_keys=True) + "\n")
    tensors = {name: value.half().numpy() for name, value in drafter.tensors().items()}
    write_safetensors(folder / "model.safetensors", tensors | {"output_ids": drafter.output_ids})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(target / name, folder / name)


def load(folder: Path) -> Drafter:
    """The drafter that `save` wrote, in binary32."""
    tensors = load_file(folder / "model.safetensors")
    ids = tensors.pop("output_ids").numpy()
    drafter = Drafter(LlamaConfig(**json.loads((folder / "config.json").read_text())), ids)
    drafter.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return drafter.eval()


def _of_projection(name: str) -> bool:
    return name.endswith((".map", ".correction"))
