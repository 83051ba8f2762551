"""The kit's oracle against the vectors that the reference implementation is held against too."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from sdcp_conformance.encoding import encode
from sdcp_conformance.oracle.bigram import CONTEXT, DISAGREES_AFTER, DRAFT, TARGET, V, follow
from sdcp_conformance.oracle.chain import contract_digest, extend, prefix_digest
from sdcp_conformance.oracle.control import Ladder, Limit
from sdcp_conformance.oracle.rules import greedy, seeded, self_decoded, speculative, truncate
from sdcp_conformance.oracle.sampling import argmax, target_distribution, uniform

VECTORS = Path(__file__).parents[2] / "tests/data/vectors"


def cases(kind: str) -> list[dict[str, Any]]:
    return list(json.loads((VECTORS / f"{kind}.json").read_text())["cases"])


def octets(value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"]) if value.keys() == {"hex"} else {key: octets(x) for key, x in value.items()}
    return [octets(x) for x in value] if isinstance(value, list) else value


@pytest.mark.parametrize("case", cases("chain"))
def test_chain(case: dict[str, Any]) -> None:
    contract = octets(case["contract"])
    assert encode(contract).hex() == case["contract_cbor"]
    assert contract_digest(contract).hex() == case["contract_digest"]
    start = prefix_digest(contract, case["prompt"])
    chain = [extend(start, case["output"][:n]).hex() for n in range(len(case["output"]) + 1)]
    assert chain == case["chain"]


@pytest.mark.parametrize("case", cases("uniform"))
def test_uniform(case: dict[str, Any]) -> None:
    session = bytes.fromhex(case["session"])
    assert uniform(case["seed"], session, case["round"], case["i"], case["purpose"]) == case["value"]


@pytest.mark.parametrize("case", cases("distribution"))
def test_distribution(case: dict[str, Any]) -> None:
    p = target_distribution(case["logits"], case["sampling"])
    assert p == pytest.approx(case["p"], abs=1e-9)
    assert [x == 0 for x in p] == [x == 0 for x in case["p"]]
    assert math.isclose(sum(p), 1)


@pytest.mark.parametrize("case", cases("greedy"))
def test_greedy(case: dict[str, Any]) -> None:
    assert greedy(case["logits"], case["tokens"]) == (case["accepted"], case["emitted"])


@pytest.mark.parametrize("case", cases("speculative"))
def test_speculative(case: dict[str, Any]) -> None:
    value = seeded(case["sampling"], bytes.fromhex(case["session"]), case["round"])
    outcome = speculative(case["logits"], case["q"], case["tokens"], case["sampling"], value)
    assert outcome == (case["accepted"], case["emitted"])


@pytest.mark.parametrize("case", cases("self_decode"))
def test_self_decoded(case: dict[str, Any]) -> None:
    session = bytes.fromhex(case["session"])
    token = self_decoded(case["logits"], case["rule"], case["sampling"], session, case["round"])
    assert token == case["token"]


@pytest.mark.parametrize("case", cases("truncation"))
def test_truncation(case: dict[str, Any]) -> None:
    kept = truncate(case["emitted"], case["stop"], case["committed"], case["max_new"])
    assert kept == (case["truncated"], case["finished"])


@pytest.mark.parametrize("case", cases("escalation"))
def test_escalation(case: dict[str, Any]) -> None:
    terms = {
        key: case[key] for key in ("low_rounds", "fallback", "low_ratio", "self_load") if case.get(key) is not None
    }
    ladder = Ladder(terms)
    for step in case["steps"]:
        action = ladder.after(step["accepted"], step["m"], step["load"])
        assert (action, ladder.c, ladder.g, ladder.j) == tuple(step[key] for key in ("action", "low", "g", "j"))


@pytest.mark.parametrize("case", cases("limit"))
def test_limit(case: dict[str, Any]) -> None:
    limit = Limit(case["m_max"], case["m_init"])
    assert limit.m_cap == case["start"]
    for step in case["steps"]:
        assert limit.after(step["action"], step["low_round"]) == step["m_cap"]


def test_the_tables_are_what_checks_rely_on() -> None:
    assert [argmax(row) for row in TARGET.rows] == [follow(token) for token in range(V)]
    assert sorted(TARGET.next_tokens([0], V)) == list(range(V))
    assert TARGET.rows[V - 1][V - 1] == max(TARGET.rows[V - 1])
    assert all(logit * 4 == int(logit * 4) for row in TARGET.rows for logit in row)
    differs = [token for token in range(V) if argmax(DRAFT.rows[token]) != follow(token)]
    assert differs == list(DISAGREES_AFTER)


def test_the_model_file_is_safetensors() -> None:
    size = int.from_bytes(TARGET.file[:8], "little")
    header = json.loads(TARGET.file[8 : 8 + size])
    assert size % 8 == 0
    assert header["logits"] == {"dtype": "F32", "shape": [V, V], "data_offsets": [0, 4 * V * V]}
    assert header["__metadata__"] == {"context": str(CONTEXT)}
    assert len(TARGET.file) == 8 + size + 4 * V * V
