"""The second reading of the control step: every history of the real rules passes, each departure from it is seen."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from sdcp.messages.contract import Action, Contract
from sdcp.messages.record import CommitRecord
from sdcp.rules import escalation, limit
from sdcp.testing.ladder import Ladder

CONTRACT = Contract(
    target=bytes(32),
    tokenizer=bytes(32),
    rule=1,
    m_max=8,
    max_new=999,
    stop=(),
    low_rounds=2,
    fallback=(Action.REDUCE, Action.SWITCH, Action.SELF_DECODE),
    self_load=50,
)


def record(round: int, proposed: int | None, accepted: int | None, **members: Any) -> CommitRecord:
    usual = {"action": Action.CONTINUE, "low": 0, "g": 0, "j": 0, "m_cap": 4, "load": 10}
    return CommitRecord(
        epoch=1, round=round, tokens=(1,), committed=round, digest=bytes(32),
        proposed=proposed, accepted=accepted, **{**usual, **members},
    )  # fmt: skip


def history(seed: int) -> tuple[Contract, list[CommitRecord]]:
    """Rounds as `sdcp.rules` has them."""
    luck = Random(seed)
    contract = replace(CONTRACT, low_rounds=luck.randint(1, 3), low_ratio=luck.choice((None, 50)))
    counters, m_cap, made = escalation.Counters(), 4, list[CommitRecord]()
    for round in range(1, 40):
        m, load = luck.randint(1, m_cap), luck.randrange(90)
        accepted = luck.choice((0, 0, m))
        low = escalation.is_low(accepted, m, contract.low_ratio)
        counters, action = escalation.after_round(counters, low, contract, load)
        m_cap = limit.after_round(m_cap, contract.m_max, action, low)
        said = {"action": action, "low": counters.c, "g": counters.g, "j": counters.j, "m_cap": m_cap, "load": load}
        made.append(record(round, m, accepted, **said))
        if action is Action.FAIL:
            break
    return contract, made


@pytest.mark.requirement("S6.5.1-restored-gradually", "S6.5.2-counters", "S6.5.2-ladder-restarts")
@pytest.mark.parametrize("seed", range(30))
def test_what_the_rules_say_passes_and_nothing_else_does(seed: int) -> None:
    contract, rounds = history(seed)
    for wrong in (None, "low", "g", "j", "m_cap", "action"):
        ladder = Ladder(contract, 4)
        faults = [ladder.fault(each) for each in rounds[:-1]]
        assert faults == [None] * len(faults)
        last = rounds[-1] if wrong is None else _changed(rounds[-1], wrong)
        assert (ladder.fault(last) is None) == (wrong is None), wrong


def _changed(last: CommitRecord, name: str) -> CommitRecord:
    if name == "action":
        return replace(last, action=Action.SWITCH if last.action is not Action.SWITCH else Action.REDUCE)
    return replace(last, **{name: getattr(last, name) + 1})  # type: ignore[arg-type]


@pytest.mark.decision("D16")
def test_a_new_drafter_begins_at_the_first_limit_and_the_same_one_goes_on() -> None:
    good = record(1, 1, 1, g=1, m_cap=5)
    for m_cap, fine in ((6, True), (5, True), (7, False), (4, False)):
        ladder = Ladder(CONTRACT, 4)
        assert ladder.fault(good) is None
        ladder.assigned()
        second = record(2, 1, 1, g=2, m_cap=m_cap)
        assert (ladder.fault(second) is None) == fine, m_cap


@pytest.mark.requirement("S6.2-m-range")
def test_more_tokens_than_the_limit_are_seen() -> None:
    assert "over the limit 4" in str(Ladder(CONTRACT, 4).fault(record(1, 5, 1, g=1, m_cap=5)))


@pytest.mark.decision("D16")
def test_a_busy_verifier_lowers_the_limit_and_does_not_raise_it() -> None:
    for m_cap, fine in ((4, True), (6, False), (7, False)):
        ladder = Ladder(CONTRACT, 6)
        assert (ladder.fault(record(1, 1, 1, g=1, m_cap=m_cap, load=95)) is None) == fine


@pytest.mark.decision("D15", "D29")
@pytest.mark.parametrize(
    "wrong",
    [
        record(1, None, None, action=Action.SELF_DECODE, low=1),
        record(1, None, None, action=Action.CONTINUE),
        replace(record(1, None, None, action=Action.SELF_DECODE), tokens=(1, 2)),
        record(1, 1, 1, action=Action.FINISH, g=1),
    ],
)
def test_self_decoding_and_the_end_leave_the_counters_alone(wrong: CommitRecord) -> None:
    assert Ladder(CONTRACT, 4).fault(wrong) is not None
    assert Ladder(CONTRACT, 4).fault(record(1, None, None, action=Action.SELF_DECODE)) is None
    assert Ladder(CONTRACT, 4).fault(record(1, 1, 1, action=Action.FINISH)) is None
