"""Let the target write: many prompts at once on a CPU, with its top-32 probabilities at every position.

`PackedLlama` is a plain Llama forward pass made for this one purpose: weights in bfloat16 packed for oneDNN, the
residual stream and the logits in binary32, one key-value slot per row. `Writer` keeps every slot busy: a finished row
gives its slot to the next prompt at once, and prompts come in an order of length so that neighbours in time are of
like length. Texts go to numbered shards, each written under a temporary name and renamed; a restart skips the prompts
that the shards already hold.

Not an engine of the product (that is sdcp.engines): it never rolls back and promises no exact numerics.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

TOP = 32  # probabilities kept at each position
_NEW_ROWS_AT_ONCE = 8  # free slots to wait for, so that prefill runs on one packed batch


class PackedLlama:
    """A Llama with tied embeddings, packed for decoding on a CPU. Keys and values: [layer, slot, head, T, d]."""

    def __init__(self, folder: Path, slots: int, context: int, threads: int) -> None:
        config = json.loads((folder / "config.json").read_text())
        tensors = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
        self.layers, self.heads = config["num_hidden_layers"], config["num_attention_heads"]
        self.kv_heads, self.size = config["num_key_value_heads"], config["head_dim"]
        self.epsilon, self.slots, self.context = config["rms_norm_eps"], slots, context
        self.embeddings, self.last_norm = tensors["model.embed_tokens.weight"], tensors["model.norm.weight"]
        self.blocks = [_Block(tensors, f"model.layers.{index}.") for index in range(self.layers)]
        shape = (self.layers, slots, self.kv_heads, context, self.size)
        self.keys, self.values = (torch.zeros(shape, dtype=torch.bfloat16) for _ in range(2))
        self.attention = DecodeAttention(self.size, self.heads // self.kv_heads, threads)
        angles = torch.outer(torch.arange(context).float(), _frequencies(self.size, config["rope_theta"]))
        self.cos, self.sin = (f(torch.cat([angles, angles], -1)) for f in (torch.cos, torch.sin))

    def start(self, slots: list[int], prompts: list[list[int]]) -> Tensor:
        """Prefill one free slot per prompt; returns the logits [len(prompts), V] after each prompt's last token."""
        lengths = [len(prompt) for prompt in prompts]
        positions = torch.cat([torch.arange(length) for length in lengths])
        spans = list(torch.split(torch.arange(len(positions)), lengths))

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            parts = []
            for slot, span in zip(slots, spans, strict=True):
                q, k, v = (rows[span].transpose(0, 1) for rows in (query, key, value))
                self.keys[layer, slot, :, : len(span)], self.values[layer, slot, :, : len(span)] = k, v
                group = self.heads // self.kv_heads
                k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
                out = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)
                parts.append(out[0].transpose(0, 1))
            return torch.cat(parts).flatten(1)

        hidden = self._run(torch.tensor([token for prompt in prompts for token in prompt]), positions, attend)
        return self._logits(hidden[torch.tensor(lengths).cumsum(0) - 1])

    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """One token in every slot, at its own position; returns logits [slots, V]."""
        rows = torch.arange(self.slots)

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            self.keys[layer][rows, :, positions] = key
            self.values[layer][rows, :, positions] = value
            return self.attention(query.float(), self.keys[layer], self.values[layer], positions).bfloat16()

        return self._logits(self._run(tokens, positions, attend))

    def _run(
        self, tokens: Tensor, positions: Tensor, attend: Callable[[int, Tensor, Tensor, Tensor], Tensor]
    ) -> Tensor:
        """tokens, positions: [N]; returns the hidden rows [N, width] before the last norm."""
        hidden = self.embeddings[tokens]
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        ends = [self.heads * self.size, (self.heads + self.kv_heads) * self.size]
        for layer, block in enumerate(self.blocks):
            parts = block.qkv(_norm(hidden, block.attention_norm, self.epsilon)).tensor_split(ends, -1)
            query, key, value = (part.unflatten(-1, (-1, self.size)) for part in parts)
            query, key = (_rotated(part, cos, sin).bfloat16() for part in (query, key))
            hidden = hidden + block.output(attend(layer, query, key, value))
            gate, up = block.gate_up(_norm(hidden, block.feed_norm, self.epsilon)).chunk(2, -1)
            hidden = hidden + block.down(torch.nn.functional.silu(gate) * up)
        return hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        """Binary32 logits: bfloat16 would round them to steps of an eighth."""
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        logits = torch.nn.functional.linear(_norm(hidden, self.last_norm, self.epsilon).float(), self.embeddings)
        torch.backends.mkldnn.matmul.fp32_precision = "ieee"
        return logits


class DecodeAttention:
    """decode_attention.c, compiled for one head width and group, run on some threads. Needs a C compiler named `cc`."""

    def __init__(self, size: int, group: int, threads: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "decode_attention.so"
            source = Path(__file__).with_name("decode_attention.c")
            options = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC", f"-DSIZE={size}", f"-DGROUP={group}"]
            subprocess.run(["cc", *options, str(source), "-o", str(library), "-lm"], check=True)
            self._call = ctypes.CDLL(str(library)).decode_attention
        self.group, self.threads, self.pool = group, threads, ThreadPoolExecutor(threads)

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
        """query: [R, heads, size] binary32; keys, values: [R, kv, T, size] bfloat16. Returns [R, heads * size]."""
        rows, kv_heads, context, _ = keys.shape
        query, out = query.contiguous(), torch.empty(rows, query.shape[1] * query.shape[2])
        scores = torch.empty(self.threads, self.group * context)
        shared = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (query, keys, values, positions, out)]

        def part(index: int) -> None:
            ends = [rows * number // self.threads for number in (index, index + 1)]
            numbers = [ctypes.c_int64(number) for number in (*ends, kv_heads, context)]
            self._call(*shared, *numbers, ctypes.c_void_p(scores[index].data_ptr()))

        list((self.pool.map if self.threads > 1 else map)(part, range(self.threads)))
        return out


class _Block:
    def __init__(self, tensors: dict[str, Tensor], prefix: str) -> None:
        def packed(*names: str) -> Callable[[Tensor], Tensor]:
            return _packed(torch.cat([tensors[f"{prefix}{name}.weight"] for name in names]))

        self.qkv = packed("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self.output, self.down = packed("self_attn.o_proj"), packed("mlp.down_proj")
        self.gate_up = packed("mlp.gate_proj", "mlp.up_proj")
        self.attention_norm = tensors[f"{prefix}input_layernorm.weight"]
        self.feed_norm = tensors[f"{prefix}post_attention_layernorm.weight"]


@dataclass
class Row:
    """A text being written: the target's TOP ids and probabilities for each token after the prompt."""

    prompt: int
    greedy: bool
    prompt_length: int
    tokens: list[int]
    ids: list[np.ndarray] = field(default_factory=list)
    probabilities: list[np.ndarray] = field(default_factory=list)


class Writer:
    """Writes one text per prompt. A text ends at the end token or after `length` tokens."""

    def __init__(self, model: PackedLlama, length: int, end: int, seed: int, temperature: float = 0.7) -> None:
        self.model, self.length, self.end, self.temperature = model, length, end, temperature
        self.random = torch.Generator().manual_seed(seed)
        self.rows: list[Row | None] = [None] * model.slots
        self.next = torch.zeros(model.slots, dtype=torch.long)
        self.positions = torch.zeros(model.slots, dtype=torch.long)

    def run(self, prompts: Iterator[tuple[int, list[int], bool]]) -> Iterator[Row]:
        """prompts: (number, token ids, greedy). Yields texts as they finish, each with TOP rows for its new tokens."""
        waiting = next(prompts, None)
        while waiting is not None or any(self.rows):
            free = [slot for slot, row in enumerate(self.rows) if row is None]
            fresh = []
            if len(free) >= _NEW_ROWS_AT_ONCE or len(free) == len(self.rows):
                while waiting is not None and len(fresh) < min(len(free), _NEW_ROWS_AT_ONCE):
                    fresh.append(waiting)
                    waiting = next(prompts, None)
            if fresh:
                yield from self._begin(free[: len(fresh)], fresh)
            else:
                yield from self._advance()

    def _begin(self, slots: list[int], fresh: list[tuple[int, list[int], bool]]) -> Iterator[Row]:
        logits = self.model.start(slots, [tokens for _, tokens, _ in fresh])
        for slot, (number, tokens, greedy) in zip(slots, fresh, strict=True):
            self.rows[slot] = Row(number, greedy, len(tokens), list(tokens))
            self.positions[slot] = len(tokens) - 1
        yield from self._take(slots, logits)

    def _advance(self) -> Iterator[Row]:
        logits = self.model.step(self.next, self.positions)
        busy = [slot for slot, row in enumerate(self.rows) if row is not None]
        yield from self._take(busy, logits[torch.tensor(busy)])

    def _take(self, slots: list[int], logits: Tensor) -> Iterator[Row]:
        """Choose each row's next token from its logits and end the rows that are done."""
        top, ids = logits.topk(TOP)
        chances = (top - logits.logsumexp(-1, keepdim=True)).exp()
        drawn = torch.multinomial(torch.softmax(top / self.temperature, -1), 1, generator=self.random)[:, 0]
        soft, names = chances.half().numpy(), ids.numpy().astype(np.uint16)
        for index, slot in enumerate(slots):
            row = self.rows[slot]
            assert row is not None
            token = int(ids[index, 0 if row.greedy else drawn[index]])
            row.tokens.append(token)
            row.ids.append(names[index])
            row.probabilities.append(soft[index])
            self.next[slot] = token
            self.positions[slot] += 1
            if token == self.end or len(row.ids) >= self.length:
                self.rows[slot], self.positions[slot] = None, 0
                yield row


def save_shard(path: Path, rows: list[Row]) -> None:
    """One shard: every text's tokens, lengths, prompt number, and the TOP rows of its written part."""
    temporary = path.with_suffix(".part")
    with temporary.open("wb") as file:
        np.savez(
            file,
            tokens=np.concatenate([np.array(row.tokens, dtype=np.uint16) for row in rows]),
            lengths=np.array([len(row.tokens) for row in rows]),
            prompt_lengths=np.array([row.prompt_length for row in rows]),
            prompts=np.array([row.prompt for row in rows]),
            greedy=np.array([row.greedy for row in rows]),
            top_ids=np.concatenate([np.stack(row.ids) for row in rows]),
            top_probabilities=np.concatenate([np.stack(row.probabilities) for row in rows]),
        )
    os.replace(temporary, path)


def in_waves(lengths: list[int], wave: int) -> list[int]:
    """An order of the indices in waves of `wave`, each sorted by length, up and down in turn: neighbours are alike."""
    order: list[int] = []
    for number, start in enumerate(range(0, len(lengths), wave)):
        part = sorted(range(start, min(start + wave, len(lengths))), key=lambda index: lengths[index])
        order += part if number % 2 == 0 else part[::-1]
    return order


def _packed(weight: Tensor) -> Callable[[Tensor], Tensor]:
    ops = torch.ops.mkldnn
    packed = ops._reorder_linear_weight(weight.bfloat16().contiguous(), 192)
    return lambda rows: ops._linear_pointwise(rows, packed, None, "none", [], "")


def _norm(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return torch.nn.functional.rms_norm(hidden, (hidden.shape[-1],), weight, epsilon).bfloat16()


def _rotated(part: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = part.chunk(2, -1)
    return part * cos + torch.cat([-right, left], -1) * sin


def _frequencies(size: int, theta: float) -> Tensor:
    return theta ** (-torch.arange(0, size, 2).float() / size)
