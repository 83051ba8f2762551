"""The vectors of the conformance kit: we obey them, their two forms agree, and they are what the generator makes.

The generator shares nothing with this implementation; here it is also held against the independent reference.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tools import spec_ledger
from tools.spec_ledger import ROOT

from sdcp.vectors import KINDS, run
from tests.unit.kit_vectors.notation import encode_notation

KIT = ROOT / "conformance"
FILES = sorted((KIT / "vectors").glob("*.json"))
CONTENTS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_bytes()) for path in FILES}
REFERENCE = ROOT / "tests" / "data" / "vectors"
MESSAGES = {path.stem.removeprefix("message-") for path in FILES if path.stem.startswith("message-")}


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The generator's arithmetic."""
    monkeypatch.syspath_prepend(str(KIT / "tools"))
    yield importlib.import_module("vectors_rules")
    sys.modules.pop("vectors_rules", None)


@pytest.mark.decision(
    "D4-senders",
    "D4-receivers",
    "D4-uint",
    "D4-unknown-keys",
    "D4-unknown-action",
    "D6-range",
    "D6-fallback",
    "D6-unknown-key",
    "D1-suffix",
    "D2-session-state",
    "D7-path",
    "D14-accepted",
    "D15-low",
    "D16-start",
    "D16-moves",
    "D20-log",
    "D20-void",
    "D22-order",
    "D22-absent",
    "D22-ties",
    "D23-draw",
    "D24-position",
    "D24-self-decoded",
    "D25-rows",
    "D29-rule",
    "D29-self-max-0",
    "D3-400",
)
@pytest.mark.requirement(
    "S4.1-contract-digest",
    "S4.2-uint32-network-order",
    "S5.2-unknown-keys",
    "S5.2-unknown-action",
    "S5.2-q-rows-format",
    "S5.2-q-rows-order",
    "S6.4-seed-purpose",
    "S6.4-seed-53-bits",
    "S6.4-speculative-residual",
    "S6.4-zero-q-rejected",
    "S6.5.2-ladder-skips",
    "S6.8-fence-record",
    "S5.2-session-open",
    "S5.2-session-state",
    "S5.2-assignment",
    "S5.2-proposal",
    "S5.2-verdict",
    "S5.2-output",
    "S5.2-status",
    "S5.2-event",
    "S5.2-policy",
    "S4.1-contract",
    "S4.1-sampling",
    "S4.1-actions",
    "S5.2-session-id",
    "S5.2-cache-ref",
    "S4.1-unknown-contract-key",
    "S5.1-session-path-id",
    "S4.1-profile-order",
    "S4.1-temperature-zero",
    "S4.2-chain-start",
    "S4.2-chain-step",
    "S4.1-contract-digest-formula",
    "S6.4-seed-derivation",
    "S6.8-record-epoch",
    "S6.8-fence-refuses-older",
    "S5.1-problem-details",
)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_our_implementation_obeys_every_vector(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([path]) == 0, capsys.readouterr().out
    assert capsys.readouterr().out == f"{len(CONTENTS[path.stem]['cases'])} passed, 0 failed\n"


def test_there_are_vectors_of_every_kind_and_of_every_message() -> None:
    assert {content["kind"] for content in CONTENTS.values()} == set(KINDS)
    assert len(MESSAGES) == 10
    for message in MESSAGES:
        cases = CONTENTS[f"message-{message}"]["cases"]
        assert {case["message"] for case in cases} == {message}
        assert {"means" in case for case in cases} == {"refusal" in case for case in cases} == {True, False}


def test_every_case_has_a_name_of_its_own() -> None:
    for content in CONTENTS.values():
        names = [case["name"] for case in content["cases"]]
        assert len(set(names)) == len(names)


def test_what_they_rest_on_is_known() -> None:
    known = {entry.id for entry in spec_ledger.requirements()} | {clause.id for clause in spec_ledger.clauses()}
    for content in CONTENTS.values():
        assert content["rests_on"]
        assert set(content["rests_on"]) <= known
        assert {name for case in content["cases"] for name in case.get("rests_on", ())} <= set(content["rests_on"])


@pytest.mark.parametrize(
    ("octets", "notation"),
    [("hex", "diagnostic"), ("means", "means_diagnostic"), ("contract_cbor", "contract_diagnostic")],
)
def test_octets_and_diagnostic_notation_say_the_same(octets: str, notation: str) -> None:
    cases = [case for content in CONTENTS.values() for case in content["cases"] if case.get(notation) is not None]
    assert cases
    for case in cases:
        assert encode_notation(case[notation]).hex() == case[octets], case["name"]


def test_they_are_what_the_generator_makes() -> None:
    done = subprocess.run(
        [sys.executable, KIT / "tools" / "make_vectors.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_generator_imports_nothing_of_ours() -> None:
    for path in (KIT / "tools").glob("*.py"):
        assert not re.search(r"^\s*(?:from|import) sdcp", path.read_text(encoding="utf-8"), re.MULTILINE)


# -- the generator and the independent reference -----------------------------------------------------------------------


def reference(kind: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((REFERENCE / f"{kind}.json").read_bytes())["cases"]
    return cases


def sampling(case: dict[str, Any]) -> dict[str, int]:
    return {name: value for name, value in case["sampling"].items() if value is not None}


def test_the_generator_agrees_with_the_independent_reference(rules: Any) -> None:
    for case in reference("chain"):
        assert rules.contract_digest(bytes.fromhex(case["contract_cbor"])).hex() == case["contract_digest"]
        links = rules.chain(bytes.fromhex(case["contract_digest"]), case["prompt"], case["output"])
        assert [link.hex() for link in links] == case["chain"]
    for case in reference("uniform"):
        session = bytes.fromhex(case["session"])
        assert rules.uniform(case["seed"], session, case["round"], case["i"], case["purpose"]) == case["value"]
    for case in reference("greedy"):
        assert rules.greedy(case["logits"], case["tokens"]) == (case["accepted"], case["emitted"])
    for case in reference("truncation"):
        got = rules.truncate(case["emitted"], case["stop"], case["committed"], case["max_new"])
        assert got == (case["truncated"], case["finished"])
    for case in reference("escalation"):
        assert rules.escalate(case, case["steps"]) == case["steps"]
    for case in reference("limit"):
        assert rules.limits(case["m_init"], case["m_max"], case["steps"]) == (case["start"], case["steps"])


def test_the_generator_agrees_wherever_rounding_does_not_decide(rules: Any) -> None:
    judged = 0
    for kind in ("distribution", "speculative", "self_decode", "draft_length"):
        for case in reference(kind):
            try:
                judged += _agrees(rules, kind, case)
            except rules.Unclear:
                continue
    assert judged > 150


def _agrees(rules: Any, kind: str, case: dict[str, Any]) -> bool:
    match kind:
        case "distribution":
            assert rules.distribution(case["logits"], sampling(case)) == pytest.approx(case["p"], abs=1e-9)
        case "speculative":
            got = rules.speculative(case | {"sampling": sampling(case)})
            assert got == (case["accepted"], case["emitted"])
        case "self_decode":
            assert rules.self_decode(case | {"sampling": sampling(case)}) == case["token"]
        case "draft_length":
            m, expected = rules.draft_length(case["alpha"], case["t_d"], case["t_v"], case["limit"])
            assert (m, expected) == (case["m"], pytest.approx(case["expected_tokens"], abs=1e-9))
    return True


# -- each expected member is compared ----------------------------------------------------------------------------------

SPOILT = [
    ("message-verdict", "means", "00"),
    ("message-verdict", "refusal", {"status": 422, "type": "about:blank"}),
    ("message-contract", "refusal", {"status": 422, "type": "about:blank"}),
    ("log", "starts", [9]),
    ("log", "void", [7]),
    ("log", "fence", 9),
    ("log", "round", 9),
    ("log", "committed", [9]),
    ("log", "digest", "00" * 32),
    ("rows", "rows", [[9.0]]),
    ("rows", "refusal", {"status": 409, "type": "sdcp-bad-proposal"}),
    ("problem", "type", "sdcp-limit-2"),
    ("problem", "session_state", {"epoch": 9}),
    ("path", "segment", "AA"),
    ("path", "octets", "01" * 16),
]


@pytest.mark.parametrize(("stem", "member", "wrong"), SPOILT)
def test_each_expected_member_is_compared(
    stem: str, member: str, wrong: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [case for case in CONTENTS[stem]["cases"] if case.get(member) is not None]
    cases = [case | {member: wrong} for case in cases if case.get("octets", "") is not None]
    path = tmp_path / "spoilt.json"
    path.write_text(json.dumps({"kind": CONTENTS[stem]["kind"], "cases": cases}))
    assert run([path]) == 1
    assert capsys.readouterr().out.endswith(f"0 passed, {len(cases)} failed\n")


@pytest.mark.parametrize("stem", ["message-event", "rows", "log", "path"])
def test_what_is_refused_must_be_refused_and_what_is_taken_taken(
    stem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ways = {"message-event": "refusal", "rows": "refusal", "log": "broken", "path": "octets"}
    way = ways[stem]
    cases = CONTENTS[stem]["cases"]
    refused = [case for case in cases if (case.get(way) is None) == (way == "octets") and "instance" not in case]
    taken = [case for case in cases if case not in refused and "instance" not in case]
    spoilt = [_as_taken(case, way) for case in refused] + [_as_refused(case, way) for case in taken]
    path = tmp_path / "spoilt.json"
    path.write_text(json.dumps({"kind": CONTENTS[stem]["kind"], "cases": spoilt}))
    assert run([path]) == 1
    assert capsys.readouterr().out.endswith(f"0 passed, {len(spoilt)} failed\n")


def _as_taken(case: dict[str, Any], way: str) -> dict[str, Any]:
    return {name: value for name, value in case.items() if name != way} | ({"octets": "00"} if way == "octets" else {})


def _as_refused(case: dict[str, Any], way: str) -> dict[str, Any]:
    members = {"refusal": {"status": 400, "type": "about:blank"}, "broken": True, "octets": None}
    return case | {way: members[way]}


# -- the page that says what they mean ---------------------------------------------------------------------------------

PAGE = (KIT / "docs" / "vectors.md").read_text(encoding="utf-8")


def test_the_page_has_a_section_for_every_kind() -> None:
    assert set(re.findall(r"^## `([a-z_]+)`", PAGE, re.MULTILINE)) == set(KINDS)


def test_the_examples_of_the_page_are_in_the_vectors() -> None:
    everything = "".join(path.read_text(encoding="utf-8") for path in FILES)
    long = re.findall(r"\b[0-9a-f]{32,}\b", PAGE)
    assert len(long) >= 8
    assert [octets for octets in long if octets not in everything] == []
