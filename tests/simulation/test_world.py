"""A world with a clock and one incident in it: each does what it says, and the session goes on as it should."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from sdcp.engines.digests import IDENTITY_TOKENIZER
from sdcp.machines.verifier_serving import Phase
from sdcp.messages.contract import Action, Contract, Sampling
from sdcp.testing.checks import Broken
from sdcp.testing.incidents import DRAFTER, VERIFIER, Incident
from sdcp.testing.reporting import TTL_MS
from sdcp.testing.scenario import Scenario, family
from sdcp.testing.surroundings import CACHE, FRONT_END, ROUTER
from sdcp.testing.world import World

V1, V2 = "https://verifier-1.test/", "https://verifier-2.test/"
D1, D2 = "https://drafter-1.test/", "https://drafter-2.test/"
AT_MS = 60.0


def world(*incidents: Incident, **members: Any) -> World:
    """A session of 40 tokens at the first of two verifiers, with two drafters; alone it takes about 100 ms."""
    contract = Contract(
        target=family("cycle").target.model,
        tokenizer=IDENTITY_TOKENIZER,
        rule=1,
        m_max=4,
        max_new=40,
        stop=(),
        low_rounds=9,
        fallback=(Action.SWITCH,),
    )
    usual: dict[str, Any] = {
        "seed": 1,
        "contract": contract,
        "prompt": (3, 4),
        "models": "cycle",
        "drafters": ("same", "same"),
        "verifiers": 2,
        "incidents": incidents,
        "until_ms": 20_000.0 if incidents else 0.0,
        "loads": (0, 50, 0, 50),
    }
    return World(Scenario(**{**usual, **members}))


def given(played: World, party: str) -> Counter[str]:
    """What came in at a party."""
    return Counter(type(given).__name__ for _, who, given, _ in played.recorder.moments if who == party)


def test_alone_a_session_takes_one_epoch_and_no_deadline() -> None:
    played = world().play()
    assert played.output == played.setting.plain
    assert played.router.machine.epoch == 1
    assert 50 < max(at for at, *_ in played.recorder.moments if at < 1_000) < 200
    assert given(played, V2) == given(played, D2) == {}


@pytest.mark.requirement("S6.9-fence-first", "S6.9-resume")
@pytest.mark.decision("D19")
def test_a_verifier_that_crashes_and_is_back_at_once_is_found_out_by_its_404() -> None:
    played = world(Incident(what="crash", who=VERIFIER, at_ms=AT_MS)).play()
    assert played.output == played.setting.plain
    assert played.router.machine.epoch == 2
    assert given(played, ROUTER)["VerifierLost"] == 0
    assert given(played, ROUTER)["VerifierRefused"] >= 1


@pytest.mark.requirement("S6.9-fence-first", "S6.9-resume")
@pytest.mark.decision("D7")
def test_a_verifier_that_stays_down_is_lost_when_its_status_expires() -> None:
    cut = Incident(what="cut off", who=FRONT_END, other=ROUTER, at_ms=AT_MS, for_ms=8_000.0)
    played = world(Incident(what="crash", who=VERIFIER, at_ms=AT_MS, for_ms=9_000.0), cut).play()
    assert played.output == played.setting.plain
    assert given(played, ROUTER)["VerifierLost"] == 1
    (lost_ms,) = (at for at, _, event, _ in played.recorder.moments if type(event).__name__ == "VerifierLost")
    assert TTL_MS <= lost_ms <= TTL_MS + 2_000
    assert given(played, V2)["OpenReceived"] == 1


@pytest.mark.requirement("S6.3-fenced-append", "S6.9-older-epoch-rejected", "S1.3-sole-commit-authority")
@pytest.mark.decision("D30")
def test_a_verifier_that_stands_still_past_its_fencing_goes_on_into_the_fence() -> None:
    still = Incident(what="stand still", who=V1, at_ms=AT_MS, for_ms=15_000.0)
    played = world(still)
    old: list[Phase | None] = []
    while not old or old[-1] is not Phase.FENCED:
        assert played.step()
        held = played.verifiers[V1].machine(1)
        old += [held.phase] if held is not None and played.clock.now_ms > 15_000 else []
        assert played.clock.now_ms < 40_000
    assert Phase.DRAFTING in old, "it went on with all that it had"
    played.play()
    assert played.output == played.setting.plain
    assert played.router.machine.epoch == 2


@pytest.mark.requirement("S6.9-drafter-expired", "S6.9-new-drafter-starts")
def test_a_drafter_that_stays_down_is_replaced_when_its_status_expires() -> None:
    played = world(Incident(what="crash", who=DRAFTER, at_ms=AT_MS, for_ms=9_000.0)).play()
    assert played.output == played.setting.plain
    assert given(played, ROUTER)["DrafterLost"] == 1
    assert given(played, D2)["AssignmentReceived"] == 1
    assert played.router.machine.epoch == 1


@pytest.mark.decision("D37-repeated")
def test_a_drafter_that_is_back_at_once_is_assigned_again() -> None:
    played = world(Incident(what="crash", who=DRAFTER, at_ms=AT_MS)).play()
    assert played.output == played.setting.plain
    assert given(played, ROUTER)["DrafterLost"] == 0
    assert given(played, D1)["AssignmentReceived"] == 2


def test_a_crash_comes_after_the_very_effect() -> None:
    crash = Incident(what="crash", who=V1, after_effects=7)
    played = world(crash).play()
    moments = played.recorder.moments
    crashed = next(index for index, (_, _, what, _) in enumerate(moments) if isinstance(what, str))
    numbers = [len(effects) for _, who, _, effects in moments[:crashed] if who == V1]
    assert sum(numbers[:-1]) < 7 <= sum(numbers)
    assert played.output == played.setting.plain


def test_who_is_cut_off_from_the_cache_waits_and_goes_on() -> None:
    played = world(Incident(what="cut off", who=V1, other=CACHE, at_ms=AT_MS, for_ms=2_000.0)).play()
    assert played.output == played.setting.plain
    assert given(played, V1)["LogUnanswered"] >= 1
    assert played.router.machine.epoch == 1


def test_a_verifier_that_is_told_to_stop_ends_its_round_and_then_itself() -> None:
    played = world(Incident(what="stop", who=VERIFIER, at_ms=AT_MS, for_ms=30.0)).play()
    assert given(played, V1)["StopRequested"] == 1
    assert played.output == played.setting.plain
    assert played.router.machine.epoch == 2


def test_a_suspicion_alone_moves_a_session() -> None:
    played = world(Incident(what="suspect", who=VERIFIER, at_ms=AT_MS)).play()
    assert played.router.machine.epoch == 2
    assert played.output == played.setting.plain


def test_a_suspected_drafter_is_replaced() -> None:
    played = world(Incident(what="suspect", who=DRAFTER, at_ms=AT_MS)).play()
    assert given(played, D2)["AssignmentReceived"] >= 1
    assert played.router.machine.epoch == 1


@pytest.mark.decision("D30")
def test_a_target_that_breaks_fails_the_session_and_no_invariant() -> None:
    played = world(Incident(what="break the engine of", who=VERIFIER, at_ms=AT_MS, for_ms=20.0)).play()
    assert played.front_end.finish is Action.FAIL
    assert played.broken


def test_a_draft_model_that_breaks_is_tried_again() -> None:
    played = world(Incident(what="break the engine of", who=DRAFTER, at_ms=AT_MS, for_ms=20.0)).play()
    assert given(played, D1)["DraftFailed"] >= 1
    assert played.output == played.setting.plain


@pytest.mark.decision("D34")
def test_a_session_that_is_withdrawn_ends_behind_a_fence() -> None:
    played = world(Incident(what="withdraw", at_ms=AT_MS)).play()
    assert played.front_end.finish is Action.FAIL
    assert played.watch.fence == 2
    assert 0 < len(played.watch.tokens) < 40


@pytest.mark.requirement("S6.6-committed-unchanged")
def test_a_profile_changes_under_way() -> None:
    change = Incident(what="change the profile", at_ms=AT_MS, sampling=Sampling(temperature_milli=500))
    played = world(change).play()
    assert [each.sampling for each in played.front_end.changes] == [Sampling(temperature_milli=500)]
    assert given(played, V1)["PolicyReceived"] >= 1


def test_what_names_nobody_who_is_there_does_not_happen() -> None:
    early = (Incident(what=what, who=DRAFTER, at_ms=0.0) for what in ("crash", "suspect", "stop", "stand still"))
    played = world(*early, Incident(what="cut off", who=CACHE, other=DRAFTER, at_ms=0.0, for_ms=9.0)).play()
    assert played.output == played.setting.plain
    assert not [what for _, _, what, _ in played.recorder.moments if isinstance(what, str) and "cut" not in what]


# ---- the end ---------------------------------------------------------------------------------------------------------


def test_a_session_that_does_not_end_is_broken() -> None:
    played = world(drafters=("same",))
    played.front_end._locate = lambda epoch: None  # type: ignore[method-assign,assignment]
    played.front_end._read_at = lambda location: None  # type: ignore[method-assign,assignment]
    with pytest.raises(Broken, match="no end at"):
        played.play()


@pytest.mark.requirement("S6.7-only-recorded", "S6.7-stable-indices")
@pytest.mark.parametrize("wrong", [[1], [], [0] * 40])
def test_a_front_end_that_lost_or_repeated_tokens_is_broken(wrong: list[int]) -> None:
    played = world().play()
    played.front_end.tokens[:] = wrong if wrong != [] else played.front_end.tokens[:-1]
    with pytest.raises(Broken, match="the front end"):
        played.play()


def test_an_end_without_a_reason_is_broken() -> None:
    played = world().play()
    played.front_end.finish = Action.FAIL
    with pytest.raises(Broken, match="no record says why"):
        played._check_end()
