"""Objects that session-open names (5.2, D11, D20): the prompt, KV, and where a verifier does not go for them."""

from __future__ import annotations

from typing import Any

from sdcp_conformance.encoding import encode
from sdcp_conformance.net.server import Request, Response
from sdcp_conformance.oracle.bigram import V
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.played.cache import answered
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.session import PROMPT, tokens_object
from sdcp_conformance.worlds.verifier import VerifierWorld


@check(
    "V-open-prompt-ref",
    "S5.2-cache-ref",
    "S5.2-session-open",
    title="a prompt may be an object of the cache: d[0] and the rounds are those of its tokens",
    decisions=["D20"],
)
async def by_reference(v: VerifierWorld) -> None:
    prompt = list(range(16)) * 30
    session = v.session(prompt=prompt)
    state = (await session.open(prompt=v.put_object(tokens_object(prompt)))).message
    expect(state.get("digest"), session.digest, "d[0] over the prompt's tokens")
    (await session.assign()).succeeded()
    await session.advance()
    await session.advance(session.half_right(1, 3))


@check(
    "V-open-prompt-gone",
    title="a prompt that is not there now is 503, and opens the session once it is",
    profile="decisions",
    decisions=["D3", "D20"],
)
async def not_there(v: VerifierWorld) -> None:
    session, ref = v.session(), v.town.new_ref("objects")
    (await session.open(prompt=ref)).refused(503)
    (await session.read()).refused(404)
    v.cache.put(tokens_object(PROMPT), v.cache.name_of(ref))
    v.cache.on("GET", ref, answered(500))
    (await session.open(prompt=ref)).refused(503)
    (await session.open(prompt=f"{v.town.elsewhere}/objects/{v.cache.name_of(ref)}")).refused(503)
    expect((await session.open(prompt=ref)).message.get("digest"), session.digest, "d[0]")


@check(
    "V-open-prompt-content",
    title="a prompt object that is not one array of tokens is 422",
    profile="decisions",
    decisions=["D3", "D20"],
)
async def other_content(v: VerifierWorld) -> None:
    session = v.session()
    right = tokens_object(PROMPT)
    wrong = [b"", b"\xff", right[:-1], right + b"\0", encode({"prompt": PROMPT}), encode([3, -4]), encode(["3"])]
    for octets in [*wrong, encode([3, V]), encode([3, 2**32])]:
        (await session.open(prompt=v.put_object(octets))).refused(422)
    (await session.read()).refused(404)
    (await session.open(prompt=v.put_object(right))).succeeded()


@check(
    "V-open-vocabulary",
    title="a prompt with a token that is not below V is 422",
    profile="decisions",
    decisions=["D3", "D5"],
)
async def vocabulary(v: VerifierWorld) -> None:
    for prompt in ([3, V], [V, 3], [2**32 - 1], [2**32], [2**64 - 1]):
        (await v.session().open(prompt=prompt)).refused(422)
    (await v.session().open(prompt=[3, V - 1])).succeeded()


@check(
    "V-open-empty-prompt",
    title="an empty prompt is refused with 422, since the model has no beginning",
    profile="decisions",
    decisions=["D26"],
)
async def empty(v: VerifierWorld) -> None:
    (await v.session().open(prompt=[])).refused(422)
    (await v.session().open(prompt=v.put_object(tokens_object([])))).refused(422)


@check(
    "V-open-elsewhere",
    title="objects and logs outside the configured caches are 422, and nobody is asked for them",
    profile="decisions",
    decisions=["D3", "D11"],
)
async def elsewhere(v: VerifierWorld) -> None:
    asked: list[str] = []

    async def somebody(request: Request) -> Response:
        asked.append(request.path)
        return Response(200, (("content-type", "application/octet-stream"),), tokens_object(PROMPT))

    base, _, _ = await v.serve(somebody, ["cache"])
    beside = v.cache.base + "x"
    for ref in (f"{base}/objects/x", f"{beside}/objects/x", "", "x", v.cache.base.replace("https", "http")):
        (await v.session().open(prompt=ref)).refused(422)
    for ref in (f"{base}/logs/x", f"{beside}/logs/x", v.town.new_ref("logs").replace("https", "http"), "log"):
        (await v.session().open(commit_log=ref)).refused(422)
    ref = v.put_object(tokens_object(PROMPT))
    v.cache.on("GET", ref, answered(307, ("location", f"{base}/objects/x")))
    (await v.session().open(prompt=ref)).refused(503)
    expect(asked, [], "requests to a place that is no configured cache")


@check(
    "V-open-log-unreachable",
    title="a commit log that cannot be read now is 503",
    profile="decisions",
    decisions=["D3", "D20"],
)
async def log_unreachable(v: VerifierWorld) -> None:
    session = v.session()
    (await session.open(commit_log=f"{v.town.elsewhere}/logs/{v.cache.name_of(session.log_ref)}")).refused(503)
    v.cache.on("GET", session.log_ref, answered(500))
    (await session.open()).refused(503)
    (await session.read()).refused(404)
    (await session.open()).succeeded()


@check(
    "V-open-kv",
    "S6.1-prompt-kv",
    title="prompt_kv that is not there, or is none, is passed over, and the KV computed",
    profile="decisions",
    decisions=["D20"],
)
async def kv(v: VerifierWorld) -> None:
    refs: list[Any] = [v.town.new_ref("objects"), v.put_object(b"no KV"), v.put_object(b"")]
    for ref in refs:
        session = v.session()
        (await session.open(prompt_kv=ref)).succeeded()
        (await session.assign()).succeeded()
        await session.advance()
        ensure(session.output, "expected tokens to be committed, none were")
