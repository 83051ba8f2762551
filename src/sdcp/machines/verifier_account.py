"""What speculation did for a session so far (D35): the figures that ride in every output message.

They are sums over commit records, so a verifier that takes over counts on from the log (D39). Not here: the number of
rounds, which the last record tells.
"""

from __future__ import annotations

from dataclasses import dataclass

from sdcp.messages.fields import U64_MAX
from sdcp.messages.record import CommitRecord


@dataclass(slots=True)
class Account:
    """Tokens proposed in all rounds that had a verdict, and how many of them were accepted.

    A log may claim any number: what goes beyond 64 bits stays at the largest that an output message can hold.
    """

    proposed: int = 0
    accepted: int = 0

    def add(self, record: CommitRecord) -> None:
        """Count a valid record. One that does not tell both, M and a, counts nothing: the two belong together."""
        if record.proposed is not None and record.accepted is not None:
            self.proposed = min(self.proposed + record.proposed, U64_MAX)
            self.accepted = min(self.accepted + record.accepted, U64_MAX)
