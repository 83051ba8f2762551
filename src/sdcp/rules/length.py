"""How many tokens to draft: the rule that the draft recommends (6.2).

Not here: estimating alpha, t_d and t_v, which is the drafter's, and the limit, which the last verdict gave.
"""

from __future__ import annotations

SLACK = 1e-12
"""Rates closer than this, relatively, are one rate: the order of float operations must not decide."""


def expected_tokens(alpha: float, m: int) -> float:
    """Return the expected number of tokens that a round of M commits: 1 + alpha + ... + alpha^M.

    The sum of (1 - alpha^(M+1)) / (1 - alpha), which is M + 1 at alpha = 1; as a sum it stays exact near 1.
    """
    return sum(alpha**k for k in range(m + 1))


def choose_length(alpha: float, t_d: float, t_v: float, limit: int) -> int:
    """Return the M of 1..limit that commits most tokens per unit of time; the smallest of equals.

    `alpha` is the acceptance probability of one token, `t_d` the time to draft one, `t_v` that of a verification, in
    one unit. Costs are compared crosswise, so times of zero are no fault.
    """
    best, gain, cost = 1, expected_tokens(alpha, 1), t_d + t_v
    m_gain = gain
    for m in range(2, limit + 1):
        m_gain += alpha**m
        m_cost = m * t_d + t_v
        if m_gain * cost > gain * m_cost * (1 + SLACK):
            best, gain, cost = m, m_gain, m_cost
    return best
