"""A verifier's resources over HTTP (5.1, D3, D4, D9a, D10): who, how, in which encoding, and how refusals look."""

from __future__ import annotations

import re
from typing import Any

from sdcp_conformance.encoding import encode, encode_loosely
from sdcp_conformance.net.client import Answer
from sdcp_conformance.net.raw import http2
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.problems import TABLE_2, TYPE_PREFIX
from sdcp_conformance.registry import check
from sdcp_conformance.town import BODY_BYTES
from sdcp_conformance.watch import SDCP_CBOR
from sdcp_conformance.worlds.verifier import VerifierSession, VerifierWorld
from sdcp_conformance.worlds.world import OTHER


def _messages(session: VerifierSession) -> dict[str, tuple[str, str, str, dict[str, Any]]]:
    """For each resource that takes a body: who asks, method, path, and a message that is right."""
    return {
        "drafter": ("router", "PUT", f"{session.path}/drafter", session.assignment_message(session.world.base)),
        "policy": (
            "router",
            "POST",
            f"{session.path}/policy",
            {"session": session.id, "from_round": session.round + 5, "sampling": {"top_k": 3}},
        ),
        "proposals": ("drafter", "POST", "proposals", session.proposal_message(session.next_tokens(2))),
    }


# -- who ---------------------------------------------------------------------------------------------------------------


@check(
    "V-http-roles",
    "S5.1-mutual-authentication",
    title="resources of a session refuse certificates without the role they need with 403, and change nothing",
    profile="decisions",
    decisions=["D3", "D10"],
)
async def roles(v: VerifierWorld) -> None:
    session = await v.begun()
    before = await session.everything()
    for name in ("drafter", "policy"):
        _, method, path, message = _messages(session)[name]
        for who in ("verifier", "drafter", "front-end", "nobody"):
            (await v.ask(who, method, path, message)).refused(403)
    for who in ("verifier", "nobody", "other"):
        (await session.read(who=who)).refused(403)
    expect(await session.everything(), before, "output and commit log after the refusals")
    for who in ("router", "front-end", "other-front-end"):
        (await session.read(who=who)).succeeded()
    await session.advance()


@check(
    "V-http-drafter-reads",
    title="the drafter of the latest assignment may read the output, and no other",
    profile="decisions",
    decisions=["D9a"],
)
async def drafter_reads(v: VerifierWorld) -> None:
    session = await v.opened()
    (await session.read(who="drafter")).refused(403)
    (await session.assign()).succeeded()
    await session.advance()
    expect((await session.read(who="drafter")).message["tokens"], session.output, "the output for the drafter")
    (await session.assign(drafter=OTHER)).succeeded()
    (await session.read(who="drafter")).refused(403)
    expect((await session.read(who="other")).message["tokens"], session.output, "the output for the new drafter")


# -- what is there -----------------------------------------------------------------------------------------------------


@check(
    "V-http-unknown-session",
    "S5.1-get-output",
    "S5.1-post-policy",
    title="requests for a session that was never opened are refused",
)
async def unknown_session(v: VerifierWorld) -> None:
    session = v.session()
    for name, (who, method, path, message) in _messages(session).items():
        (await v.ask(who, method, path, message)).rejected(f"{name} of a session that nobody opened")
    (await session.read()).rejected("the output of a session that nobody opened")


@check(
    "V-http-no-session",
    title="an unknown session, or a path that is none, is 404",
    profile="decisions",
    decisions=["D3"],
)
async def no_session(v: VerifierWorld) -> None:
    session = v.session()
    for who, method, path, message in _messages(session).values():
        (await v.ask(who, method, path, message)).refused(404)
    (await session.read()).refused(404)
    for path in ("sessions/", session.path, f"{session.path}/", f"{session.path}/outputs", f"{session.path}/output/x"):
        (await v.ask("router", "GET", path)).refused({404, 405} if path == "sessions/" else 404)


@check(
    "V-http-methods",
    title="another method at a resource of a session is 405, and Allow names the right one",
    profile="decisions",
    decisions=["D3"],
)
async def methods(v: VerifierWorld) -> None:
    session = await v.begun()
    right = {f"{session.path}/drafter": "PUT", f"{session.path}/policy": "POST", "proposals": "POST"}
    for path, allowed in {**right, f"{session.path}/output": "GET"}.items():
        for method in {"GET", "PUT", "POST", "DELETE", "PATCH"} - {allowed}:
            answer = await v.ask("router", method, path)
            answer.refused(405)
            names = re.split(r"\s*,\s*", answer.headers.get("allow", ""))
            ensure(allowed in names, f"{answer.asked}: expected Allow with {allowed}, came {names}")


@check(
    "V-http-body-limit",
    title="a body over the limit is 413 at every resource of a session, and changes nothing",
    profile="decisions",
    decisions=["D3"],
)
async def body_limit(v: VerifierWorld) -> None:
    session = await v.begun()
    before = await session.everything()
    for who, method, path, message in _messages(session).values():
        (await v.ask(who, method, path, {**message, "padding": bytes(BODY_BYTES)})).refused(413)
        room = BODY_BYTES - len(encode({**message, "padding": bytes(60_000)})) + 60_000
        fits = {**message, "padding": bytes(room)}
        expect(len(encode(fits)), BODY_BYTES, "octets of the longest body")
        if path != "proposals":
            (await v.ask(who, method, path, fits)).succeeded()
    expect(await session.everything(), before, "output and commit log after the refusals")
    await session.advance()


# -- media types -------------------------------------------------------------------------------------------------------


@check(
    "V-http-media-case",
    "S5.1-media-type",
    title="the media type is recognized in any case, as RFC 9110 has it",
)
async def media_case(v: VerifierWorld) -> None:
    session = v.session()
    (await v.ask("router", "POST", "sessions", session.open_message(), media="Application/SDCP+CBOR")).succeeded()
    (await session.assign()).succeeded()
    await session.advance()


@check(
    "V-http-media",
    "S5.1-media-type",
    title="another media type, or none, is 415 at every resource of a session",
    profile="decisions",
    decisions=["D3"],
)
async def media(v: VerifierWorld) -> None:
    session = await v.begun()
    for other in ("application/cbor", "application/json", "application/sdcp", "application/sdcp+cbor2", None):
        for who, method, path, message in _messages(session).values():
            (await v.ask(who, method, path, message, media=other)).refused(415)
    expect(session.log.records, [], "the commit log")
    await session.advance()


@check(
    "V-http-accept",
    "S5.1-media-type",
    title="an Accept that takes the answer's media type is fine",
)
async def accept(v: VerifierWorld) -> None:
    session = await v.begun()
    for value in (
        "*/*",
        "application/*",
        SDCP_CBOR,
        f"text/html, {SDCP_CBOR};q=0.5",
        f"{SDCP_CBOR}, application/*;q=0",
    ):
        answer = await _read(v, session, value)
        expect(answer.succeeded().headers.get("content-type"), SDCP_CBOR, f"media type with Accept: {value}")


@check(
    "V-http-not-acceptable",
    title="an Accept that does not take the answer's media type is 406",
    profile="decisions",
    decisions=["D3"],
)
async def not_acceptable(v: VerifierWorld) -> None:
    session = await v.begun()
    for value in ("text/html", "application/cbor", f"{SDCP_CBOR};q=0", f"*/*, {SDCP_CBOR};q=0"):
        (await _read(v, session, value)).refused(406)
    message = session.proposal_message(session.next_tokens(2))
    (await v.ask("drafter", "POST", "proposals", message, headers=[("accept", "text/html")])).refused(406)
    expect(session.log.records, [], "the commit log")


async def _read(v: VerifierWorld, session: VerifierSession, accepted: str) -> Answer:
    headers = [("accept", accepted), ("prefer", "wait=0")]
    return await v.ask("front-end", "GET", f"{session.path}/output?from=0", headers=headers)


# -- encodings ---------------------------------------------------------------------------------------------------------


@check(
    "V-http-encodings",
    "S5.1-media-type",
    title="messages in any well-formed encoding are taken: indefinite lengths, chunks, long numbers, any order",
    profile="decisions",
    decisions=["D4"],
)
async def encodings(v: VerifierWorld) -> None:
    session = v.session()
    (await v.ask("router", "POST", "sessions", encode_loosely(session.open_message()))).succeeded()
    for _ in range(2):
        for name, (who, method, path, message) in _messages(session).items():
            answer = (await v.ask(who, method, path, encode_loosely(message))).succeeded()
            if name == "proposals":
                session.learn(answer, 2, session.next_tokens(3))


@check(
    "V-http-malformed",
    "S5.1-media-type",
    "S1.3-output-unaffected",
    title="a body that is cut short, or no map, is refused at every resource of a session and changes nothing",
)
async def malformed(v: VerifierWorld) -> None:
    session = await v.begun()
    await session.advance()
    before = await session.everything()
    for name, (who, method, path, message) in _messages(session).items():
        right = encode(message)
        for body in (b"", right[:-1], right[: len(right) // 2], b"\xbf" + right[1:], encode([message]), encode(right)):
            (await v.ask(who, method, path, body)).rejected(f"{name} with {body[:8].hex()}…")
    expect(await session.everything(), before, "output and commit log after the refusals")
    await session.advance()


@check(
    "V-http-duplicates",
    title="a key twice, octets after the item, or text that is no UTF-8 is 400 at every resource of a session",
    profile="decisions",
    decisions=["D3", "D4"],
)
async def duplicates(v: VerifierWorld) -> None:
    session = await v.begun()
    before = await session.everything()
    for who, method, path, message in _messages(session).values():
        right = encode(message)
        members = right[1:]
        for body in (
            right + b"\x00",
            right + right,
            b"\xbf" + members + encode("session") + encode(session.id) + b"\xff",
            b"\xbf" + members + b"\x01\x00\x01\x00\xff",
            b"\xbf" + members + b"\x01\x00\x18\x01\x00\xff",
            b"\xbf" + members + b"\x61x\xa2\x01\x00\x01\x00\xff",
            b"\xbf" + members + b"\x61\xff\x00\xff",
        ):
            (await v.ask(who, method, path, body)).refused(400)
    expect(await session.everything(), before, "output and commit log after the refusals")
    await session.advance()


@check(
    "V-http-uint",
    title="a number is a CBOR unsigned integer: a float, bignum or tagged one is 400",
    profile="decisions",
    decisions=["D3", "D4"],
)
async def uint(v: VerifierWorld) -> None:
    session = await v.begun()
    right = encode(session.proposal_message(session.next_tokens(2)))
    epoch, one = encode("epoch"), encode(1)
    ensure(epoch + one in right, "a proposal of the kit has an epoch")
    for other in (b"\xf9\x3c\x00", b"\xc2\x41\x01", b"\xc1\x01", b"\xf5", b"\x61\x31", b"\x20"):
        (await v.ask("drafter", "POST", "proposals", right.replace(epoch + one, epoch + other))).refused(400)
    await session.advance()


@check(
    "V-http-half",
    "S5.1-http-version",
    "S6.3-commit-atomic",
    title="a proposal of which only half has come commits nothing, and holds up nobody",
)
async def half(v: VerifierWorld) -> None:
    session = await v.begun()
    body = encode(session.proposal_message(session.next_tokens(2)))
    headers = [("content-type", SDCP_CBOR), ("content-length", str(len(body)))]
    octets = http2("POST", f"{v.base}/proposals", body[:-5], headers, end=False)
    sending = v.background(v.attempt(octets, "drafter", limit_s=1.0))
    await session.advance()
    await sending
    expect([record["round"] for record in session.log.records], [1], "rounds in the commit log")
    await session.advance()


# -- refusals ----------------------------------------------------------------------------------------------------------


@check(
    "V-http-problems",
    "S5.1-problem-details",
    title="a refusal of Table 2 has its type under the IANA registry's address, a title, its status and a detail",
    profile="decisions",
    decisions=["D1"],
)
async def problems(v: VerifierWorld) -> None:
    session = await v.begun(max_new=3)
    answers = {
        "sdcp-bad-contract": await v.session(target=bytes(32)).open(),
        "sdcp-not-assigned": await session.propose(who="other"),
        "sdcp-stale-epoch": await session.propose(epoch=2),
        "sdcp-stale-base": await session.propose(base=9),
        "sdcp-limit": await session.propose(session.next_tokens(9)),
        "sdcp-bad-proposal": await session.propose([99]),
    }
    await session.advance()
    answers["sdcp-session-closed"] = await session.propose()
    for suffix, answer in answers.items():
        members = answer.refused(suffix).members
        expect(members.get("type"), TYPE_PREFIX + suffix, "type of the problem")
        expect(members.get("status"), TABLE_2[suffix], f"status of {suffix}")
        for key in ("title", "detail"):
            ensure(members.get(key), f"expected {suffix} to have a {key}, came {members.get(key)!r}")


@check(
    "V-http-blank",
    title="a refusal outside Table 2 is about:blank and says in `detail` what is wrong",
    profile="decisions",
    decisions=["D1", "D3"],
)
async def blank(v: VerifierWorld) -> None:
    session = await v.begun()
    answers = [
        await v.ask("router", "POST", "sessions", b"\xff"),
        await v.ask("front-end", "POST", "sessions", session.open_message()),
        await v.ask("router", "GET", "nothing"),
        await v.ask("router", "GET", "sessions"),
        await v.ask("router", "POST", "sessions", session.open_message(), media="text/plain"),
        await session.open(prompt=[5]),
        await session.open(prompt=[99], session=bytes(16)),
    ]
    for answer in answers:
        problem = answer.problem
        ensure(problem.type == "about:blank", f"{answer.asked}: expected about:blank, came {problem.type}")
        ensure(problem.members.get("detail"), f"{answer.asked}: expected a detail, came {problem.members}")
