"""Contract digest and committed-prefix chain (4.1, 4.2)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sdcp_conformance.encoding import encode


def _uint32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def contract_digest(contract: Mapping[str, Any]) -> bytes:
    """SHA-256("SDCP-CONTRACT-1" || 0x00 || deterministic_cbor(contract))."""
    return hashlib.sha256(b"SDCP-CONTRACT-1\0" + encode(dict(contract))).digest()


def prefix_digest(contract: Mapping[str, Any], prompt: Sequence[int]) -> bytes:
    """d[0] of a session with this contract and these prompt tokens."""
    tokens = b"".join(map(_uint32, prompt))
    head = b"SDCP-PREFIX-1\0" + contract_digest(contract) + _uint32(len(prompt))
    return hashlib.sha256(head + tokens).digest()


def extend(digest: bytes, tokens: Iterable[int]) -> bytes:
    """d[k] for each further token; returns the last."""
    for token in tokens:
        digest = hashlib.sha256(digest + _uint32(token)).digest()
    return digest
