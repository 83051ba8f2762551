"""KV objects: the target KV of a prefix as a safetensors file with an integrity tag (6.8, D20, D44).

The file is one that any reader of safetensors opens: a header, the tensors of each layer, and at the end the tensor
`tag`, 32 octets: HMAC-SHA-256 under the secret of a group of verifiers over everything before it. The header follows
from model, layout and prefix alone, so a reader knows every octet of it beforehand: it compares length, tag and header,
in this order, parses nothing that it was given, and takes no memory but views of what it checked.

Words: a *layout* says which arithmetic made the KV and what shape it has; where two layouts are equal, KV computed by
one engine is KV of the other. The *rows* of a KV are the tokens of its prefix and, before them, BOS when the prompt is
empty (D26). A *group* is the verifiers that hold the same secret.

Not here: fetching objects, what an engine does with them, where the secret comes from.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import struct
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np

Octets: TypeAlias = bytes | bytearray | memoryview

TOKENS_DOMAIN = b"SDCP-KV-TOKENS-1\x00"
NAME_DOMAIN = b"SDCP-KV-NAME-1\x00"
TAG_DOMAIN = b"SDCP-KV-TAG-1\x00"

LEAST_KEY = 32
"""Octets of a group's secret, at least."""

TAG = 32
"""Octets of the tag."""

NAME_OCTETS = 24
"""Octets of a name: 192 bits that nobody outside the group can guess."""

WIDTHS = {"F32": 4, "BF16": 2, "F16": 2}
"""Octets of a value by its safetensors type."""

_RUN = r"[0-9]{1,6}(?:x[0-9]{1,6}){3}"
_LAYOUT = re.compile(rf"kv1/[A-Za-z0-9._:+-]{{1,120}}/(?:F32|BF16|F16)/{_RUN}(?:\+{_RUN})*")
_LONGEST_LAYOUT = 1024
_MOST_LAYERS = 4096


@dataclass(frozen=True, slots=True)
class KvLayout:
    """What a layout's text says. `layers`: for each, KV heads, width of a key and width of a value."""

    arithmetic: str
    dtype: str
    layers: tuple[tuple[int, int, int], ...]

    def __str__(self) -> str:
        """`kv1/ARITHMETIC/TYPE/SHAPES`; like layers in a row are COUNTxHEADSxKEYxVALUE, joined by `+`."""
        runs: list[tuple[int, tuple[int, int, int]]] = []
        for layer in self.layers:
            count = runs.pop()[0] if runs and runs[-1][1] == layer else 0
            runs.append((count + 1, layer))
        shapes = "+".join("x".join(map(str, (count, *layer))) for count, layer in runs)
        return f"kv1/{self.arithmetic}/{self.dtype}/{shapes}"

    def tensors(self, rows: int) -> Iterator[tuple[str, tuple[int, int, int]]]:
        """Name and shape [KV heads, rows, width] of each tensor, in the order of the file."""
        for index, (heads, key, value) in enumerate(self.layers):
            yield f"layer.{index:04d}.keys", (heads, rows, key)
            yield f"layer.{index:04d}.values", (heads, rows, value)

    def octets(self, rows: int) -> int:
        """Octets of all tensors together."""
        width = WIDTHS[self.dtype]
        return sum(rows * heads * (key + value) * width for heads, key, value in self.layers)


@lru_cache(maxsize=16)
def parse_layout(text: str) -> KvLayout:
    """Read a layout; ValueError when it is none of this version, or not in the one form that it can be written in."""
    if len(text) > _LONGEST_LAYOUT or not _LAYOUT.fullmatch(text):
        raise ValueError("not a KV layout of this version")
    _, arithmetic, dtype, shapes = text.split("/")
    layers: list[tuple[int, int, int]] = []
    for run in shapes.split("+"):
        count, heads, key, value = (int(part) for part in run.split("x"))
        if not 0 < count <= _MOST_LAYERS - len(layers):
            raise ValueError("not a KV layout of this version: too many layers, or none")
        layers += [(heads, key, value)] * count
    layout = KvLayout(arithmetic, dtype, tuple(layers))
    if str(layout) != text:
        raise ValueError("not a KV layout of this version: it can be written shorter")
    return layout


@dataclass(frozen=True, slots=True)
class KvBlock:
    """The KV of a prefix of `length` tokens, and of BOS before it if `head` is 1 (D26).

    tensors: by the names of `KvLayout.tensors`, each its octets, little-endian, in row-major order.
    """

    layout: str
    length: int
    tensors: Mapping[str, Octets]
    head: int = 0

    @property
    def rows(self) -> int:
        """How many tokens have a key and a value."""
        return self.head + self.length

    def check(self) -> KvLayout:
        """Return the layout if the tensors are exactly those that it and the rows ask for; else ValueError."""
        layout = parse_layout(self.layout)
        wanted = {name: _octets(layout.dtype, shape) for name, shape in layout.tensors(self.rows)}
        given = {name: len(memoryview(octets).cast("B")) for name, octets in self.tensors.items()}
        if given != wanted:
            wrong = next(name for name in {**wanted, **given} if wanted.get(name) != given.get(name))
            raise ValueError(f"the tensor {wrong} is missing, not one of the layout, or not as long as the layout says")
        return layout


@dataclass(frozen=True, slots=True)
class KvFacts:
    """What a KV object must be of: the model's digest, the layout, the tokens' digest, and how many they are."""

    model: bytes
    layout: str
    tokens: bytes
    length: int
    head: int = 0

    @property
    def metadata(self) -> dict[str, str]:
        """What the file's metadata says."""
        return {
            "format": "sdcp-kv-1",
            "head": str(self.head),
            "layout": self.layout,
            "length": str(self.length),
            "model": self.model.hex(),
            "prefix": self.tokens.hex(),
        }


def facts_of(model: bytes, layout: str, prefix: Sequence[int], length: int, *, empty_prompt: bool = False) -> KvFacts:
    """Return the facts of the KV of `prefix[:length]`."""
    return KvFacts(model, layout, tokens_digest(prefix[:length], empty_prompt), length, int(empty_prompt))


def tokens_digest(tokens: Sequence[int], empty_prompt: bool = False) -> bytes:
    """Return the SHA-256 that names a prefix whatever its contract: over BOS or not, then each token as uint32."""
    return _begun(empty_prompt, tokens).digest()


def prefix_names(key: bytes, model: bytes, layout: str, tokens: Sequence[int], block: int) -> list[tuple[int, str]]:
    """Name the KV of the tokens' prefixes at every multiple of `block`: (length, object name), ascending.

    Whoever holds the key finds what the group has published without being told; nobody else can guess a name.
    """
    _check_key(key)
    names, digest = [], _begun(False, ())
    for length in range(block, len(tokens) + 1, block):
        digest.update(_uint32s(tokens[length - block : length]))
        mac = hmac.digest(key, NAME_DOMAIN + model + digest.digest() + layout.encode(), "sha256")
        names.append((length, "k" + urlsafe_b64encode(mac[:NAME_OCTETS]).decode()))
    return names


def kv_size(facts: KvFacts) -> int:
    """Octets of the object, exactly; ValueError for a layout that is none."""
    layout = parse_layout(facts.layout)
    return len(_header(facts)) + layout.octets(facts.head + facts.length) + TAG


def encode_kv(block: KvBlock, facts: KvFacts, key: bytes) -> memoryview:
    """Return the object of a block. ValueError when block and facts do not belong together, or the key is short."""
    _check_key(key)
    if (block.layout, block.length, block.head) != (facts.layout, facts.length, facts.head):
        raise ValueError("the KV is not of the layout and length that it is to be named by")
    layout = block.check()
    header = _header(facts)
    data = np.empty(len(header) + layout.octets(block.rows) + TAG, np.uint8).data  # filled below, once
    data[: len(header)] = header
    at = len(header)
    for name, shape in layout.tensors(block.rows):
        stop = at + _octets(layout.dtype, shape)
        data[at:stop] = memoryview(block.tensors[name]).cast("B")
        at = stop
    data[at:] = _tag(key, data[:at])
    return data.toreadonly()


def decode_kv(data: bytes | memoryview, facts: KvFacts, key: bytes) -> KvBlock:
    """Return the block of an object, as views of `data`, which nobody may change any more.

    ValueError says what it is not: of the right length, of this group, of these facts. Nothing is parsed or copied
    before length and tag are right.
    """
    _check_key(key)
    layout, header = parse_layout(facts.layout), _header(facts)
    rows = facts.head + facts.length
    size = len(header) + layout.octets(rows) + TAG
    view = memoryview(data).cast("B").toreadonly()
    if len(view) != size:
        raise ValueError(f"the KV object has {len(view)} octets; of this model, layout and length it would have {size}")
    if not hmac.compare_digest(_tag(key, view[:-TAG]), view[-TAG:]):
        raise ValueError("the KV object was altered, or does not come from this group of verifiers")
    if view[: len(header)] != header:
        raise ValueError(f"the KV object is of another {_difference(view, facts)}")
    tensors, at = {}, len(header)
    for name, shape in layout.tensors(rows):
        stop = at + _octets(layout.dtype, shape)
        tensors[name] = view[at:stop]
        at = stop
    return KvBlock(facts.layout, facts.length, tensors, facts.head)


def _header(facts: KvFacts) -> bytes:
    """Length and JSON of the header, filled up with spaces so that tensors begin at a multiple of 64 octets."""
    layout = parse_layout(facts.layout)
    entries: dict[str, object] = {"__metadata__": facts.metadata}
    at = 0
    for name, shape in layout.tensors(facts.head + facts.length):
        stop = at + _octets(layout.dtype, shape)
        entries[name] = {"dtype": layout.dtype, "shape": shape, "data_offsets": (at, stop)}
        at = stop
    entries["tag"] = {"dtype": "U8", "shape": (TAG,), "data_offsets": (at, at + TAG)}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return struct.pack("<Q", len(text)) + text


def _difference(view: memoryview, facts: KvFacts) -> str:
    """Which fact of a header that one of the group wrote is not as expected."""
    try:
        given = json.loads(bytes(view[8 : 8 + struct.unpack("<Q", view[:8])[0]]))["__metadata__"]
        return next(name for name, value in facts.metadata.items() if given.get(name) != value)
    except (ValueError, KeyError, AttributeError, TypeError, StopIteration, RecursionError):
        return "form"


def _octets(dtype: str, shape: tuple[int, int, int]) -> int:
    return shape[0] * shape[1] * shape[2] * WIDTHS[dtype]


def _tag(key: bytes, octets: memoryview) -> bytes:
    mac = hmac.new(key, TAG_DOMAIN, "sha256")
    mac.update(octets)
    return mac.digest()


def _check_key(key: bytes) -> None:
    if len(key) < LEAST_KEY:
        raise ValueError(f"the secret of a group of verifiers has at least {LEAST_KEY} octets, not {len(key)}")


def _begun(empty_prompt: bool, tokens: Sequence[int]) -> hashlib._Hash:
    return hashlib.sha256(TOKENS_DOMAIN + bytes((empty_prompt,)) + _uint32s(tokens))


def _uint32s(tokens: Sequence[int]) -> bytes:
    return struct.pack(f">{len(tokens)}I", *tokens)
