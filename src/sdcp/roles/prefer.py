"""How long a client lets a long poll wait: `Prefer: wait=N` (RFC 7240 section 4.3, D8, D33)."""

from __future__ import annotations

import re

_WAIT = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?([0-9]{1,9})\"?\s*(?=$|[,;])", re.IGNORECASE)


def wait_ms(prefer: str | None, longest_ms: int) -> int:
    """Read the field's seconds as milliseconds; it may shorten our own wait, never lengthen it."""
    found = _WAIT.search(prefer or "")
    return longest_ms if found is None else min(longest_ms, 1000 * int(found[1]))
