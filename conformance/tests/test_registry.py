"""The list of checks: each rests on sentences and decisions that exist; the kit shares nothing with `sdcp`."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

import sdcp_conformance
from sdcp_conformance.registry import DECISIONS, all_checks, check

ROOT = Path(__file__).parents[2]


def test_every_requirement_and_decision_exists() -> None:
    ledger = tomllib.loads((ROOT / "spec/requirements.toml").read_text())["requirement"]
    requirements = {entry["id"] for entry in ledger}
    decisions = set(re.findall(r"\*\*(D\d+a?) ", (ROOT / "docs/decisions.md").read_text()))
    for each in all_checks():
        assert not set(each.requirements) - requirements, each.id
        assert not set(each.decisions) - decisions, each.id


def test_every_check_says_what_it_is() -> None:
    checks = all_checks()
    assert {each.role for each in checks} == {"verifier", "drafter", "router"}
    for each in checks:
        assert 10 <= len(each.title) <= 120, each.id
        assert each.decisions or each.profile != DECISIONS, each.id
    titles = [(each.role, each.profile, each.title) for each in checks if not each.id.endswith("-messages")]
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize(
    ("id_", "requirements", "named"),
    [
        ("X-a", ("S1",), {}),
        ("V-A", ("S1",), {}),
        ("V-messages", ("S1",), {}),
        ("V-b", (), {}),
        ("V-c", (), {"profile": DECISIONS}),
        ("V-d", ("S1",), {"profile": "other"}),
    ],
)
def test_what_cannot_be_registered(id_: str, requirements: tuple[str, ...], named: dict[str, str]) -> None:
    all_checks()
    with pytest.raises(ValueError, match=id_):
        check(id_, *requirements, title="x", **named)  # type: ignore[arg-type]


def test_the_kit_imports_nothing_of_sdcp() -> None:
    for file in Path(sdcp_conformance.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "sdcp"], file
