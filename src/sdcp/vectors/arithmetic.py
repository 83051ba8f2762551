"""Vectors of the draft's arithmetic: digests, random values, distributions, acceptance, control (4, 6.2 to 6.5).

One generator a kind: it yields what differs, the first of which is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sdcp.rules import acceptance, digest, draws, escalation, length, limit, profile
from sdcp.vectors.case import Case, FormError, differ
from sdcp.wire import cbor

TOLERANCE = 1e-9


def _chain(case: Case) -> Iterator[str]:
    contract, prompt, output = case.plain("contract"), case.tokens("prompt"), case.tokens("output")
    expected, expected_digest, chain = case.octets("contract_cbor"), case.octets("contract_digest"), case.chain("chain")
    yield from differ("contract_cbor", cbor.encode(contract), expected)
    yield from differ("contract_digest", digest.contract_digest(contract), expected_digest)
    got = [digest.prefix_digest(expected_digest, prompt)]
    for token in output:
        got.append(digest.extend_all(got[-1], (token,)))
    yield from differ("the length of the chain", len(got), len(chain))
    for index, (ours, theirs) in enumerate(zip(got, chain, strict=False)):
        yield from differ(f"d[{index}]", ours, theirs)


def _uniform(case: Case) -> Iterator[str]:
    numbers = (case.integer("round"), case.integer("i"), case.integer("purpose"))
    got = draws.uniform(case.integer("seed"), case.octets("session"), *numbers)
    yield from differ("value", got, case.number("value"))


def _distribution(case: Case) -> Iterator[str]:
    p, expected = profile.target_distribution(case.array("logits", 1), case.sampling()), case.array("p", 1)
    yield from differ("the number of probabilities", len(p), len(expected))
    for token, (ours, theirs) in enumerate(zip(p, expected, strict=False)):
        if abs(ours - theirs) > TOLERANCE or (ours == 0) != (theirs == 0):
            yield f"p[{token}] is {ours}, expected {theirs}"


def _outcome(case: Case, outcome: acceptance.Outcome, tokens: Sequence[int]) -> Iterator[str]:
    yield from differ("accepted", outcome.accepted, case.integer("accepted"))
    yield from differ("emitted", list(outcome.emitted(tokens)), case.tokens("emitted"))


def _greedy(case: Case) -> Iterator[str]:
    tokens = case.tokens("tokens")
    yield from _outcome(case, acceptance.accept_greedy(_scores(case, tokens), tokens), tokens)


def _speculative(case: Case) -> Iterator[str]:
    tokens, sampling = case.tokens("tokens"), case.sampling()
    luck = draws.seeded_luck(case.seed(), case.octets("session"), case.integer("round"), len(tokens))
    q = case.array("q", 2).astype(np.float32)
    scores = _scores(case, tokens)
    if q.shape != (len(tokens), scores.shape[1]):
        raise FormError('the member "q" must be one row of V numbers for each token')
    yield from _outcome(case, acceptance.accept_speculative(scores, tokens, q, sampling, luck), tokens)


def _scores(case: Case, tokens: Sequence[int]) -> NDArray[np.float64]:
    scores = case.array("logits", 2)
    if len(scores) != len(tokens) + 1 or any(token >= scores.shape[1] for token in tokens):
        raise FormError('the member "logits" must be M + 1 rows of V numbers for M tokens below V')
    return scores


def _self_decode(case: Case) -> Iterator[str]:
    rule = case.integer("rule")
    if rule not in acceptance.RULES:
        raise FormError(f'the member "rule" is {rule}, which is not registered')
    luck: tuple[float, ...] = ()
    if rule != acceptance.GREEDY:
        luck = draws.seeded_luck(case.seed(), case.octets("session"), case.integer("round"), 0).values
    got = acceptance.self_decode(rule, case.array("logits", 1), case.sampling(), luck)
    yield from differ("token", got, case.integer("token"))


def _truncation(case: Case) -> Iterator[str]:
    emitted, stop = case.tokens("emitted"), case.tokens("stop")
    kept, finished = acceptance.truncate(emitted, stop, case.integer("committed"), case.integer("max_new"))
    yield from differ("truncated", list(kept), case.tokens("truncated"))
    yield from differ("finished", finished, case.truth("finished"))


@dataclass(frozen=True)
class _Terms:
    low_rounds: int
    fallback: Sequence[int]
    self_load: int | None
    self_max: int | None


def _escalation(case: Case) -> Iterator[str]:
    terms = _Terms(
        case.integer("low_rounds"), case.tokens("fallback"), case.optional("self_load"), case.optional("self_max")
    )
    counters = escalation.Counters()
    for number, step in enumerate(case.steps(), start=1):
        low = escalation.is_low(step.integer("accepted"), step.integer("m"), case.optional("low_ratio"))
        counters, action = escalation.after_round(counters, low, terms, step.integer("load"))
        for name, got in (("action", action.value), ("low", counters.c), ("g", counters.g), ("j", counters.j)):
            yield from differ(f"step {number}: {name}", got, step.integer(name))


def _limit(case: Case) -> Iterator[str]:
    m_max = case.integer("m_max")
    m_cap = limit.start(case.integer("m_init"), m_max)
    yield from differ("start", m_cap, case.integer("start"))
    for number, step in enumerate(case.steps(), start=1):
        m_cap = limit.after_round(m_cap, m_max, step.integer("action"), step.truth("low_round"))
        yield from differ(f"step {number}: m_cap", m_cap, step.integer("m_cap"))


def _draft_length(case: Case) -> Iterator[str]:
    alpha, limit_ = case.number("alpha"), case.integer("limit", most=64)
    m = length.choose_length(alpha, case.number("t_d"), case.number("t_v"), limit_)
    yield from differ("m", m, case.integer("m"))
    expected, got = case.number("expected_tokens"), length.expected_tokens(alpha, m)
    if abs(got - expected) > TOLERANCE:
        yield f"expected_tokens is {got}, expected {expected}"


KINDS: dict[str, Callable[[Case], Iterator[str]]] = {
    "chain": _chain,
    "uniform": _uniform,
    "distribution": _distribution,
    "greedy": _greedy,
    "speculative": _speculative,
    "self_decode": _self_decode,
    "truncation": _truncation,
    "escalation": _escalation,
    "limit": _limit,
    "draft_length": _draft_length,
}
