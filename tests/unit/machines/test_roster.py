"""The router's table of instances (6.1, 6.9, D7)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp.machines.roster import Known, Lost, Roster
from sdcp.messages.contract import Action, Contract
from sdcp.messages.status import DRAFTER, VERIFIER, Status

TARGET, TOKENIZER, SMALL, TINY = bytes([1]) * 32, bytes([2]) * 32, bytes([3]) * 32, bytes([4]) * 32


def contract(**members: object) -> Contract:
    basics: dict[str, object] = {
        "target": TARGET,
        "tokenizer": TOKENIZER,
        "rule": 1,
        "m_max": 8,
        "max_new": 16,
        "stop": (),
        "low_rounds": 2,
        "fallback": (Action.SWITCH,),
    }
    return Contract(**{**basics, **members})  # type: ignore[arg-type]


def status(name: str, **members: object) -> Status:
    basics: dict[str, object] = {
        "instance": name,
        "role": DRAFTER,
        "load": 0,
        "queue": 0,
        "ttl_ms": 1000,
        "base": f"https://{name}",
        "model": SMALL,
        "tokenizer": TOKENIZER,
    }
    return Status(**{**basics, **members})  # type: ignore[arg-type]


def roster(*statuses: Status, **options: object) -> Roster:
    made = Roster(**options)  # type: ignore[arg-type]
    for each in statuses:
        made.report(each, 0)
    return made


def choose(made: Roster, but: frozenset[str] = frozenset(), now_ms: int = 0, **members: object) -> str | None:
    return made.choose_drafter(contract(**members), but, now_ms)


@pytest.mark.decision("D7-ttl")
def test_a_name_is_in_use_while_its_status_counts() -> None:
    made = roster(status("d"))
    assert made.base_in_use("d", 999) == "https://d"
    assert made.base_in_use("d", 1000) is None
    assert made.base_in_use("another", 0) is None


@pytest.mark.requirement("S6.1-drafter-selection")
@pytest.mark.parametrize(
    ("worse", "better"),
    [
        ({"load": 50}, {"load": 49}),
        ({"queue": 2}, {"queue": 1}),
        ({"accept_milli": 600}, {"accept_milli": 900}),
        ({"load": 9}, {"queue": 0}),
        ({"queue": 1}, {"load": 9}),
        ({}, {"accept_milli": 501}),
    ],
)
def test_low_load_short_queue_and_high_acceptance_are_preferred(worse: dict[str, int], better: dict[str, int]) -> None:
    assert choose(roster(status("a", **worse), status("b", **better))) == "https://b"


@pytest.mark.requirement("S6.1-expired-status")
@pytest.mark.decision("D7-ttl")
@given(received=st.integers(0, 10**9), ttl=st.integers(0, 10**6), later=st.integers(0, 2 * 10**6))
def test_an_instance_is_chosen_until_its_ttl_has_passed_since_receipt(received: int, ttl: int, later: int) -> None:
    made = Roster()
    made.report(status("a", ttl_ms=ttl), received)
    made.report(status("v", role=VERIFIER, model=TARGET, ttl_ms=ttl), received)
    alive = later < ttl
    assert choose(made, now_ms=received + later) == ("https://a" if alive else None)
    assert made.choose_verifier(TARGET, TOKENIZER, set(), received + later) == ("https://v" if alive else None)


def test_a_new_status_renews_the_instance() -> None:
    made = roster(status("a"))
    made.report(status("a"), 900)
    assert choose(made, now_ms=1800) == "https://a"


@pytest.mark.requirement("S6.1-drafter-permitted")
def test_only_permitted_models_draft_whatever_their_load() -> None:
    made = roster(status("idle", model=TINY), status("busy", load=100, queue=9))
    assert choose(made, drafters=(SMALL,)) == "https://busy"
    assert choose(made, drafters=(bytes(32),)) is None


@pytest.mark.requirement("S4.1-drafters-absent")
def test_without_a_list_the_local_policy_decides() -> None:
    statuses = status("a", model=TINY), status("b", load=90)
    assert choose(roster(*statuses)) == "https://a"
    assert choose(roster(*statuses, allowed={SMALL})) == "https://b"
    assert choose(roster(*statuses, allowed=set())) is None


@pytest.mark.requirement("S4.1-tokenizer-digest")
def test_a_drafter_of_another_tokenizer_or_an_unknown_one_is_not_chosen() -> None:
    assert choose(roster(status("a", tokenizer=bytes(32)), status("b", tokenizer=None))) is None


@pytest.mark.requirement("S6.1-open-epoch-1", "S4.1-target-digest")
def test_drafters_and_verifiers_are_not_mixed_up() -> None:
    made = roster(status("v", role=VERIFIER, model=TARGET), status("d"))
    assert choose(made) == "https://d"
    assert made.choose_verifier(TARGET, TOKENIZER, set(), 0) == "https://v"
    assert made.choose_verifier(SMALL, TOKENIZER, set(), 0) is None


def test_others_first_but_the_only_one_serves_again() -> None:
    made = roster(status("a"), status("b", load=99, queue=50))
    assert choose(made, frozenset({"https://a"})) == "https://b"
    assert choose(made, frozenset({"https://a", "https://b"})) is not None
    verifiers = roster(status("v", role=VERIFIER, model=TARGET))
    assert verifiers.choose_verifier(TARGET, TOKENIZER, {"https://v"}, 0) is None


def test_a_burst_between_two_reports_is_spread() -> None:
    made = roster(*(status(name) for name in "abcd"))
    chosen = [choose(made) for _ in range(8)]
    assert sorted(map(str, chosen)) == sorted([f"https://{name}" for name in "abcd"] * 2)
    made.report(status("a"), 1)  # the report counts what it knows of, and the rest begins anew
    assert choose(made) == "https://a"


@pytest.mark.decision("D7-configured")
def test_configuration_completes_a_status_that_lacks_our_keys() -> None:
    bare = status("a", base=None, model=None, tokenizer=None)
    assert choose(roster(bare)) is None
    known = {"a": Known("https://from-file", SMALL, TOKENIZER)}
    assert choose(roster(bare, known=known), drafters=(SMALL,)) == "https://from-file"
    assert Roster(known).base_of(bare) == "https://from-file"


@pytest.mark.requirement("S6.9-drafter-expired")
def test_an_expired_instance_is_lost_once() -> None:
    made = roster(status("a"), status("v", role=VERIFIER, ttl_ms=2000))
    assert made.lost(999) == []
    assert made.lost(1000) == [Lost(DRAFTER, "https://a")]
    assert made.lost(1500) == []
    assert made.lost(2000) == [Lost(VERIFIER, "https://v")]


def test_an_instance_that_moved_is_lost_at_its_old_address_only() -> None:
    made = roster(status("a"))
    made.report(status("a", base="https://elsewhere"), 10)
    assert made.lost(20) == [Lost(DRAFTER, "https://a")]
    assert choose(made) == "https://elsewhere"


@pytest.mark.decision("D7")
def test_a_peer_cannot_fill_the_table_with_names() -> None:
    """Who may report is decided by the base URI (D10): names and times to live are anybody's choice."""
    made = Roster()
    for number in range(50):
        made.report(status(f"n{number}", base="https://one", ttl_ms=2**60), 0)
        made.report(status(f"b{number}", base=None, ttl_ms=2**60), 0)
        made.report(status("moves", base=f"https://m{number}", ttl_ms=2**60), 0)
    assert [entry.status.instance for entry in made.alive(1)] == ["moves", "n49"]
    assert {each.base for each in made.lost(1)} == {f"https://m{number}" for number in range(49)}


def test_a_base_uri_under_another_name_is_not_lost() -> None:
    made = roster(status("old", base="https://same"))
    made.report(status("new", base="https://same"), 900)
    assert made.lost(1500) == []
