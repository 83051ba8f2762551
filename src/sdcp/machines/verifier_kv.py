"""When a verifier publishes the target KV of a session, and which object its next record names (6.3, D44).

One object is on its way at a time. It is published beside the rounds and named by the first record that is made after
it is there, so whoever reads the log after a fence finds the newest one. What cannot be published is left out until the
next one is due. Not here: the KV, and what becomes of objects (`sdcp.roles.kv`).
"""

from __future__ import annotations

from sdcp.machines.effects import PublishKv
from sdcp.machines.inputs import KvPublished
from sdcp.machines.verifier_committed import Committed


class KvPublishing:
    """Publishes after every `interval` committed tokens; 0: never. `awaited`: the length of what is on its way."""

    def __init__(self, committed: Committed, interval: int) -> None:
        self._committed = committed
        self._interval = interval
        self._last = committed.history.committed  # n when it was published last, or when the session opened
        self.awaited: int | None = None

    def due(self) -> list[PublishKv]:
        """After a commit: what is to be published now."""
        history = self._committed.history
        if not self._interval or self.awaited is not None or history.committed - self._last < self._interval:
            return []
        self._last, self.awaited = history.committed, len(history)
        return [PublishKv(history, self.awaited)]

    def published(self, given: KvPublished) -> None:
        """Take the answer; to another question than the one outstanding, it changes nothing."""
        if given.length == self.awaited:
            self.awaited = None
            self._committed.kv = given.ref or self._committed.kv
