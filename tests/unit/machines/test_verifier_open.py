"""session-open at a verifier: what must hold, what a failure leaves, resuming (6.1, 6.9, D6, D14, D19, D20, D26)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sdcp import errors
from sdcp.machines.effects import CloseEngine, EndSession, FetchTokens, Prefill, ReadLog, SelfDecode
from sdcp.machines.inputs import (
    LogRead,
    LogUnanswered,
    OpenReceived,
    OutputRequested,
    Prefilled,
    PrefillFailed,
    RequestCancelled,
    Superseded,
    TokensFetched,
)
from sdcp.machines.verifier import VerifierSession
from sdcp.machines.verifier_open import is_answer
from sdcp.messages.contract import Action
from sdcp.messages.record import CommitRecord, FenceRecord
from sdcp.messages.session import State
from tests.unit.machines.verifier_world import CONTRACT, PROMPT, TARGET, World, greedy, of


@pytest.mark.requirement("S6.1-open-answer", "S4.2-verifier-keeps-digest", "S6.1-prompt-kv")
def test_a_good_open_is_answered_when_the_engine_holds_the_prompt() -> None:
    world = World(hold={Prefill})
    request = world.open(world.session_open(prompt_kv="kv"))
    assert request not in world.answers
    [prefill] = world.held
    assert (list(prefill.prefix), prefill.kv) == (list(PROMPT), "kv")
    world.release()
    state = world.told(request)
    assert (state.epoch, state.round, state.committed, state.state) == (1, 0, 0, State.DRAFTING)
    assert state.digest == world.digest()


@pytest.mark.decision("D20-validated")
def test_a_prompt_by_reference_is_fetched_before_the_answer() -> None:
    world = World(objects={"prompt": PROMPT})
    request = world.open(world.session_open(prompt="prompt"))
    assert [type(effect) for effect in world.seen[:3]] == [FetchTokens, ReadLog, Prefill]
    assert world.told(request).digest == world.digest()


@pytest.mark.requirement(
    "S6.1-contract-validated",
    "S6.1-target-mismatch",
    "S6.4-registered-rules",
    "S4.1-target-digest",
    "S4.1-tokenizer-digest",
)
@pytest.mark.decision("D6-detail", "D6-rule", "D6-digests", "D6-context")
@pytest.mark.parametrize(
    ("members", "named"),
    [
        ({"target": b"x" * 32}, "target"),
        ({"tokenizer": b"x" * 32}, "tokenizer"),
        ({"rule": 3}, "rule"),
        ({"rule": 0}, "rule"),
        ({"max_new": 62}, "max_new"),  # with 3 prompt tokens over the context of 64
        ({"max_new": 2**40}, "max_new"),
    ],
)
def test_a_contract_that_cannot_be_kept_is_refused(members: dict[str, Any], named: str) -> None:
    world = World(contract=replace(CONTRACT, **members))
    error = world.refusal(world.open())
    assert isinstance(error, errors.BadContract)
    assert f"'{named}'" in error.detail
    assert of(world.seen, EndSession)


def test_a_prompt_that_fills_the_context_to_the_last_token_is_fine() -> None:
    assert World(contract=replace(CONTRACT, max_new=61)).started().state.round == 0


@pytest.mark.decision("D5-prompt")
@pytest.mark.parametrize("token", [8, 2**32, 2**63])
def test_a_prompt_token_not_below_v_is_refused(token: int) -> None:
    world = World()
    assert type(world.refusal(world.open(world.session_open(prompt=(1, token))))) is errors.InvalidContent


@pytest.mark.decision("D5-stop")
def test_a_stop_token_not_below_v_is_legal() -> None:
    World(contract=replace(CONTRACT, stop=(2**40,))).started().play((4,))


@pytest.mark.requirement("S6.1-open-epoch-1")
@pytest.mark.decision("D19-without-resume")
@pytest.mark.parametrize("epoch", [0, 2])
def test_without_resume_the_epoch_is_1(epoch: int) -> None:
    world = World()
    assert type(world.refusal(world.open(world.session_open(epoch=epoch)))) is errors.Conflict


@pytest.mark.decision("D19-without-resume")
def test_without_resume_the_log_has_no_commit_record() -> None:
    first = World().started()
    first.play((4,))
    world = World(log=first.log)
    assert type(world.refusal(world.open())) is errors.Conflict


@pytest.mark.requirement("S6.8-fence-refuses-older")
def test_a_log_fenced_at_a_higher_epoch_is_stale() -> None:
    world = World()
    world.log.put(FenceRecord(epoch=2))
    assert isinstance(world.refusal(world.open()), errors.StaleEpoch)


def test_a_log_that_is_no_log_is_refused() -> None:
    world = World()
    world.log.data, world.log.version = b"\xff", 1
    assert type(world.refusal(world.open())) is errors.InvalidContent


@pytest.mark.decision("D19")
@pytest.mark.parametrize(
    ("hold", "answer", "kind"),
    [
        (FetchTokens, None, errors.InvalidContent),
        (ReadLog, LogUnanswered(), errors.Overloaded),
        (Prefill, PrefillFailed(errors.Overloaded("full")), errors.Overloaded),
        (Prefill, PrefillFailed(errors.InvalidContent("no BOS")), errors.InvalidContent),  # D26
    ],
)
def test_a_failed_open_leaves_nothing_behind(hold: type, answer: Any, kind: type) -> None:
    world = World(hold={hold})
    request = world.open(world.session_open(prompt="absent" if hold is FetchTokens else PROMPT))
    again = world.open(world.session_open(prompt="absent" if hold is FetchTokens else PROMPT))
    world.release(answer)
    assert type(world.refusal(request)) is type(world.refusal(again)) is kind
    assert [type(effect) for effect in world.seen[-2:]] == [CloseEngine, EndSession]
    assert not world.log.data
    world.hold.clear()
    assert world.told(world.open()).committed == 0  # another one is a first one


# ---- repeats (D19) ---------------------------------------------------------------------------------------------------


@pytest.mark.decision("D19-repeat")
def test_a_repeated_open_gets_the_state_of_now() -> None:
    world = World().started()
    world.play((4, 5))
    state = world.told(world.open())
    assert (state.round, state.committed, state.digest) == (1, 3, world.digest(world.log.tokens))
    assert len(of(world.seen, Prefill)) == 1


@pytest.mark.decision("D19-repeat")
def test_opens_that_come_while_it_opens_are_answered_together() -> None:
    world = World(hold={Prefill})
    requests = [world.open(), world.open()]
    other = world.open(world.session_open(prompt=(1,)))
    assert type(world.refusal(other)) is errors.Conflict
    world.release()
    assert [world.told(request).round for request in requests] == [0, 0]


@pytest.mark.decision("D19-other-content")
@pytest.mark.parametrize(
    ("members", "kind"),
    [
        ({"prompt": (1, 2)}, errors.Conflict),
        ({"prompt": (2**32,)}, errors.Conflict),
        ({"prompt": "elsewhere"}, errors.Conflict),
        ({"contract": replace(CONTRACT, max_new=19)}, errors.Conflict),
        ({"commit_log": "another"}, errors.Conflict),
        ({"epoch": 2}, errors.Conflict),
        ({"epoch": 0}, errors.StaleEpoch),
    ],
)
def test_an_open_with_other_content_is_refused_and_changes_nothing(members: dict[str, Any], kind: type) -> None:
    world = World().started()
    before = world.state
    assert type(world.refusal(world.open(world.session_open(**members)))) is kind
    assert world.state == before
    world.play((4,))


def test_requests_that_come_while_it_opens_are_told_to_come_back() -> None:
    world = World(hold={Prefill})
    world.open()
    assert isinstance(world.refusal(world.output()), errors.Overloaded)
    assert isinstance(world.refusal(world.propose(4)), errors.Overloaded)


def test_an_opener_that_went_away_is_not_answered_and_the_open_goes_on() -> None:
    world = World(hold={Prefill})
    request = world.open()
    world.handle(RequestCancelled(request))
    world.release(Prefilled())
    assert request not in world.answers
    assert world.state.state == State.DRAFTING


def test_a_higher_epoch_refuses_an_open_under_way() -> None:
    world = World(hold={Prefill})
    request = world.open()
    world.handle(Superseded())
    assert isinstance(world.refusal(request), errors.StaleEpoch)


@pytest.mark.parametrize("answer", [Prefilled(), TokensFetched("other", (1,)), LogRead(0, b"", None)])
def test_an_open_goes_on_by_the_answer_that_it_waits_for_and_by_no_other(answer: Any) -> None:
    world = World(hold={FetchTokens, ReadLog, Prefill}, objects={"prompt": (1, 2)})
    request = world.open(world.session_open(prompt="prompt"))
    while world.held:
        if not is_answer(answer, world.held[0]):
            assert world.handle(answer) == []
        world.release()
    assert world.told(request).state == State.DRAFTING
    assert world.handle(answer) == []


def test_a_machine_without_a_session_answers_no_late_input() -> None:
    assert VerifierSession(TARGET).handle(Prefilled()) == []
    [refusal] = VerifierSession(TARGET).handle(OutputRequested(1, 0, 0))
    assert isinstance(refusal.error, errors.Overloaded)


# ---- resuming (6.9, D19, D20) ----------------------------------------------------------------------------------------


def broken_off(*rounds: tuple[int, ...], **members: Any) -> World:
    """A new world, with the log that a first verifier left behind."""
    first = World(contract=replace(CONTRACT, **members)).started()
    first.play(*rounds)
    return World(contract=first.contract, log=first.log)


@pytest.mark.requirement("S6.9-resume", "S6.3-commit-record")
@pytest.mark.decision("D8-all-indices", "D19-with-resume", "D20")
@pytest.mark.requirement("S6.3-target-kv-published")
def test_a_session_goes_on_where_the_log_ends() -> None:
    world = broken_off((4, 5), (7,))
    message = world.resume(target_kv="kv")
    state = world.told(world.open(message))
    assert (state.epoch, state.round, state.committed) == (2, 2, 5)
    assert state.digest == world.digest(world.log.tokens)
    [prefill] = of(world.seen, Prefill)
    assert (list(prefill.prefix), prefill.kv) == ([*PROMPT, *greedy(3, 5)], "kv")
    world.assign()
    [verdict] = world.play((1,))
    assert (verdict.epoch, verdict.round, verdict.committed) == (2, 3, 7)
    assert world.read(world.output()).tokens == greedy(3, 7)  # a new verifier serves all indices (D8)


@pytest.mark.decision("D19-with-resume")
def test_resume_with_nothing_committed_is_allowed_and_fetches_nothing() -> None:
    world = World()
    assert world.told(world.open(world.resume())).committed == 0
    assert not of(world.seen, FetchTokens)


@pytest.mark.requirement("S6.9-fence-first")
@pytest.mark.decision("D19-with-resume")
def test_resume_without_its_fence_is_refused() -> None:
    world = broken_off((4,))
    assert type(world.refusal(world.open(world.resumed(2)))) is errors.Conflict
    world.log.put(FenceRecord(epoch=3))
    assert isinstance(world.refusal(world.open(world.resumed(2))), errors.StaleEpoch)


@pytest.mark.decision("D19-with-resume")
@pytest.mark.parametrize(
    "members", [{"round": 0}, {"round": 2}, {"committed": 1}, {"committed": 0}, {"digest": b"x" * 32}]
)
def test_resume_from_elsewhere_than_the_last_record_is_refused(members: dict[str, Any]) -> None:
    world = broken_off((4,))
    assert type(world.refusal(world.open(world.resume(**members)))) is errors.Conflict


@pytest.mark.decision("D19-with-resume")
@pytest.mark.parametrize("tokens", [(4, 6), (4,), (4, 5, 6), ()])
def test_committed_tokens_that_do_not_make_the_chain_are_refused(tokens: tuple[int, ...]) -> None:
    world = broken_off((4,))
    message = world.resume()
    world.objects["tokens"] = tokens
    assert type(world.refusal(world.open(message))) is errors.Conflict


@pytest.mark.decision("D20")
@pytest.mark.parametrize("error", [errors.Overloaded("evicted"), errors.InvalidContent("too large")])
def test_committed_tokens_that_cannot_be_had_refuse_the_open(error: errors.ProblemError) -> None:
    world = broken_off((4,))
    message = world.resume()
    world.objects["tokens"] = error
    assert world.refusal(world.open(message)) is error


def test_an_epoch_that_has_committed_already_is_not_opened_again() -> None:
    """A second incarnation must not go on under an epoch in which the first may still live (D19: fence, next epoch)."""
    world = broken_off((4,))
    world.log.put(FenceRecord(epoch=2))
    last = world.log.records()[-1]
    tokens = (*world.log.tokens, 6)
    world.log.put(CommitRecord(epoch=2, round=last.round + 1, tokens=(6,), committed=3, digest=world.digest(tokens)))
    assert type(world.refusal(world.open(world.resumed(2)))) is errors.Conflict


@pytest.mark.decision("D20-void")
def test_void_records_are_not_resumed_from() -> None:
    world = broken_off((4,))
    message = world.resume()
    world.log.put(CommitRecord(epoch=1, round=2, tokens=(6,), committed=3, digest=world.digest((4, 5, 6))))
    assert world.told(world.open(message)).round == 1


@pytest.mark.decision("D14", "D19-complete")
@pytest.mark.parametrize("members", [{"max_new": 2}, {"stop": (5,)}])
def test_an_output_that_is_complete_opens_finished_and_says_so(members: dict[str, Any]) -> None:
    world = broken_off((4,), **members)
    assert world.told(world.open(world.resume())).state == State.FINISHED
    assert [event.kind for event in world.events] == [Action.FINISH]
    output = world.read(world.output(wait_ms=1000))
    assert (output.tokens, output.final, output.finish) == ((4, 5), True, Action.FINISH)
    assert not of(world.seen, Prefill)


@pytest.mark.decision("D19-too-long")
@pytest.mark.parametrize("members", [{"max_new": 1}, {"stop": (4,)}])
def test_an_output_that_went_on_too_long_is_refused(members: dict[str, Any]) -> None:
    contract = replace(CONTRACT, **members)
    world = World(contract=contract)
    world.log.put(CommitRecord(epoch=1, round=1, tokens=(4, 5), committed=2, digest=world.digest((4, 5))))
    assert type(world.refusal(world.open(world.resume()))) is errors.InvalidContent


@pytest.mark.decision("D14-max-new-0")
def test_max_new_0_is_finished_when_it_opens() -> None:
    world = World(contract=replace(CONTRACT, max_new=0))
    assert world.told(world.open()).state == State.FINISHED
    assert world.events[0].kind == Action.FINISH
    assert world.read(world.output(wait_ms=1000)).final
    assert isinstance(world.refusal(world.assign()), errors.SessionClosed)


@pytest.mark.decision("D18-values", "D20-restored")
@pytest.mark.parametrize(
    ("action", "state", "kinds"),
    [
        (Action.CONTINUE, State.DRAFTING, []),
        (Action.REDUCE, State.DRAFTING, []),
        (Action.SWITCH, State.WAITING, []),
        (Action.SELF_DECODE, State.WAITING, []),
        (Action.FAIL, State.FAILED, [Action.FAIL]),
        (None, State.DRAFTING, []),
    ],
)
def test_the_last_record_says_in_which_state_it_opens(action: Action | None, state: State, kinds: list[Action]) -> None:
    world = World()
    digest = world.digest((4,))
    world.log.put(CommitRecord(epoch=1, round=1, tokens=(4,), committed=1, digest=digest, action=action))
    assert world.told(world.open(world.resume())).state == state
    assert [event.kind for event in world.events] == kinds
    assert not of(world.seen, SelfDecode)
    assert world.read(world.output(5)).final is (state == State.FAILED)


@pytest.mark.requirement("S6.5.2-j-persists")
@pytest.mark.decision("D20-restored")
def test_the_counters_come_back_from_the_log() -> None:
    """low_rounds 3, ladder reduce, switch: two low rounds before the takeover and one after it make three."""
    world = broken_off((7,), (7,))
    assert [record.low for record in world.log.records()] == [1, 2]
    world.open(world.resume())
    world.assign()
    assert [verdict.action for verdict in world.play(world.wrong())] == [Action.REDUCE]


@pytest.mark.decision("D20-earlier-epochs")
def test_verdicts_of_earlier_epochs_are_not_replayed() -> None:
    world = broken_off((4,))
    world.open(world.resume())
    world.assign()
    assert isinstance(world.refusal(world.propose(4, round=1, base=0, base_digest=world.digest())), errors.StaleBase)


def test_a_second_open_of_a_fenced_session_is_stale() -> None:
    world = World().started()
    world.handle(Superseded())
    request = world.ask(OpenReceived, world.session_open())
    assert isinstance(world.refusal(request), errors.StaleEpoch)
