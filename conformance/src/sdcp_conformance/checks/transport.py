"""The same for every role: HTTP/2 over TLS 1.3 with certificates (5.1), and bodies and requests that are none (D3)."""

from __future__ import annotations

from typing import Any

from sdcp_conformance.encoding import encode
from sdcp_conformance.net.raw import http1, http2
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.town import BODY_BYTES
from sdcp_conformance.worlds.session import SessionFacts, contract_of
from sdcp_conformance.worlds.world import World

RESOURCES = {
    "verifier": ("router", "POST", "sessions"),
    "drafter": ("router", "POST", "assignments"),
    "router": ("verifier", "POST", "events"),
}
"""Who asks for what: a resource of each role that takes a body."""


def sound(world: World, **more: Any) -> dict[str, Any]:
    """A message for that resource which nothing but `more` is wrong with."""
    facts = SessionFacts(contract_of())
    facts.log_ref = world.town.new_ref("logs")
    if world.town.role == "verifier":
        return facts.open_message(**more)
    if world.town.role == "drafter":
        return facts.assignment_message(world.town.elsewhere, world.base, **more)
    state = {"session": facts.id, "epoch": 1, "kind": 2, "committed": 0, "digest": bytes(32)}
    return {**state, **more}


async def ask(world: World, body: Any, **named: Any) -> Any:
    """Ask that resource."""
    who, method, path = RESOURCES[world.town.role]
    return await world.ask(who, method, path, body, **named)


async def alive(world: World) -> None:
    """Whatever was sent, the role still answers others."""
    answer = await world.ask("router", "GET", "nothing/here")
    ensure(answer.status < 500, f"expected the role to go on, came {answer.summary}")


HTTP2 = "HTTP/2 over TLS 1.3 with `h2` agreed on is served"


@check("V-tls-http2", "S5.1-http-version", "S5.1-tls13", title=HTTP2)
@check("D-tls-http2", "S5.1-http-version", "S5.1-tls13", title=HTTP2)
@check("R-tls-http2", "S5.1-http-version", "S5.1-tls13", title=HTTP2)
async def served(world: World) -> None:
    found = await world.attempt(http2("GET", f"{world.base}/nothing"))
    expect((found.version, found.alpn, found.served), ("TLSv1.3", "h2", True), "TLS, ALPN, and whether it answers")


NO_CERTIFICATE = "a client without a certificate is served nothing"


@check("V-tls-no-certificate", "S5.1-mutual-authentication", title=NO_CERTIFICATE)
@check("D-tls-no-certificate", "S5.1-mutual-authentication", title=NO_CERTIFICATE)
@check("R-tls-no-certificate", "S5.1-mutual-authentication", title=NO_CERTIFICATE)
async def no_certificate(world: World) -> None:
    found = await world.attempt(http2("GET", f"{world.base}/nothing"), None)
    ensure(not found.served, "expected no answer to a client without a certificate, one came")
    await alive(world)


FOREIGN = "a client with a certificate of another authority is served nothing"


@check("V-tls-foreign", "S5.1-mutual-authentication", title=FOREIGN)
@check("D-tls-foreign", "S5.1-mutual-authentication", title=FOREIGN)
@check("R-tls-foreign", "S5.1-mutual-authentication", title=FOREIGN)
async def foreign(world: World) -> None:
    found = await world.attempt_foreign(http2("GET", f"{world.base}/nothing"))
    ensure(not found.served, "expected no answer to a certificate of another authority, one came")
    await alive(world)


TLS12 = "TLS 1.2 is not spoken"


@check("V-tls-1-2", "S5.1-tls13", title=TLS12)
@check("D-tls-1-2", "S5.1-tls13", title=TLS12)
@check("R-tls-1-2", "S5.1-tls13", title=TLS12)
async def tls12(world: World) -> None:
    found = await world.attempt(http2("GET", f"{world.base}/nothing"), tls12=True)
    ensure(not found.served, "expected no answer over TLS 1.2, one came")


HTTP1 = "HTTP/1.1 is not spoken"


@check("V-tls-http1", "S5.1-http-version", title=HTTP1)
@check("D-tls-http1", "S5.1-http-version", title=HTTP1)
@check("R-tls-http1", "S5.1-http-version", title=HTTP1)
async def not_http1(world: World) -> None:
    for alpn in (("http/1.1",), ()):
        found = await world.attempt(http1("GET", f"{world.base}/nothing"), alpn=alpn)
        ensure(
            not found.received.startswith(b"HTTP/1.1 2"),
            f"expected HTTP/1.1 to be refused, came {found.received!r:.60}",
        )
    await alive(world)


GARBAGE = "octets that are no HTTP/2 end their own connection only"


@check("V-http2-garbage", "S5.1-http-version", title=GARBAGE)
@check("D-http2-garbage", "S5.1-http-version", title=GARBAGE)
@check("R-http2-garbage", "S5.1-http-version", title=GARBAGE)
async def garbage(world: World) -> None:
    preface = http2("GET", f"{world.base}/nothing")
    for octets in (b"\x00" * 200, preface[:24] + b"\xff" * 64, preface[:-1], b"PRI * HTTP/2.0\r\n\r\nno"):
        await world.attempt(octets, limit_s=0.5)
    await alive(world)


MALFORMED = "a body that is no CBOR item is refused"


@check("V-body-malformed", "S5.1-media-type", title=MALFORMED)
@check("D-body-malformed", "S5.1-media-type", title=MALFORMED)
@check("R-body-malformed", "S5.1-media-type", title=MALFORMED)
async def malformed(world: World) -> None:
    for body in (b"", b"\xff", b"\xa1", b"\x9f", b"not cbor at all", b"\x5b" + b"\xff" * 8, b"\x9f" * 5000):
        answer = await ask(world, body)
        answer.refused(range(400, 500))
    await alive(world)


MALFORMED_400 = "no CBOR, octets after it, duplicate keys: 400"


@check("V-body-400", title=MALFORMED_400, profile="decisions", decisions=["D3", "D4"])
@check("D-body-400", title=MALFORMED_400, profile="decisions", decisions=["D3", "D4"])
@check("R-body-400", title=MALFORMED_400, profile="decisions", decisions=["D3", "D4"])
async def malformed_400(world: World) -> None:
    right = encode(sound(world))
    twice = bytes([right[0] + 1]) + right[1:] + encode("epoch") + encode(1)
    for body in (b"", b"\xff", right[:-1], right + b"\x00", twice, b"\x01", b"\x80", b"\xa0"):
        (await ask(world, body)).refused(400)


MISSING_MEMBER = "a message that lacks a member, or has one of another type, is refused"


@check("V-body-members", "S5.2-session-open", title=MISSING_MEMBER)
@check("D-body-members", "S5.2-assignment", title=MISSING_MEMBER)
@check("R-body-members", "S5.2-event", title=MISSING_MEMBER)
async def members(world: World) -> None:
    right = sound(world)
    for key in right:
        without = {each: value for each, value in right.items() if each != key}
        for body in (without, {**right, key: -1}, {**right, key: 1.5}, {**right, key: None}):
            what = f"{key} {'missing' if body is without else f'= {body[key]}'}"
            answer = await ask(world, body)
            ensure(400 <= answer.status < 500, f"expected a refusal of {what}, came {answer.summary}")


UNKNOWN_PATH = "what is not there is 404, another method 405 with Allow"


@check("V-http-404", title=UNKNOWN_PATH, profile="decisions", decisions=["D3"])
@check("D-http-404", title=UNKNOWN_PATH, profile="decisions", decisions=["D3"])
@check("R-http-404", title=UNKNOWN_PATH, profile="decisions", decisions=["D3"])
async def unknown_path(world: World) -> None:
    who, _, path = RESOURCES[world.town.role]
    for other in ("nothing", f"{path}/", f"{path}/x/y", f"x/{path}"):
        (await world.ask(who, "POST", other, sound(world))).refused(404)
    for method in ("GET", "DELETE", "PUT", "PATCH"):
        answer = await world.ask(who, method, path)
        answer.refused(405)
        ensure(
            "POST" in answer.headers.get("allow", ""), f"expected Allow with POST, came {answer.headers.get('allow')}"
        )


MEDIA = "another media type is 415"


@check("V-http-415", title=MEDIA, profile="decisions", decisions=["D3"])
@check("D-http-415", title=MEDIA, profile="decisions", decisions=["D3"])
@check("R-http-415", title=MEDIA, profile="decisions", decisions=["D3"])
async def media_type(world: World) -> None:
    for media in ("application/json", "application/cbor", "text/plain", None):
        (await ask(world, sound(world), media=media)).refused(415)


TOO_LONG = "a body over the limit is 413, and the role goes on"


@check("V-http-413", title=TOO_LONG, profile="decisions", decisions=["D3"])
@check("D-http-413", title=TOO_LONG, profile="decisions", decisions=["D3"])
@check("R-http-413", title=TOO_LONG, profile="decisions", decisions=["D3"])
async def too_long(world: World) -> None:
    for size in (BODY_BYTES + 1, 4 * BODY_BYTES):
        (await ask(world, sound(world, padding=bytes(size)))).refused(413)
    await alive(world)


ROLES = "a certificate without the role that a resource needs is 403"


@check("V-http-403", title=ROLES, profile="decisions", decisions=["D3", "D10"])
@check("D-http-403", title=ROLES, profile="decisions", decisions=["D3", "D10"])
@check("R-http-403", title=ROLES, profile="decisions", decisions=["D3", "D10"])
async def other_roles(world: World) -> None:
    allowed, method, path = RESOURCES[world.town.role]
    for who in ("router", "verifier", "drafter", "front-end", "nobody"):
        if who != allowed:
            (await world.ask(who, method, path, sound(world))).refused(403)
