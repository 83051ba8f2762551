"""Every type of Table 2 at a verifier, from outside, and that a refused request changed nothing (6.3, D2, D12, D13).

`sdcp-bad-contract` has a file of its own, test_contract.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import numpy as np
import pytest

from sdcp.wire import cbor
from tests.shells.refusals.expected import check_refused
from tests.shells.refusals.played_cache import always, never, played
from tests.shells.refusals.processes import V
from tests.shells.refusals.session import CONTINUE, FAIL, REDUCE, SELF_DECODE, SWITCH, Act, Session, acts
from tests.shells.refusals.town import DRAFTER, OTHER, Town

pytestmark = pytest.mark.asyncio(loop_scope="session")

UNIFORM = np.full((2, V), 1 / V, np.float32)


async def check_stays(session: Session, act: Act, kind: str, says: str = "") -> dict[str, Any]:
    """The request is refused so, nothing has changed, and the right proposal is taken afterwards."""
    before = await session.everything()
    problem = check_refused(await act(session), kind, says)
    assert await session.everything() == before
    await session.advance()
    return problem


# -- sdcp-stale-epoch --------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.9-problem-stale-epoch", "S6.3-fencing", "S6.9-older-epoch-rejected")
@pytest.mark.decision("D1-form", "D28")
@acts(
    proposal_lower=lambda s: s.propose(epoch=s.epoch - 1),
    proposal_higher=lambda s: s.propose(epoch=s.epoch + 1),
    proposal_of_another_epoch_and_base=lambda s: s.propose(epoch=s.epoch + 1, base=0, tokens=[V]),
    assignment_lower=lambda s: s.assign(epoch=s.epoch - 1),
    assignment_higher=lambda s: s.assign(epoch=s.epoch + 1, drafter=OTHER),
)
async def test_another_epoch_than_the_session_has(town: Town, act: Act) -> None:
    session = await Session(town).begin()
    await check_stays(session, act, "sdcp-stale-epoch", "epoch is 1")
    await session.fail_over()
    await session.assign()
    await check_stays(session, act, "sdcp-stale-epoch", "epoch is 2")


@pytest.mark.requirement("S6.9-problem-stale-epoch", "S6.9-older-epoch-rejected")
@pytest.mark.decision("D19-lower-epoch")
async def test_an_open_of_an_epoch_that_is_over(town: Town) -> None:
    session = await Session(town).begin()
    first = session.opening()
    await session.fail_over()
    await session.assign()
    await check_stays(session, lambda s: town.ask("router", "POST", f"{s.base}/sessions", first), "sdcp-stale-epoch")
    fenced = Session(town)
    await town.append(fenced.log, {"epoch": 2})
    check_refused(await fenced.open(), "sdcp-stale-epoch", "fenced at epoch 2")


EVERY_REQUEST = {
    "proposal": lambda s: s.propose(),
    "assignment": lambda s: s.assign(),
    "policy": lambda s: s.set_policy(),
    "open": lambda s: s.open(),
    "output": lambda s: s.read(),
    "output to the router": lambda s: s.read(who="router"),
    "output to the drafter": lambda s: s.read(who="drafter"),
}


@pytest.mark.requirement("S6.3-fenced-append", "S6.9-fence-first")
@pytest.mark.decision("D30-stale-epoch")
async def test_a_fenced_session_answers_every_request_so(town: Town) -> None:
    session = await Session(town).begin()
    reader = asyncio.create_task(session.read(len(session.output), wait_s=25))
    await session.fence(2)
    log = await town.read_log(session.log)
    check_refused(await session.propose(), "sdcp-stale-epoch", "Epoch 1 of the session is over")
    check_refused(await reader, "sdcp-stale-epoch")
    for act in EVERY_REQUEST.values():
        check_refused(await act(session), "sdcp-stale-epoch")
    assert await town.read_log(session.log) == log


@pytest.mark.requirement("S6.3-idempotency", "S6.9-lost-verdict-retried")
@pytest.mark.decision("D12")
@acts(
    the_same=lambda s: s.propose(round=1, base=0, base_digest=s.digest_of(0)),
    of_another_base=lambda s: s.propose(round=1),
    of_other_tokens=lambda s: s.propose(round=1, tokens=s.wrong_tokens()),
    of_tokens_that_are_none=lambda s: s.propose(round=1, tokens=[V] * 65),
    of_rows_that_are_not_there=lambda s: s.propose(round=1, q_rows=s.town.new_name("objects")),
)
@pytest.mark.parametrize("rule", [1, 2])
async def test_a_round_that_has_its_verdict_is_answered_with_it_and_not_refused(
    town: Town, act: Act, rule: int
) -> None:
    session = await Session(town, rule=rule).begin(rounds=0)
    first = await session.advance()
    await session.advance()
    before = await session.everything()
    answer = await act(session)
    assert (answer.status, cbor.decode(answer.body)) == (200, first)
    assert await session.everything() == before


# -- sdcp-stale-base ---------------------------------------------------------------------------------------------------


def in_json(state: dict[str, Any]) -> dict[str, Any]:
    """A session-state in the JSON mapping of RFC 8949 section 6.1 (D2)."""
    text = {key: base64.urlsafe_b64encode(state[key]).decode().rstrip("=") for key in ("session", "digest")}
    return {**state, **text}


@pytest.mark.requirement("S6.9-problem-stale-base", "S6.3-base-check", "S6.3-round-check", "S4.2-other-prefix-detected")
@pytest.mark.decision("D2-session-state")
@acts(
    base_behind=lambda s: s.propose(base=0),
    base_behind_with_its_digest=lambda s: s.propose(base=3, base_digest=s.digest_of(3)),
    base_ahead=lambda s: s.propose(base=len(s.output) + 1),
    another_digest=lambda s: s.propose(base_digest=bytes(32)),
    round_ahead=lambda s: s.propose(round=s.round + 2),
    round_that_never_was=lambda s: s.propose(round=0),
    several_faults=lambda s: s.propose(base=0, tokens=[V] * 65),
)
async def test_a_proposal_that_does_not_extend_the_prefix(town: Town, act: Act) -> None:
    session = await Session(town).begin(rounds=2)
    state = in_json(await session.state())
    problem = await check_stays(session, act, "sdcp-stale-base")
    assert problem["session-state"] == state


@pytest.mark.requirement("S6.9-problem-stale-base", "S6.3-base-check", "S6.3-round-check")
@acts(
    base_ahead=lambda s: s.propose(base=1),
    another_digest=lambda s: s.propose(base_digest=bytes(range(32))),
    round_ahead=lambda s: s.propose(round=2),
    round_of_the_open=lambda s: s.propose(round=0),
)
async def test_a_first_proposal_that_does_not_extend_the_prompt(town: Town, act: Act) -> None:
    session = await Session(town).begin(rounds=0)
    problem = await check_stays(session, act, "sdcp-stale-base")
    assert (problem["session-state"]["round"], problem["session-state"]["committed"]) == (0, 0)


@pytest.mark.requirement("S6.9-problem-stale-base", "S6.5.2-self-decode-rounds")
@pytest.mark.decision("D13", "D29-no-verdict")
async def test_a_self_decoded_round_has_no_verdict_and_the_drafter_no_round(town: Town) -> None:
    ladder = {"fallback": [SELF_DECODE], "low_rounds": 1, "self_load": 100, "self_max": 2}
    session = await Session(town, **ladder).begin()
    assert session.learn(await session.propose(tokens=session.wrong_tokens()))["action"] == SELF_DECODE
    for token in session.next_tokens(2):
        assert (await session.read(len(session.output), wait_s=25)).status == 200
        session.round, session.output = session.round + 1, [*session.output, token]
    state = await session.state()
    assert (state["state"], state["round"], state["digest"]) == (2, session.round, session.digest)
    problem = check_refused(await session.propose(round=session.round), "sdcp-stale-base")
    assert problem["session-state"] == in_json(state)
    check_refused(await session.propose(), "sdcp-not-assigned", "wait for an assignment")
    assert await session.state() == state
    assert (await session.assign()).status == 200
    await session.advance()


# -- sdcp-q-unavailable ------------------------------------------------------------------------------------------------


async def deleted(session: Session) -> str:
    """An object that was there, and is not any more."""
    ref = await session.town.put_object(UNIFORM.tobytes())
    assert (await session.town.ask("drafter", "DELETE", ref)).status == 204
    return ref


def elsewhere(session: Session, change: str, to: str) -> Any:
    """A proposal whose rows are there, but not at the URI that names them."""

    async def propose() -> Any:
        ref = await session.town.put_object(UNIFORM.tobytes())
        assert change in ref
        return await session.propose(q_rows=ref.replace(change, to))

    return propose()


@pytest.mark.requirement("S6.9-problem-q-unavailable", "S6.3-q-unavailable")
@pytest.mark.decision("D11-prefixes")
@acts(
    never_there=lambda s: s.propose(q_rows=s.town.new_name("objects")),
    no_longer_there=lambda s: with_rows(s, deleted),
    cache_that_is_down=lambda s: s.propose(q_rows=s.town.new_name("objects", "elsewhere")),
    another_host=lambda s: elsewhere(s, "127.0.0.1", "localhost"),
    another_path=lambda s: elsewhere(s, "/v1/", "/"),
    another_scheme=lambda s: elsewhere(s, "https:", "http:"),
    a_log=lambda s: s.propose(q_rows=s.log),
    dots_out_of_the_prefix=lambda s: elsewhere(s, "/objects/", "/objects/../../objects/"),
    a_query=lambda s: elsewhere(s, "/objects/t", "/objects?x=/t"),
    the_bare_prefix=lambda s: s.propose(q_rows=s.town.bases["cache"]),
    the_prefix_as_a_beginning=lambda s: elsewhere(s, "/v1/objects", "/v1.evil/objects"),
    no_uri_at_all=lambda s: s.propose(q_rows="rows"),
    nothing=lambda s: s.propose(q_rows=""),
)
async def test_rows_that_cannot_be_obtained(town: Town, act: Act) -> None:
    session = await Session(town, rule=2).begin()
    await check_stays(session, act, "sdcp-q-unavailable")


async def with_rows(session: Session, make: Any) -> Any:
    return await session.propose(q_rows=await make(session))


@pytest.mark.requirement("S6.9-problem-q-unavailable", "S6.3-q-unavailable")
@pytest.mark.decision("D11-redirects")
async def test_a_cache_that_redirects_breaks_or_is_another_gives_no_rows(town: Town) -> None:
    session = await Session(town, rule=2).begin()
    there = await town.put_object(UNIFORM.tobytes())
    plays = {
        "redirects": (always(307, b"", ("location", there)), "cache"),
        "breaks": (always(500), "cache"),
        "is no cache": (always(200, UNIFORM.tobytes()), "verifier"),
        "does not answer in time": (never, "cache"),
    }
    for handler, certificate in plays.values():
        async with played(town, handler, certificate):
            ref = town.new_name("objects", "elsewhere")
            await check_stays(session, lambda s, ref=ref: s.propose(q_rows=ref), "sdcp-q-unavailable")


# -- sdcp-limit --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.9-problem-limit", "S6.2-m-range")
@pytest.mark.decision("D12", "D16")
@acts(
    over_m_cap=lambda s: s.propose(tokens=s.next_tokens(3)),
    over_m_max=lambda s: s.propose(tokens=s.next_tokens(5)),
    over_every_m_max=lambda s: s.propose(tokens=s.next_tokens(65)),
    too_many_and_not_below_v=lambda s: s.propose(tokens=[V] * 3),
    too_many_and_rows_for_fewer=lambda s: s.propose_rows(UNIFORM, tokens=s.next_tokens(3)),
)
@pytest.mark.parametrize("rule", [1, 2])
async def test_more_tokens_than_the_limit(town: Town, act: Act, rule: int) -> None:
    session = await Session(town, rule=rule, m_init=2, m_max=4).begin(rounds=0)
    await check_stays(session, act, "sdcp-limit", "at most 2")


@pytest.mark.requirement("S6.9-problem-limit", "S6.5.2-reduce")
@pytest.mark.decision("D16")
async def test_a_reduced_limit_holds(town: Town) -> None:
    session = await Session(town, m_init=4, fallback=[REDUCE, FAIL], low_rounds=1).begin(rounds=0)
    assert session.learn(await session.propose(tokens=session.wrong_tokens(4)))["m_cap"] == 2
    await check_stays(session, lambda s: s.propose(tokens=s.next_tokens(3)), "sdcp-limit", "at most 2")


# -- sdcp-bad-proposal -------------------------------------------------------------------------------------------------


def changed_rows(position: int, token: int, value: float) -> Any:
    rows = UNIFORM.copy()
    rows[position, token] = value
    return rows


def sharp(session: Session, *, but: int = 0) -> Any:
    """Rows that have all their weight on one token each: the proposed ones, or `but` the next."""
    rows = np.zeros((2, V), np.float32)
    rows[[0, 1], [(token + but) % V for token in session.next_tokens(2)]] = 1
    return rows


@pytest.mark.requirement(
    "S6.9-problem-bad-proposal", "S6.4-zero-q-rejected", "S6.4-q-rows-carried", "S5.2-q-rows-format"
)
@pytest.mark.decision("D5", "D25-rows")
@acts(
    no_rows=lambda s: s.propose(),
    zero_at_both_tokens=lambda s: s.propose_rows(sharp(s, but=1)),
    zero_at_the_second_token=lambda s: s.propose_rows(np.stack([UNIFORM[0], sharp(s, but=1)[1]])),
    not_a_number=lambda s: s.propose_rows(changed_rows(1, 0, np.nan)),
    infinite=lambda s: s.propose_rows(changed_rows(0, V - 1, np.inf)),
    negative=lambda s: s.propose_rows(changed_rows(1, 0, -1 / V)),
    sum_above_one=lambda s: s.propose_rows(UNIFORM * np.float32(1.0002)),
    sum_below_one=lambda s: s.propose_rows(UNIFORM * np.float32(0.9998)),
    no_weight=lambda s: s.propose_rows(UNIFORM * 0),
    empty=lambda s: s.propose_rows(b""),
    one_octet_short=lambda s: s.propose_rows(UNIFORM.tobytes()[:-1]),
    one_row_short=lambda s: s.propose_rows(UNIFORM[:1]),
    one_octet_long=lambda s: s.propose_rows(UNIFORM.tobytes() + bytes(1)),
    one_row_long=lambda s: s.propose_rows(np.full((3, V), 1 / V)),
    far_too_long=lambda s: s.propose_rows(bytes(600_000)),
    big_endian=lambda s: s.propose_rows(UNIFORM.astype(">f4").tobytes()),
    binary64=lambda s: s.propose_rows(UNIFORM.astype("<f8").tobytes()),
    token_not_below_v=lambda s: s.propose_rows(UNIFORM, tokens=[s.next_tokens(1)[0], V]),
    token_of_64_bits=lambda s: s.propose_rows(UNIFORM, tokens=[2**64 - 1, 0]),
    token_not_below_v_and_no_rows_to_be_had=lambda s: s.propose(tokens=[V], q_rows=s.town.new_name("objects")),
)
async def test_rows_that_tokens_cannot_come_from(town: Town, act: Act) -> None:
    session = await Session(town, rule=2).begin()
    await check_stays(session, act, "sdcp-bad-proposal")


@pytest.mark.requirement("S6.9-problem-bad-proposal")
@pytest.mark.decision("D5-proposed", "D25")
@acts(
    token_not_below_v=lambda s: s.propose(tokens=[V]),
    last_token_not_below_v=lambda s: s.propose(tokens=[*s.next_tokens(1), V]),
    token_of_32_bits=lambda s: s.propose(tokens=[2**32]),
    token_of_64_bits=lambda s: s.propose(tokens=[2**64 - 1]),
)
async def test_a_proposed_token_not_below_v(town: Town, act: Act) -> None:
    session = await Session(town).begin()
    await check_stays(session, act, "sdcp-bad-proposal", "not below V")


@pytest.mark.decision("D25-rule-1")
async def test_rule_1_does_not_look_at_rows(town: Town) -> None:
    session = await Session(town).begin()
    for ref in (town.new_name("objects"), "https://nowhere.test/rows"):
        assert (await session.advance(q_rows=ref))["accepted"] == 2


# -- sdcp-not-assigned -------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.9-problem-not-assigned", "S6.3-authorization", "S6.1-latest-assignment-only")
@pytest.mark.decision("D3-403", "D9-same-drafter", "D10")
@acts(
    another_drafter=lambda s: s.propose(who="other"),
    another_drafter_in_its_own_name=lambda s: s.propose(who="other", drafter=OTHER),
    in_the_name_of_another=lambda s: s.propose(drafter=OTHER),
    in_the_name_of_a_part_of_it=lambda s: s.propose(drafter=DRAFTER.rpartition("/")[0]),
    in_no_uris_name=lambda s: s.propose(drafter="drafter"),
    host_without_uri=lambda s: s.propose(who="host"),
    base_uri_without_role=lambda s: s.propose(who="nobody"),
    base_uri_with_another_role=lambda s: s.propose(who="impostor"),
    router=lambda s: s.propose(who="router"),
    front_end=lambda s: s.propose(who="front-end"),
    another_drafter_of_another_epoch=lambda s: s.propose(who="other", epoch=7),
    another_drafter_for_a_round_with_a_verdict=lambda s: s.propose(who="other", round=s.round),
    output_to_another_drafter=lambda s: s.read(who="other"),
    output_to_a_host_without_uri=lambda s: s.read(who="host"),
)
async def test_a_client_that_is_not_the_drafter_assigned(town: Town, act: Act) -> None:
    session = await Session(town).begin()
    await check_stays(session, act, "sdcp-not-assigned")


@pytest.mark.requirement("S6.9-problem-not-assigned", "S6.1-latest-assignment-only", "S6.9-failed-drafter-rejected")
@acts(proposal=lambda s: s.propose(), output=lambda s: s.read(who="drafter"))
async def test_before_the_first_and_after_another_assignment(town: Town, act: Act) -> None:
    session = await Session(town).opened()
    check_refused(await act(session), "sdcp-not-assigned")
    await session.assign()
    await session.advance()
    await session.assign(drafter=OTHER)
    before = await session.everything()
    check_refused(await act(session), "sdcp-not-assigned")
    assert await session.everything() == before
    await session.advance(who="other", drafter=OTHER)


@pytest.mark.decision("D9-client")
@pytest.mark.parametrize(
    "spelling", ["HTTPS://Drafter.TEST/d", "https://drafter.test:443/d", "https://drafter.test/x/../%64"]
)
async def test_another_spelling_of_the_same_base_uri_is_the_same_drafter(town: Town, spelling: str) -> None:
    session = await Session(town).begin()
    assert (await session.assign(drafter=spelling)).status == 200
    assert (await session.advance())["action"] == CONTINUE
    assert (await session.advance(drafter=spelling))["action"] == CONTINUE


@pytest.mark.requirement("S6.9-problem-not-assigned", "S6.5.2-switch-stops-drafter", "S6.3-idempotency")
@pytest.mark.decision("D13-replay")
async def test_after_switch_the_drafter_has_its_verdicts_and_no_round(town: Town) -> None:
    session = await Session(town, low_rounds=1).begin()
    switched = await session.propose(tokens=session.wrong_tokens())
    repeat = {"round": session.round + 1, "base": len(session.output), "base_digest": session.digest}
    assert session.learn(switched)["action"] == SWITCH
    before = await session.everything()
    check_refused(await session.propose(), "sdcp-not-assigned", "wait for an assignment")
    assert (await session.propose(**repeat)).body == switched.body
    assert await session.everything() == before
    assert (await session.assign(drafter=OTHER)).status == 200
    check_refused(await session.propose(), "sdcp-not-assigned")
    await session.advance(who="other", drafter=OTHER)


@pytest.mark.requirement("S6.9-problem-not-assigned", "S6.5.2-self-decode")
@pytest.mark.decision("D13-new-round", "D29")
async def test_during_self_decoding_no_drafter_has_a_round(town: Town) -> None:
    session = await Session(town, fallback=[SELF_DECODE], low_rounds=1, self_load=100, max_new=60_000).begin()
    assert session.learn(await session.propose(tokens=session.wrong_tokens()))["action"] == SELF_DECODE
    check_refused(await session.propose(round=60_001), "sdcp-not-assigned", "wait for an assignment")
    ended = cbor.decode((await session.assign()).body)
    tokens = cbor.decode((await session.read()).body)["tokens"]
    assert ended["state"] == 0
    session.round, session.output = ended["round"], tokens
    assert (ended["committed"], ended["digest"]) == (len(tokens), session.digest)
    await session.advance()


# -- sdcp-session-closed -----------------------------------------------------------------------------------------------


async def finished_by_length(town: Town) -> Session:
    return await Session(town, max_new=6).begin(rounds=2)


async def finished_by_a_stop_token(town: Town) -> Session:
    return await Session(town, stop=[6]).begin(rounds=1)


async def failed(town: Town) -> Session:
    session = await Session(town, fallback=[FAIL], low_rounds=1).begin()
    session.learn(await session.propose(tokens=session.wrong_tokens()))
    return session


@pytest.mark.requirement("S6.9-problem-session-closed")
@pytest.mark.decision("D12", "D13-new-round")
@pytest.mark.parametrize(
    ("end", "state"),
    [(finished_by_length, 4), (finished_by_a_stop_token, 4), (failed, 5)],
    ids=lambda value: str(value),
)
@acts(
    proposal=lambda s: s.propose(),
    proposal_of_another_base=lambda s: s.propose(base=1),
    proposal_over_every_limit=lambda s: s.propose(tokens=[V] * 65),
    assignment=lambda s: s.assign(),
    assignment_of_another=lambda s: s.assign(drafter=OTHER),
    policy=lambda s: s.set_policy(),
)
async def test_a_session_that_has_ended(town: Town, end: Any, state: int, act: Act) -> None:
    session = await end(town)
    before = await session.everything()
    assert (before[0]["state"], before[1]["final"], before[1]["finish"]) == (state, True, state)
    check_refused(await act(session), "sdcp-session-closed", "finished" if state == 4 else "failed")
    assert await session.everything() == before


@pytest.mark.requirement("S6.3-idempotency")
@pytest.mark.decision("D12-order")
async def test_a_session_that_has_ended_still_answers_with_its_verdicts(town: Town) -> None:
    session = await Session(town, max_new=6).begin(rounds=1)
    repeat = {"round": session.round + 1, "base": len(session.output), "base_digest": session.digest}
    repeat["tokens"] = session.next_tokens(2)
    last = await session.propose(**repeat)
    assert session.learn(last)["action"] == 4
    assert (await session.propose(**repeat)).body == last.body
    check_refused(await session.propose(), "sdcp-session-closed")


@pytest.mark.requirement("S6.9-problem-session-closed")
@pytest.mark.decision("D14-max-new-0")
async def test_a_session_without_room_is_closed_when_it_opens(town: Town) -> None:
    session = await Session(town, max_new=0).opened()
    check_refused(await session.assign(), "sdcp-session-closed")
    check_refused(await session.set_policy(), "sdcp-session-closed")
    check_refused(await session.propose(), "sdcp-not-assigned")  # authorization comes first (6.3)
