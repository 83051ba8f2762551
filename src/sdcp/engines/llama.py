"""A lean forward pass for the Llama family, over the weights that transformers loaded.

The same arithmetic as `LlamaForCausalLM`, in about a third of its calls: query, key and value in one product, gate and
up in one, norms folded into what follows, no cache object. It matters where a pass takes milliseconds, and is checked
against transformers.

Not here: other families, which run through transformers' own forward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sdcp.engines.linears import Linear, stacked
from sdcp.engines.ragged import Pass


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear


class LeanLlama:
    """A Llama whose `__call__` takes a pass and gives logits for the rows that want them."""

    def __init__(self, model: Any, precision: str) -> None:
        config = model.config
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._width = getattr(config, "head_dim", None) or config.hidden_size // self._heads
        self._embedding: Tensor = model.model.embed_tokens.weight.detach()
        self._floor = torch.tensor(math.sqrt(config.hidden_size * config.rms_norm_eps), device=self._embedding.device)
        self._layers = [self._layer(layer, precision) for layer in model.model.layers]
        self._head = stacked([model.lm_head], precision, self._scale(model.model.norm))
        self._rotary = model.model.rotary_emb
        self._turns = torch.empty(0, 1, self._width // 2, dtype=torch.complex64)

    def __call__(self, run: Pass) -> Tensor | None:
        """Return logits [wanted rows, V]; None when no row wants any."""
        hidden = functional.embedding(run.ids, self._embedding)
        turns = self._positions(run)
        for index, layer in enumerate(self._layers):
            hidden = self._block(run, index, layer, hidden, turns)
        rows = run.wanted()
        if not rows:
            return None
        if len(rows) < len(hidden):
            hidden = hidden[rows]
        logits: Tensor = self._head(self._normed(hidden))
        return logits

    def _block(self, run: Pass, index: int, layer: _Layer, hidden: Tensor, turns: Tensor) -> Tensor:
        n, rotated = len(hidden), self._heads + self._kv_heads
        qkv = layer.qkv(self._normed(hidden)).view(n, rotated + self._kv_heads, self._width)
        turned = _rotate(qkv[:, :rotated], turns)
        attended = run.attend(index, turned[:, : self._heads], turned[:, self._heads :], qkv[:, rotated:], None)
        hidden = hidden + layer.out(attended.view(n, -1))
        gate, up = layer.gate_up(self._normed(hidden)).chunk(2, -1)
        return hidden + layer.down(functional.silu(gate) * up)

    def _normed(self, hidden: Tensor) -> Tensor:
        """Divide by the length [N, 1], which is the root mean square but for what `_scale` puts into the next layer."""
        length = torch.linalg.vector_norm(hidden, 2, -1, keepdim=True, dtype=torch.float32)
        return (hidden / torch.hypot(length, self._floor)).to(hidden.dtype)

    def _scale(self, norm: Any) -> Tensor:
        """What the layer after a norm multiplies its inputs by: sqrt(width) makes the length a root mean square."""
        weight: Tensor = norm.weight.detach().float()
        return weight * math.sqrt(len(weight))

    def _positions(self, run: Pass) -> Tensor:
        """Rotations [N, 1, width / 2] of the positions as complex numbers, from a table that grows as sessions do."""
        if run.highest >= len(self._turns):
            places = torch.arange(max(1024, 2 * run.highest), device=run.device)[None]
            cos, sin = self._rotary(self._embedding[:1].float(), places)
            half = self._width // 2
            self._turns = torch.complex(cos[0, :, None, :half], sin[0, :, None, :half])
        return self._turns[run.positions]

    def _layer(self, layer: Any, precision: str) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        before, after = self._scale(layer.input_layernorm), self._scale(layer.post_attention_layernorm)
        qkv = stacked([attention.q_proj, attention.k_proj, attention.v_proj], precision, before, self._order())
        return _Layer(
            qkv,
            stacked([attention.o_proj], precision),
            stacked([mlp.gate_proj, mlp.up_proj], precision, after),
            stacked([mlp.down_proj], precision),
        )

    def _order(self) -> Tensor:
        """Outputs of the fused projection so that the two numbers which one angle turns lie side by side.

        Queries and keys are permuted alike, so their products do not change.
        """
        rotated, half = self._heads + self._kv_heads, self._width // 2
        pairs = torch.arange(rotated * self._width).view(rotated, 2, half).transpose(1, 2).flatten()
        return torch.cat((pairs, torch.arange(rotated * self._width, (rotated + self._kv_heads) * self._width)))


def _rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Rotary embedding of x [N, heads, width]: each pair of neighbours, as a complex number, is turned."""
    pairs = torch.view_as_complex(x.float().view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)
