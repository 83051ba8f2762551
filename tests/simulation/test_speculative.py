"""Rule 2 through the protocol: the tokens of the vectors, and exactly the law of the target (6.4, D22 to D25, D31)."""

from __future__ import annotations

import hmac
import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sdcp.engines.digests import IDENTITY_TOKENIZER
from sdcp.engines.rounds import judge
from sdcp.machines.effects import AppendLog
from sdcp.messages.contract import Action, ContractSampling, Sampling
from sdcp.messages.record import CommitRecord
from sdcp.ports import PrefillJob, VerifyJob, VerifyResult
from sdcp.rules.digest import contract_digest, prefix_digest
from sdcp.testing.engines import Proposing, contract_for, plain_greedy
from sdcp.testing.pair import Pair, Setting
from sdcp.testing.routing import LOG
from tests.simulation.conftest import Models

VECTORS = Path(__file__).parents[1] / "data" / "vectors" / "speculative.json"
CASES: list[dict[str, Any]] = json.loads(VECTORS.read_text())["cases"]
PROMPT = (0,)


class TableTarget:
    """A target whose logits are told for each position: row k after `after(prefix)[k]`."""

    model = bytes(32)
    tokenizer = IDENTITY_TOKENIZER
    context: int | None = None
    takes_empty_prompt = True
    capacity = 1

    def __init__(self, vocabulary: int, scores: Callable[[Sequence[int]], NDArray[np.float64]]) -> None:
        self.vocabulary = vocabulary
        self._scores = scores

    def close(self, session: bytes) -> None: ...

    def prefill(self, jobs: Sequence[PrefillJob], budget: int) -> list[bool]:
        return [True] * len(jobs)

    def verify(self, jobs: Sequence[VerifyJob]) -> list[VerifyResult]:
        return [judge(job, self._scores((*job.prefix[: job.length], *job.tokens))) for job in jobs]


# ---- with a seed (6.4) -----------------------------------------------------------------------------------------------


def replayed(case: dict[str, Any]) -> CommitRecord:
    """Let the protocol come to the vector's round, and return the record of it.

    The log holds the rounds before it already, in which nothing was emitted: the router fences it and resumes (D19).
    """
    tokens, number = case["tokens"], case["round"]
    logits = np.array(case["logits"], dtype=np.float64)
    target = TableTarget(logits.shape[1], lambda _: logits)
    rows = np.array(case["q"], dtype=np.float32)
    drafter = Proposing(target.vocabulary, lambda *_: (tokens, rows))
    contract = contract_for(
        target, rule=2, sampling=ContractSampling(**case["sampling"]), max_new=len(tokens) + 2, m_max=len(tokens)
    )
    pair = Pair(contract, PROMPT, target, [drafter], Setting(session=bytes.fromhex(case["session"])))
    if number > 1:
        pair.store.append(AppendLog(LOG, b"".join(_empty_rounds(number - 1, contract)), None))
    return pair.run(lambda: number in pair.watch.records).watch.records[number]


def _empty_rounds(count: int, contract: Any) -> Iterator[bytes]:
    digest = prefix_digest(contract_digest(contract.to_plain()), PROMPT)
    for number in range(1, count + 1):
        yield CommitRecord(epoch=1, round=number, tokens=(), committed=0, digest=digest).encode()


@pytest.mark.requirement(
    "S6.4-seed-derivation",
    "S6.4-seed-purpose",
    "S6.4-seed-53-bits",
    "S6.4-speculative-accept",
    "S6.4-speculative-residual",
    "S6.4-speculative-all-accepted",
    "S6.9-resume",
    "S6.3-scoring",
    "S6.3-acceptance",
)
@pytest.mark.decision("D23", "D24-position", "D25")
@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_a_seeded_round_commits_the_tokens_of_its_vector(case: dict[str, Any]) -> None:
    record = replayed(case)
    assert (record.accepted, record.tokens) == (case["accepted"], tuple(case["emitted"]))


@pytest.mark.requirement("S6.4-seed-derivation", "S6.4-seed-purpose", "S6.5.2-self-decode-rounds")
@pytest.mark.decision("D24-self-decoded", "D29")
def test_a_seeded_self_decoding_round_draws_position_1_of_its_own_round() -> None:
    """The drafter proposes what the target never says: after two rounds the verifier goes on alone."""
    chances, seed = np.array([0.2, 0.0, 0.5, 0.3]), 99
    with np.errstate(divide="ignore"):
        logits = np.log(chances)
    target = TableTarget(4, lambda prefix: np.tile(logits, (3, 1)))
    drafter = Proposing(4, lambda *_: ([1], None))
    terms = {"low_rounds": 2, "fallback": (Action.SELF_DECODE,), "self_load": 100}
    contract = contract_for(target, rule=2, sampling=ContractSampling(seed=seed), max_new=20, **terms)
    pair = Pair(contract, PROMPT, target, [drafter]).run()
    assert [record.accepted for record in pair.watch.records.values()] == [0, 0] + [None] * 18
    for number, token in enumerate(pair.output[2:], start=3):
        place = pair.setting.session + number.to_bytes(4, "big") + (1).to_bytes(4, "big") + bytes([1])
        mac = hmac.digest(seed.to_bytes(8, "big"), b"SDCP-VERIFY-1\x00" + place, "sha256")
        u = (int.from_bytes(mac[:8], "big") >> 11) / 2**53
        assert token == next(t for t in range(4) if chances[: t + 1].sum() > u)


# ---- a change of profile (6.6) ---------------------------------------------------------------------------------------

COLD = Sampling(temperature_milli=0)


@pytest.mark.requirement(
    "S6.6-applies-from-round", "S6.6-from-round", "S6.6-in-assignments", "S6.6-committed-unchanged"
)
@pytest.mark.requirement("S4.1-sampling-at-boundary", "S4.1-contract-never-modified")
@pytest.mark.decision("D21")
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("name", ["noisy", "guesses"])
def test_a_change_of_profile_rules_from_its_round_on(wild: Models, name: str, crash: bool) -> None:
    """From hot to temperature zero: from that round on, and no sooner, the output is greedy."""
    contract = contract_for(wild.target, rule=2, sampling=ContractSampling(temperature_milli=9000), max_new=60, m_max=4)
    pair = Pair(contract, PROMPT, wild.target, [wild.drafters[name]()], luck=Random(5))
    pair.run(lambda: len(pair.watch.records) == 4)
    committed = tuple(pair.watch.tokens)
    pair.change_profile(COLD)
    pair.run(lambda: bool(pair.front_end.changes))
    if crash:
        pair.crash_verifier()
    pair.run()
    (change,) = pair.front_end.changes
    assert change.sampling == COLD
    hot = [
        token for number, record in pair.watch.records.items() if number < change.from_round for token in record.tokens
    ]
    rest = len(pair.output) - len(hot)
    assert pair.output[: len(committed)] == committed
    assert change.from_round > 4
    assert rest > 5
    assert pair.output[len(hot) :] == plain_greedy(wild.target, (*PROMPT, *hot), rest)
    assert tuple(hot) != plain_greedy(wild.target, PROMPT, len(hot))


# ---- without a seed: the law, exactly (6.4) --------------------------------------------------------------------------

Row = tuple[Fraction, ...]
Table = tuple[Row, ...]
"""Row t is the distribution after token t."""
Law = dict[tuple[int, ...], Fraction]
EDGE = 1e-9


def table(*rows: str) -> Table:
    """A table in sixteenths, which are exact in binary32."""
    return tuple(tuple(Fraction(int(part), 16) for part in row.split()) for row in rows)


TWO = table("5 11", "12 4"), table("10 6", "3 13")
THREE = table("3 5 8", "9 0 7", "4 6 6"), table("8 8 0", "2 7 7", "6 6 4")
FAR = table("1 15", "1 15"), table("15 1", "15 1")


def walk(rows: Table, count: int, last: int = 0) -> Law:
    """The law of the `count` tokens that a table lets follow `last`."""
    law: Law = {(): Fraction(1)}
    for _ in range(count):
        law = {
            (*tokens, token): weight * chance
            for tokens, weight in law.items()
            for token, chance in enumerate(rows[tokens[-1] if tokens else last])
            if chance
        }
    return law


def emitted(p: Table, published: Table, tokens: tuple[int, ...], uniforms: tuple[float, ...]) -> tuple[int, ...]:
    """What the protocol commits in round 1, when these tokens are proposed and these values are drawn for it."""
    width, m = len(p), len(tokens)
    with np.errstate(divide="ignore"):
        logits = np.log(np.array(p, dtype=np.float64))
    target = TableTarget(width, lambda prefix: logits[np.array(prefix[-m - 1 :])])
    rows = np.array([published[token] for token in (0, *tokens[:-1])], dtype=np.float32)
    drafter = Proposing(width, lambda *_: (tokens, rows))
    contract = contract_for(target, rule=2, max_new=m + 2, m_max=m)
    pair = Pair(contract, PROMPT, target, [drafter], Setting(uniforms=lambda count: uniforms[:count]))
    return pair.run(lambda: 1 in pair.watch.records).watch.records[1].tokens


def cells(*marks: Fraction) -> list[tuple[Fraction, Fraction]]:
    """The unit interval, cut at the marks."""
    return list(itertools.pairwise(sorted({Fraction(0), Fraction(1), *(mark for mark in marks if 0 < mark < 1)})))


def verdicts(p: Table, published: Table, tokens: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Fraction]]:
    """What is committed for a proposal, with the measure of the uniforms that lead there.

    The uniforms are cut where the rule can change its mind; in each cell the outcome is seen at both ends, so that it
    is constant there is found, not supposed.
    """
    after = (0, *tokens)
    ratios = [cells(p[after[i]][token] / published[after[i]][token]) for i, token in enumerate(tokens)]
    marks = [mark for row in after for mark in _marks(p, published, row)]
    for corner in itertools.product(*ratios, cells(*marks)):
        ends = [tuple(float(each[end]) + sign * EDGE for each in corner) for end, sign in ((0, 1), (1, -1))]
        low, high = (emitted(p, published, tokens, uniforms) for uniforms in ends)
        assert low == high, "the outcome changes within a cell"
        measure = Fraction(1)
        for start, end in corner:
            measure *= end - start
        yield low, measure


def _marks(p: Table, published: Table, row: int) -> Iterator[Fraction]:
    """Where the draw of the additional token after `row` goes from one token to the next: from p, or what q leaves."""
    left = [max(Fraction(0), mine - theirs) for mine, theirs in zip(p[row], published[row], strict=True)]
    for weights in (p[row], left if any(left) else p[row]):
        yield from (mark / sum(weights) for mark in itertools.accumulate(weights))


def protocol_law(p: Table, q: Table, m: int, published: Table | None = None) -> Law:
    """The law of m + 1 tokens: one round of m tokens drafted from q, gone on by the target where it is shorter."""
    law: Law = defaultdict(Fraction)
    for tokens, drafted in walk(q, m).items():
        for committed, measure in verdicts(p, published or q, tokens):
            for rest, chance in walk(p, m + 1 - len(committed), committed[-1]).items():
                law[committed + rest] += drafted * measure * chance
    return {tokens: weight for tokens, weight in law.items() if weight}


@pytest.mark.requirement("S6.4-speculative-output", "S6.4-unseeded", "S6.4-in-order", "S5.2-sampled-from-row")
@pytest.mark.decision("D23", "D25", "D31")
@pytest.mark.parametrize(("tables", "m"), [(TWO, 1), (TWO, 2), (THREE, 1), (FAR, 2)])
def test_unseeded_output_has_exactly_the_law_of_the_target(tables: tuple[Table, Table], m: int) -> None:
    p, q = tables
    assert protocol_law(p, q, m) == walk(p, m + 1)


@pytest.mark.requirement("S5.2-sampled-from-row")
@pytest.mark.decision("D31")
@pytest.mark.parametrize("tables", [TWO, THREE, FAR])
def test_a_drafter_that_publishes_other_rows_than_it_samples_from_bends_the_law(tables: tuple[Table, Table]) -> None:
    p, q = tables
    even: Table = tuple((Fraction(1, 2),) * 2 if len(p) == 2 else table("5 6 5")[0] for _ in p)
    law, own = protocol_law(p, q, 1, published=even), walk(p, 2)
    distance = sum(abs(law.get(tokens, Fraction(0)) - own.get(tokens, Fraction(0))) for tokens in {*law, *own}) / 2
    assert distance > Fraction(1, 20)
