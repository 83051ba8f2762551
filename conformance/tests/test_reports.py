"""Results held against a baseline, and as people and programs read them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from sdcp_conformance import report
from sdcp_conformance.baseline import BaselineError, judge, read
from sdcp_conformance.registry import DECISIONS, DRAFT, Check
from sdcp_conformance.runner import FAILED, NOT_APPLICABLE, NOT_OFFERED, PASSED, Result


async def nothing(_: object) -> None:
    return None


def result(id_: str, outcome: str, why: str = "", profile: str = DRAFT) -> Result:
    return Result(Check(id_, f"about {id_}", ("S6.1-x",), ("D1",), profile, nothing), outcome, why, 0.5)


RESULTS = [
    result("V-a", PASSED),
    result("V-b", FAILED, "committed: expected 3, came 4\x00"),
    result("V-c", FAILED, "expected a verdict, came [red]nothing[/red]", DECISIONS),
    result("D-a", NOT_OFFERED, "the subject does not offer the role drafter"),
    result("R-a", NOT_APPLICABLE, "does not"),
]


def test_a_strict_baseline() -> None:
    assert judge(RESULTS, {"V-b", "V-c"}).exit_code == 0
    some = judge(RESULTS, {"V-a", "V-b"})
    assert ([each.check.id for each in some.unexpected], [each.check.id for each in some.stale]) == (["V-c"], ["V-a"])
    assert some.exit_code == 1
    assert judge(RESULTS[:1], {"V-a"}).exit_code == 1
    assert judge(RESULTS[3:], {"D-a", "R-a"}).exit_code == 0


def test_a_baseline_file(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("# why\nV-a # because\n\n V-b \n")
    assert read(tmp_path / "b", {"V-a", "V-b"}) == {"V-a", "V-b"}
    with pytest.raises(BaselineError, match="line 2"):
        read(tmp_path / "b", {"V-b"})


def test_the_table() -> None:
    stream = io.StringIO()
    report.table(Console(file=stream, width=200), RESULTS, judge(RESULTS, {"V-b", "V-a"}), {"V-b", "V-a"})
    text = stream.getvalue()
    for part in (
        "verifier: what the draft requires",
        "verifier: what our decisions add",
        "known  V-b",
        "FAIL  V-c",
        "expected a verdict, came [red]nothing[/red]",
        "V-a passes, and the baseline expects it to fail",
        "draft: 1 passed, 1 failed, 1 not offered, 1 not applicable; decisions: 1 failed; 1 unexpected failures",
    ):
        assert part in text, part


def test_junit() -> None:
    root = ElementTree.fromstring(report.as_junit(RESULTS, {"V-b"}))
    assert [(each.get("name"), each.get("failures"), each.get("skipped")) for each in root] == [
        ("verifier.draft", "0", "1"),
        ("verifier.decisions", "1", "0"),
        ("drafter.draft", "0", "1"),
        ("router.draft", "0", "1"),
    ]


def test_json() -> None:
    document = json.loads(report.as_json(RESULTS, judge(RESULTS, set()), "sdcp", 1.23))
    assert (document["subject"], document["seconds"], document["as_expected"]) == ("sdcp", 1.2, False)
    assert document["unexpected_failures"] == ["V-b", "V-c"]
    assert document["results"][1]["why"].startswith("committed: expected 3")
