"""The speculation limit m_cap: where it starts, when it falls and how it comes back (6.5.1, D16).

Always 1 <= m_cap <= m_max. Self-decoding rounds leave it alone (D29).
"""

from __future__ import annotations

from sdcp.messages.contract import Action


def start(m_init: int, m_max: int) -> int:
    """Return m_cap after a PUT drafter that changes the drafter."""
    return min(max(m_init, 1), m_max)


def reduced(m_cap: int) -> int:
    """Return m_cap after the action reduce (6.5.2)."""
    return max(1, m_cap // 2)


def restored(m_cap: int, m_max: int) -> int:
    """Return m_cap after a round that was not low: one more, up to m_max."""
    return min(m_cap + 1, m_max)


def after_round(m_cap: int, m_max: int, action: int, low: bool, *, load_permits: bool = True) -> int:
    """Return m_cap for the verdict of a round, from the one before it. `low` says whether the round was low."""
    if action == Action.REDUCE:
        return reduced(m_cap)
    return m_cap if low or not load_permits else restored(m_cap, m_max)
