"""A lean forward pass for the Llama family, over the weights that transformers loaded.

The same arithmetic as `LlamaForCausalLM`, in about a third of its calls: query, key and value in one product, gate and
up in one, norms folded into what follows, no cache object. It matters where a pass takes milliseconds, and is checked
against transformers.

Not here: other families, which run through transformers' own forward.
"""

from __future__ import annotations

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
        self._eps = config.rms_norm_eps
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._width = getattr(config, "head_dim", None) or config.hidden_size // self._heads
        self._embedding: Tensor = model.model.embed_tokens.weight.detach()
        self._layers = [_layer(layer, precision) for layer in model.model.layers]
        self._head = stacked([model.lm_head], precision, model.model.norm.weight)
        self._rotary = model.model.rotary_emb
        self._cos = self._sin = self._embedding.new_empty(0, self._width)

    def __call__(self, run: Pass) -> Tensor | None:
        """Return logits [wanted rows, V]; None when no row wants any."""
        hidden = functional.embedding(run.ids, self._embedding)
        cos, sin = self._angles(run)
        for index, layer in enumerate(self._layers):
            hidden = self._block(run, index, layer, hidden, cos, sin)
        rows = run.wanted()
        if not rows:
            return None
        if len(rows) < len(hidden):
            hidden = hidden[rows]
        logits: Tensor = self._head(self._normed(hidden))
        return logits

    def _block(self, run: Pass, index: int, layer: _Layer, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        n, rotated = len(hidden), self._heads + self._kv_heads
        qkv = layer.qkv(self._normed(hidden)).view(n, rotated + self._kv_heads, self._width)
        turned = _rotate(qkv[:, :rotated], cos, sin)
        attended = run.attend(index, turned[:, : self._heads], turned[:, self._heads :], qkv[:, rotated:], None)
        hidden = hidden + layer.out(attended.reshape(n, -1))
        gate, up = layer.gate_up(self._normed(hidden)).chunk(2, -1)
        return hidden + layer.down(functional.silu(gate) * up)

    def _normed(self, hidden: Tensor) -> Tensor:
        """Divide by the root mean square; the norm's weight is inside the layer that follows."""
        exact = hidden.float()
        square = (exact * exact).mean(-1, keepdim=True)
        return (exact * square.add_(self._eps).rsqrt_()).to(hidden.dtype)

    def _angles(self, run: Pass) -> tuple[Tensor, Tensor]:
        """Cosine and signed sine [N, 1, width] of the positions, from tables that grow as sessions do."""
        if run.highest >= len(self._cos):
            places = torch.arange(max(1024, 2 * run.highest), device=run.device)[None]
            cos, sin = self._rotary(self._embedding[:1], places)
            half = self._width // 2
            self._cos, self._sin = cos[0], torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)
        return self._cos[run.positions, None], self._sin[run.positions, None]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [N, heads, width]: its halves change places, and the first sine carries the sign."""
    return torch.addcmul(x * cos, torch.roll(x, x.shape[-1] // 2, -1), sin)


def _layer(layer: Any, precision: str) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return _Layer(
        stacked([attention.q_proj, attention.k_proj, attention.v_proj], precision, layer.input_layernorm.weight),
        stacked([attention.o_proj], precision),
        stacked([mlp.gate_proj, mlp.up_proj], precision, layer.post_attention_layernorm.weight),
        stacked([mlp.down_proj], precision),
    )
