"""Turn a llama-family GGUF file into the files of a Hugging Face folder, byte for byte the same everywhere.

Three pure steps: `weights` (dequantized to binary16 under the Hugging Face names), `tokenizer_json` and `config`. The
bytes are written by this module and not by a library, because the SHA-256 of the weights and of `tokenizer.json` are
identities in a contract (draft section 3.1, and the reference model's rules for real models): a new release of a
library must not change them.

Does not fetch anything, does not load a model, and knows only what the demonstration target needs: architecture
`llama`, a byte-level BPE tokenizer whose pre-tokenizer is `smollm` (every digit alone, then the GPT-2 pattern), and
tied embeddings. Anything else is refused.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_CONTROL_TOKEN = 3  # token_type of a special token in GGUF


class UnsupportedModel(ValueError):
    """The GGUF file is not of the one shape that this module converts."""


class LlamaGguf:
    """A GGUF file of a llama-family model with tied embeddings. Raises UnsupportedModel for any other."""

    def __init__(self, path: Path) -> None:
        self._reader = GGUFReader(path)
        shape = (
            self.field("general.architecture"),
            self.field("tokenizer.ggml.model"),
            self.field("tokenizer.ggml.pre"),
        )
        tied = all(tensor.name != "output.weight" for tensor in self._reader.tensors)
        if shape != ("llama", "gpt2", "smollm") or not tied:
            raise UnsupportedModel(f"cannot convert {path.name}: {shape}, tied embeddings: {tied}")

    def field(self, name: str) -> Any:
        """The value of one metadata field; KeyError if the file has none."""
        return self._reader.fields[name].contents()

    def config(self) -> dict[str, Any]:
        """What `config.json` holds: the keys of a Hugging Face LlamaConfig."""
        heads, width = int(self.field("llama.attention.head_count")), int(self.field("llama.embedding_length"))
        return {
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": int(self.field("tokenizer.ggml.bos_token_id")),
            "dtype": "float16",
            "eos_token_id": int(self.field("tokenizer.ggml.eos_token_id")),
            "head_dim": width // heads,
            "hidden_act": "silu",
            "hidden_size": width,
            "initializer_range": 0.041666666666666664,
            "intermediate_size": int(self.field("llama.feed_forward_length")),
            "max_position_embeddings": int(self.field("llama.context_length")),
            "mlp_bias": False,
            "model_type": "llama",
            "num_attention_heads": heads,
            "num_hidden_layers": int(self.field("llama.block_count")),
            "num_key_value_heads": int(self.field("llama.attention.head_count_kv")),
            "pad_token_id": int(self.field("tokenizer.ggml.padding_token_id")),
            "pretraining_tp": 1,
            "rms_norm_eps": 1e-05,
            "rope_scaling": None,
            "rope_theta": float(self.field("llama.rope.freq_base")),
            "tie_word_embeddings": True,
            "use_cache": True,
            "vocab_size": int(self.field("llama.vocab_size")),
        }

    def weights(self) -> Iterator[tuple[str, NDArray[np.float16]]]:
        """Every weight as (Hugging Face name, binary16 array), in the file's order."""
        heads = int(self.field("llama.attention.head_count"))
        key_heads = int(self.field("llama.attention.head_count_kv"))
        for tensor in self._reader.tensors:
            values = dequantize(tensor.data, tensor.tensor_type).astype(np.float16)
            if ".attn_q." in tensor.name:
                values = _rotate_halves(values, heads)
            elif ".attn_k." in tensor.name:
                values = _rotate_halves(values, key_heads)
            yield hugging_face_name(tensor.name), values

    def tokenizer_json(self) -> dict[str, Any]:
        """What `tokenizer.json` holds: the byte-level BPE tokenizer in the `tokenizers` library's format."""
        tokens, kinds = self.field("tokenizer.ggml.tokens"), self.field("tokenizer.ggml.token_type")
        special = [index for index, kind in enumerate(kinds) if kind == _CONTROL_TOKEN]
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [_added_token(index, tokens[index]) for index in special],
            "normalizer": None,
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
            },
            "post_processor": None,
            "decoder": byte_level | {"add_prefix_space": True},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": {token: index for index, token in enumerate(tokens)},
                "merges": [merge.split(" ") for merge in self.field("tokenizer.ggml.merges")],
            },
        }

    def special_tokens(self) -> dict[str, str]:
        """The text of the tokens with a role: bos, eos, pad, unk."""
        tokens = self.field("tokenizer.ggml.tokens")
        roles = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
        return {role: tokens[int(self.field(f"tokenizer.ggml.{key}_token_id"))] for role, key in roles.items()}


def hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` as `model.layers.3.self_attn.q_proj.weight`; KeyError for a tensor that Llama lacks."""
    if name in _OUTER_NAMES:
        return _OUTER_NAMES[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"


def write_safetensors(path: Path, tensors: dict[str, NDArray[Any]]) -> None:
    """Write binary16 and int32 arrays as one safetensors file, in name order, with the same bytes every time."""
    kinds = {"float16": "F16", "int32": "I32"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in sorted(tensors):
        array = tensors[name]
        end = offset + array.nbytes
        header[name] = {"dtype": kinds[array.dtype.name], "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(tensors):
            file.write(np.ascontiguousarray(tensors[name]).tobytes())


def _rotate_halves(rows: NDArray[np.float16], heads: int) -> NDArray[np.float16]:
    """Undo the row order of q and k in llama GGUF files.

    GGUF keeps the two members of a rotary pair side by side; the Hugging Face layout keeps them half a head apart.
    rows: [heads * head_dim, width].
    """
    pairs = rows.reshape(heads, -1, 2, rows.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _added_token(index: int, content: str) -> dict[str, Any]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": index, "content": content, **plain, "special": True}
