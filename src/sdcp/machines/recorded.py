"""What a router knows of a session's commit log: the committed output, and how far epochs have gone (6.8, 6.9, D20).

Words as in `sdcp.machines.reader`, which tells valid records from void ones and checks the chain. Here the tokens of
the valid ones are put together, because a session that moves on is opened with them.
"""

from __future__ import annotations

from sdcp.errors import InvalidContent
from sdcp.machines.reader import LogReader
from sdcp.messages.contract import Action, Contract
from sdcp.messages.record import CommitRecord
from sdcp.rules.digest import extend_all

MOST_MISSING = 8
"""So often in a row a cache may say that there is no such log: one answer may be of an old state."""


class Recorded:
    """The log as far as it was read. `etag` is its entity tag then, None before there is a log.

    `highest` is the highest epoch of any record, void ones too, `tokens` the committed output, `digest` d[n] over it,
    `kv` the KV object that a valid record named last (D44). `missing` counts the latest answers that know no such log.
    """

    def __init__(self, contract: Contract, start_digest: bytes) -> None:
        """`start_digest` is d[0]."""
        self._contract = contract
        self._start_digest = start_digest
        self._reader = LogReader(start_digest)
        self.etag: str | None = None
        self.highest = 0
        self.tokens: list[int] = []
        self.kv: str | None = None
        self.missing = 0

    @property
    def end(self) -> int:
        """The octet up to which the log was read."""
        return self._reader.size

    @property
    def fence(self) -> int:
        """The epoch of the highest fence; 0 when there is none."""
        return self._reader.fence

    @property
    def round(self) -> int:
        """The last committed round; 0 when there is none."""
        return self._reader.last.round if self._reader.last else 0

    @property
    def digest(self) -> bytes:
        """d[n]."""
        return self._reader.last.digest if self._reader.last else self._start_digest

    @property
    def ended(self) -> Action | None:
        """FINISH or FAIL when the last record ended the session (6.3 step 7, D19), else None."""
        if self._reader.last is not None and self._reader.last.action == Action.FAIL:
            return Action.FAIL
        stopped = bool(self.tokens) and self.tokens[-1] in self._contract.stop
        return Action.FINISH if stopped or len(self.tokens) >= self._contract.max_new else None

    @property
    def switched(self) -> bool:
        """Whether the last round asked for another drafter (6.5.2)."""
        return self._reader.last is not None and self._reader.last.action == Action.SWITCH

    def take(self, start: int, data: bytes, etag: str | None) -> None:
        """Take in the octets of the log from `start` to its end as it was then; what is known already is skipped.

        Raises InvalidContent or MalformedBody when the log is no chain of records that extends this session's prompt,
        and InvalidContent when again and again there is none any more.
        """
        if start > self.end or start + len(data) < self.end:
            return  # an answer to a question of long ago
        self.missing = self.missing + 1 if etag is None and self.end else 0
        if self.missing >= MOST_MISSING:
            raise InvalidContent(f"The commit log has vanished: of {self.end} octets nothing is left.")
        if self.missing:
            return
        for entry in self._reader.entries(data[self.end - start :]):
            self.highest = max(self.highest, entry.record.epoch)
            if isinstance(entry.record, CommitRecord) and not entry.void:
                self.tokens.extend(entry.record.tokens)
                self.kv = entry.record.kv or self.kv
        self.etag = etag

    def digest_at(self, committed: int) -> bytes | None:
        """Return d[`committed`], or None when the log holds fewer tokens."""
        if committed > len(self.tokens):
            return None
        if committed == len(self.tokens):
            return self.digest
        return extend_all(self._start_digest, self.tokens[:committed])
