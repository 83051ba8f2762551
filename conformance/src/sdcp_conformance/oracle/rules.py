"""Acceptance rules 1 and 2 (6.4), self-decoding (D29) and truncation (6.3 step 7, D14)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from sdcp_conformance.oracle.sampling import (
    ACCEPTANCE,
    ADDITIONAL,
    Profile,
    argmax,
    draw,
    target_distribution,
    uniform,
)

Logits = Sequence[float]
Uniform = Callable[[int, int], float]
"""The value for a position, counted from 1, and a purpose."""


def seeded(profile: Profile, session: bytes, round_: int) -> Uniform:
    """The values of a round under a profile with a seed."""
    seed = profile["seed"]
    return lambda position, purpose: uniform(seed, session, round_, position, purpose)


def greedy(logits: Sequence[Logits], tokens: Sequence[int]) -> tuple[int, list[int]]:
    """Rule 1: a, and the emitted tokens before truncation. `logits` has M + 1 positions."""
    accepted = 0
    while accepted < len(tokens) and tokens[accepted] == argmax(logits[accepted]):
        accepted += 1
    return accepted, [*tokens[:accepted], argmax(logits[accepted])]


def speculative(
    logits: Sequence[Logits], rows: Sequence[Sequence[float]], tokens: Sequence[int], profile: Profile, value: Uniform
) -> tuple[int, list[int]]:
    """Rule 2: a, and the emitted tokens before truncation. `rows` are the binary32 values of q, one row a position."""
    for index, token in enumerate(tokens):
        p, q = target_distribution(logits[index], profile), rows[index]
        if not value(index + 1, ACCEPTANCE) < min(1.0, p[token] / q[token]):
            left = [max(0.0, each - other) for each, other in zip(p, q, strict=True)]
            additional = draw(left if any(left) else p, value(index + 1, ADDITIONAL))
            return index, [*tokens[:index], additional]
    p = target_distribution(logits[len(tokens)], profile)
    return len(tokens), [*tokens, draw(p, value(len(tokens) + 1, ADDITIONAL))]


def self_decoded(logits: Logits, rule: int, profile: Profile, session: bytes, round_: int) -> int:
    """The token of a self-decoding round; rule 2 needs a seed to be foretold."""
    if rule == 1:
        return argmax(logits)
    return draw(target_distribution(logits, profile), uniform(profile["seed"], session, round_, 1, ADDITIONAL))


def truncate(emitted: Sequence[int], stop: Collection[int], committed: int, max_new: int) -> tuple[list[int], bool]:
    """What is committed of the emitted tokens, and whether that finishes the session."""
    kept = list(emitted[: max_new - committed])
    for index, token in enumerate(kept):
        if token in stop:
            return kept[: index + 1], True
    return kept, committed + len(kept) == max_new
