"""What a drafter session learns about itself: alpha, t_d and t_v of the recommended choice of M (6.2).

Words: alpha is the probability that one proposed token is accepted, t_d the time to draft one token and to write its
artifacts, t_v the time from sending a proposal to its verdict. All are weighted towards what is recent, so that a
session whose text turns easy or hard, a drafter that gets busy, and a cache whose bandwidth gets scarce show within
some rounds. On a processor t_v is no constant: each token more takes longer to verify. So it is learnt as a line over
M, and its slope counts as part of what one more token costs, beside t_d (D38).

Not here: the rule itself (`sdcp.rules.length`), and the limit that it is given.
"""

from __future__ import annotations

from sdcp.rules.length import choose_length

START_ALPHA = 0.7
"""Before anything is known: high enough that a session begins by proposing about what it may."""

START_TOKENS = 3
"""The start counts for as much as this many judged tokens: a session soon goes by its own."""

TOKEN_WEIGHT = 0.05
"""Least weight of one judged token: in the long run about the last twenty count."""

TIME_WEIGHT = 0.25
"""Weight of one measured time."""

SLOPE_WEIGHT = 0.05
"""Weight of one round in the slope of t_v: single rounds are noisy, and what a token costs changes slowly."""

LEAST_SPREAD = 0.05
"""Variance of M below which the rounds say nothing of the slope, and the last one known stands."""


class Estimate:
    """The measurements of one session. Times in ms."""

    __slots__ = ("_judged_tokens", "alpha", "draft_ms", "verify", "write_ms")

    def __init__(self, alpha: float = START_ALPHA) -> None:
        self.alpha = alpha
        self.draft_ms: float | None = None
        self.write_ms = 0.0
        self.verify = Line()
        self._judged_tokens = 0

    def drafted(self, token_ms: float) -> None:
        """One token took `token_ms` to draft."""
        self.draft_ms = _mixed(self.draft_ms, token_ms, TIME_WEIGHT)

    def written(self, write_ms: float, count: int) -> None:
        """The artifacts of `count` tokens took `write_ms` to write."""
        self.write_ms = _mixed(self.write_ms or None, write_ms / count, TIME_WEIGHT)

    def judged(self, accepted: int, proposed: int, elapsed_ms: float) -> None:
        """A verdict came after `elapsed_ms`: `accepted` tokens held, and one did not unless all held."""
        accepted = min(accepted, proposed)
        for held in (*[1.0] * accepted, *[0.0] * (accepted < proposed)):
            self._judged_tokens += 1
            weight = max(TOKEN_WEIGHT, 1 / (START_TOKENS + self._judged_tokens))
            self.alpha += weight * (held - self.alpha)
        self.verify.add(proposed, elapsed_ms)

    def length(self, limit: int) -> int:
        """Return the M of 1..limit to propose; all that is allowed until both times have been measured once."""
        if self.draft_ms is None or self.verify.mean is None:
            return limit
        token_ms = self.draft_ms + self.write_ms + self.verify.slope
        return choose_length(self.alpha, token_ms, self.verify.at_nothing, limit)


class Line:
    """t_v over M, fitted to the rounds so far. `mean` is the recent t_v, `slope` what one token more costs, in ms."""

    __slots__ = ("_m", "_mm", "_mt", "_t", "mean", "recent_m", "slope")

    def __init__(self) -> None:
        self.mean: float | None = None
        self.recent_m: float | None = None
        self.slope = 0.0
        self._m: float | None = None
        self._t: float | None = None
        self._mm: float | None = None
        self._mt: float | None = None

    def add(self, m: int, elapsed_ms: float) -> None:
        """A round of M tokens had its verdict after `elapsed_ms`."""
        self.mean = _mixed(self.mean, elapsed_ms, TIME_WEIGHT)
        self.recent_m = _mixed(self.recent_m, m, TIME_WEIGHT)
        self._m = _mixed(self._m, m, SLOPE_WEIGHT)
        self._t = _mixed(self._t, elapsed_ms, SLOPE_WEIGHT)
        self._mm = _mixed(self._mm, m * m, SLOPE_WEIGHT)
        self._mt = _mixed(self._mt, m * elapsed_ms, SLOPE_WEIGHT)
        spread = self._mm - self._m * self._m
        if spread > LEAST_SPREAD:
            steepest = self._t / (self._m + 1)  # a pass costs something by itself
            self.slope = min(max((self._mt - self._m * self._t) / spread, 0.0), steepest)

    @property
    def at_nothing(self) -> float:
        """The part of t_v that does not depend on M; 0 before the first round."""
        return max((self.mean or 0.0) - self.slope * (self.recent_m or 0.0), 0.0)


def _mixed(known: float | None, measured: float, weight: float) -> float:
    return measured if known is None else known + weight * (measured - known)
