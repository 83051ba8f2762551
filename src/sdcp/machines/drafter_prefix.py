"""The committed prefix as a drafter knows it: prompt, committed output, and d[n] over both (4.2).

It grows by what a verdict emitted and by nothing else (D9a), and only when the digest that came with it agrees.
"""

from __future__ import annotations

from collections.abc import Sequence

from sdcp.machines.history import History
from sdcp.messages.contract import Contract
from sdcp.rules.digest import digest_of, extend_all, prefix_digest


class Prefix:
    """`tokens` is the prompt, then o[1..n]; `digest` is d[n]."""

    __slots__ = ("digest", "tokens")

    def __init__(self, contract: Contract, prompt: Sequence[int]) -> None:
        """Begin at d[0]. Raises ValueError for a token that is not below 2^32 (D5)."""
        self.digest = prefix_digest(digest_of(contract), prompt)
        self.tokens = History(prompt)

    @property
    def committed(self) -> int:
        """n, the number of committed output tokens."""
        return self.tokens.committed

    def extend(self, emitted: Sequence[int]) -> None:
        """Append committed tokens. Raises ValueError for one that is not below 2^32, and appends nothing then."""
        self.digest = extend_all(self.digest, emitted)
        self.tokens.append_all(emitted)

    def extend_to(self, emitted: Sequence[int], committed: int, digest: bytes) -> bool:
        """Append `emitted` if that makes n = `committed` and d[n] = `digest`; else change nothing and return False."""
        if self.committed + len(emitted) != committed or _extended(self.digest, emitted) != digest:
            return False
        self.digest = digest
        self.tokens.append_all(emitted)
        return True

    def restarted(self, contract: Contract) -> Prefix:
        """Return the prefix of the prompt alone, n = 0."""
        return Prefix(contract, self.tokens[: self.tokens.prompt_length])


def _extended(digest: bytes, tokens: Sequence[int]) -> bytes | None:
    try:
        return extend_all(digest, tokens)
    except ValueError:
        return None
