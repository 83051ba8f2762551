"""KV of a torch model as octets that another engine of the same layout can take up (D44).

Tensors of a GPU go through the host's memory; that has not been tested on one yet.
Not here: the file and its tag (`sdcp.wire.kv_object`), sessions (`transformers`).
"""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor

from sdcp.engines.ragged import Layers, SessionKV
from sdcp.wire.kv_object import KvBlock, KvLayout, Octets

TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
"""Names of types in safetensors."""


class KvForm:
    """What the KV of a loaded model looks like. `layout`: its text; `layers`: the model's numbers for them."""

    def __init__(self, arithmetic: str, trial: SessionKV, dtype: torch.dtype) -> None:
        """arithmetic: what runs the model. trial: a session that holds any token."""
        shapes = trial.shapes()
        self.layers = list(shapes)
        self._dtype = dtype
        self._layout = KvLayout(_plain(arithmetic), TYPES[dtype], tuple(shapes.values()))
        self.layout = str(self._layout)

    def block(self, kv: SessionKV, length: int) -> KvBlock:
        """Copy the KV of head and the first `length` tokens of the prefix out of a session."""
        head = len(kv.head)
        copies = kv.copied(0, head + length)
        tensors = [_octets(each) for index in self.layers for each in copies[index]]
        names = [name for name, _ in self._layout.tensors(head + length)]
        return KvBlock(self.layout, length, dict(zip(names, tensors, strict=True)), head)

    def layers_of(self, block: KvBlock, start: int, device: torch.device) -> Layers:
        """Return the KV of a block from row `start` on. ValueError when it is of another layout or form."""
        if block.layout != self.layout:
            raise ValueError(f"the KV is of the layout {block.layout}; this engine has {self.layout}")
        block.check()
        tensors = [
            _tensor(block.tensors[name], shape, self._dtype)[:, start:].to(device)
            for name, shape in self._layout.tensors(block.rows)
        ]
        return {index: (tensors[2 * at], tensors[2 * at + 1]) for at, index in enumerate(self.layers)}


def arithmetic(forward: str, precision: str, device: torch.device) -> str:
    """Name what decides over the bits of KV: the forward pass, its precision, and what it runs on."""
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    return f"{forward}:{precision}:torch-{torch.__version__}:{device.type}:{machine}"


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._:+-]", "-", text)[:120]


def _octets(tensor: Tensor) -> Octets:
    return memoryview(tensor.cpu().flatten().view(torch.uint8).numpy())


def _tensor(octets: Octets, shape: tuple[int, int, int], dtype: torch.dtype) -> Tensor:
    """A tensor of its own: what it was made from may be read-only, and is let go of."""
    tensor = torch.empty(math.prod(shape), dtype=dtype)
    memoryview(tensor.view(torch.uint8).numpy())[:] = memoryview(octets).cast("B")
    return tensor.view(shape)
