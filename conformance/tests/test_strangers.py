"""The kit against implementations that it has never seen: one that is right, and some that are wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sdcp_conformance.baseline import judge, read
from sdcp_conformance.registry import DRAFT, all_checks
from sdcp_conformance.runner import FAILED, NOT_OFFERED, NOT_RUN, PASSED, Plan, run

HERE = Path(__file__).parent
STRANGER = f"{sys.executable} {HERE / 'stranger.py'}"


async def test_a_stranger_is_judged_by_the_draft() -> None:
    checks = [each for each in all_checks() if each.role == "verifier" and each.profile == DRAFT]
    expected = read(HERE / "stranger_baseline.txt", {each.id for each in all_checks()})
    verdict = judge(await run(Plan(STRANGER, checks)), expected)
    assert [(each.check.id, each.why) for each in verdict.unexpected] == []
    assert [each.check.id for each in verdict.stale] == []


async def test_roles_that_it_does_not_offer() -> None:
    checks = [each for each in all_checks() if each.id in ("D-messages", "R-messages")]
    assert {each.outcome for each in await run(Plan(STRANGER, checks))} == {NOT_OFFERED}


def broken(fault: str) -> str:
    return f"{sys.executable} {HERE / 'broken_strangers.py'} {fault}"


async def test_one_that_dies_is_started_again() -> None:
    checks = [each for each in all_checks() if each.id in ("V-basic-greedy", "V-basic-open", "V-basic-target")]
    results = await run(Plan(broken("Mortal"), checks, jobs=1))
    assert [each.outcome for each in results] == [FAILED, PASSED, PASSED]
    assert "the verifier ended with exit code 9" in results[0].why
    assert "farewell" in results[0].why


async def test_fail_fast_runs_no_further_check() -> None:
    checks = [each for each in all_checks() if each.id in ("V-basic-open", "V-basic-switch", "V-basic-target")]
    plan = Plan(broken("Careless"), checks[::-1], jobs=1, fail_fast=True)
    assert [each.outcome for each in await run(plan)] == [FAILED, NOT_RUN, NOT_RUN]
    plan.expected = frozenset(["V-basic-target"])
    assert [each.outcome for each in await run(plan)] == [FAILED, PASSED, PASSED]


@pytest.mark.parametrize(
    ("fault", "noticed"),
    [
        ("Forgetful", "V-basic-durable"),
        ("Trusting", "V-basic-other-drafter"),
        ("Careless", "V-basic-target"),
        ("Wordless", "V-basic-greedy"),
        ("Silent", "V-basic-switch"),
    ],
)
async def test_a_fault_is_noticed(fault: str, noticed: str) -> None:
    checks = [each for each in all_checks() if each.id in (noticed, "V-basic-open")]
    results = {each.check.id: each for each in await run(Plan(broken(fault), checks, patience_s=3.0))}
    assert results[noticed].outcome == FAILED
    assert results["V-basic-open"].why == ""
