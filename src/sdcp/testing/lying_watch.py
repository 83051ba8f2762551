"""What must be so although peers lie: each judged round was begun by a proposal that had the right to (6.1 to 6.4).

The watch hears assignments and proposals as they are handed to verifiers, and what rows these are given. When a record
becomes durable there must be a proposal for it that passes the checks of 6.3, which are written down here once more,
with nothing of `sdcp.machines`. Which proposals are refused, and how, is not looked at here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from sdcp.machines.effects import Refuse, Reply
from sdcp.messages.contract import Action, Contract
from sdcp.messages.record import CommitRecord, FenceRecord
from sdcp.messages.round import Assignment, Proposal
from sdcp.messages.session import SessionState
from sdcp.testing.checks import Broken, Watch, records_in

SUM_TOLERANCE = 1e-4
PAUSING = (Action.SWITCH, Action.SELF_DECODE)


@dataclass(slots=True)
class _Term:
    """One epoch at one verifier process: what was handed to it, in order. `since`: when the last round began."""

    assignments: list[tuple[int, Assignment]] = field(default_factory=list)
    proposals: dict[int, list[tuple[int, str, Proposal]]] = field(default_factory=lambda: defaultdict(list))
    since: int = -1
    limit: int | None = None
    paused: bool = False


class WaryWatch(Watch):
    """A Watch that knows what peers have said. `width` is V. `doubtful`: sessions may be opened with other contents."""

    width = 1 << 32
    doubtful = False

    def __init__(self, contract: Contract, *args: object, **named: object) -> None:
        super().__init__(contract, *args, **named)  # type: ignore[arg-type]
        self.contract = contract
        self._terms: dict[object, tuple[int, _Term]] = {}
        self._good_rows: set[tuple[tuple[int, ...], str]] = set()
        self._serials = count()

    # ---- what is handed to verifiers ---------------------------------------------------------------------------------

    def assigned(self, place: object, epoch: int, message: Assignment) -> None:
        """PUT drafter, as it comes to the verifier process `place`, whose epoch is `epoch`."""
        if message.epoch == epoch and message.contract == self.contract:
            self._term(place, epoch).assignments.append((next(self._serials), message))

    def proposed(self, place: object, epoch: int, client: str, message: Proposal) -> None:
        """POST proposals, likewise; `client` is the base URI of the certificate."""
        self._term(place, epoch).proposals[message.round].append((next(self._serials), client, message))

    def served(self, tokens: tuple[int, ...], ref: str, octets: bytes) -> None:
        """A verifier has been given these rows for these tokens."""
        if _good_rows(octets, tokens, self.width):
            self._good_rows.add((tokens, ref))

    def _term(self, place: object, epoch: int) -> _Term:
        return self._terms.setdefault(place, (epoch, _Term()))[1]

    # ---- what becomes durable ----------------------------------------------------------------------------------------

    def appended(self, data: bytes) -> None:
        """Octets have become durable. A fence that is no higher than another says nothing new, and counts for none."""
        for start, end, record in _records(data):
            if isinstance(record, FenceRecord) and record.epoch <= self.fence:
                continue
            void = record.epoch < self.fence
            super().appended(data[start:end])
            if isinstance(record, CommitRecord) and record.accepted is not None and not void:
                self._justify(record)

    def _justify(self, record: CommitRecord) -> None:
        before = record.committed - len(record.tokens)
        begun = [
            (serial, term)
            for epoch, term in self._terms.values()
            if epoch == record.epoch
            for serial, client, proposal in term.proposals[record.round]
            if self._justifies(term, serial, client, proposal, record, before)
        ]
        if not begun:
            raise Broken(f"round {record.round} is of no proposal that had the right to begin it (6.3)")
        for serial, term in reversed(begun):  # the first of several began it
            term.since, term.limit, term.paused = serial, record.m_cap, record.action in PAUSING

    def _justifies(
        self, term: _Term, serial: int, client: str, proposal: Proposal, record: CommitRecord, before: int
    ) -> bool:
        tokens = proposal.tokens
        kept = min(record.accepted or 0, len(record.tokens))
        return (
            client == proposal.drafter
            and proposal.epoch == record.epoch
            and (proposal.base, proposal.base_digest) == (before, self.digests[before])
            and len(tokens) == record.proposed
            and len(tokens) <= min(self.contract.m_max, _limit(term, self.contract.m_max))
            and max(tokens) < self.width
            and record.tokens[:kept] == tokens[:kept]
            and _is_assigned(term, serial, client)
            and (self.contract.rule == 1 or (tokens, proposal.q_rows) in self._good_rows)
        )

    # ---- what leaves -------------------------------------------------------------------------------------------------

    def leaves(self, answer: Reply | Refuse) -> None:
        """An answer leaves a verifier. Before the first commit, its session is what it was opened with."""
        message = answer.message if isinstance(answer, Reply) else answer.state
        if self.doubtful and isinstance(message, SessionState) and message.committed == 0:
            return
        super().leaves(answer)


def _is_assigned(term: _Term, serial: int, client: str) -> bool:
    """Whether it was the drafter of the latest assignment, or came to be it; after a pause by a new one (D13)."""
    before = [message.drafter for when, message in term.assignments if when < serial]
    after = {message.drafter for when, message in term.assignments if when > serial}
    if term.paused and not any(when > term.since for when, _ in term.assignments):
        return False
    return client in after or before[-1:] == [client]


def _limit(term: _Term, m_max: int) -> int:
    """The largest limit that may be in force: the last verdict's, or that of an assignment since (D16)."""
    given = [min(max(message.m_init, 1), m_max) for when, message in term.assignments if when > term.since]
    return max([*given, 0 if term.limit is None else term.limit])


def _good_rows(octets: bytes, tokens: tuple[int, ...], width: int) -> bool:
    """6.3 step 5 and D25."""
    if len(octets) != 4 * width * len(tokens) or max(tokens) >= width:
        return False
    rows = np.frombuffer(octets, "<f4").reshape(len(tokens), width)
    if not np.isfinite(rows).all() or (rows < 0).any():
        return False
    sums = rows.sum(axis=1, dtype=np.float64)
    return bool(
        (abs(sums - 1) <= SUM_TOLERANCE).all() and all(row[token] > 0 for row, token in zip(rows, tokens, strict=True))
    )


def _records(data: bytes) -> list[tuple[int, int, CommitRecord | FenceRecord]]:
    found, start = [], 0
    for end, record in records_in(data):
        found.append((start, end, record))
        start = end
    return found
