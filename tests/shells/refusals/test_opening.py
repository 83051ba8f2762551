"""What refuses a session-open outside Table 2: 409, 422 and 503 of D3, D19, D20 and D26, and nothing stays behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sdcp.http.exchange import Request, Response
from sdcp.wire import cbor
from tests.shells.refusals.expected import check_refused
from tests.shells.refusals.played_cache import OCTETS, always, never, played
from tests.shells.refusals.processes import V
from tests.shells.refusals.session import PROMPT, Act, Session, acts, contract_for
from tests.shells.refusals.town import MISSING, Town

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def check_stays_closed(session: Session, act: Act, kind: str | int, says: str = "") -> None:
    """The open is refused so, nothing of it stays behind, and the right one is taken afterwards."""
    log = await session.town.read_log(session.log)
    check_refused(await act(session), kind, says)
    check_refused(await session.read(), 404, "no such session")
    assert await session.town.read_log(session.log) == log
    await session.opened()


# -- 422 ---------------------------------------------------------------------------------------------------------------


def with_prompt(content: bytes) -> Act:
    """An open whose prompt is an object of these octets."""

    async def act(session: Session) -> Any:
        return await session.open(prompt=await session.town.put_object(content, "router"))

    return act


@pytest.mark.decision("D3", "D5-prompt", "D11", "D20", "D26")
@acts(
    token_not_below_v=lambda s: s.open(prompt=[3, V]),
    token_of_32_bits=lambda s: s.open(prompt=[2**32, 4]),
    token_of_64_bits=lambda s: s.open(prompt=[2**64 - 1]),
    empty_prompt=lambda s: s.open(prompt=[]),
    object_of_tokens_not_below_v=with_prompt(cbor.encode([3, V])),
    object_of_nothing=with_prompt(b""),
    object_of_an_empty_array=with_prompt(b"\x80"),
    object_that_is_no_array=with_prompt(cbor.encode({"prompt": [3]})),
    object_that_is_no_cbor=with_prompt(b"\xff\xff"),
    object_with_an_octet_more=with_prompt(cbor.encode([3, 4]) + b"\x00"),
    object_of_negative_tokens=with_prompt(cbor.encode([3, -4])),
    object_of_text=with_prompt(cbor.encode(["3"])),
    object_over_the_context=with_prompt(bytes(700_000)),
    prompt_elsewhere=lambda s: s.open(prompt="https://cache.test/objects/prompt"),
    prompt_that_is_a_log=lambda s: s.open(prompt=s.log),
    prompt_that_is_no_uri=lambda s: s.open(prompt=""),
    log_elsewhere=lambda s: s.open(commit_log="https://cache.test/logs/log"),
    log_over_http=lambda s: s.open(commit_log=s.log.replace("https:", "http:")),
    log_that_is_an_object=lambda s: s.open(commit_log=s.log.replace("/logs/", "/objects/")),
    log_that_is_no_uri=lambda s: s.open(commit_log="log"),
)
async def test_what_is_not_possible_here_is_422(town: Town, act: Act) -> None:
    await check_stays_closed(Session(town), act, 422)


@pytest.mark.decision("D3", "D20-log")
async def test_a_log_that_is_no_sequence_of_records_is_422(town: Town) -> None:
    async with played(town, always(200, b"\xff", ("etag", '"1"'))):
        session = Session(town)
        await check_stays_closed(
            session, lambda s: s.open(commit_log=town.new_name("logs", "elsewhere")), 422, "records"
        )


@pytest.mark.decision("D3")
@acts(
    assignment=lambda s: s.assign(session=bytes(16)),
    policy=lambda s: s.set_policy(session=bytes(16)),
)
async def test_a_message_for_another_session_than_its_path_is_422(town: Town, act: Act) -> None:
    session = await Session(town).begin()
    before = await session.everything()
    check_refused(await act(session), 422, "another session than its path")
    assert await session.everything() == before
    await session.advance()


# -- 503 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.decision("D3-503", "D20")
@acts(
    prompt_not_there=lambda s: s.open(prompt=s.town.new_name("objects")),
    prompt_in_a_cache_that_is_down=lambda s: s.open(prompt=s.town.new_name("objects", "elsewhere")),
    log_in_a_cache_that_is_down=lambda s: s.open(commit_log=s.town.new_name("logs", "elsewhere")),
)
async def test_what_cannot_be_fetched_now_is_503(town: Town, act: Act) -> None:
    await check_stays_closed(Session(town), act, 503, "now")


@pytest.mark.decision("D3", "D11-redirects", "D20")
async def test_a_cache_that_redirects_breaks_or_is_another_is_503(town: Town) -> None:
    tokens = cbor.encode(PROMPT)
    there = await town.put_object(tokens)
    plays = [
        (always(307, b"", ("location", there)), "cache"),
        (always(500), "cache"),
        (always(200, tokens), "verifier"),
        (never, "cache"),
    ]
    for handler, certificate in plays:
        async with played(town, handler, certificate):
            prompt = town.new_name("objects", "elsewhere")
            await check_stays_closed(Session(town), lambda s, prompt=prompt: s.open(prompt=prompt), 503, "now")
    async with played(town, always(500)):
        log = town.new_name("logs", "elsewhere")
        await check_stays_closed(Session(town), lambda s: s.open(commit_log=log), 503, "now")


@pytest.mark.decision("D3-503", "D19")
async def test_a_session_that_is_being_opened_asks_to_come_back(town: Town) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slow(_: Request) -> Response:
        asked.set()
        await answer.wait()
        return Response(200, OCTETS, cbor.encode(PROMPT))

    async with played(town, slow):
        session = Session(town)
        opening = asyncio.create_task(session.open(prompt=town.new_name("objects", "elsewhere")))
        await asked.wait()
        check_refused(await session.assign(), 503, "being opened")
        check_refused(await session.set_policy(), 503, "being opened")
        check_refused(await session.propose(), 503, "being opened")
        check_refused(await session.read(), 503, "being opened")
        answer.set()
        assert (await opening).status == 200
    assert (await session.assign()).status == 200
    await session.advance()


# -- 409 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.1-open-epoch-1")
@pytest.mark.decision("D3-409", "D19-other-content")
@acts(
    other_contract=lambda s: s.open(contract=contract_for(s.town, max_new=61)),
    other_rule=lambda s: s.open(contract=contract_for(s.town, rule=2)),
    other_prompt=lambda s: s.open(prompt=[3, 5]),
    longer_prompt=lambda s: s.open(prompt=[*PROMPT, 7]),
    other_log=lambda s: s.open(commit_log=s.town.new_name("logs")),
    resume_that_was_not=lambda s: s.open(resume=resume(s, s.town.new_name("objects"))),
    higher_epoch_without_resume=lambda s: s.open(epoch=2),
    higher_epoch_without_its_fence=lambda s: s.open(epoch=2, resume=resume(s, s.town.new_name("objects"))),
)
async def test_a_conflicting_open_is_409_and_the_session_goes_on(town: Town, act: Act) -> None:
    session = await Session(town).begin()
    before = await session.everything()
    check_refused(await act(session), 409)
    assert await session.everything() == before
    await session.advance()


def resume(session: Session, tokens: str, **changes: Any) -> dict[str, Any]:
    """Where the session goes on from what is committed; `tokens` is the object that holds it."""
    right = {"round": session.round, "committed": len(session.output), "digest": session.digest}
    return {**right, "committed_tokens": tokens, **changes}


@pytest.mark.requirement("S6.1-open-epoch-1")
@pytest.mark.decision("D19-without-resume")
@pytest.mark.parametrize("epoch", [0, 2, 2**64 - 1])
async def test_a_new_session_has_epoch_1(town: Town, epoch: int) -> None:
    await check_stays_closed(Session(town), lambda s: s.open(epoch=epoch), 409, "epoch 1")


@pytest.mark.decision("D19-without-resume")
async def test_a_log_with_commit_records_needs_resume(town: Town) -> None:
    session = await Session(town).begin()
    other = Session(town)
    check_refused(await other.open(commit_log=session.log), 409, "'resume'")
    check_refused(await other.read(), 404)
    await session.advance()


# -- resume ------------------------------------------------------------------------------------------------------------


async def logged(town: Town, output: list[int], *, fence: int | None = 2, epoch: int = 1, **contract: Any) -> Session:
    """A session that another verifier has served so far: its log says what is committed."""
    session = Session(town, **contract)
    session.output, session.round = output, 1
    record = {"epoch": epoch, "round": 1, "tokens": output, "committed": len(output), "digest": session.digest}
    etag = await town.append(session.log, record)
    if fence is not None:
        await town.append(session.log, {"epoch": fence}, etag)
    session.epoch = 2
    session.resume = resume(session, await town.put_tokens(output))
    return session


async def reopen(session: Session, tokens: list[int] | None = None, **changes: Any) -> Any:
    """Open with a member of `resume` changed, or with other tokens than are committed."""
    if tokens is not None:
        changes["committed_tokens"] = await session.town.put_tokens(tokens)
    return await session.open(resume={**(session.resume or {}), **changes})


@pytest.mark.requirement("S6.9-resume")
@pytest.mark.decision("D19-with-resume")
@acts(
    round_ahead=lambda s: reopen(s, round=2),
    round_behind=lambda s: reopen(s, round=0),
    committed_behind=lambda s: reopen(s, [7, 6], committed=2, digest=s.digest_of(2)),
    committed_ahead=lambda s: reopen(s, [7, 6, 1, 8], committed=4),
    nothing_committed=lambda s: reopen(s, round=0, committed=0, digest=s.digest_of(0)),
    digest=lambda s: reopen(s, digest=bytes(32)),
    other_tokens=lambda s: reopen(s, [7, 6, 2]),
    fewer_tokens=lambda s: reopen(s, [7, 6]),
    no_tokens=lambda s: reopen(s, []),
    more_tokens=lambda s: reopen(s, [7, 6, 1, 8]),
    other_prompt=lambda s: s.open(prompt=[3, 5]),
    other_contract=lambda s: s.open(contract=contract_for(s.town, max_new=61)),
    without_resume=lambda s: s.open(resume=MISSING),
    epoch_above_the_fence=lambda s: s.open(epoch=3),
)
async def test_a_resume_that_the_log_contradicts_is_409(town: Town, act: Act) -> None:
    session = await logged(town, [7, 6, 1])
    await check_stays_closed(session, act, 409)
    assert (await session.assign()).status == 200
    await session.advance()


@pytest.mark.requirement("S6.9-fence-first", "S6.9-resume")
@pytest.mark.decision("D19-with-resume")
async def test_a_resume_without_its_own_fence_is_409(town: Town) -> None:
    unfenced = await logged(town, [7], fence=None)
    check_refused(await unfenced.open(), 409, "fence")
    await unfenced.fence(2)
    await unfenced.opened()
    of_its_epoch = await logged(town, [7], fence=None, epoch=2)
    check_refused(await of_its_epoch.open(), 409, "fence")


@pytest.mark.requirement("S6.9-resume")
@pytest.mark.decision("D19")
async def test_an_epoch_that_has_committed_already_is_not_opened_again(town: Town) -> None:
    session = await Session(town).begin()
    await session.fail_over()
    await session.assign()
    await session.advance()
    point = resume(session, await town.put_tokens(session.output))
    check_refused(await session.open(session=bytes(16), resume=point), 409, "records of epoch 2 already")
    await session.advance()


@pytest.mark.decision("D11", "D19", "D20-validated")
@acts(
    not_there=lambda s: reopen(s, committed_tokens=s.town.new_name("objects")),
    in_a_cache_that_is_down=lambda s: reopen(s, committed_tokens=s.town.new_name("objects", "elsewhere")),
)
async def test_committed_tokens_that_cannot_be_fetched_now_are_503(town: Town, act: Act) -> None:
    await check_stays_closed(await logged(town, [7, 6, 1]), act, 503, "now")


@pytest.mark.decision("D11", "D20-validated")
@acts(
    elsewhere=lambda s: reopen(s, committed_tokens="https://cache.test/objects/tokens"),
    a_log=lambda s: reopen(s, committed_tokens=s.log),
    far_too_many=lambda s: reopen(s, [7] * 200),
)
async def test_committed_tokens_that_cannot_be_used_are_422(town: Town, act: Act) -> None:
    await check_stays_closed(await logged(town, [7, 6, 1]), act, 422)


@pytest.mark.requirement("S6.3-truncation")
@pytest.mark.decision("D5", "D19-too-long")
@pytest.mark.parametrize(
    ("output", "contract", "says"),
    [
        ([7, 6, 1], {"stop": [6]}, "stop token"),
        ([7, 7], {"stop": [7]}, "stop token"),
        ([7, 6, 1], {"max_new": 2}, "max_new"),
        ([7, V], {}, "not below V"),
    ],
    ids=["earlier stop", "stop twice", "over max_new", "not below V"],
)
async def test_output_that_no_verifier_commits_is_422(
    town: Town, output: list[int], contract: dict[str, Any], says: str
) -> None:
    session = await logged(town, output, **contract)
    check_refused(await session.open(), 422, says)
    check_refused(await session.read(), 404)


# -- policy ------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.6-from-round")
@pytest.mark.decision("D3-409", "D21")
@pytest.mark.parametrize("from_round", [0, 1, 2])
async def test_a_policy_for_a_round_that_is_over_is_409(town: Town, from_round: int) -> None:
    session = await Session(town).begin(rounds=2)
    before = await session.everything()
    check_refused(await session.set_policy(from_round=from_round), 409, "current round is 2")
    assert await session.everything() == before
    await session.advance()
    assert (await session.set_policy(from_round=4)).status == 200
