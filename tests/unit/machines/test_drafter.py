"""The drafter session, step by step: 6.2, 6.9, and what the decisions (D5, D9a, D16, D20, D21, D28, D31) ask of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sdcp import errors
from sdcp.machines.drafter import DrafterSession
from sdcp.machines.drafter_joining import DraftModel
from sdcp.machines.drafter_rounds import Patience
from sdcp.machines.effects import (
    Abandon,
    CancelTimer,
    Draft,
    EndSession,
    FetchOutput,
    FetchTokens,
    Refuse,
    ReleaseRows,
    Reply,
    SendProposal,
    SetTimer,
    WriteRows,
)
from sdcp.machines.inputs import (
    AssignmentReceived,
    Drafted,
    DraftFailed,
    OutputFetched,
    OutputUnavailable,
    ProposalRefused,
    ProposalUnanswered,
    RequestCancelled,
    RowsWritten,
    StopRequested,
    TimerFired,
    TokensFetched,
    TokensUnavailable,
    VerdictReceived,
)
from sdcp.messages.contract import Action, Contract, Sampling
from sdcp.messages.round import Assignment, Proposal, Verdict
from sdcp.rules.digest import contract_digest, extend_all, prefix_digest

SESSION = b"s" * 16
MODEL = DraftModel(model=b"m" * 32, tokenizer=b"t" * 32, width=100, context=50)
CONTRACT = Contract(
    target=b"T" * 32,
    tokenizer=b"t" * 32,
    rule=1,
    m_max=8,
    max_new=20,
    stop=(),
    low_rounds=3,
    fallback=(Action.SWITCH,),
)
PROMPT = (1, 2, 3)


def digest(tokens: tuple[int, ...], contract: Contract = CONTRACT, prompt: tuple[int, ...] = PROMPT) -> bytes:
    return extend_all(prefix_digest(contract_digest(contract.to_plain()), prompt), tokens)


def assignment(contract: Contract = CONTRACT, output: tuple[int, ...] = (), **members: Any) -> Assignment:
    given: dict[str, Any] = {
        "session": SESSION,
        "epoch": 1,
        "contract": contract,
        "verifier": "https://verifier",
        "drafter": "https://drafter/d",
        "prompt": PROMPT,
        "round": 0,
        "committed": len(output),
        "digest": digest(output, contract),
        "m_init": 4,
    }
    return Assignment(**{**given, **members})


class Bench:
    """A machine, what it has said so far, and the verifier's side of the story."""

    def __init__(self, contract: Contract = CONTRACT, patience: Patience | None = None) -> None:
        self.contract = contract
        self.machine = DrafterSession(MODEL, patience)
        self.output: tuple[int, ...] = ()

    def tell(self, *events: Any) -> list[Any]:
        """Hand in events; return the effects of the last one."""
        effects: list[Any] = []
        for event in events:
            effects = self.machine.handle(event)
        return effects

    def assign(self, request: int = 1, output: tuple[int, ...] = (), **members: Any) -> list[Any]:
        self.output = output
        return self.tell(AssignmentReceived(request, assignment(self.contract, output, **members)))

    def proposed(self, tokens: tuple[int, ...] = (7, 8, 9), **members: Any) -> Proposal:
        """Assign, draft these tokens, write rows under rule 2; return the proposal that goes out."""
        (draft,) = of(self.assign(**members), Draft)
        return self.draft(draft.round, tokens)

    def draft(self, round_: int, tokens: tuple[int, ...], token_ms: float = 0.001) -> Proposal:
        effects = self.tell(Drafted(round_, tokens, token_ms))
        if self.contract.rule == 2:
            assert of(effects, WriteRows) == [WriteRows(round_, len(tokens))]
            effects = self.tell(RowsWritten(round_, f"mlc:rows-{round_}", 1.0))
        (sent,) = of(effects, SendProposal)
        return sent.message

    def verdict(self, proposal: Proposal, accepted: int, emitted: tuple[int, ...], **members: Any) -> Verdict:
        """What an honest verifier would say; `members` make it say something else."""
        self.output = self.output[: proposal.base] + emitted
        given: dict[str, Any] = {
            "session": SESSION,
            "epoch": proposal.epoch,
            "round": proposal.round,
            "accepted": accepted,
            "emitted": emitted,
            "committed": len(self.output),
            "digest": digest(self.output, self.contract),
            "action": Action.CONTINUE,
            "m_cap": 4,
            "low": 0,
            "load": 0,
        }
        return Verdict(**{**given, **members})

    def judge(self, proposal: Proposal, accepted: int, emitted: tuple[int, ...], **members: Any) -> list[Any]:
        return self.tell(VerdictReceived(self.verdict(proposal, accepted, emitted, **members), 10.0))


def closed_with_503() -> errors.ProblemError:
    """A type says more than the status that it came with."""
    error = errors.SessionClosed("over")
    error.status = 503
    return error


def of(effects: list[Any], kind: type) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def sampled(contract: Contract = CONTRACT) -> Contract:
    return replace(contract, rule=2)


# -- joining (6.1, D9a, D20) -------------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.1-assignment-carries-state", "S6.2-own-kv-cache", "S5.1-post-assignments")
def test_an_assignment_with_everything_in_it_is_taken_and_the_first_draft_begins() -> None:
    bench = Bench()
    reply, draft = bench.assign(request=5)
    assert reply == Reply(5, None)
    assert (draft.round, list(draft.prefix[: draft.length]), draft.rule) == (1, [1, 2, 3], 1)
    assert bench.machine.epoch == 1


@pytest.mark.decision("D20-validated")
def test_prompt_and_committed_tokens_are_fetched_and_checked_before_the_204() -> None:
    bench = Bench()
    effects = bench.assign(output=(4, 5), prompt="mlc:p", committed_tokens="mlc:o", round=2)
    assert [effect.ref for effect in effects] == ["mlc:p"]
    effects = bench.tell(TokensFetched("mlc:p", PROMPT))
    assert [effect.ref for effect in effects] == ["mlc:o"]
    assert effects[0].at_most >= 2 * 5 + 1
    reply, draft = bench.tell(TokensFetched("mlc:o", (4, 5)))
    assert reply == Reply(1, None)
    assert (draft.round, list(draft.prefix[: draft.length])) == (3, [1, 2, 3, 4, 5])


@pytest.mark.decision("D9a", "D20")
def test_without_committed_tokens_the_output_comes_from_the_verifier() -> None:
    bench = Bench()
    assert bench.assign(output=(4, 5), round=2) == [FetchOutput("https://verifier", SESSION, 0)]
    reply, draft = bench.tell(OutputFetched(0, (4, 5, 6), 1, False))
    assert reply == Reply(1, None)
    assert list(draft.prefix[: draft.length]) == [1, 2, 3, 4, 5]


@pytest.mark.requirement("S6.9-new-drafter-starts")
@pytest.mark.decision("D20-validated")
@pytest.mark.parametrize("tokens", [(4,), (4, 6), (4, 5, 6)])
def test_committed_tokens_that_do_not_have_the_digest_are_refused_with_422(tokens: tuple[int, ...]) -> None:
    bench = Bench()
    bench.assign(output=(4, 5), committed_tokens="mlc:o")
    refused, ended = bench.tell(TokensFetched("mlc:o", tokens))
    assert refused.error.status == 422
    assert isinstance(ended, EndSession)
    assert bench.machine.epoch is None


@pytest.mark.decision("D20")
@pytest.mark.requirement("S4.2-chain-start")
def test_a_prompt_that_does_not_have_d0_is_refused_with_422() -> None:
    refused, _ = Bench().assign(prompt=(1, 2, 4))
    assert refused.error.status == 422


@pytest.mark.decision("D20-validated")
@pytest.mark.parametrize("error", [errors.Overloaded("gone"), errors.InvalidContent("not tokens")])
def test_an_object_that_cannot_be_had_is_refused_as_the_cache_says(error: errors.ProblemError) -> None:
    bench = Bench()
    bench.assign(request=3, prompt="mlc:p")
    assert bench.tell(TokensUnavailable("mlc:p", error)) == [Refuse(3, error), EndSession()]


@pytest.mark.decision("D9a", "D20")
@pytest.mark.parametrize(
    ("event", "status"),
    [
        (OutputUnavailable(None), 503),
        (OutputUnavailable(errors.NotAssigned("no")), 503),
        (OutputUnavailable(errors.StaleEpoch("old")), 409),
        (OutputFetched(0, (4,), 1, False), 503),
        (OutputFetched(0, (4, 5), 2, False), 409),
        (OutputFetched(0, (4, 6), 1, False), 422),
    ],
)
def test_output_that_cannot_be_had_or_does_not_fit_is_refused(event: Any, status: int) -> None:
    bench = Bench()
    bench.assign(output=(4, 5))
    refused, _ = bench.tell(event)
    assert refused.error.status == status


@pytest.mark.requirement("S6.1-drafter-permitted")
@pytest.mark.decision("D20-validated")
def test_a_contract_that_does_not_permit_our_model_is_refused_with_422() -> None:
    (refused,) = Bench(replace(CONTRACT, drafters=(b"x" * 32,))).assign()
    assert (refused.error.status, refused.error.suffix) == (422, None)


@pytest.mark.requirement("S4.1-drafters-absent")
@pytest.mark.parametrize("drafters", [None, (b"x" * 32, b"m" * 32)])
def test_a_contract_that_permits_our_model_is_taken(drafters: tuple[bytes, ...] | None) -> None:
    assert of(Bench(replace(CONTRACT, drafters=drafters)).assign(), Reply)


@pytest.mark.decision("D5", "D20")
@pytest.mark.parametrize(
    "contract",
    [
        replace(CONTRACT, tokenizer=b"x" * 32),
        replace(CONTRACT, rule=3),
        replace(CONTRACT, max_new=48),  # prompt and output over the context of 50
    ],
)
def test_what_this_drafter_cannot_serve_is_refused_with_422(contract: Contract) -> None:
    assert [refused.error.status for refused in of(Bench(contract).assign(), Refuse)] == [422]


@pytest.mark.decision("D20")
def test_more_committed_than_max_new_is_refused_with_422() -> None:
    (refused,) = Bench(replace(CONTRACT, max_new=1)).assign(output=(4, 5), committed_tokens="mlc:o")
    assert refused.error.status == 422


@pytest.mark.decision("D5")
def test_a_token_not_below_v_is_refused_with_422() -> None:
    bench = Bench()
    message = assignment(prompt=(1, 100), digest=digest((), prompt=(1, 100)))
    refused, _ = bench.tell(AssignmentReceived(1, message))
    assert refused.error.status == 422


def test_a_refused_assignment_leaves_the_session_as_it_was() -> None:
    bench = Bench()
    proposal = bench.proposed()
    bad = assignment(replace(CONTRACT, rule=9), epoch=2)
    assert [type(effect) for effect in bench.tell(AssignmentReceived(2, bad))] == [Refuse]
    assert bench.machine.epoch == 1
    assert of(bench.judge(proposal, 3, (7, 8, 9, 10)), Draft)


def test_an_assignment_whose_output_is_complete_ends_at_once() -> None:
    contract = replace(CONTRACT, max_new=2)
    effects = Bench(contract).tell(
        AssignmentReceived(1, assignment(contract, (4, 5), committed_tokens="mlc:o")), TokensFetched("mlc:o", (4, 5))
    )
    assert effects == [Reply(1, None), EndSession()]


# -- rounds (6.2) ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.2-proposal-base", "S6.2-proposal-round", "S4.2-proposal-states-prefix", "S5.2-proposal")
def test_a_proposal_extends_the_prefix_last_learned_in_the_round_after_the_last() -> None:
    bench = Bench()
    bench.assign(output=(4, 5), committed_tokens="mlc:o", round=6)
    bench.tell(TokensFetched("mlc:o", (4, 5)))
    proposal = bench.draft(7, (7, 8))
    assert (proposal.session, proposal.epoch, proposal.round) == (SESSION, 1, 7)
    assert (proposal.base, proposal.base_digest) == (2, digest((4, 5)))
    assert (proposal.tokens, proposal.drafter, proposal.q_rows) == ((7, 8), "https://drafter/d", None)
    draft = of(bench.judge(proposal, 1, (7, 20)), Draft)[0]
    proposal = bench.draft(draft.round, (9,))
    assert (proposal.round, proposal.base, proposal.base_digest) == (8, 4, digest((4, 5, 7, 20)))


@pytest.mark.requirement("S6.2-m-range", "S6.2-m-cap-source")
@pytest.mark.parametrize(("m_init", "count"), [(0, 1), (1, 1), (4, 4), (8, 8), (99, 8)])
def test_before_the_first_verdict_the_limit_is_m_init_within_m_max(m_init: int, count: int) -> None:
    (draft,) = of(Bench().assign(m_init=m_init), Draft)
    assert draft.count == count


@pytest.mark.requirement("S6.2-m-range", "S6.2-m-cap-source", "S6.5.1-m-cap-range")
@pytest.mark.parametrize(("m_cap", "most"), [(0, 1), (1, 1), (2, 2), (200, 8)])
def test_after_a_verdict_the_limit_is_its_m_cap_within_m_max(m_cap: int, most: int) -> None:
    bench = Bench()
    effects = bench.judge(bench.proposed(), 3, (7, 8, 9, 10), m_cap=m_cap)
    assert [draft.count for draft in of(effects, Draft)] == [most]  # a costly verification makes M as long as may be


@pytest.mark.decision("D14")
@pytest.mark.parametrize(("max_new", "count"), [(1, 1), (2, 1), (3, 2), (5, 4), (6, 4)])
def test_no_more_is_drafted_than_the_additional_token_leaves_room_for(max_new: int, count: int) -> None:
    (draft,) = of(Bench(replace(CONTRACT, max_new=max_new)).assign(), Draft)
    assert draft.count == count


@pytest.mark.requirement("S6.2-choice-local", "S6.2-length-rule", "S6.2-length-maximizes", "S6.2-loaded-proposes-fewer")
def test_a_slow_drafter_proposes_fewer() -> None:
    counts = []
    for token_ms in (0.1, 1000.0):
        bench = Bench()
        (draft,) = of(bench.assign(), Draft)
        proposal = bench.draft(draft.round, (7, 8, 9), token_ms)
        counts += [draft.count for draft in of(bench.judge(proposal, 3, (7, 8, 9, 10)), Draft)]
    assert counts == [4, 1]


@pytest.mark.requirement("S6.2-length-terms", "S6.2-loaded-proposes-fewer")
def test_a_scarce_cache_makes_the_proposals_short() -> None:
    bench = Bench(sampled())
    bench.assign()
    bench.tell(Drafted(1, (7, 8, 9), 0.1))
    (sent,) = bench.tell(RowsWritten(1, "mlc:rows", 3000.0))
    assert [draft.count for draft in of(bench.judge(sent.message, 3, (7, 8, 9, 10)), Draft)] == [1]


@pytest.mark.requirement(
    "S6.2-artifacts-written", "S6.4-q-rows-carried", "S6.2-leases-until-verdict", "S6.3-leases-released"
)
def test_under_rule_2_rows_are_written_before_the_proposal_and_released_with_the_verdict() -> None:
    bench = Bench(sampled())
    (draft,) = of(bench.assign(), Draft)
    assert bench.tell(Drafted(draft.round, (7, 8), 1.0)) == [WriteRows(1, 2)]
    (sent,) = bench.tell(RowsWritten(1, "mlc:rows", 1.0))
    assert sent.message.q_rows == "mlc:rows"
    assert bench.tell(ProposalUnanswered(1)) == [SetTimer("again", 100)]  # no verdict: the lease is kept
    bench.tell(TimerFired("again"))
    effects = bench.judge(sent.message, 2, (7, 8, 9))
    assert effects[0] == ReleaseRows(1)
    assert of(effects, Draft)


def test_an_engine_that_gives_more_than_asked_is_cut() -> None:
    bench = Bench()
    bench.assign(m_init=2)
    assert bench.draft(1, (7, 8, 9)).tokens == (7, 8)


def test_a_draft_without_tokens_or_with_a_fault_is_tried_again() -> None:
    bench = Bench()
    (draft,) = of(bench.assign(), Draft)
    assert bench.tell(Drafted(1, (), 1.0)) == [SetTimer("again", 100)]
    assert bench.tell(TimerFired("again")) == [draft]
    assert bench.tell(DraftFailed(1, "no memory")) == [SetTimer("again", 200)]


def test_rows_that_cannot_be_written_are_written_again_with_the_same_tokens() -> None:
    bench = Bench(sampled())
    bench.assign()
    bench.tell(Drafted(1, (7, 8), 1.0))
    assert bench.tell(DraftFailed(1, "the cache is full")) == [SetTimer("again", 100)]
    assert bench.tell(TimerFired("again")) == [WriteRows(1, 2)]
    (sent,) = bench.tell(RowsWritten(1, "mlc:rows", 1.0))
    assert sent.message.tokens == (7, 8)


@pytest.mark.requirement("S6.2-prepare-ahead", "S6.2-ahead-sent-when-confirmed", "S6.2-one-outstanding")
def test_between_a_proposal_and_its_verdict_nothing_is_drafted_written_or_sent() -> None:
    bench = Bench(sampled())
    (draft,) = of(bench.assign(), Draft)
    effects = bench.tell(Drafted(draft.round, (7, 8), 1.0), RowsWritten(1, "mlc:rows", 1.0))
    assert [type(effect) for effect in effects] == [SendProposal]
    assert bench.tell(TimerFired("again"), RowsWritten(1, "mlc:late", 1.0)) == []
    effects = bench.judge(effects[0].message, 2, (7, 8, 9))
    assert [type(effect) for effect in effects] == [ReleaseRows, Draft]


# -- verdicts (6.3, 6.5, D9a) ------------------------------------------------------------------------------------------


@pytest.mark.decision("D9a-prefix")
@pytest.mark.requirement("S1.3-sole-commit-authority", "S6.3-draft-state-discarded")
def test_the_prefix_grows_by_what_was_emitted_never_by_our_tokens() -> None:
    bench = Bench()
    (draft,) = of(bench.judge(bench.proposed((7, 8, 9)), 1, (7, 42)), Draft)
    assert list(draft.prefix[: draft.length]) == [1, 2, 3, 7, 42]


@pytest.mark.requirement("S6.5.2-continue", "S6.5.2-reduce")
@pytest.mark.parametrize("action", [Action.CONTINUE, Action.REDUCE])
def test_continue_and_reduce_go_on(action: Action) -> None:
    bench = Bench()
    effects = bench.judge(bench.proposed(), 0, (42,), action=action, m_cap=2)
    assert [draft.count for draft in of(effects, Draft)] == [2]


@pytest.mark.requirement("S6.5.2-switch-stops-drafter", "S6.5.2-self-decode", "S6.5.2-finish", "S6.5.2-fail")
@pytest.mark.parametrize("action", [Action.SWITCH, Action.SELF_DECODE, Action.FINISH, Action.FAIL])
def test_every_other_action_stops_proposing(action: Action) -> None:
    bench = Bench(sampled())
    assert bench.judge(bench.proposed(), 0, (42,), action=action) == [ReleaseRows(1), EndSession()]
    assert bench.machine.epoch is None


def test_a_verdict_that_fills_max_new_ends_the_session_whatever_it_says() -> None:
    bench = Bench(replace(CONTRACT, max_new=2))
    assert bench.judge(bench.proposed((7,)), 1, (7, 8)) == [EndSession()]


@pytest.mark.parametrize("members", [{"round": 9}, {"epoch": 2}, {"session": bytes(range(16, 32))}])
def test_a_verdict_of_another_round_epoch_or_session_is_no_answer(members: dict[str, Any]) -> None:
    bench = Bench()
    proposal = bench.proposed()
    assert bench.judge(proposal, 3, (7, 8, 9, 10), **members) == [SetTimer("again", 100)]
    (sent,) = bench.tell(TimerFired("again"))
    assert sent.message == proposal


@pytest.mark.decision("D9a-prefix")
def test_a_verdict_whose_digest_does_not_fit_makes_the_drafter_fetch_the_output() -> None:
    bench = Bench()
    proposal = bench.proposed()
    bench.output = (30, 31, 32)
    truth = digest((30, 31, 32))
    fetch = bench.tell(
        VerdictReceived(replace(bench.verdict(proposal, 0, (42,)), committed=3, digest=truth, m_cap=2), 1.0)
    )
    assert fetch == [FetchOutput("https://verifier", SESSION, 0)]
    (draft,) = bench.tell(OutputFetched(0, (30, 31, 32), 1, False))
    assert (draft.round, draft.count, list(draft.prefix[: draft.length])) == (2, 2, [1, 2, 3, 30, 31, 32])
    assert bench.draft(2, (5,)).base_digest == truth


@pytest.mark.decision("D9a")
def test_a_verdict_that_contradicts_the_output_ends_the_session() -> None:
    bench = Bench()
    bench.judge(bench.proposed(), 0, (42,), digest=b"x" * 32)
    assert bench.tell(OutputFetched(0, (42,), 1, False)) == [EndSession()]


@pytest.mark.decision("D5-range", "D9a")
def test_emitted_tokens_beyond_32_bits_fit_no_digest() -> None:
    bench = Bench()
    proposal = bench.proposed()
    verdict = replace(bench.verdict(proposal, 0, (42,)), emitted=(2**32,))
    assert of(bench.tell(VerdictReceived(verdict, 1.0)), FetchOutput)
    assert bench.tell(OutputFetched(0, (2**32,), 1, False)) == [EndSession()]


@pytest.mark.decision("D9a-prefix")
def test_a_verdict_whose_count_does_not_fit_is_doubted_too() -> None:
    bench = Bench()
    effects = bench.judge(bench.proposed(), 0, (42,), committed=2)
    assert of(effects, FetchOutput)


@pytest.mark.decision("D9a")
def test_of_the_output_only_what_the_verdict_committed_is_taken() -> None:
    bench = Bench()
    proposal = bench.proposed()
    verdict = replace(bench.verdict(proposal, 0, (42,)), committed=2, digest=digest((30, 31)))
    bench.tell(VerdictReceived(verdict, 1.0))
    (draft,) = bench.tell(OutputFetched(0, (30, 31, 32), 1, False))
    assert list(draft.prefix[: draft.length]) == [1, 2, 3, 30, 31]


# -- lost and refused proposals (6.9, Table 2) -------------------------------------------------------------------------


@pytest.mark.requirement("S6.9-lost-verdict-retried", "S6.2-one-outstanding")
def test_an_unanswered_proposal_is_sent_again_unchanged_after_growing_delays() -> None:
    bench = Bench(patience=Patience(first_ms=10, longest_ms=50, tries=4))
    proposal = bench.proposed()
    for delay_ms in (10, 20, 40, 50):
        assert bench.tell(ProposalUnanswered(1)) == [SetTimer("again", delay_ms)]
        assert bench.tell(TimerFired("again")) == [SendProposal("https://verifier", proposal)]
    assert bench.tell(ProposalUnanswered(1)) == [EndSession()]


@pytest.mark.requirement("S6.9-lost-verdict-retried")
def test_patience_begins_anew_with_every_verdict_and_meanwhile_nothing_else_is_heard() -> None:
    bench = Bench()
    proposal = bench.proposed()
    assert bench.tell(ProposalUnanswered(1)) == [SetTimer("again", 100)]
    assert bench.tell(ProposalUnanswered(1)) == []
    assert bench.judge(proposal, 3, (7, 8, 9, 10)) == []  # nobody waits for it now; it comes again with the next try
    bench.output = ()
    bench.tell(TimerFired("again"))
    (draft,) = bench.judge(proposal, 3, (7, 8, 9, 10))
    bench.draft(draft.round, (5,))
    assert bench.tell(ProposalUnanswered(2)) == [SetTimer("again", 100)]


@pytest.mark.requirement("S5.1-unlisted-status", "S6.9-lost-verdict-retried")
@pytest.mark.parametrize("status", [408, 429, 500, 503, 599])
def test_a_refusal_that_passes_is_met_with_the_same_proposal_later(status: int) -> None:
    bench = Bench()
    proposal = bench.proposed()
    error = errors.ProblemError("busy")
    error.status = status
    assert bench.tell(ProposalRefused(1, error)) == [SetTimer("again", 100)]
    assert bench.tell(TimerFired("again")) == [SendProposal("https://verifier", proposal)]


@pytest.mark.requirement("S5.1-unlisted-status")
@pytest.mark.parametrize(
    "error",
    [
        errors.StaleEpoch("old"),
        errors.SessionClosed("over"),
        errors.NotAssigned("other"),
        errors.UnknownResource("restarted"),
        errors.Forbidden("role"),
        errors.MalformedBody("what"),
        errors.Conflict("hm"),
        closed_with_503(),
    ],
)
def test_a_refusal_that_stays_ends_the_session_and_releases_the_rows(error: errors.ProblemError) -> None:
    bench = Bench(sampled())
    bench.proposed()
    assert bench.tell(ProposalRefused(1, error)) == [ReleaseRows(1), EndSession()]


@pytest.mark.decision("D2", "D9a")
@pytest.mark.requirement("S6.9-problem-stale-base")
def test_stale_base_makes_the_drafter_fetch_the_output_and_go_on_from_there() -> None:
    bench = Bench()
    bench.proposed()
    fetch = bench.tell(ProposalRefused(1, errors.StaleBase("behind"), last_round=5))
    assert fetch == [FetchOutput("https://verifier", SESSION, 0)]
    (draft,) = bench.tell(OutputFetched(0, (30, 31), 1, False))
    proposal = bench.draft(draft.round, (5,))
    assert (proposal.round, proposal.base, proposal.base_digest) == (6, 2, digest((30, 31)))


@pytest.mark.decision("D2-not-needed", "D9a")
def test_without_a_state_in_the_problem_the_round_of_a_later_assignment_serves() -> None:
    bench = Bench()
    bench.proposed()
    again = assignment(output=(30,), round=3)
    assert bench.tell(AssignmentReceived(2, again)) == [Reply(2, None)]
    bench.tell(ProposalRefused(1, errors.StaleBase("behind")))
    (draft,) = bench.tell(OutputFetched(0, (30,), 1, False))
    assert draft.round == 4


@pytest.mark.requirement("S6.3-leases-released")
def test_rows_of_a_proposal_that_was_stale_are_released() -> None:
    bench = Bench(sampled())
    bench.proposed()
    effects = bench.tell(ProposalRefused(1, errors.StaleBase("behind")))
    assert effects == [ReleaseRows(1), FetchOutput("https://verifier", SESSION, 0)]


@pytest.mark.decision("D9a")
def test_being_behind_is_forgiven_with_every_verdict() -> None:
    bench = Bench()
    proposal = bench.proposed()
    for round_ in (1, 2):
        for _ in range(3):
            bench.tell(ProposalRefused(round_, errors.StaleBase("behind")))
            (draft,) = bench.tell(OutputFetched(0, bench.output, 1, False))
            proposal = bench.draft(draft.round, (5,))
        (draft,) = of(bench.judge(proposal, 1, (5, 6)), Draft)
        bench.draft(draft.round, (5,))
    assert bench.machine.proposing


@pytest.mark.decision("D9a")
def test_a_drafter_that_stays_behind_gives_up() -> None:
    bench = Bench()
    bench.proposed()
    for _ in range(3):
        bench.tell(ProposalRefused(1, errors.StaleBase("behind")))
        (draft,) = bench.tell(OutputFetched(0, (), 1, False))
        bench.draft(draft.round, (5,))
    assert bench.tell(ProposalRefused(1, errors.StaleBase("behind"))) == [EndSession()]


@pytest.mark.decision("D9a")
@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (OutputFetched(0, (30,), 2, False), [EndSession()]),
        (OutputFetched(0, (30,), 1, True), [EndSession()]),
        (OutputFetched(0, (30,), 0, False), [SetTimer("again", 100)]),
        (OutputFetched(3, (30,), 1, False), [SetTimer("again", 100)]),
        (OutputFetched(0, (2**32,), 1, False), [EndSession()]),
        (OutputFetched(0, tuple(range(30)), 1, False), [EndSession()]),
        (OutputUnavailable(None), [SetTimer("again", 100)]),
        (OutputUnavailable(errors.Overloaded("busy")), [SetTimer("again", 100)]),
        (OutputUnavailable(errors.NotAssigned("other")), [EndSession()]),
        (OutputUnavailable(errors.StaleEpoch("old")), [EndSession()]),
    ],
)
def test_what_the_output_says_while_resynchronizing(event: Any, expected: list[Any]) -> None:
    bench = Bench()
    bench.proposed()
    bench.tell(ProposalRefused(1, errors.StaleBase("behind")))
    assert bench.tell(event) == expected


@pytest.mark.requirement("S6.9-problem-q-unavailable")
@pytest.mark.decision("D31-one-sample")
def test_unavailable_rows_are_written_again_for_the_same_tokens_and_not_for_ever() -> None:
    bench = Bench(sampled())
    proposal = bench.proposed((7, 8))
    for count in range(3):
        assert of(bench.tell(ProposalRefused(1, errors.QUnavailable("evicted"))), SetTimer)
        assert bench.tell(TimerFired("again")) == [WriteRows(1, 2)]
        (sent,) = bench.tell(RowsWritten(1, f"mlc:again-{count}", 1.0))
        assert sent.message == replace(proposal, q_rows=f"mlc:again-{count}")
    assert bench.tell(ProposalRefused(1, errors.QUnavailable("evicted"))) == [ReleaseRows(1), EndSession()]


def test_under_rule_1_there_are_no_rows_to_write_again() -> None:
    bench = Bench()
    bench.proposed()
    assert bench.tell(ProposalRefused(1, errors.QUnavailable("what rows?"))) == [EndSession()]


@pytest.mark.requirement("S6.9-problem-limit")
@pytest.mark.decision("D16-refused", "D31")
def test_a_drafter_refused_sdcp_limit_proposes_the_first_token_alone() -> None:
    bench = Bench(sampled())
    bench.proposed((7, 8, 9))
    assert bench.tell(ProposalRefused(1, errors.Limit("3 > 2"))) == [WriteRows(1, 1)]
    (sent,) = bench.tell(RowsWritten(1, "mlc:one", 1.0))
    assert (sent.message.tokens, sent.message.q_rows, sent.message.round) == ((7,), "mlc:one", 1)
    assert bench.tell(ProposalRefused(1, errors.Limit("1 > 0"))) == [ReleaseRows(1), EndSession()]


@pytest.mark.decision("D16")
def test_under_rule_1_the_shortened_proposal_goes_out_at_once() -> None:
    bench = Bench()
    bench.proposed((7, 8, 9))
    (sent,) = bench.tell(ProposalRefused(1, errors.Limit("3 > 2")))
    assert sent.message.tokens == (7,)


@pytest.mark.requirement("S6.9-problem-bad-proposal")
def test_a_bad_proposal_is_drawn_anew_once() -> None:
    bench = Bench(sampled())
    bench.proposed((7, 8))
    released, draft = bench.tell(ProposalRefused(1, errors.BadProposal("zero")))
    assert (released, draft.round) == (ReleaseRows(1), 1)
    assert bench.draft(1, (9, 9)).tokens == (9, 9)
    assert bench.tell(ProposalRefused(1, errors.BadProposal("zero"))) == [ReleaseRows(1), EndSession()]


# -- assignments to a session that is held (D21, D28) ------------------------------------------------------------------


@pytest.mark.decision("D21-drafter")
@pytest.mark.requirement("S5.2-assignment-sampling", "S6.6-in-assignments")
def test_an_assignment_of_the_same_epoch_brings_its_profile_and_nothing_else() -> None:
    bench = Bench()
    proposal = bench.proposed(m_init=2)
    profile = Sampling(temperature_milli=700)
    again = assignment(round=0, m_init=8, sampling=profile)
    assert bench.tell(AssignmentReceived(9, again)) == [Reply(9, None)]
    (draft,) = of(bench.judge(proposal, 0, (42,), m_cap=2), Draft)
    assert (draft.profile, draft.count, draft.round) == (profile, 2, 2)


@pytest.mark.decision("D21-drafter")
def test_an_older_assignment_does_not_roll_the_profile_back() -> None:
    bench = Bench()
    proposal = bench.proposed()
    new, old = Sampling(temperature_milli=700), Sampling(temperature_milli=100)
    bench.tell(AssignmentReceived(2, assignment(round=3, output=(4,), sampling=new)))
    bench.tell(AssignmentReceived(3, assignment(round=2, sampling=old)))
    bench.tell(AssignmentReceived(4, assignment(round=3, output=(4,))))
    (draft,) = of(bench.judge(proposal, 0, (42,)), Draft)
    assert draft.profile == new


@pytest.mark.decision("D21")
def test_the_profile_in_force_is_that_of_the_assignment_else_of_the_contract() -> None:
    contract = replace(CONTRACT, sampling=Sampling(top_k=5))
    (draft,) = of(Bench(contract).assign(), Draft)
    assert draft.profile == Sampling(top_k=5)
    (draft,) = of(Bench(contract).assign(sampling=Sampling(top_k=6)), Draft)
    assert draft.profile == Sampling(top_k=6)


@pytest.mark.requirement("S4.1-contract-never-modified", "S4.1-contract-fixed")
def test_an_assignment_of_the_same_epoch_with_another_contract_is_refused() -> None:
    bench = Bench()
    bench.proposed()
    (refused,) = bench.tell(AssignmentReceived(2, assignment(replace(CONTRACT, m_max=9))))
    assert refused.error.status == 422


@pytest.mark.decision("D28")
def test_an_assignment_of_a_lower_epoch_is_refused_with_stale_epoch() -> None:
    bench = Bench()
    bench.assign(epoch=3)
    (refused,) = bench.tell(AssignmentReceived(2, assignment(epoch=2)))
    assert isinstance(refused.error, errors.StaleEpoch)
    assert bench.machine.epoch == 3


@pytest.mark.decision("D28-higher-epoch")
@pytest.mark.requirement("S6.9-reassigned-after-resume")
def test_a_higher_epoch_ends_the_outstanding_proposal() -> None:
    bench = Bench(sampled())
    proposal = bench.proposed()
    again = assignment(sampled(), epoch=2, verifier="https://other")
    abandoned, released, reply, draft = bench.tell(AssignmentReceived(2, again))
    assert (abandoned, released, reply) == (Abandon(), ReleaseRows(1), Reply(2, None))
    assert draft.round == 1
    assert bench.judge(proposal, 3, (7, 8, 9, 10)) == []  # of the old epoch: nothing waits for it
    sent = bench.draft(1, (7, 8))
    assert (sent.epoch, bench.machine.epoch) == (2, 2)


@pytest.mark.decision("D28")
def test_a_higher_epoch_ends_the_wait_for_the_next_try() -> None:
    bench = Bench()
    bench.proposed()
    bench.tell(ProposalUnanswered(1))
    effects = bench.tell(AssignmentReceived(2, assignment(epoch=2)))
    assert effects[:2] == [CancelTimer("again"), Abandon()]
    assert bench.tell(TimerFired("again")) == []


@pytest.mark.decision("D28")
def test_a_higher_epoch_refuses_those_who_wait_for_the_lower_one() -> None:
    bench = Bench()
    bench.assign(request=1, prompt="mlc:p")
    refused, abandoned, wanted = bench.tell(AssignmentReceived(2, assignment(epoch=2, prompt="mlc:p2")))
    assert (refused.request, type(refused.error), abandoned) == (1, errors.StaleEpoch, Abandon())
    assert wanted.ref == "mlc:p2"
    assert bench.tell(TokensFetched("mlc:p", PROMPT)) == []
    assert of(bench.tell(TokensFetched("mlc:p2", PROMPT)), Reply) == [Reply(2, None)]


def test_repeated_assignments_while_joining_are_answered_together_with_the_latest_profile() -> None:
    bench = Bench()
    bench.assign(request=1, prompt="mlc:p")
    again = assignment(prompt="mlc:p", sampling=Sampling(top_k=3))
    assert bench.tell(AssignmentReceived(2, again), RequestCancelled(1)) == []
    reply, draft = bench.tell(TokensFetched("mlc:p", PROMPT))
    assert (reply, draft.profile) == (Reply(2, None), Sampling(top_k=3))


@pytest.mark.requirement("S6.9-new-drafter-starts")
def test_after_its_end_a_session_can_be_assigned_afresh() -> None:
    bench = Bench()
    proposal = bench.proposed()
    bench.judge(proposal, 0, (42,), action=Action.SWITCH)
    bench.assign(output=(42, 43), committed_tokens="mlc:o", round=4)
    reply, draft = bench.tell(TokensFetched("mlc:o", (42, 43)))
    assert (reply, draft.round, draft.count) == (Reply(1, None), 5, 4)


# -- going down --------------------------------------------------------------------------------------------------------


def test_a_drafter_that_goes_down_waits_for_its_verdict_and_drafts_no_more() -> None:
    bench = Bench()
    proposal = bench.proposed()
    assert bench.tell(StopRequested()) == []
    assert bench.machine.proposing
    assert bench.judge(proposal, 3, (7, 8, 9, 10)) == [EndSession()]


def test_without_a_proposal_it_goes_down_at_once() -> None:
    bench = Bench()
    bench.assign()
    assert bench.tell(StopRequested()) == [EndSession()]


def test_a_wait_for_the_next_try_ends_when_it_goes_down() -> None:
    bench = Bench()
    bench.assign()
    bench.tell(DraftFailed(1, "no memory"))
    assert bench.tell(StopRequested()) == [CancelTimer("again"), EndSession()]


def test_going_down_refuses_what_is_being_joined() -> None:
    bench = Bench()
    bench.assign(request=4, prompt="mlc:p")
    refused, ended = bench.tell(StopRequested())
    assert (refused.request, refused.error.status, ended) == (4, 503, EndSession())


# -- what nobody asked for ---------------------------------------------------------------------------------------------

UNASKED = [
    Drafted(1, (9, 9), 1.0),
    Drafted(7, (9, 9), 1.0),
    DraftFailed(1, "?"),
    RowsWritten(1, "mlc:x", 1.0),
    ProposalRefused(2, errors.StaleEpoch("?")),
    ProposalUnanswered(2),
    OutputFetched(0, (1,), 9, True),
    OutputUnavailable(None),
    TimerFired("again"),
    TokensFetched("mlc:p", (1,)),
    TokensUnavailable("mlc:p", errors.Overloaded("?")),
    RequestCancelled(1),
]


@pytest.mark.parametrize("event", UNASKED)
def test_an_answer_that_nobody_waits_for_changes_nothing(event: Any) -> None:
    bench = Bench()
    proposal = bench.proposed()
    assert bench.tell(event) == []
    assert of(bench.judge(proposal, 3, (7, 8, 9, 10)), Draft)


@pytest.mark.parametrize("event", [*UNASKED, StopRequested()])
def test_a_machine_that_holds_nothing_does_nothing(event: Any) -> None:
    assert of(Bench().tell(event), Draft) == []


def test_a_fetch_knows_its_object() -> None:
    bench = Bench()
    (wanted,) = bench.assign(prompt="mlc:p")
    assert isinstance(wanted, FetchTokens)
    assert bench.tell(TokensFetched("mlc:other", PROMPT), OutputFetched(0, (), 1, False)) == []
