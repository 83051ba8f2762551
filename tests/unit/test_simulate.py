"""`sdcp simulate`: what it says of good runs, and of a fault that was planted."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sdcp.errors import ConfigurationError
from sdcp.machines import commit_log
from sdcp.machines.inputs import LogUnanswered
from sdcp.rules import escalation
from sdcp.simulate import Order, run, run_seeds
from sdcp.testing.scenario import scenario_of
from sdcp.testing.shrink import attempt, shrink


def output(order: Order, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = run(order)
    return code, capsys.readouterr().out


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verifier that takes a record for durable because nobody said that it is not."""
    handle = commit_log.CommitLog.handle

    def hasty(log: commit_log.CommitLog, answer: commit_log.Answer) -> commit_log.Step:
        if isinstance(answer, LogUnanswered) and log._record is not None:
            return log._end(commit_log.Recorded(0, None))
        return handle(log, answer)

    monkeypatch.setattr(commit_log.CommitLog, "handle", hasty)


# ---- good runs -------------------------------------------------------------------------------------------------------


def test_good_runs_are_counted_and_exit_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = output(Order(seeds=30), capsys)
    assert code == 0
    assert said.startswith("30 schedules in ")
    assert "a second" in said
    assert "pairs of state and input: verifier " in said
    assert f"trace digest {run_seeds(range(30)).digest}" in said
    assert said.endswith("no invariant was broken\n")


def test_json_has_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = output(Order(seeds=30, start=5, as_json=True), capsys)
    figures = json.loads(said)
    assert (code, figures["schedules"], figures["faults"], figures["shortest"]) == (0, 30, [], None)
    assert figures["digest"] == run_seeds(range(5, 35)).digest
    assert sum(figures["ends"].values()) == 30
    assert 0 < figures["coverage"]["router"]["met"] < figures["coverage"]["router"]["possible"]


def test_sessions_for_timing_have_the_tokens_that_were_asked_for() -> None:
    tally = run_seeds(range(20), 64)
    assert (tally.schedules, tally.tokens, tally.faults) == (20, 20 * 64, {})


def test_a_seed_alone_is_told_moment_by_moment(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = output(Order(seed=3, trace=True), capsys)
    assert code == 0
    lines = said.splitlines()
    assert any("RequestSubmitted(" in line for line in lines)
    assert any("-> AppendLog(ref=memory:/logs/session" in line for line in lines)
    assert lines[-1] == "no invariant was broken"
    assert f"trace digest {run_seeds([3]).digest}" in lines


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (Order(trace=True), "--seed"),
        (Order(seed=1, trace=True, as_json=True), "--json"),
        (Order(workers=100_000), "cores"),
    ],
)
def test_mistakes_are_said(order: Order, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run(order)


# ---- a planted fault -------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.3-append-before-release")
@pytest.mark.usefixtures("hasty")
def test_a_planted_fault_is_found_and_its_shortest_run_shown(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = output(Order(seeds=60), capsys)
    assert code == 1
    lines = said.splitlines()
    assert any(line.startswith("BROKEN: ") and " of 60 schedules; seeds " in line for line in lines)
    assert lines[-1].startswith("the whole run: sdcp simulate --seed ")
    begin = next(index for index, line in enumerate(lines) if line.startswith("shortest run found"))
    assert lines[begin + 1].startswith("  rule ")
    assert " ms  " in lines[begin + 4], "two happenings at most, then the trace"
    assert lines[-2].startswith("** ")
    assert len(lines) < 160


@pytest.mark.usefixtures("hasty")
def test_the_shortest_run_has_hardly_more_than_the_fault_that_it_needs() -> None:
    first = attempt(scenario_of(run_seeds(range(60)).plainest(None)))
    assert first is not None
    budget = iter(range(400))
    found = shrink(first, lambda: next(budget, None) is not None)
    happenings = found.happenings()
    assert len(happenings) <= 2
    assert any("to cache: lost" in each for each in happenings), happenings
    assert found.left_out == len(first.scenario.incidents) + len(first.strokes) - len(happenings) > 2
    again = attempt(found.scenario, found.strokes)
    assert again is not None
    assert again.fault == found.fault
    assert "-> AppendLog" in "\n".join(found.trace()[-60:])


def test_a_fault_without_cause_is_shrunk_to_a_run_in_which_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    after_round = escalation.after_round

    def keeps_g(counters: escalation.Counters, low: bool, *rest: Any) -> tuple[escalation.Counters, Any]:
        after, action = after_round(counters, low, *rest)
        return (replace(after, g=counters.g) if low else after), action

    monkeypatch.setattr(escalation, "after_round", keeps_g)
    first = next(found for seed in range(60) if (found := attempt(scenario_of(seed))) is not None)
    budget = iter(range(400))
    found = shrink(first, lambda: next(budget, None) is not None)
    assert found.happenings() == []
    assert "for action, c, g and j" in found.fault
    assert len(found.scenario.drafters) == found.scenario.verifiers == 1


def test_a_machine_that_raises_is_a_fault_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(escalation, "is_low", broken)
    tally = run_seeds(range(20))
    assert set(tally.faults.values()) == {"ZeroDivisionError"}
    assert tally.schedules == 20


def test_nothing_is_shrunk_when_there_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(escalation, "is_low", lambda *_: True)
    first = next(found for seed in range(60) if (found := attempt(scenario_of(seed))) is not None)
    assert replace(shrink(first, lambda: False), runs=1) == first
