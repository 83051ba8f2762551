"""Loading a causal language model with transformers, and running ragged passes through it.

A folder in Hugging Face form is loaded as it is. Llamas run through `llama.LeanLlama`; every other architecture whose
attention goes through transformers' attention interface runs its own forward, with `Pass.attend` in that place. Which
architectures these are is found out by a trial pass at load.

A drafter may have a head over part of the vocabulary: its config.json says `output_vocabulary`: N, and its weights hold
`lm_head.weight` [N, hidden] and the int32 tensor `output_ids` [N]; all other tokens have probability zero.

Not here: sessions and rules.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

from sdcp.engines.kv import KvForm, arithmetic
from sdcp.engines.linears import DTYPES, PACKED, check_precision, chosen_precision, pack_all
from sdcp.engines.llama import LeanLlama
from sdcp.engines.ragged import Pass, Piece, SessionKV
from sdcp.errors import ConfigurationError

ATTENTION = "sdcp_ragged"

_PASS: ContextVar[Pass] = ContextVar("pass")

UNSUPPORTED = ("softcap", "s_aux")
"""Arguments of attention that `Pass.attend` does not know."""

VARYING_ROPE = ("dynamic", "longrope")
"""Position embeddings that depend on the longest session of the batch."""


class CausalModel:
    """A model in memory. `V` is `width`; `form` is of its KV. `output_ids` [N] names the tokens of a cut head."""

    def __init__(self, path: Path, device: str, precision: str, lean: bool) -> None:
        self.device = _device(device)
        precision = chosen_precision(precision, self.device)
        check_precision(precision, self.device)
        model, self.output_ids = _load(path, DTYPES[precision], self.device)
        config = model.config.get_text_config()
        self.width: int = config.vocab_size
        self.context: int | None = getattr(config, "max_position_embeddings", None)
        self.bos: int | None = config.bos_token_id
        if lean and type(model).__name__ == "LlamaForCausalLM" and config.hidden_act == "silu":
            self._forward: Any = LeanLlama(model, precision)
        else:
            self._forward = _Whole(model, precision)
        forward = f"{type(model).__name__}:{type(self._forward).__name__.strip('_')}"
        self.form = KvForm(arithmetic(forward, precision, self.device), self._trial(), DTYPES[precision])

    def run(self, pieces: list[Piece]) -> Tensor | None:
        """Run one pass; return logits [wanted rows, N outputs], or None when no row wants any. KV counts the tokens."""
        run = Pass(pieces, self.device, self.width)
        with torch.inference_mode():
            logits: Tensor | None = self._forward(run)
        run.commit()
        return logits

    def _trial(self) -> SessionKV:
        """Run one token through: an architecture that we cannot serve is refused now, not in a session."""
        kv = SessionKV()
        run = Pass([Piece(kv, [0], wanted=1)], self.device, self.width)
        with torch.inference_mode():
            self._forward(run)
        if run.attended == 0:
            raise ConfigurationError("This architecture does not use transformers' attention interface: not supported.")
        return kv


class _Whole:
    """Transformers' own forward, with our attention in it."""

    def __init__(self, model: Any, precision: str) -> None:
        if precision == PACKED:
            pack_all(model)
        self._model = model

    def __call__(self, run: Pass) -> Tensor | None:
        rows = run.wanted()
        token = _PASS.set(run)
        try:
            answer = self._model(
                input_ids=run.ids[None],
                position_ids=run.positions[None],
                use_cache=False,
                logits_to_keep=torch.tensor(rows or [0], device=run.device),
            )
        finally:
            _PASS.reset(token)
        logits: Tensor = answer.logits[0]
        return logits if rows else None


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    **other: Any,
) -> tuple[Tensor, None]:
    """Transformers' attention interface: query [1, heads, N, width] in, [1, N, heads, width] out."""
    for name in UNSUPPORTED:
        if other.get(name) is not None:
            raise ConfigurationError(f"This architecture's attention has {name}: not supported.")
    run = _PASS.get()
    queries, keys, values = (each[0].transpose(0, 1) for each in (query, key, value))
    attended = run.attend(module.layer_idx, queries, keys, values, scaling, other.get("sliding_window"))
    return attended[None], None


AttentionInterface.register(ATTENTION, _attention)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigurationError(f"There is no device {name!r}: choose cpu or cuda.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError("PyTorch sees no GPU: choose the device cpu, or install a PyTorch for your GPU.")
    return device


def _load(path: Path, dtype: torch.dtype, device: torch.device) -> tuple[Any, list[int] | None]:
    """Load a model folder, and the token ids of its head when that is cut."""
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
        _check_rope(config)
        if getattr(config, "output_vocabulary", None):
            model, output_ids = _load_cut(path, config, dtype)
        else:
            output_ids = None
            model = AutoModelForCausalLM.from_pretrained(
                path, config=config, dtype=dtype, attn_implementation=ATTENTION, local_files_only=True
            )
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(f"Cannot load the model {path}: {str(error).splitlines()[0]}") from error
    return model.to(device).eval(), output_ids


def _load_cut(path: Path, config: Any, dtype: torch.dtype) -> tuple[Any, list[int]]:
    """Load a model whose head covers `output_vocabulary` tokens only."""
    weights = load_file(path / "model.safetensors")
    output_ids = weights.pop("output_ids").tolist()
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=ATTENTION)
    model.set_output_embeddings(nn.Linear(config.hidden_size, config.output_vocabulary, bias=False, dtype=dtype))
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"the weights do not fit config.json: {error}") from error
    if len(output_ids) != config.output_vocabulary or output_ids != sorted(set(output_ids)):
        raise ValueError("output_ids must name output_vocabulary tokens, each once, in ascending order")
    return model, output_ids


def _check_rope(config: Any) -> None:
    scaling = getattr(config, "rope_parameters", None) or {}
    kind = scaling.get("rope_type") if isinstance(scaling, dict) else None
    if kind in VARYING_ROPE:
        raise ConfigurationError(f"Position embeddings of the type {kind} depend on the batch: not supported.")


with contextlib.suppress(AttributeError):  # a progress bar says nothing in a service's log
    from transformers.utils import logging as _logging

    _logging.disable_progress_bar()
