"""What a verifier session has committed: prefix, chain, counters, limit, and where its verdicts lie (4.2, 6.3, 6.5).

It moves by whole commit records alone (`apply`), each of them durable before it comes here, so commit and verdict are
one step (6.3 step 8). A round costs eight octets of memory: the offset of its record in the log, from which its
verdict is replayed; the last verdict is kept. Not here: deciding anything.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from sdcp.machines.reader import verdict_of
from sdcp.machines.verifier_open import Opened
from sdcp.messages.record import CommitRecord
from sdcp.messages.round import Verdict
from sdcp.messages.session import SessionState, State
from sdcp.rules.escalation import Counters

NO_VERDICT = 2**64 - 1
"""In place of an offset: the round was self-decoded (D29)."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A verdict that exists: in memory, or at octet `start` of the log."""

    verdict: Verdict | None
    start: int


class Committed:
    """The committed state of one session under one epoch. `account` is of all its epochs (D35)."""

    def __init__(self, opened: Opened) -> None:
        message, last = opened.message, opened.last
        self.session = message.session
        self.epoch = message.epoch
        self.contract = message.contract
        self.stop = frozenset(message.contract.stop)
        self.history = opened.history
        self.digest = opened.digest
        self.round = last.round if last else 0
        self.counters = _counters(last) if last else Counters()
        self.m_cap = message.contract.m_max  # until PUT drafter sets it (D16)
        self.verdict: Verdict | None = None
        self.account = opened.account
        self.kv: str | None = None  # a KV object that the next record names (D44)
        self._first_round = self.round + 1  # verdicts of earlier epochs are not replayed (D20)
        self._starts = array("Q")

    @property
    def room(self) -> int:
        """How many tokens may still be committed: max_new - n."""
        return self.contract.max_new - self.history.committed

    def apply(self, record: CommitRecord, start: int) -> None:
        """Move on by a record that is durable and valid and starts at octet `start`."""
        self.history.append_all(record.tokens)
        self.digest = record.digest
        self.round = record.round
        self.counters = _counters(record)
        self.m_cap = self.m_cap if record.m_cap is None else record.m_cap
        self._starts.append(NO_VERDICT if record.accepted is None else start)
        if record.accepted is not None:
            self.verdict = verdict_of(self.session, record)
        self.account.add(record)
        if record.kv == self.kv:
            self.kv = None

    def stored(self, round: int) -> Stored | None:
        """Return the verdict of a round if it exists under this epoch (6.3 step 3)."""
        if not self._first_round <= round <= self.round:
            return None
        start = self._starts[round - self._first_round]
        if start == NO_VERDICT:
            return None
        is_last = self.verdict is not None and self.verdict.round == round
        return Stored(self.verdict if is_last else None, start)

    def state(self, state: State) -> SessionState:
        """Return the session-state that peers are told."""
        return SessionState(
            session=self.session,
            epoch=self.epoch,
            round=self.round,
            committed=self.history.committed,
            digest=self.digest,
            state=state,
        )


def _counters(record: CommitRecord) -> Counters:
    """Return c, g, j (6.5.2) as a record holds them; one without them leaves them at zero (D20)."""
    return Counters(record.low or 0, record.g or 0, record.j or 0)
