"""Tiny models with random weights, saved as folders: what the transformers engine is tried on."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
    collect_ignore_glob = ["test_transformers*"]  # the extra `transformers` is not installed
else:
    import torch
    import transformers

V = 101
SMALL = {"vocab_size": V, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = {
    **SMALL,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
WIDE = {
    **LLAMA,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "initializer_range": 0.05,
}

CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**LLAMA),
    "llama-gqa-tied": lambda: transformers.LlamaConfig(**LLAMA, num_key_value_heads=2, tie_word_embeddings=True),
    "llama-biased": lambda: transformers.LlamaConfig(**LLAMA, num_key_value_heads=1, attention_bias=True, head_dim=16),
    "llama-wide": lambda: transformers.LlamaConfig(**WIDE, num_key_value_heads=3),
    "qwen2": lambda: transformers.Qwen2Config(**LLAMA, num_key_value_heads=2),
    "mistral-window": lambda: transformers.MistralConfig(**LLAMA, num_key_value_heads=2, sliding_window=7),
    "gpt2": lambda: transformers.GPT2Config(**SMALL, n_embd=32, n_layer=2, n_head=4, n_positions=256),
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a tiny model by name, made once."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            torch.manual_seed(len(name))
            model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=torch.float32)
            for parameter, weight in model.named_parameters():
                if "norm" in parameter or "ln_" in parameter:
                    torch.nn.init.uniform_(weight, 0.5, 1.5)  # ones would hide a norm left out
            made[name] = tmp_path_factory.mktemp("models") / name
            model.save_pretrained(made[name])
        return made[name]

    return make


@pytest.fixture(scope="session")
def plain() -> Callable[[Path, list[int]], Any]:
    """Return the logits [n, V] of transformers' own forward over a whole sequence."""
    loaded: dict[Path, Any] = {}

    def forward(path: Path, tokens: list[int]) -> Any:
        if path not in loaded:
            loaded[path] = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        with torch.inference_mode():
            return loaded[path](torch.tensor([tokens])).logits[0].numpy()

    return forward
