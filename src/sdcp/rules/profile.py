"""The target distribution p: logits after temperature, top-k and top-p, in that order (4.1, D22).

All in float64, whatever the logits came in. Tokens are ordered by logit, equal logits by the smaller identifier; each
step renormalizes over what it keeps. This is the plain form: an engine may compute the same on its own device.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sdcp.messages.contract import Sampling

Logits: TypeAlias = NDArray[np.floating]
"""Shape [V]. Minus infinity forbids a token."""
Distribution: TypeAlias = NDArray[np.float64]
"""Shape [V], not negative, sums to 1."""

FIRST_SORTED = 1024
"""So many greatest logits are sorted before the rest is, for top-p."""


def argmax(logits: Logits) -> int:
    """Return the token of the greatest logit, the smallest identifier first. ValueError if any is NaN."""
    token = int(logits.argmax())  # the first of equals; a NaN outranks every number here
    greatest = logits[token]
    if greatest != greatest:  # a NaN alone is not itself
        raise ValueError("the target's logits hold a NaN")
    return token


def target_distribution(logits: Logits, sampling: Sampling) -> Distribution:
    """Return p [V] for the logits [V] of one position under a sampling profile.

    Temperature zero puts all on the argmax. ValueError for logits that hold a NaN or plus infinity, or forbid all.
    """
    best = argmax(logits)
    if not np.isfinite(logits[best]):
        raise ValueError("the target's logits hold an infinity, or forbid every token")
    p = np.zeros(len(logits))
    temperature = 1000 if sampling.temperature_milli is None else sampling.temperature_milli
    if temperature == 0:
        p[best] = 1.0
        return p
    kept = _top_k(logits, sampling.top_k or len(logits))
    weights = _softmax(logits[kept], temperature / 1000)
    if sampling.top_p_milli is not None and sampling.top_p_milli < 1000:
        order = _top_p(logits[kept], weights, sampling.top_p_milli / 1000)
        kept, weights = kept[order], weights[order]
    p[kept] = weights / weights.sum()
    return p


def _softmax(logits: Logits, temperature: float) -> Distribution:
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    normalized: Distribution = weights / weights.sum()
    return normalized


def _top_k(logits: Logits, k: int) -> NDArray[np.intp]:
    """Identifiers of exactly the k greatest logits, ascending; of equals at the edge, the smaller ones."""
    if k >= len(logits):
        return np.arange(len(logits))
    edge = np.partition(logits, -k)[-k]
    above = np.flatnonzero(logits > edge)
    level = np.flatnonzero(logits == edge)[: k - len(above)]
    return np.sort(np.concatenate((above, level)))


def _top_p(logits: Logits, p: Distribution, least: float) -> NDArray[np.intp]:
    """Indices of the shortest prefix, in order of logit, whose sum reaches `least`; at least one.

    A whole vocabulary is sorted only when the greatest logits do not suffice; the sums are the same either way.
    """
    order = _by_logit(logits, FIRST_SORTED)
    if np.cumsum(p[order])[-1] < least:
        order = _by_logit(logits, len(logits))
    reached = int(np.searchsorted(np.cumsum(p[order]), least, side="left"))
    return order[: reached + 1]


def _by_logit(logits: Logits, k: int) -> NDArray[np.intp]:
    """Identifiers of the k greatest logits in order; equal ones by identifier."""
    head = _top_k(logits, k)
    return head[np.argsort(-logits[head], kind="stable")]
