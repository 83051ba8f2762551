"""Prompt lookup: what followed the last few tokens the last time they occurred is proposed again (6.2, D31).

Words: a *match* of n tokens is an earlier occurrence of the last n tokens of the prefix; the longest of 3, 2, 1 counts,
of these the latest. Tokens are certain before anything is drawn, so under rule 2 their rows are one-hot, and nothing of
the target's distribution is lost. No weights, no tokenizer: V and the tokenizer's digest are told.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from sdcp.engines.rounds import certain
from sdcp.ports import DraftJob, DraftResult

LONGEST = 3

MODEL = hashlib.sha256(b"sdcp-prompt-lookup-1").digest()
"""Its model digest: there are no weights to digest."""


class Index:
    """The prefix of one session so far, and where each of its n-grams was last followed by a token.

    Costs O(new tokens) per round: `grow` is given the shared prefix and reads only what it has not seen.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._follower: dict[tuple[int, ...], int] = {}

    def grow(self, prefix: Sequence[int], length: int) -> None:
        """Take in `prefix[:length]`. A shorter prefix than before starts over: this never happens in a session."""
        if length < len(self.tokens):
            self.tokens.clear()
            self._follower.clear()
        for token in prefix[len(self.tokens) : length]:
            for n in range(1, min(LONGEST, len(self.tokens)) + 1):
                self._follower[tuple(self.tokens[-n:])] = len(self.tokens)
            self.tokens.append(token)

    def match(self) -> tuple[int, int]:
        """Return n of the longest match and the position that followed it; (0, 0) when there is none."""
        for n in range(min(LONGEST, len(self.tokens)), 0, -1):
            position = self._follower.get(tuple(self.tokens[-n:]))
            if position is not None:
                return n, position
        return 0, 0

    def continuation(self, position: int, count: int) -> tuple[int, ...]:
        """Return `count` tokens from `position` on; past the end the continuation goes on with itself."""
        period = len(self.tokens) - position
        return tuple(self.tokens[position + i % period] for i in range(count))


class NgramDrafter:
    """Prompt lookup as a drafter.

    Without any match it proposes the latest token again, and token 0 after an empty prefix: without proposals
    there is no round, hence neither output nor escalation.
    """

    context: int | None = None
    model = MODEL

    def __init__(self, vocabulary: int, tokenizer: bytes) -> None:
        self.vocabulary = vocabulary
        self.tokenizer = tokenizer
        self._sessions: dict[bytes, Index] = {}

    def close(self, session: bytes) -> None:
        """Forget the session's index."""
        self._sessions.pop(session, None)

    def matched(self, job: DraftJob) -> int:
        """Return how many tokens the lookup of this job matches, from 0 to 3. Decided before anything is drawn."""
        return self._grown(job).match()[0]

    def draft(self, jobs: Sequence[DraftJob]) -> list[DraftResult]:
        """Look up each job."""
        return [self._draft(job) for job in jobs]

    def _draft(self, job: DraftJob) -> DraftResult:
        index = self._grown(job)
        n, position = index.match()
        tokens = index.continuation(position, job.count) if n else tuple(index.tokens[-1:] or [0])
        return certain(tokens, job.rule, self.vocabulary)

    def _grown(self, job: DraftJob) -> Index:
        index = self._sessions.setdefault(job.session, Index())
        index.grow(job.prefix, job.length)
        return index
