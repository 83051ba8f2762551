"""Low rounds, the escalation ladder (6.5.2) and m_cap (6.5.1, D16) of one session, round by round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CONTINUE, REDUCE, SWITCH, SELF_DECODE, FINISH, FAIL = range(6)


def is_low(accepted: int, m: int, low_ratio: int) -> bool:
    """Whether a round that accepted a of M tokens is low."""
    return 100 * accepted < low_ratio * m if low_ratio else accepted == 0


@dataclass
class Ladder:
    """The counters c, g, j under a contract."""

    contract: Mapping[str, Any]
    c: int = 0
    g: int = 0
    j: int = 0

    def after(self, accepted: int, m: int, load: int) -> int:
        """Count a round of M proposed tokens at this verifier load; return the action of its verdict."""
        if not is_low(accepted, m, self.contract.get("low_ratio", 0)):
            self.c, self.g = 0, self.g + 1
            if self.g >= self.contract["low_rounds"]:
                self.j = 0
            return CONTINUE
        self.c, self.g = self.c + 1, 0
        if self.c < self.contract["low_rounds"]:
            return CONTINUE
        self.c = 0
        return self._rung(load)

    def _rung(self, load: int) -> int:
        fallback = self.contract["fallback"]
        while self.j < len(fallback):
            action = int(fallback[self.j])
            self.j += 1
            if action != SELF_DECODE or self._may_self_decode(load):
                return action
        return FAIL

    def _may_self_decode(self, load: int) -> bool:
        limit = self.contract.get("self_load")
        return limit is not None and load <= limit and self.contract.get("self_max") != 0


@dataclass
class Limit:
    """m_cap on an unloaded verifier: raised by one after each round that is not low (D16)."""

    m_max: int
    m_init: int
    m_cap: int = field(init=False)

    def __post_init__(self) -> None:
        self.m_cap = min(max(self.m_init, 1), self.m_max)

    def after(self, action: int, low: bool) -> int:
        """Return m_cap in the verdict of a round."""
        if action == REDUCE:
            self.m_cap = max(1, self.m_cap // 2)
        elif not low:
            self.m_cap = min(self.m_cap + 1, self.m_max)
        return self.m_cap
