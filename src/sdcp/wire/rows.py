"""The q_rows object: M draft distributions of V binary32 values, little-endian, in position order (5.2, 6.4, D25).

Bytes become a read-only view without a copy, so the bytes checked are the bytes used; whoever reads them from shared
memory copies or seals them first. Not here: fetching the object, and the acceptance test that uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sdcp.errors import BadProposal

Rows: TypeAlias = NDArray[np.float32]
"""Shape [M, V]: row i - 1 is q[i], the distribution from which x[i] was sampled."""

SUM_TOLERANCE = 1e-4


def size(m: int, width: int) -> int:
    """Bytes of the rows of M proposed tokens over a vocabulary of `width` = V (also the bound of a fetch, D11)."""
    return 4 * m * width


def encode_rows(rows: Rows) -> bytes:
    """Return the object of rows [M, V]."""
    return np.ascontiguousarray(rows, dtype="<f4").tobytes()


def decode_rows(data: bytes | memoryview, m: int, width: int) -> Rows:
    """View the object as rows [M, V]; BadProposal if it has not exactly M * V * 4 bytes."""
    if len(data) != size(m, width):
        raise BadProposal(
            f"The q_rows object has {len(data)} bytes; {m} rows of {width} values have {size(m, width)}: "
            "publish one row of V binary32 values for each proposed token."
        )
    rows = np.frombuffer(data, dtype="<f4").reshape(m, width)
    rows.flags.writeable = False
    return rows


def check_tokens(tokens: Sequence[int], width: int) -> None:
    """Refuse a proposed token that is not below V (D5). Raises BadProposal."""
    for position, token in enumerate(tokens, start=1):
        if token >= width:
            raise BadProposal(
                f"The proposed token {token} at position {position} is not below V = {width}, "
                "the width of the target's logits."
            )


def check_rows(rows: Rows, tokens: Sequence[int]) -> None:
    """Check rows [M, V] against the M tokens sampled from them, before any random value is drawn (6.3 step 5, D25).

    Raises BadProposal whose detail names the position, counted from 1.
    """
    m, width = rows.shape
    if m != len(tokens):
        raise BadProposal(f"There are {m} rows for {len(tokens)} proposed tokens: publish one row for each.")
    check_tokens(tokens, width)
    for position, (row, token) in enumerate(zip(rows, tokens, strict=True), start=1):
        fault = _fault(row, token)
        if fault:
            raise BadProposal(f"The draft row at position {position} {fault}.")


def _fault(row: NDArray[np.float32], token: int) -> str | None:
    """What is wrong with the row [V] of one token, or None. A NaN makes the minimum NaN, which fails `>= 0`."""
    if not row.min() >= 0:
        return "has a value that is negative or not a number"
    total = float(row.sum(dtype=np.float64))
    if not abs(total - 1) <= SUM_TOLERANCE:
        return f"sums to {total:.6g}, not to 1 within {SUM_TOLERANCE:g}"
    # By its bits: where a library makes the processor flush denormals, the smallest values would compare as zero.
    if not int(row[token : token + 1].view(np.uint32)[0]) & 0x7FFFFFFF:
        return f"gives its own token {token} probability zero, so the token was not sampled from it"
    return None
