"""Which jobs ride in the next pass of an engine: continuous batching, sans-IO. The draft leaves it open (6.3).

Words: a *round* is a verification or a draft of one session; a *prefill* is the KV of a prefix, computed in chunks. A
*ticket* is an opaque number by which the caller knows a job. Its *size* is the tokens that it adds to a pass.

Rounds go before prefills, since a peer waits for each; but after every batch of rounds one chunk of prefill has its
turn, so a prefill is delayed by at most one batch and a round by at most one chunk. Prefills take turns among
themselves: a short prompt does not wait for a long one. A session has at most one job in a batch, the oldest first.

Not here: threads, time and engines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ticket:
    """One waiting job."""

    number: int
    session: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Batch:
    """The jobs of one pass, all rounds or all prefills; never empty."""

    prefill: bool
    tickets: tuple[Ticket, ...]


class Batcher:
    """The queue before one engine.

    most_jobs, most_tokens: bounds of a pass; a job that alone is larger than `most_tokens` goes alone.
    """

    def __init__(self, most_jobs: int, most_tokens: int) -> None:
        self._most_jobs, self._most_tokens = most_jobs, most_tokens
        self._rounds: deque[Ticket] = deque()
        self._prefills: deque[Ticket] = deque()
        self._prefill_is_due = False

    def __len__(self) -> int:
        return len(self._rounds) + len(self._prefills)

    @property
    def rounds(self) -> int:
        """How many rounds wait."""
        return len(self._rounds)

    @property
    def prefills(self) -> int:
        """How many prefills wait."""
        return len(self._prefills)

    def add_round(self, ticket: Ticket) -> None:
        """Let a verification or a draft wait."""
        self._rounds.append(ticket)

    def add_prefill(self, ticket: Ticket) -> None:
        """Let a prefill wait; also one whose chunk was computed, with what is left of it."""
        self._prefills.append(ticket)

    def withdraw_prefill(self, number: int) -> bool:
        """Forget a waiting prefill; tell whether it was waiting. A round is never withdrawn (D27)."""
        kept = [ticket for ticket in self._prefills if ticket.number != number]
        found = len(kept) < len(self._prefills)
        self._prefills = deque(kept)
        return found

    def holds(self, session: bytes) -> bool:
        """Tell whether a job of this session waits."""
        return any(ticket.session == session for ticket in (*self._rounds, *self._prefills))

    def take(self) -> Batch | None:
        """Remove and return the next batch; None when nothing waits."""
        prefill = bool(self._prefills) and (self._prefill_is_due or not self._rounds)
        queue = self._prefills if prefill else self._rounds
        if not queue:
            return None
        self._prefill_is_due = not prefill
        taken = tuple(self._within_bounds(queue))
        for ticket in taken:
            queue.remove(ticket)
        return Batch(prefill, taken)

    def _within_bounds(self, queue: deque[Ticket]) -> Iterator[Ticket]:
        """The oldest jobs that fit; a prefill's size does not count, since its chunk is cut to the budget."""
        seen: set[bytes] = set()
        tokens = 0
        for ticket in queue:
            if ticket.session in seen:
                continue
            tokens += ticket.size if queue is self._rounds else 0
            if len(seen) == self._most_jobs or (seen and tokens > self._most_tokens):
                return
            seen.add(ticket.session)
            yield ticket
