"""The tokens of a session: prompt, then committed output (4.2), append-only and compact.

One `History` is shared by reference: machines extend it, effects carry it as `prefix` together with the `length` that
was meant, and engines read `prefix[:length]` at any later time, because what is below a length never changes. It is
four octets a token (D5) and deliberately not a buffer: an exported buffer would forbid the next append.
Not here: the digest chain, and when a token may be appended (6.3 step 8).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import overload


class History(Sequence[int]):
    """Prompt and committed output, growing at the end alone. Every token is below 2^32, else OverflowError."""

    __slots__ = ("_tokens", "prompt_length")

    def __init__(self, prompt: Iterable[int], output: Iterable[int] = ()) -> None:
        self._tokens = array("I", prompt)
        self.prompt_length = len(self._tokens)
        self._tokens.extend(output)

    @property
    def committed(self) -> int:
        """n: the number of output tokens."""
        return len(self._tokens) - self.prompt_length

    def append_all(self, tokens: Iterable[int]) -> None:
        """Append committed output tokens."""
        self._tokens.extend(tokens)

    def output(self, start: int = 0) -> tuple[int, ...]:
        """Return the output tokens at index `start` (0-based, may lie past the end) and later."""
        return tuple(self._tokens[self.prompt_length + start :])

    def __len__(self) -> int:
        return len(self._tokens)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        taken = self._tokens[index]
        return taken if isinstance(taken, int) else taken.tolist()
