"""A second reading of the control step, for the watch: what each commit record has to say of itself (6.5, D14 to D16).

It computes the rung, the counters and the limit from the contract and the records before, with nothing of
`sdcp.rules`, deliberately in other words: the draft's own variables, one rule after the other.

Not here: tokens, rounds and the chain (`checks`), and whether a drafter kept to the limit it was told.
"""

from __future__ import annotations

from dataclasses import dataclass

from sdcp.messages.contract import Contract
from sdcp.messages.record import CommitRecord

CONTINUE, REDUCE, SELF_DECODE, FINISH, FAIL = 0, 1, 3, 4, 5


@dataclass(slots=True)
class Ladder:
    """c, g and j after the last valid record, and what m_cap may be.

    `first`: m_cap when a drafter is new (D16). `busy`: load from which the limit is not raised, and at most `busy_cap`.
    """

    contract: Contract
    first: int
    busy: int = 90
    busy_cap: int = 4
    c: int = 0
    g: int = 0
    j: int = 0
    caps: tuple[int, ...] = ()
    epoch: int = 0

    def fault(self, record: CommitRecord) -> str | None:
        """Take the next valid record; say what is wrong with it, or None."""
        if record.accepted is None or record.proposed is None:
            return self._self_decoded(record)
        if record.action != FINISH:
            said = (int(record.action or 0), record.low, record.g, record.j)
            held = (self._step(record), self.c, self.g, self.j)
            if said != held:
                return f"round {record.round} says {said} for action, c, g and j, not {held} (6.5.2)"
        elif (record.low, record.g, record.j) != (self.c, self.g, self.j):
            return f"round {record.round} finishes and changes the counters (D15)"
        return self._limited(record)

    def assigned(self) -> None:
        """Another drafter may have been assigned, or the same again: then the limit starts anew, or does not (D16)."""
        self.caps = (*self.caps[:1], self.first)

    def _self_decoded(self, record: CommitRecord) -> str | None:
        if record.action not in (SELF_DECODE, FINISH) or len(record.tokens) != 1:
            return f"round {record.round} was decoded by the target alone and says {record.action} (D29)"
        kept = (record.low, record.g, record.j)
        if kept != (self.c, self.g, self.j):
            return f"round {record.round} was decoded by the target alone and changes the counters (D29)"
        return None

    def _step(self, record: CommitRecord) -> int:
        """The control step of 6.5.2; return the action."""
        assert record.accepted is not None
        assert record.proposed is not None
        ratio, rounds = self.contract.low_ratio, self.contract.low_rounds
        low = record.accepted * 100 < ratio * record.proposed if ratio else record.accepted == 0
        if not low:
            self.c, self.g = 0, self.g + 1
            if self.g >= rounds:
                self.j = 0
            return CONTINUE
        self.c, self.g = self.c + 1, 0
        if self.c < rounds:
            return CONTINUE
        self.c = 0
        return self._rung(record.load or 0)

    def _rung(self, load: int) -> int:
        limit, contract = self.contract.self_load, self.contract
        while self.j < len(contract.fallback):
            entry = int(contract.fallback[self.j])
            self.j += 1
            if entry != SELF_DECODE or (limit is not None and load <= limit and contract.self_max != 0):
                return entry
        return FAIL

    def _limited(self, record: CommitRecord) -> str | None:
        """m_cap after the round, from what it may have been before; an epoch begins with a new drafter."""
        before = self.caps if record.epoch == self.epoch else (self.first,)
        self.epoch = record.epoch
        allowed = [each for each in before if (record.proposed or 0) <= each]
        if not allowed:
            return f"round {record.round} has {record.proposed} tokens, over the limit {max(before)} (6.2)"
        wanted = [self._moved(each, record) for each in allowed]
        if record.m_cap not in wanted:
            return f"round {record.round} has the limit {record.m_cap}, not {wanted[-1]} (6.5.1, D16)"
        self.caps = (record.m_cap,)
        return None

    def _moved(self, before: int, record: CommitRecord) -> int:
        if record.action == FINISH:
            return before
        is_busy = (record.load or 0) >= self.busy
        wanted = before
        if record.action == REDUCE:
            wanted = max(before // 2, 1)
        elif self.g and not is_busy:  # the round was not low
            wanted = min(before + 1, self.contract.m_max)
        return min(wanted, self.busy_cap) if is_busy else wanted
