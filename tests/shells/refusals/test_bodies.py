"""400 of D3 at every resource that takes a message: not one CBOR map, a key twice, a member that is not as its CDDL."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from sdcp.http.client import Answer
from sdcp.wire import cbor
from tests.shells.refusals.expected import check_refused
from tests.shells.refusals.session import Session
from tests.shells.refusals.town import DRAFTER, MISSING, Town, changed

pytestmark = pytest.mark.asyncio(loop_scope="session")


@dataclass(frozen=True)
class Kind:
    """A message and where it goes; `right` makes one that is right as far as its CDDL is concerned."""

    name: str
    who: str
    method: str
    url: Callable[[Session], str]
    right: Callable[[Session], dict[str, Any]]

    def __str__(self) -> str:
        return self.name

    async def send(self, session: Session, body: Any) -> Answer:
        """With the certificate of somebody who may."""
        media = "application/cbor" if self.name == "lease" else "application/sdcp+cbor"
        return await session.town.ask(self.who, self.method, self.url(session), body, media=media)


def _status(_: Session) -> dict[str, Any]:
    return {"instance": DRAFTER, "role": 1, "load": 0, "queue": 0, "ttl_ms": 1000, "base": DRAFTER}


def _event(session: Session) -> dict[str, Any]:
    return {"session": session.id, "epoch": 1, "kind": 2, "committed": 0, "digest": session.digest}


def _request(session: Session) -> dict[str, Any]:
    return {"request": secrets.token_bytes(16), "prompt": [1], "max_new": 4, "stop": [], "rule": 1}


def _resumed(session: Session) -> dict[str, Any]:
    return session.opening(
        session=secrets.token_bytes(16),
        epoch=2,
        resume={"round": 1, "committed": 1, "digest": bytes(32), "committed_tokens": "x"},
    )


KINDS = {
    kind.name: kind
    for kind in (
        Kind("session-open", "router", "POST", lambda s: f"{s.base}/sessions", _resumed),
        Kind("assignment", "router", "PUT", lambda s: f"{s.url}/drafter", Session.assignment),
        Kind("proposal", "drafter", "POST", lambda s: f"{s.base}/proposals", Session.proposal),
        Kind("policy", "router", "POST", lambda s: f"{s.url}/policy", Session.policy),
        Kind(
            "assignment to a drafter",
            "router",
            "POST",
            lambda s: f"{s.town.bases['drafter-process']}/assignments",
            Session.assignment,
        ),
        Kind(
            "status",
            "drafter",
            "PUT",
            lambda s: f"{s.town.bases['router-process']}/instances/https%3A%2F%2Fdrafter.test%2Fd/status",
            _status,
        ),
        Kind("event", "verifier", "POST", lambda s: f"{s.town.bases['router-process']}/events", _event),
        Kind("request", "front-end", "POST", lambda s: f"{s.town.bases['router-process']}/requests", _request),
        Kind(
            "lease",
            "drafter",
            "PUT",
            lambda s: f"{s.town.bases['cache']}/leases/l",
            lambda _: {"objects": [], "ttl_ms": 1},
        ),
    )
}


def twice(pairs: bytes) -> bytes:
    """A map of indefinite length with these pairs; each is one octet of key and one of value."""
    return b"\xbf" + pairs + b"\xff"


MALFORMED: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "nothing": lambda _: b"",
    "JSON": lambda _: b'{"session": 1}',
    "a break alone": lambda _: b"\xff",
    "reserved additional information": lambda _: b"\x1c",
    "cut short": lambda right: cbor.encode(right)[:-1],
    "one octet more": lambda right: cbor.encode(right) + b"\x00",
    "two messages": lambda right: cbor.encode(right) * 2,
    "an unended map": lambda right: b"\xbf" + cbor.encode(right)[1:],
    "an array": lambda right: cbor.encode([right]),
    "an empty map": lambda _: b"\xa0",
    "a tag around it": lambda right: b"\xd9\xd9\xf7" + cbor.encode(right),
    "a byte string of it": lambda right: cbor.encode(cbor.encode(right)),
    "null": lambda _: b"\xf6",
    "a known key twice": lambda right: b"\xbf" + cbor.encode(right)[1:] + cbor.encode(right)[1:] + b"\xff",
    "an unknown key twice": lambda right: b"\xbf" + cbor.encode(right)[1:] + b"\x01\x00\x01\x00\xff",
    "a key twice in two encodings": lambda right: b"\xbf" + cbor.encode(right)[1:] + b"\x01\x00\x18\x01\x00\xff",
    "a key twice deep in an unknown member": lambda right: (
        b"\xbf" + cbor.encode(right)[1:] + cbor.encode("x") + b"\x81\xa2\x01\x00\x01\x00\xff"
    ),
    "text that is no UTF-8": lambda right: b"\xbf" + cbor.encode(right)[1:] + b"\x61\xff\x00\xff",
    "a length beyond the body": lambda right: b"\xbf" + cbor.encode(right)[1:] + b"\x00\x5b" + b"\xff" * 9,
    "too deep": lambda right: b"\xbf" + cbor.encode(right)[1:] + b"\x00" + b"\x81" * 40 + b"\x00\xff",
}


@pytest.mark.requirement("S5.1-problem-details", "S5.1-media-type")
@pytest.mark.decision("D3-400", "D4")
@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
@pytest.mark.parametrize("malformed", MALFORMED.values(), ids=MALFORMED.keys())
async def test_a_body_that_is_not_one_cbor_map(town: Town, kind: Kind, malformed: Callable[..., bytes]) -> None:
    session = await Session(town).begin(rounds=0)
    before = await session.everything()
    check_refused(await kind.send(session, malformed(kind.right(session))), 400)
    assert await session.everything() == before
    await session.advance()


# -- members -----------------------------------------------------------------------------------------------------------

NO_UINT: dict[str, Any] = {
    "negative": -1,
    "text": "1",
    "a float": 1.0,
    "true": True,
    "null": None,
    "a bignum": cbor.Tag(2, b"\x01"),
    "a tagged uint": cbor.Tag(1, 1),
}
NO_ID = {"15 octets": bytes(15), "17 octets": bytes(17), "text": "A" * 16, "null": None}
NO_DIGEST = {"31 octets": bytes(31), "text": "0" * 64, "null": None}
NO_TEXT = {"a uint": 1, "octets": b"https://x/", "null": None}
NO_TOKENS = {
    "a uint": 1,
    "octets": b"\x01",
    "a negative one": [1, -1],
    "text in it": ["1"],
    "a float": [1.0],
    "null": None,
}
NO_MAP: dict[str, Any] = {"an array": [], "a uint": 1, "null": None}
NO_SAMPLING = {
    **NO_MAP,
    "top_p over 1000": {"top_p_milli": 1001},
    "negative seed": {"seed": -1},
    "top_k text": {"top_k": ""},
}
NO_PROMPT = {"a uint": 1, "octets": b"\x01", "a negative one": [-1], "null": None}
RIGHT_STATUS = {"instance": "d", "role": 1, "load": 0, "queue": 0, "ttl_ms": 1}
NO_STATUS = {
    **NO_MAP,
    "role 0": {**RIGHT_STATUS, "role": 0},
    "role 3": {**RIGHT_STATUS, "role": 3},
    "load 101": {**RIGHT_STATUS, "load": 101},
    "accept_milli 1001": {**RIGHT_STATUS, "accept_milli": 1001},
    "no ttl_ms": changed(RIGHT_STATUS, {"ttl_ms": MISSING}),
}
NO_RESUME = {
    **NO_MAP,
    "no digest": {"round": 1, "committed": 1, "committed_tokens": "x"},
    "no committed_tokens": {"round": 1, "committed": 1, "digest": bytes(32)},
    "a short digest": {"round": 1, "committed": 1, "digest": bytes(31), "committed_tokens": "x"},
    "tokens themselves": {"round": 1, "committed": 1, "digest": bytes(32), "committed_tokens": [1]},
    "target_kv a uint": {"round": 1, "committed": 1, "digest": bytes(32), "committed_tokens": "x", "target_kv": 1},
}
ABSENT = {"absent": MISSING}

MEMBERS: dict[str, dict[str, dict[str, Any]]] = {
    "session-open": {
        "session": NO_ID | ABSENT,
        "epoch": NO_UINT | ABSENT,
        "contract": ABSENT,
        "prompt": NO_PROMPT | ABSENT,
        "prompt_kv": NO_TEXT,
        "commit_log": NO_TEXT | ABSENT,
        "resume": NO_RESUME,
    },
    "assignment": {
        "session": NO_ID | ABSENT,
        "epoch": NO_UINT | ABSENT,
        "contract": ABSENT,
        "verifier": NO_TEXT | ABSENT,
        "drafter": NO_TEXT | ABSENT,
        "prompt": NO_PROMPT | ABSENT,
        "round": NO_UINT | ABSENT,
        "sampling": NO_SAMPLING,
        "committed": NO_UINT | ABSENT,
        "digest": NO_DIGEST | ABSENT,
        "committed_tokens": NO_TEXT,
        "m_init": NO_UINT | ABSENT,
    },
    "proposal": {
        "session": NO_ID | ABSENT,
        "epoch": NO_UINT | ABSENT,
        "round": NO_UINT | ABSENT,
        "drafter": NO_TEXT | ABSENT,
        "base": NO_UINT | ABSENT,
        "base_digest": NO_DIGEST | ABSENT,
        "tokens": NO_TOKENS | ABSENT | {"none": []},
        "q_rows": NO_TEXT,
        "draft_kv": NO_TEXT,
        "status": NO_STATUS | ABSENT,
    },
    "policy": {"session": NO_ID | ABSENT, "from_round": NO_UINT | ABSENT, "sampling": NO_SAMPLING | ABSENT},
    "status": {
        "instance": NO_TEXT | ABSENT,
        "role": NO_UINT | ABSENT | {"0": 0, "3": 3},
        "load": NO_UINT | ABSENT | {"101": 101},
        "queue": NO_UINT | ABSENT,
        "accept_milli": NO_UINT | {"1001": 1001},
        "cache_mbps": NO_UINT,
        "ttl_ms": NO_UINT | ABSENT,
        "base": NO_TEXT,
        "model": NO_DIGEST,
    },
    "event": {
        "session": NO_ID | ABSENT,
        "epoch": NO_UINT | ABSENT,
        "kind": NO_UINT | ABSENT,
        "committed": NO_UINT | ABSENT,
        "digest": NO_DIGEST | ABSENT,
    },
    "request": {
        "request": NO_ID | ABSENT,
        "prompt": NO_TOKENS | ABSENT | {"a reference": "https://x/"},
        "max_new": NO_UINT | ABSENT,
        "stop": NO_TOKENS | ABSENT,
        "rule": NO_UINT | ABSENT,
        "sampling": NO_SAMPLING,
        "target": NO_DIGEST,
    },
    "lease": {"objects": {"a name": "x", "octets": [b"x"], "null": None} | ABSENT, "ttl_ms": NO_UINT | ABSENT},
}
MEMBERS["assignment to a drafter"] = MEMBERS["assignment"]


@pytest.mark.requirement(
    "S5.2-session-open", "S5.2-assignment", "S5.2-proposal", "S5.2-policy", "S5.2-status", "S5.2-event"
)
@pytest.mark.decision("D3-400", "D4")
@pytest.mark.parametrize(
    ("kind", "member"),
    [
        pytest.param(KINDS[kind], member, id=f"{kind}: {member}")
        for kind, members in MEMBERS.items()
        for member in members
    ],
)
async def test_a_member_that_is_not_as_its_cddl(town: Town, kind: Kind, member: str) -> None:
    session = await Session(town).begin(rounds=0)
    before = await session.everything()
    for name, value in MEMBERS[kind.name][member].items():
        answer = await kind.send(session, changed(kind.right(session), {member: value}))
        assert answer.status == 400, f"{member} {name}: {answer}"
        check_refused(answer, 400, f"(?i){member}")
    assert await session.everything() == before
    await session.advance()


@pytest.mark.requirement("S5.2-unknown-keys")
@pytest.mark.decision("D4-receivers", "D4-unknown-keys")
async def test_any_other_encoding_and_unknown_keys_are_taken(town: Town) -> None:
    session = await Session(town).opened()
    unknown = b"\x01\xf7\xf4\xa1\x80\x80" + cbor.encode("x") + b"\xc1\xfb\x7f\xf0" + bytes(6)
    for name in ("assignment", "policy", "proposal"):
        kind = KINDS[name]
        body = b"\xbf" + cbor.encode(kind.right(session))[1:] + unknown + b"\xff"
        answer = await kind.send(session, body)
        assert answer.status == 200, answer
    session.learn(answer)


# -- the query ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S5.1-get-output")
@pytest.mark.decision("D3", "D8-from")
@pytest.mark.parametrize(
    "start",
    ["x", "-1", "%2B1", "1.0", "1e3", "0x1", "1_0", "", "%D9%A1", "1%20", "%C2%B2", str(2**64), "9" * 40, "1&from=1"],
)
async def test_a_from_that_is_no_decimal_index(town: Town, start: str) -> None:
    session = await Session(town).begin()
    for who in ("front-end", "router", "drafter"):
        check_refused(await session.read(start, who), 400, "from")
    before = await session.everything()
    assert await session.everything() == before


@pytest.mark.decision("D8-from")
@pytest.mark.parametrize("start", ["0", "00", "0000000000000000001", str(2**64 - 1)])
async def test_a_from_that_is_one(town: Town, start: str) -> None:
    session = await Session(town).begin()
    output = cbor.decode((await session.read(start)).body)
    assert (output["from"], output["tokens"]) == (int(start), session.output[int(start) :])
