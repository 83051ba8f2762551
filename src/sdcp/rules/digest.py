"""The contract digest and the committed-prefix digest chain (4.1, 4.2).

Words: d[0] is the digest of contract and prompt, d[k] that of the prefix with k committed tokens. A contract is always
digested in our own deterministic encoding of it, never in the bytes that it came in (D4). Digests of models and
tokenizers are the engines' business.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from sdcp.messages.contract import Contract
from sdcp.wire import cbor

CONTRACT_DOMAIN = b"SDCP-CONTRACT-1\x00"
PREFIX_DOMAIN = b"SDCP-PREFIX-1\x00"


def contract_digest(contract: Mapping[str, object]) -> bytes:
    """Return the SHA-256 of a contract given as a plain map (4.1)."""
    return hashlib.sha256(CONTRACT_DOMAIN + cbor.encode(contract)).digest()


@lru_cache(maxsize=256)
def digest_of(contract: Contract) -> bytes:
    """Return the digest of a contract as a message. It comes with every assignment, so the last ones are kept."""
    return contract_digest(contract.to_plain())


def prefix_digest(contract: bytes, prompt: Sequence[int]) -> bytes:
    """Return d[0] for a contract digest and the P tokens of the prompt; ValueError for one not below 2^32 (D5)."""
    return hashlib.sha256(PREFIX_DOMAIN + contract + _uint32s((len(prompt),)) + _uint32s(prompt)).digest()


def extend_all(digest: bytes, tokens: Iterable[int]) -> bytes:
    """Return d[k] after all `tokens`, in order, from the digest before them; ValueError for one not below 2^32 (D5)."""
    octets = _uint32s(tuple(tokens))
    for at in range(0, len(octets), 4):
        digest = hashlib.sha256(digest + octets[at : at + 4]).digest()
    return digest


def _uint32s(values: Sequence[int]) -> bytes:
    """Four octets in network byte order for each value (4.2)."""
    try:
        return struct.pack(f">{len(values)}I", *values)
    except struct.error:
        raise ValueError("a token identifier is not an integer from 0 to 2^32 - 1") from None
