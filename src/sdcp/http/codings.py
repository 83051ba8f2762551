"""The content coding zstd of objects (RFC 9110 section 8.4, RFC 8878): when it pays, and reading what others coded.

Rows cut by top-k are almost all zeros: they take a thousandth of their octets and less time than TLS takes for them
whole. Others take more time coded than whole, so a sample of their words decides (D46).

Not here: entity tags of coded answers (`sdcp.roles.preconditions`).
"""

from __future__ import annotations

import numpy as np
import zstandard

from sdcp.errors import BodyTooLarge, MalformedBody, UnsupportedMediaType
from sdcp.http.dispatch import accepts
from sdcp.http.exchange import Headers

ZSTD = "zstd"
IDENTITY = "identity"
CODED_FROM = 16 << 10
"""Octets from which a body may be coded."""

_LEVEL = -1  # of rows it leaves as few octets as any level, in the least time
_SAMPLE = 1024  # words
_ZEROS = 15 / 16  # share of zero words from which coding takes less time than TLS over loopback (bench/rows.py)


def pays(data: bytes | memoryview) -> bool:
    """Whether to code `data`: nearly all of a sample of its 4-octet words are zero."""
    if len(data) < CODED_FROM:
        return False
    words = np.frombuffer(data, dtype=np.uint32, count=len(data) // 4)
    sample = words[:: words.size // _SAMPLE | 1]  # an odd step meets every part of rows of any width
    return bool(np.count_nonzero(sample) <= (1 - _ZEROS) * sample.size)


def code(data: bytes | memoryview) -> bytes:
    """One zstd frame that says how many octets it holds."""
    return zstandard.ZstdCompressor(level=_LEVEL).compress(data)


def decode(data: bytes, limit: int) -> bytes:
    """The octets of one zstd frame, at most `limit`, which are counted before memory is taken for them.

    BodyTooLarge; MalformedBody; UnsupportedMediaType when the frame does not say how many it holds, or none.
    """
    try:
        size = zstandard.frame_content_size(data)
        if size <= 0:  # a frame to be skipped says 0, and others may follow it
            raise UnsupportedMediaType("a body coded in zstd must be one frame that says its content size, above 0")
        if size > limit:
            raise BodyTooLarge(f"the body holds {size} octets, and at most {limit} are taken")
        plain = zstandard.ZstdDecompressor().decompress(data, max_output_size=limit, allow_extra_data=False)
    except zstandard.ZstdError as fault:
        raise MalformedBody(f"the body is not what its Content-Encoding says: {fault}") from None
    if len(plain) != size:
        raise MalformedBody(f"the body holds {len(plain)} octets, and its frame says {size}")
    return plain


def decoded(headers: Headers, body: bytes, limit: int) -> bytes:
    """A request's or an answer's body without its content coding, at most `limit` octets; errors as of `decode`."""
    coding = headers.get("content-encoding", IDENTITY).strip().lower()
    if coding == ZSTD:
        return decode(body, limit)
    if coding != IDENTITY:
        raise UnsupportedMediaType(
            f"bodies are taken as they are or in {ZSTD}, not in {coding}", headers=(("accept-encoding", ZSTD),)
        )
    return body


def accepts_zstd(headers: Headers) -> bool:
    """Whether the client said that it takes zstd."""
    return accepts(headers.get("accept-encoding", ""), ZSTD)
