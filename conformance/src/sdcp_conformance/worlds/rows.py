"""Rows of q for checks of rule 2 (5.2, 6.4): a row is V probabilities, written as binary32 by `put_rows`.

A proposed token is accepted for certain where q(x) <= p(x), and rejected for certain where p(x) is 0; with such rows
the draft alone foretells what a verifier does, whatever it draws.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from sdcp_conformance.oracle.bigram import TARGET, V
from sdcp_conformance.oracle.sampling import target_distribution
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.worlds.verifier import VerifierSession

Row = list[float]
FLAT = {"temperature_milli": 1_000_000}
"""A profile under which every token is about as probable as any other: 1/16."""
GREEDY = {"temperature_milli": 0}
"""A profile under which one token has all the probability."""


def exact(row: Sequence[float]) -> Row:
    """The values that binary32 makes of a row."""
    return list(struct.unpack(f"<{len(row)}f", struct.pack(f"<{len(row)}f", *row)))


def spread(token: int, share: float) -> Row:
    """A row that gives one token this share, and each other the same."""
    return [share if other == token else (1 - share) / (V - 1) for other in range(V)]


def leaning(p: Sequence[float], token: int, ratio: float) -> Row:
    """A row with p(token) / q(token) = `ratio`, the rest in proportion to p. Needs p(token) < ratio."""
    share = p[token] / ratio
    left = (1 - share) / (1 - p[token])
    return [share if other == token else each * left for other, each in enumerate(p)]


def covering(p: Sequence[float], spared: Mapping[int, float], token: int) -> Row:
    """A row above p at every token but those `spared`, which get these shares; what is left goes to `token`."""
    row = [spared.get(other, each * 1.00001 + 1e-6) for other, each in enumerate(p)]
    row[token] += 1 - math.fsum(row)
    return row


def profiled(session: VerifierSession, tokens: Sequence[int], profile: dict[str, int]) -> list[Row]:
    """The target distributions of the proposed positions after the committed prefix."""
    return [target_distribution(each, profile) for each in TARGET.along(session.prefix, tokens)[: len(tokens)]]


def sample(row: Sequence[float], luck: random.Random) -> int:
    """A token drawn from a row as binary32 has it."""
    return luck.choices(range(V), exact(row))[0]


async def sampled(
    session: VerifierSession, tokens: Sequence[int], rows: Sequence[Sequence[float]], **given: Any
) -> dict[str, Any]:
    """A round of rule 2 whose outcome is not foretold; the verdict is checked for its form alone."""
    answer = await session.propose(tokens, q_rows=session.put_rows(rows), **given)
    number = session.round + 1
    verdict = session.learn(answer)
    accepted = verdict["accepted"]
    ensure(0 <= accepted <= len(tokens), f"accepted of round {number}: expected 0 to {len(tokens)}, came {accepted}")
    expect(verdict["emitted"][:accepted], list(tokens[:accepted]), f"the accepted tokens of round {number}")
    expect(len(verdict["emitted"]), accepted + 1, f"number of emitted tokens of round {number}")
    return verdict


async def takes_anything(session: VerifierSession, **given: Any) -> bool:
    """A round that tells the profile: one token that only FLAT takes, and takes for certain; GREEDY never does."""
    token = session.wrong_tokens(1)[0]
    return bool((await sampled(session, [token], [spread(token, 0.01)], **given))["accepted"])
