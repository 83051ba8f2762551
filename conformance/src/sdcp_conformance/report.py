"""Results for people (a table), for programs (JSON) and for CI (JUnit XML)."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sdcp_conformance.baseline import Verdict
from sdcp_conformance.registry import DECISIONS, DRAFT
from sdcp_conformance.runner import FAILED, NOT_APPLICABLE, NOT_OFFERED, NOT_RUN, PASSED, Result

_MARKS = {
    PASSED: ("pass", "green"),
    FAILED: ("FAIL", "bold red"),
    NOT_OFFERED: ("not offered", "dim"),
    NOT_APPLICABLE: ("n/a", "yellow"),
    NOT_RUN: ("not run", "dim"),
}
_OF_PROFILE = {DRAFT: "what the draft requires", DECISIONS: "what our decisions add"}


def table(console: Console, results: Sequence[Result], verdict: Verdict, expected: Collection[str]) -> None:
    """Print a line for each check, by role and profile, the failures in full, and the counts."""
    for role in dict.fromkeys(result.check.role for result in results):
        for profile in (DRAFT, DECISIONS):
            part = [each for each in results if (each.check.role, each.check.profile) == (role, profile)]
            if part:
                _part(console, f"{role}: {_OF_PROFILE[profile]}", part, expected)
    failures = [each for each in results if each.outcome == FAILED]
    for each in failures:
        note = " (expected by the baseline)" if each.check.id in expected else ""
        console.print(Text(f"\n{each.check.id}{note}: {each.check.title}", style="bold"))
        console.print(Text(f"  {each.why}"))
        console.print(Text(f"  rests on {' '.join((*each.check.requirements, *each.check.decisions))}", style="dim"))
    for each in verdict.stale:
        console.print(Text(f"\n{each.check.id} passes, and the baseline expects it to fail: take it out", style="bold"))
    console.print(Text(f"\n{_counts(results, verdict)}", style="bold"))


def _part(console: Console, title: str, results: Sequence[Result], expected: Collection[str]) -> None:
    console.print(Text(f"\n{title}", style="bold"))
    sheet = Table(box=None, pad_edge=False, show_header=False)
    sheet.add_column(no_wrap=True)
    sheet.add_column(no_wrap=True)
    sheet.add_column(overflow="fold")
    for each in results:
        word, style = _MARKS[each.outcome]
        known = each.outcome == FAILED and each.check.id in expected
        sheet.add_row(Text("known" if known else word, style=style), each.check.id, each.check.title)
    console.print(sheet)


def _counts(results: Sequence[Result], verdict: Verdict) -> str:
    parts = []
    for profile in (DRAFT, DECISIONS):
        part = [each for each in results if each.check.profile == profile]
        counts = [f"{sum(each.outcome == outcome for each in part)} {outcome}" for outcome in _MARKS]
        parts.append(f"{profile}: {', '.join(each for each in counts if not each.startswith('0 ')) or 'no checks'}")
    tail = "as expected" if verdict.exit_code == 0 else f"{len(verdict.unexpected)} unexpected failures"
    if verdict.stale:
        tail += f", {len(verdict.stale)} unexpected passes"
    return f"{'; '.join(parts)}; {tail}"


def as_json(results: Sequence[Result], verdict: Verdict, subject: str, seconds: float) -> str:
    """One JSON object: the subject, each result, and whether all was as expected."""
    document: dict[str, Any] = {
        "subject": subject,
        "seconds": round(seconds, 1),
        "as_expected": verdict.exit_code == 0,
        "unexpected_failures": [each.check.id for each in verdict.unexpected],
        "unexpected_passes": [each.check.id for each in verdict.stale],
        "results": [
            {**each.check.as_json(), "outcome": each.outcome, "why": each.why, "seconds": round(each.seconds, 3)}
            for each in results
        ],
    }
    return json.dumps(document, indent=1)


def as_junit(results: Sequence[Result], expected: Collection[str]) -> str:
    """JUnit XML: a suite for each role and profile; expected failures count as skipped."""
    root = ElementTree.Element("testsuites", name="sdcp-conformance")
    for role, profile in dict.fromkeys((each.check.role, each.check.profile) for each in results):
        part = [each for each in results if (each.check.role, each.check.profile) == (role, profile)]
        failures = [each for each in part if each.outcome == FAILED and each.check.id not in expected]
        suite = ElementTree.SubElement(root, "testsuite", name=f"{role}.{profile}", tests=str(len(part)))
        suite.set("failures", str(len(failures)))
        suite.set("skipped", str(sum(each.outcome != PASSED for each in part) - len(failures)))
        for each in part:
            _case(suite, each, each in failures)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def _case(suite: ElementTree.Element, result: Result, failed: bool) -> None:
    check = result.check
    case = ElementTree.SubElement(suite, "testcase", name=f"{check.id} {check.title}", classname=f"{check.role}")
    case.set("time", f"{result.seconds:.3f}")
    if result.outcome == PASSED:
        return
    why = "".join(each if each in "\n\t" or each >= " " else "?" for each in result.why)
    ElementTree.SubElement(case, "failure" if failed else "skipped", message=why[:500] or result.outcome).text = why
