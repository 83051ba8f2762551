"""The refusals of docs/mlc.md at the cache's process: 400, 403, 404, 409, 412, 416, 428; and what is stored stays."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from sdcp.http.client import Answer
from sdcp.wire import cbor
from tests.shells.refusals.expected import check_refused
from tests.shells.refusals.town import CBOR_SEQ, SDCP_CBOR, Town

pytestmark = pytest.mark.asyncio(loop_scope="session")

FIRST = ("if-none-match", "*")


async def append(town: Town, log: str, body: bytes, *headers: tuple[str, str], who: str = "verifier") -> Answer:
    return await town.ask(who, "PATCH", log, body, *headers, media=CBOR_SEQ)


def commit(epoch: int, number: int = 1) -> dict[str, Any]:
    """A commit record as the draft has it (6.8)."""
    return {"epoch": epoch, "round": number, "tokens": [1], "committed": number, "digest": bytes(32)}


# -- logs --------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.9-problem-stale-epoch", "S6.8-fence-refuses-older", "S6.8-fence-record")
@pytest.mark.decision("D20")
@pytest.mark.parametrize(
    "records",
    [
        [commit(1, 2)],
        [commit(0, 2)],
        [{"epoch": 3}],
        [{"epoch": 2}],
        [{"epoch": 1}],
        [{"epoch": 0}],
        [commit(3, 2), commit(1, 3)],
        [commit(3, 2), {"epoch": 3}],
        [{"epoch": 4}, commit(3, 2)],
    ],
    ids=str,
)
async def test_a_record_below_the_fence_and_a_fence_not_above_all_epochs(town: Town, records: list[Any]) -> None:
    log = town.new_name("logs")
    tag = await town.append(log, {"epoch": 2})
    tag = await town.append(log, commit(3), tag)
    before = await town.read_log(log)
    for who in ("router", "verifier"):
        body = b"".join(map(cbor.encode, records))
        check_refused(await append(town, log, body, ("if-match", tag), who=who), "sdcp-stale-epoch")
    assert await town.read_log(log) == before
    assert (await append(town, log, cbor.encode(commit(3, 2)), ("if-match", tag))).status == 204


@pytest.mark.requirement("S6.8-conditional-append")
@pytest.mark.decision("D3")
async def test_a_log_that_has_moved_is_412(town: Town) -> None:
    log = town.new_name("logs")
    first = await town.append(log, {"epoch": 1})
    second = await town.append(log, commit(1), first)
    before = await town.read_log(log)
    record = cbor.encode(commit(1, 2))
    for condition in (first, '"0"', f"W/{second}", second.strip('"') + "0", f'{first}, "7"'):
        tag = condition if condition.endswith('"') else f'"{condition}"'
        check_refused(await append(town, log, record, ("if-match", tag)), 412)
    check_refused(await append(town, log, record, FIRST), 412)
    check_refused(await append(town, town.new_name("logs"), record, ("if-match", second)), 412)
    assert await town.read_log(log) == before
    assert (await append(town, log, record, ("if-match", second))).status == 204


@pytest.mark.requirement("S6.8-conditional-append")
@pytest.mark.decision("D3")
async def test_an_append_without_its_condition_is_428_and_with_another_400(town: Town) -> None:
    log, record = town.new_name("logs"), cbor.encode({"epoch": 1})
    check_refused(await append(town, log, record), 428, "If-Match")
    check_refused(await append(town, log, record, FIRST, ("if-match", "*")), 428, "If-Match")
    check_refused(await append(town, log, record, ("if-none-match", '"1"')), 400)
    tag = await town.append(log, {"epoch": 1})
    check_refused(await append(town, log, record), 428)
    check_refused(await append(town, log, record, ("if-match", "unquoted")), 400)
    assert await town.read_log(log) == (tag, record)


@pytest.mark.decision("D3", "D4", "D20-log")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        cbor.encode({"epoch": 2})[:-1],
        cbor.encode({"epoch": 2}) + b"\x00",
        cbor.encode([{"epoch": 2}]),
        cbor.encode({"epoch": -2}),
        cbor.encode({}),
        b"\xa2\x65epoch\x02\x65epoch\x02",
    ],
    ids=[
        "nothing",
        "a break",
        "cut short",
        "an item that is no record",
        "an array of records",
        "a negative epoch",
        "no epoch",
        "a key twice",
    ],
)
async def test_a_body_that_is_no_sequence_of_records_is_400(town: Town, body: bytes) -> None:
    log = town.new_name("logs")
    check_refused(await append(town, log, body, FIRST), 400)
    assert await town.read_log(log) == (None, b"")
    tag = await town.append(log, {"epoch": 1})
    check_refused(await append(town, log, body, ("if-match", tag)), 400)
    assert await town.read_log(log) == (tag, cbor.encode({"epoch": 1}))


# -- objects -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S5.2-cache-ref")
async def test_an_object_never_changes(town: Town) -> None:
    ref = await town.put_object(b"one")
    for who in ("drafter", "router"):
        check_refused(await town.ask(who, "PUT", ref, b"two", media=None), 412)
        check_refused(await town.ask(who, "PUT", ref, b"two", ("if-match", "*"), media=None), 412)
    assert (await town.ask("verifier", "GET", ref)).body == b"one"
    assert (await town.ask("drafter", "PUT", ref, b"one", media=None)).status == 200


async def test_what_is_not_there_is_404_and_no_range_of_it_416(town: Town) -> None:
    for kind in ("objects", "logs"):
        check_refused(await town.ask("router", "GET", town.new_name(kind)), 404)
        assert (await town.ask("router", "HEAD", town.new_name(kind))).status == 404
    check_refused(await town.ask("router", "DELETE", town.new_name("objects")), 404)
    ref = await town.put_object(b"one")
    answer = await town.ask("verifier", "GET", ref, None, ("range", "bytes=3-"))
    check_refused(answer, 416, "3 octets")
    assert answer.headers["content-range"] == "bytes */3"


@pytest.mark.parametrize("name", [".hidden", "..", "a%2Fb", "a%20b", "%00", "x" * 201, "%C3%A4"])
async def test_a_name_that_is_none_is_404(town: Town, name: str) -> None:
    for kind in ("objects", "logs", "leases"):
        url = f"{town.bases['cache']}/{kind}/{name}"
        check_refused(
            await town.ask("router", "PATCH" if kind == "logs" else "PUT", url, b"x", FIRST, media=MEDIA[kind]), 404
        )


MEDIA = {"objects": None, "logs": CBOR_SEQ, "leases": "application/cbor"}


@pytest.mark.decision("D10")
async def test_an_object_is_deleted_by_its_creator_or_a_router(town: Town) -> None:
    ref = await town.put_object(b"one")
    for who in ("other", "verifier", "front-end", "host", "nobody"):
        check_refused(await town.ask(who, "DELETE", ref), 403)
    assert (await town.ask("other", "GET", ref)).body == b"one"
    assert (await town.ask("router", "DELETE", ref)).status == 204


# -- leases ------------------------------------------------------------------------------------------------------------


async def lease(town: Town, url: str, names: list[str], who: str = "drafter") -> Answer:
    return await town.ask(who, "PUT", url, {"objects": names, "ttl_ms": 60_000}, media=SDCP_CBOR)


async def test_leases_hold_belong_to_somebody_and_are_all_or_nothing(town: Town) -> None:
    held, free = await town.put_object(b"held"), await town.put_object(b"free")
    names = [ref.rpartition("/")[2] for ref in (held, free)]
    url, other = (f"{town.bases['cache']}/leases/l{secrets.token_hex(16)}" for _ in range(2))
    assert (await lease(town, url, names[:1])).status == 204
    for who in ("drafter", "router"):
        check_refused(await town.ask(who, "DELETE", held), 409, "lease")
    check_refused(await lease(town, other, [names[1], "nobody"]), 404, "nobody")
    assert (await town.ask("drafter", "DELETE", free)).status == 204, "nothing of the refused lease holds"
    for who in ("other", "router"):
        check_refused(await lease(town, url, [], who), 403)
        check_refused(await town.ask(who, "DELETE", url), 403)
    check_refused(await town.ask("router", "DELETE", held), 409)
    assert (await town.ask("drafter", "DELETE", url)).status == 204
    assert (await town.ask("router", "DELETE", held)).status == 204
