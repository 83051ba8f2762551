"""What tests and checks claim is read from their syntax as pytest and the kit would apply it."""

import ast
from pathlib import Path

import pytest
from tools import spec_ledger
from tools.spec_ledger import ROOT, carried, cites, claimed, marked, stray


def test_a_test_carries_the_marks_of_its_decorators() -> None:
    source = (
        "@pytest.mark.requirement('S1-a', 'S1-b')\n@pytest.mark.decision('D1')\ndef test_x(): ...\n"
        "@pytest.mark.requirement('S1-c')\nasync def test_y(): ...\n"
    )
    assert carried(source, "requirement") == [("test_x", "S1-a"), ("test_x", "S1-b"), ("test_y", "S1-c")]
    assert carried(source, "decision") == [("test_x", "D1")]


def test_a_test_carries_the_marks_of_its_class_and_of_its_module() -> None:
    source = (
        "pytestmark = [pytest.mark.asyncio, pytest.mark.decision('D1')]\n"
        "@pytest.mark.decision('D2')\nclass TestIt:\n    pytestmark = pytest.mark.decision('D3')\n"
        "    class TestInner:\n        @pytest.mark.decision('D4', 'D1')\n        def test_x(self): ...\n"
        "    def test_y(self): ...\ndef test_z(): ...\ndef not_a_test(): ...\n"
    )
    assert carried(source, "decision") == [
        *[("TestIt::TestInner::test_x", name) for name in ("D1", "D2", "D3", "D4")],
        *[("TestIt::test_y", name) for name in ("D1", "D2", "D3")],
        ("test_z", "D1"),
    ]


def test_a_test_carries_the_marks_of_its_parameters_wherever_they_are_listed() -> None:
    source = (
        "FIRST = pytest.param(1, marks=[pytest.mark.slow, pytest.mark.decision('D1')])\n"
        "CASES: list[object] = [FIRST, pytest.param(2, marks=pytest.mark.decision('D2'))]\n"
        "@pytest.mark.parametrize('n', CASES)\ndef test_x(n): ...\n"
        "@pytest.mark.parametrize('n', [pytest.param(1, marks=pytest.mark.decision('D3'))])\ndef test_y(n): ...\n"
    )
    assert carried(source, "decision") == [("test_x", "D2"), ("test_x", "D1"), ("test_y", "D3")]


def test_a_mark_that_reaches_no_test_is_found() -> None:
    source = "CASES = [pytest.param(1, marks=pytest.mark.decision('D1'))]\ndef test_x(): ...\n"
    assert carried(source, "decision") == []
    assert stray(source, "decision") == ["D1"]
    assert stray("@pytest.mark.decision('D1')\ndef lost(): ...\n", "decision") == ["D1"]


def test_an_id_that_is_no_literal_is_refused() -> None:
    with pytest.raises(ValueError, match="malformed"):
        carried("@pytest.mark.decision(NAME)\ndef test_x(): ...\n", "decision")


@pytest.mark.parametrize("kind", ["requirement", "decision"])
def test_no_mark_of_ours_reaches_no_test(kind: str) -> None:
    paths = sorted((ROOT / "tests").rglob("*.py"))
    assert [path for path in paths if stray(path.read_text(encoding="utf-8"), kind)] == []


def test_claims_name_a_test_that_is_there() -> None:
    claim = next(claim for claim in marked("requirement") if claim.id == "S4.2-chain-start")
    path, name = claim.claimant.split("::")
    assert path == claim.path
    functions = ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
    assert name in {node.name for node in functions if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize(
    ("source", "section", "expected"),
    [
        ('"""What it does (6.5, D1)."""', "6.5", True),
        ('"""What it does (6.5.2)."""', "6.5", False),
        ('"""Version 16.5."""', "6.5", False),
        ("x = 1  # 6.5", "6.5", True),
        ("x = 6.5", "6.5", False),
        ('x = "6.5"', "6.5", False),
        ('"""The types of Table 2."""', "6.9", True),
        ('"""The types of Table 2."""', "5.1", False),
    ],
)
def test_a_module_cites_a_section_in_words(source: str, section: str, expected: bool) -> None:
    assert cites(source, section) is expected


def test_a_check_claims_the_ids_in_its_decorator() -> None:
    source = (
        '@check("verifier.open.repeat", requirements=["S6.1-open-answer"], decisions=("D19", "D19-repeat"))\n'
        'async def repeat(stage): """Not D1."""\n'
        '@registry.check("router.x", "S6.1-open-epoch-1")\ndef x(): ...\n'
        '@cached("S1-a")\ndef y(): ...\n'
    )
    assert claimed(source) == [
        ("verifier.open.repeat", "S6.1-open-answer"),
        ("verifier.open.repeat", "D19"),
        ("verifier.open.repeat", "D19-repeat"),
        ("router.x", "S6.1-open-epoch-1"),
    ]


def test_checks_made_in_a_loop_claim_what_is_passed_on() -> None:
    source = (
        'SENT = {"V": ("S5.2-verdict", "S5.2-output"), "D": ("S5.2-proposal",)}\n'
        "for role, rules in SENT.items():\n"
        '    check(f"{role}-messages", "S5.1-media-type", *rules)(sound)\n'
        '    check(f"{role}-other", decisions=["D4"])(other)\n'
    )
    assert claimed(source) == [
        *[("*-messages", name) for name in ("S5.1-media-type", "S5.2-verdict", "S5.2-output", "S5.2-proposal")],
        ("*-other", "D4"),
    ]


def test_every_check_of_the_kit_names_known_ids(tmp_path: Path) -> None:
    assert spec_ledger.checks(tmp_path) == ()
    known = {entry.id for entry in spec_ledger.requirements()} | {clause.id for clause in spec_ledger.clauses()}
    known |= {clause.decision for clause in spec_ledger.clauses()}
    assert [claim for claim in spec_ledger.checks() if claim.id not in known] == []
