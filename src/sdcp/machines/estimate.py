"""What a drafter session learns about itself: alpha, t_d and t_v of the recommended choice of M (6.2).

Words: alpha is the probability that one proposed token is accepted, t_d the time to draft one token and to write its
artifacts, t_v the time from sending a proposal to its verdict. All are exponentially weighted, so that a session whose
text turns easy or hard, a drafter that gets busy, and a cache whose bandwidth gets scarce show within some rounds.

Not here: the rule itself (`sdcp.rules.length`), and the limit that it is given.
"""

from __future__ import annotations

from sdcp.rules.length import choose_length

START_ALPHA = 0.8
"""Before anything is known: high enough that a session begins by proposing about what it may."""

TOKEN_WEIGHT = 0.05
"""Weight of one evaluated token: about the last twenty tokens count, some five rounds."""

TIME_WEIGHT = 0.25
"""Weight of one measured time."""


class Estimate:
    """The measurements of one session. Times in ms."""

    __slots__ = ("alpha", "draft_ms", "verify_ms", "write_ms")

    def __init__(self, alpha: float = START_ALPHA) -> None:
        self.alpha = alpha
        self.draft_ms: float | None = None
        self.write_ms = 0.0
        self.verify_ms: float | None = None

    def drafted(self, token_ms: float) -> None:
        """One token took `token_ms` to draft."""
        self.draft_ms = _mixed(self.draft_ms, token_ms)

    def written(self, write_ms: float, count: int) -> None:
        """The artifacts of `count` tokens took `write_ms` to write."""
        self.write_ms = _mixed(self.write_ms or None, write_ms / count)

    def judged(self, accepted: int, proposed: int, elapsed_ms: float) -> None:
        """A verdict came after `elapsed_ms`: `accepted` tokens held, and one did not unless all held."""
        accepted = min(accepted, proposed)
        self.alpha = 1 - (1 - self.alpha) * (1 - TOKEN_WEIGHT) ** accepted
        if accepted < proposed:
            self.alpha *= 1 - TOKEN_WEIGHT
        self.verify_ms = _mixed(self.verify_ms, elapsed_ms)

    def length(self, limit: int) -> int:
        """Return the M of 1..limit to propose; all that is allowed until both times have been measured once."""
        if self.draft_ms is None or self.verify_ms is None:
            return limit
        return choose_length(self.alpha, self.draft_ms + self.write_ms, self.verify_ms, limit)


def _mixed(known: float | None, measured: float) -> float:
    return measured if known is None else known + TIME_WEIGHT * (measured - known)
