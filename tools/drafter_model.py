"""The drafter: a small Llama with its own, cut head; made from the target's embeddings, distilled, written as a folder.

The folder's format is fixed, since the product's engine reads it: `config.json` of a LlamaForCausalLM with the
extra key `output_vocabulary`, `model.safetensors` in binary16 with `lm_head.weight` [N, hidden] and `output_ids` [N].
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from drafter_data import Batch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel

from sdcp.engines.fetch_gguf import write_safetensors


class Drafter(nn.Module):
    """A LlamaModel and a head over `output_ids`."""

    def __init__(self, config: LlamaConfig, output_ids: NDArray[np.int32]) -> None:
        super().__init__()
        self.config, self.output_ids = config, output_ids
        self.model = LlamaModel(config)
        self.lm_head = nn.Linear(config.hidden_size, len(output_ids), bias=False)

    def forward(self, tokens: Tensor, at: Tensor) -> Tensor:
        """Logits [P, N] after the flat positions `at` of tokens [B, T]. Padding on the right needs no mask."""
        hidden: Tensor = self.model(input_ids=tokens, use_cache=False).last_hidden_state
        logits: Tensor = self.lm_head(hidden.flatten(0, 1)[at])
        return logits


def config_for(target: Path, hidden: int, layers: int, feed: int, heads: int) -> LlamaConfig:
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
    """A drafter whose embeddings and head are the target's embeddings on their first principal axes."""
    drafter = Drafter(config, output_ids)
    wide = load_file(target / "model.safetensors")["model.embed_tokens.weight"].float()
    wide = wide - wide.mean(0)
    axes = torch.linalg.eigh(wide.T @ wide).eigenvectors.flip(1)[:, : config.hidden_size]
    narrow = wide @ axes
    narrow = narrow / narrow.std() * 0.05
    with torch.no_grad():
        drafter.model.embed_tokens.weight.copy_(narrow)
        drafter.lm_head.weight.copy_(narrow[torch.from_numpy(output_ids).long()])
    return drafter


def distillation_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Cross-entropy against the target's probabilities on the ids that the head has, per unit of their mass."""
    chosen = logits.gather(1, batch.rows)
    mass = batch.weights.sum(1)
    return (mass * logits.logsumexp(1) - (batch.weights * chosen).sum(1)).sum() / mass.sum()


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
    keys = drafter.config.to_dict() | {
        "architectures": ["LlamaForCausalLM"],
        "output_vocabulary": len(drafter.output_ids),
    }
    keys["dtype"], keys["rope_theta"] = "float16", 10000.0
    keys.pop("transformers_version", None)
    (folder / "config.json").write_text(json.dumps(keys, indent=2, sort_keys=True) + "\n")
    tensors = {name: value.detach().half().numpy() for name, value in drafter.state_dict().items()}
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
