"""Whether a commit log can be what a session committed: record by record, against contract and prompt.

The digest chain is derived again from d[0] (4.2), rounds and epochs follow each other (6.8), and no record says what
its contract does not allow (4.1, 6.3). The first record that fails ends the audit: what follows stands on it.

Not here: reading logs from a cache (`sdcp.audit.place`), and what the target model thinks of the tokens
(`sdcp.audit.greedy`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sdcp.errors import ProblemError
from sdcp.machines.reader import Entry, LogReader
from sdcp.messages.contract import Action, Contract
from sdcp.messages.record import CommitRecord, FenceRecord
from sdcp.rules.digest import digest_of, prefix_digest


@dataclass(frozen=True, slots=True)
class Fault:
    """The first bad record: its index among all records, the octet at which it begins, and what is wrong with it."""

    index: int
    start: int
    reason: str


@dataclass(slots=True)
class Findings:
    """Records up to the first fault, and the output that they commit. `ended`: by which action, if they say so."""

    entries: list[Entry] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    digest: bytes = b""
    ended: Action | None = None
    fault: Fault | None = None

    @property
    def commits(self) -> list[CommitRecord]:
        """The records that count, in order."""
        return [each.record for each in self.entries if isinstance(each.record, CommitRecord) and not each.void]


def read(data: bytes) -> Findings:
    """Read the records alone: for a log whose contract and prompt nobody has."""
    return _read(LogReader(), data, None)


def audit(data: bytes, contract: Contract, prompt: Sequence[int]) -> Findings:
    """Check every record of the log `data`. Raises ValueError for a prompt with a token not below 2^32 (D5)."""
    first = prefix_digest(digest_of(contract), prompt)
    findings = _read(LogReader(first), data, contract)
    findings.digest = findings.commits[-1].digest if findings.commits else first
    return findings


def _read(reader: LogReader, data: bytes, contract: Contract | None) -> Findings:
    findings = Findings()
    entries = reader.entries(data)
    while True:
        try:
            entry = next(entries, None)
        except ProblemError as fault:
            findings.fault = Fault(len(findings.entries), reader.size, fault.detail)
            return findings
        if entry is None:
            return findings
        reason = _objection(findings, entry, reader.fence, contract) if contract else None
        if reason is not None:
            findings.fault = Fault(len(findings.entries), entry.start, reason)
            return findings
        findings.entries.append(entry)
        if isinstance(entry.record, CommitRecord) and not entry.void:
            findings.output += entry.record.tokens
            findings.ended = _ended(entry.record, contract)


def _objection(findings: Findings, entry: Entry, fence: int, contract: Contract) -> str | None:
    """What a record may not be, beyond what `LogReader` refuses."""
    record = entry.record
    if isinstance(record, FenceRecord) or entry.void:
        return None
    if record.epoch != max(fence, 1):
        return f"it is of epoch {record.epoch}, and the log is at epoch {max(fence, 1)}: no fence begins that epoch"
    if findings.ended is not None:
        return f"it follows round {record.round - 1}, which ended the session"
    if record.committed > contract.max_new:
        return f"it commits {record.committed} tokens, over max_new = {contract.max_new}"
    if not _counts_agree(record, _cut(record, contract), contract):
        return "its numbers of tokens proposed, accepted and committed do not go together"
    if not set(contract.stop).isdisjoint(record.tokens[:-1]):
        return "a stop token stands before its last token"
    return None


def _counts_agree(record: CommitRecord, cut: bool, contract: Contract) -> bool:
    """Whether M, a and the tokens of a round go together: a + 1 tokens, fewer only where output is `cut` (D14)."""
    emitted = len(record.tokens)
    if record.accepted is None:  # a self-decoding round, or a writer that does not say
        return emitted > 0
    proposed = contract.m_max if record.proposed is None else record.proposed
    if not record.accepted <= proposed <= contract.m_max:
        return False
    return emitted == record.accepted + 1 or (cut and 0 < emitted <= record.accepted)


def _cut(record: CommitRecord, contract: Contract) -> bool:
    """Whether output ends with this record: by a stop token, or at max_new (D14)."""
    return record.committed >= contract.max_new or not set(contract.stop).isdisjoint(record.tokens[-1:])


def _ended(record: CommitRecord, contract: Contract | None) -> Action | None:
    if record.action in (Action.FINISH, Action.FAIL):
        return record.action
    return Action.FINISH if contract and _cut(record, contract) else None
