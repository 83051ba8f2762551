"""The runner of vectors, and the vectors of the independent reference themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sdcp.vectors import arithmetic, run

VECTORS = Path(__file__).parents[1] / "data" / "vectors"
FILES = sorted(VECTORS.glob("*.json"))


@pytest.mark.requirement(
    "S4.1-contract-digest-formula",
    "S4.2-chain-start",
    "S4.2-chain-step",
    "S6.2-length-maximizes",
    "S6.3-truncation",
    "S6.4-greedy-accept",
    "S6.4-seed-derivation",
    "S6.4-speculative-accept",
    "S6.5.1-restored-gradually",
    "S6.5.2-ladder-entry",
)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_vector_of_the_independent_reference_passes(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([path]) == 0
    count = len(json.loads(path.read_bytes())["cases"])
    assert capsys.readouterr().out == f"{count} passed, 0 failed\n"


def test_there_are_vectors_of_every_kind_of_arithmetic() -> None:
    assert {json.loads(path.read_bytes())["kind"] for path in FILES} == set(arithmetic.KINDS)


def load(kind: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((VECTORS / f"{kind}.json").read_bytes())
    content["cases"] = content["cases"][:3]
    return content


def save(folder: Path, content: object) -> Path:
    path = folder / "some.json"
    path.write_text(json.dumps(content))
    return path


def wrong(expected: Any) -> Any:
    """Another value of the same type."""
    match expected:
        case bool():
            return not expected
        case int():
            return expected + 1
        case float():
            return expected + 1e-6
        case str():
            return ("0" if expected[0] != "0" else "1") + expected[1:]
        case list():
            return [*expected[:-1], wrong(expected[-1])]
    raise AssertionError(expected)


EXPECTED = {
    "chain": ["contract_cbor", "contract_digest", "chain"],
    "uniform": ["value"],
    "distribution": ["p"],
    "greedy": ["accepted", "emitted"],
    "speculative": ["accepted", "emitted"],
    "self_decode": ["token"],
    "truncation": ["truncated", "finished"],
    "limit": ["start"],
    "draft_length": ["m", "expected_tokens"],
}
STEPS = {"escalation": ["action", "low", "g", "j"], "limit": ["m_cap"]}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in EXPECTED.items() for name in names])
def test_each_expected_member_is_compared(
    kind: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = load(kind)
    content["cases"][1][name] = wrong(content["cases"][1][name])
    path = save(tmp_path, content)
    assert run([path]) == 1
    failing, counts = capsys.readouterr().out.splitlines()
    assert failing.startswith(f"{path} case 2: ")
    assert "expected" in failing
    assert counts == "2 passed, 1 failed"


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in STEPS.items() for name in names])
def test_each_expected_member_of_a_step_is_compared(
    kind: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = load(kind)
    step = content["cases"][0]["steps"][-1]
    step[name] = wrong(step[name])
    assert run([save(tmp_path, content)]) == 1
    number = len(content["cases"][0]["steps"])
    assert f"case 1: step {number}: {name} is " in capsys.readouterr().out


def test_a_value_must_be_exact_and_a_zero_probability_zero(tmp_path: Path) -> None:
    content = load("uniform")
    content["cases"][0]["value"] += 2**-53
    assert run([save(tmp_path, content)]) == 1
    content = {"kind": "distribution", "cases": [{"logits": [0.0, 9.0], "sampling": {"top_k": 1}, "p": [1e-12, 1.0]}]}
    assert run([save(tmp_path, content)]) == 1
    content["cases"][0]["p"] = [0.0, 1 - 1e-10]  # type: ignore[index]
    assert run([save(tmp_path, content)]) == 0


def test_a_chain_of_another_length_fails(tmp_path: Path) -> None:
    content = load("chain")
    content["cases"][0]["chain"].pop()
    assert run([save(tmp_path, content)]) == 1


def test_counts_are_of_all_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = load("limit")
    content["cases"][2]["start"] += 1
    assert run([VECTORS / "uniform.json", save(tmp_path, content), str(VECTORS / "greedy.json")]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "82 passed, 1 failed"


def test_members_that_a_kind_does_not_know_are_ignored_and_null_is_absent(tmp_path: Path) -> None:
    content = load("escalation") | {"origin": "elsewhere"}
    content["cases"][0] |= {"comment": "…", "self_max": None}
    assert run([save(tmp_path, content)]) == 0


def test_a_case_that_the_rules_refuse_fails_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = load("uniform")
    content["cases"][0]["round"] = 2**32
    assert run([save(tmp_path, content)]) == 1
    assert "case 1: is refused: no random value can be derived" in capsys.readouterr().out


# -- files that are not vectors: 2, and one clear line -----------------------------------------------------------------


def one_line(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert run([path]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith(f"{path}: ")
    return line


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No such file" in one_line(tmp_path / "none.json", capsys)
    assert "directory" in one_line(tmp_path, capsys)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_not_json(text: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "some.json"
    path.write_bytes(text)
    assert "is not JSON" in one_line(path, capsys)


@pytest.mark.parametrize("content", [[], 5, None, {}, {"kind": "chain"}, {"kind": "chain", "cases": {}}])
def test_a_file_of_another_form(content: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no file of vectors" in one_line(save(tmp_path, content), capsys)


@pytest.mark.parametrize("kind", ["chains", None, 5, ["chain"], {}])
def test_a_kind_that_is_not_known(kind: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = one_line(save(tmp_path, {"kind": kind, "cases": []}), capsys)
    assert "kinds known here are chain, distribution" in line


def test_a_case_that_is_no_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "case 1" in one_line(save(tmp_path, {"kind": "chain", "cases": [5]}), capsys)


# self_decode: the first case is of rule 1, which draws nothing
OPTIONAL = {
    ("escalation", "low_ratio"),
    ("escalation", "self_load"),
    ("self_decode", "session"),
    ("self_decode", "round"),
}
MEMBERS = [
    (kind, name) for kind in sorted(arithmetic.KINDS) for name in load(kind)["cases"][0] if (kind, name) not in OPTIONAL
]


@pytest.mark.parametrize(("kind", "name"), MEMBERS)
def test_a_member_missing_or_of_another_type_is_named(
    kind: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = load(kind)
    for damaged in ("absent", "0x", [{}], {"temperature_milli": []}):
        content["cases"] = [load(kind)["cases"][0] | {name: damaged}]
        if damaged == "absent":
            del content["cases"][0][name]
        if name != "contract" or damaged == "absent":
            assert "must be" in one_line(save(tmp_path, content), capsys)


def test_rule_2_needs_a_seed_to_be_a_vector(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = load("speculative")
    del content["cases"][0]["sampling"]["seed"]
    assert "seed" in one_line(save(tmp_path, content), capsys)


@pytest.mark.parametrize(
    ("kind", "change", "told"),
    [
        ("speculative", {"q": [[1.0]]}, "one row of V numbers for each token"),
        ("greedy", {"logits": [[0.0, 1.0]]}, "M + 1 rows of V numbers"),
        ("greedy", {"tokens": [1000] * 5}, "tokens below V"),
        ("self_decode", {"rule": 3}, "not registered"),
        ("draft_length", {"limit": 65}, "from 0 to 64"),
        ("uniform", {"seed": 2**64}, "from 0 to"),
        ("uniform", {"seed": True}, "an integer"),
    ],
)
def test_members_that_do_not_fit_together_or_their_range(
    kind: str, change: dict[str, Any], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = load(kind)
    content["cases"][0] |= change
    assert told in one_line(save(tmp_path, content), capsys)


def test_no_files_are_no_failures(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    assert capsys.readouterr().out == "0 passed, 0 failed\n"
