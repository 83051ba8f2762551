"""Check files of vectors against this implementation: the runner behind `sdcp vectors FILE...`.

A file is `{"kind", "about", "cases": [...]}` with byte strings in hex. Integers, bytes and token lists must be equal,
probabilities within 1e-9 with the same zeros, a uniform's `value` to the last bit. Members that a kind does not know
are ignored. The kinds are the keys of `KINDS`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sdcp.errors import ConfigurationError
from sdcp.messages.contract import Sampling
from sdcp.rules import acceptance, digest, draws, escalation, length, limit, profile
from sdcp.wire import cbor

TOLERANCE = 1e-9


class FormError(ConfigurationError):
    """The file cannot be read, or has not the form of a file of vectors."""


def run(paths: Iterable[str | Path]) -> int:
    """Check the files and print what differs and the counts.

    Returns 0 when all cases pass, 1 when any fails, 2 when a file cannot be read or is not of the form.
    """
    passed = failed = 0
    for path in paths:
        try:
            for number, difference in _check_file(Path(path)):
                passed, failed = (passed, failed + 1) if difference else (passed + 1, failed)
                if difference:
                    print(f"{path} case {number}: {difference}")
        except FormError as fault:
            print(f"{path}: {fault}", file=sys.stderr)
            return 2
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def _check_file(path: Path) -> Iterator[tuple[int, str | None]]:
    """Yield for each case its number, from 1, and what differs."""
    check, cases = _read(path)
    for number, members in enumerate(cases, start=1):
        try:
            differences = list(check(Case(members)))  # all of them, so that every member is read
        except FormError as fault:
            raise FormError(f"case {number}: {fault}") from None
        except (ValueError, TypeError, RecursionError) as fault:  # the rules refuse what the case gives them
            differences = [f"is refused: {fault}"]
        yield number, differences[0] if differences else None


def _read(path: Path) -> tuple[Callable[[Case], Iterator[str]], list[object]]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as fault:
        raise FormError(f"cannot be read: {fault.strerror}") from None
    except (ValueError, RecursionError):
        raise FormError("is not JSON") from None
    if not isinstance(content, dict) or not isinstance(content.get("cases"), list):
        raise FormError('is no file of vectors: it must be a JSON object with "kind" and a list "cases"')
    kind = content.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise FormError(f"has the kind {kind!r}; the kinds known here are {', '.join(sorted(KINDS))}")
    return KINDS[kind], content["cases"]


class Case:
    """The members of one case, read by type. Raises FormError, naming the member."""

    def __init__(self, members: object) -> None:
        if not isinstance(members, dict):
            raise FormError("is not a JSON object")
        self._members: dict[str, Any] = members

    def _get(self, name: str, kind: type | tuple[type, ...], wanted: str) -> Any:
        value = self._members.get(name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise FormError(f'the member "{name}" must be {wanted}')
        return value

    def integer(self, name: str, most: int = 2**64 - 1) -> int:
        """An integer from 0 to `most`."""
        value: int = self._get(name, int, "an integer")
        if not 0 <= value <= most:
            raise FormError(f'the member "{name}" must be an integer from 0 to {most}')
        return value

    def optional(self, name: str) -> int | None:
        """An integer, or None when the member is absent or null."""
        return None if self._members.get(name) is None else self.integer(name)

    def number(self, name: str) -> float:
        """A number."""
        value: float = self._get(name, (int, float), "a number")
        return value

    def truth(self, name: str) -> bool:
        """True or false."""
        return bool(self._get(name, bool, "true or false"))

    def octets(self, name: str) -> bytes:
        """A byte string, from hex."""
        return _octets(name, self._members.get(name))

    def chain(self, name: str) -> list[bytes]:
        """A list of byte strings."""
        return [_octets(name, item) for item in self._get(name, list, "a list of hex strings")]

    def tokens(self, name: str) -> list[int]:
        """A list of integers, not negative and below 2^64."""
        values: list[int] = self._get(name, list, "a list of integers")
        if any(type(value) is not int or not 0 <= value < 2**64 for value in values):
            raise FormError(f'the member "{name}" must be a list of integers from 0 to 2^64 - 1')
        return values

    def array(self, name: str, dimensions: int) -> NDArray[np.float64]:
        """Numbers as an array of so many dimensions, none of them empty."""
        values = self._get(name, list, "a list of numbers")
        try:
            array = np.array(values, dtype=np.float64)
        except (ValueError, TypeError, OverflowError):
            array = np.empty(0)
        if array.ndim != dimensions or array.size == 0:
            raise FormError(f'the member "{name}" must be an array of numbers in {dimensions} dimension(s)')
        return array

    def sampling(self) -> Sampling:
        """The sampling profile."""
        members = Case(self._get("sampling", dict, "a map"))
        return Sampling(
            temperature_milli=members.optional("temperature_milli"),
            top_k=members.optional("top_k"),
            top_p_milli=members.optional("top_p_milli"),
            seed=members.optional("seed"),
        )

    def seed(self) -> int:
        """The seed in the sampling profile."""
        seed = self.sampling().seed
        if seed is None:
            raise FormError('the member "sampling" must hold a seed')
        return seed

    def plain(self, name: str) -> dict[str, object]:
        """A map of plain values, in which `{"hex": …}` stands for a byte string."""
        value = _plain(name, self._get(name, dict, "a map"))
        if not isinstance(value, dict):
            raise FormError(f'the member "{name}" must be a map')
        return value

    def steps(self) -> list[Case]:
        """The steps of a case that runs through several."""
        return [Case(step) for step in self._get("steps", list, "a list of steps")]


def _octets(name: str, value: object) -> bytes:
    try:
        return bytes.fromhex(value)  # type: ignore[arg-type]  # a TypeError says that it is no string
    except (TypeError, ValueError):
        raise FormError(f'the member "{name}" must be a hex string') from None


def _plain(name: str, value: object) -> object:
    if isinstance(value, dict):
        return _octets(name, value["hex"]) if set(value) == {"hex"} else {k: _plain(name, v) for k, v in value.items()}
    return [_plain(name, item) for item in value] if isinstance(value, list) else value


# -- one generator a kind: yields what differs, the first of which is told ---------------------------------------------


def _differ(name: str, got: object, expected: object) -> Iterator[str]:
    if got != expected:
        yield f"{name} is {_show(got)}, expected {_show(expected)}"


def _show(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _chain(case: Case) -> Iterator[str]:
    contract, prompt, output = case.plain("contract"), case.tokens("prompt"), case.tokens("output")
    expected, expected_digest, chain = case.octets("contract_cbor"), case.octets("contract_digest"), case.chain("chain")
    yield from _differ("contract_cbor", cbor.encode(contract), expected)
    yield from _differ("contract_digest", digest.contract_digest(contract), expected_digest)
    got = [digest.prefix_digest(expected_digest, prompt)]
    for token in output:
        got.append(digest.extend(got[-1], token))
    yield from _differ("the length of the chain", len(got), len(chain))
    for index, (ours, theirs) in enumerate(zip(got, chain, strict=False)):
        yield from _differ(f"d[{index}]", ours, theirs)


def _uniform(case: Case) -> Iterator[str]:
    numbers = (case.integer("round"), case.integer("i"), case.integer("purpose"))
    got = draws.uniform(case.integer("seed"), case.octets("session"), *numbers)
    yield from _differ("value", got, case.number("value"))


def _distribution(case: Case) -> Iterator[str]:
    p, expected = profile.target_distribution(case.array("logits", 1), case.sampling()), case.array("p", 1)
    yield from _differ("the number of probabilities", len(p), len(expected))
    for token, (ours, theirs) in enumerate(zip(p, expected, strict=False)):
        if abs(ours - theirs) > TOLERANCE or (ours == 0) != (theirs == 0):
            yield f"p[{token}] is {ours}, expected {theirs}"


def _outcome(case: Case, outcome: acceptance.Outcome, tokens: Sequence[int]) -> Iterator[str]:
    yield from _differ("accepted", outcome.accepted, case.integer("accepted"))
    yield from _differ("emitted", list(outcome.emitted(tokens)), case.tokens("emitted"))


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
    yield from _differ("token", got, case.integer("token"))


def _truncation(case: Case) -> Iterator[str]:
    emitted, stop = case.tokens("emitted"), case.tokens("stop")
    kept, finished = acceptance.truncate(emitted, stop, case.integer("committed"), case.integer("max_new"))
    yield from _differ("truncated", list(kept), case.tokens("truncated"))
    yield from _differ("finished", finished, case.truth("finished"))


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
            yield from _differ(f"step {number}: {name}", got, step.integer(name))


def _limit(case: Case) -> Iterator[str]:
    m_max = case.integer("m_max")
    m_cap = limit.start(case.integer("m_init"), m_max)
    yield from _differ("start", m_cap, case.integer("start"))
    for number, step in enumerate(case.steps(), start=1):
        m_cap = limit.after_round(m_cap, m_max, step.integer("action"), step.truth("low_round"))
        yield from _differ(f"step {number}: m_cap", m_cap, step.integer("m_cap"))


def _draft_length(case: Case) -> Iterator[str]:
    alpha, limit_ = case.number("alpha"), case.integer("limit", most=64)
    m = length.choose_length(alpha, case.number("t_d"), case.number("t_v"), limit_)
    yield from _differ("m", m, case.integer("m"))
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
