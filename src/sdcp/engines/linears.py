"""Linear layers in the precisions that the transformers engine offers.

On the CPU a small model is bound by reading its weights. `packed-float16` keeps them as binary16 in fbgemm's packing
and computes in binary32: half the bytes, and a few rows cost little more than one, which is what verification lives on.
Weights beyond binary16 are cut to its range. On the CPU, a row's result in `packed-float16` and in `float32` does not
depend on how many rows ride with it (tested).

Not here: `bfloat16` and `float16` proper, which are PyTorch's own types for the whole model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from sdcp.errors import ConfigurationError

Linear: TypeAlias = Callable[[Tensor], Tensor]
"""[N, inputs] to [N, outputs]."""

PACKED = "packed-float16"

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    PACKED: torch.float32,
}
"""The type of activations, KV and unpacked weights by precision."""


LEAST_ROWS = 4
"""On the CPU, float32 layers see multiples of so many rows."""


AUTO = "auto"


def chosen_precision(precision: str, device: torch.device) -> str:
    """Resolve `auto`: packed-float16 on a CPU that has it, else float32; bfloat16 on a GPU."""
    if precision != AUTO:
        return precision
    if device.type != "cpu":
        return "bfloat16"
    return PACKED if "fbgemm" in torch.backends.quantized.supported_engines else "float32"


def check_precision(precision: str, device: torch.device) -> None:
    """ConfigurationError when this machine cannot compute in `precision` on `device`."""
    if precision not in DTYPES:
        raise ConfigurationError(f"There is no precision {precision!r}: choose one of {', '.join([AUTO, *DTYPES])}.")
    if precision == "float16" and device.type == "cpu":
        raise ConfigurationError(f"float16 needs a GPU: on the CPU choose {PACKED}, bfloat16 or float32.")
    if precision == PACKED and (device.type != "cpu" or "fbgemm" not in torch.backends.quantized.supported_engines):
        raise ConfigurationError(f"{PACKED} needs an x86 CPU and a PyTorch with fbgemm: choose float32 or bfloat16.")


class PackedLinear(nn.Module):  # type: ignore[misc]
    """y = x W^T + b with W packed in binary16; inference only."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight.detach().float(), _float(bias))

    def forward(self, x: Tensor) -> Tensor:
        """Apply to x [..., inputs] in binary32."""
        return torch.ops.quantized.linear_dynamic_fp16(x, self._packed)


class EvenLinear(nn.Linear):  # type: ignore[misc]
    """y = x W^T + b over rows filled up to a multiple of 4: of fewer, a library sums in another order."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply to x [N, inputs]."""
        missing = -len(x) % LEAST_ROWS
        if not missing:
            return super().forward(x)
        return super().forward(nn.functional.pad(x, (0, 0, 0, missing)))[: len(x)]


def linear(weight: Tensor, bias: Tensor | None, precision: str) -> Linear:
    """Return the layer of weights [outputs, inputs] in a precision."""
    if precision == PACKED:
        return PackedLinear(weight, bias)
    kind = EvenLinear if precision == "float32" and weight.device.type == "cpu" else nn.Linear
    layer = kind(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    made: Linear = layer
    return made


def stacked(
    layers: list[nn.Linear], precision: str, scale: Tensor | None = None, order: Tensor | None = None
) -> Linear:
    """Return one layer that computes several of the same input, outputs side by side.

    scale: [inputs], what inputs are multiplied by. order: [outputs], which output comes where.
    """
    weight = torch.cat([layer.weight.detach() for layer in layers])
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    bias = torch.cat(biases) if biases else None
    if scale is not None:
        weight = (weight.float() * scale).to(weight.dtype)
    if order is not None:
        weight, bias = weight[order], None if bias is None else bias[order]
    return linear(weight, bias, precision)


def pack_all(model: nn.Module) -> None:
    """Replace every linear layer of a model by a packed one."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, PackedLinear(child.weight, child.bias))


def _float(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach().float()
