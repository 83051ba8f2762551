"""A router opens sessions at verifiers that refuse, do not answer, or lie (6.1, 6.9, D19, D20)."""

from __future__ import annotations

from typing import Any

from sdcp_conformance.net.server import Response
from sdcp_conformance.outcome import expect
from sdcp_conformance.registry import check
from sdcp_conformance.watch import SDCP_CBOR
from sdcp_conformance.worlds.routed import MOMENT_S, assigned, behind_fence, open_at_any, opened_at
from sdcp_conformance.worlds.router import RouterWorld


@check(
    "R-open-unanswered",
    "S6.9-fence-first",
    "S1.3-sole-commit-authority",
    title="a session that may be open already is opened at another verifier only behind a fence",
)
async def unanswered(r: RouterWorld) -> None:
    first = await r.place.verifier()
    _, opened = await opened_at(r, first)
    second = await r.place.verifier()
    for _ in range(6):
        opened.drop()
        opened = await open_at_any(first, second)
        if opened.verifier is second:
            behind_fence(r, opened)
            return


@check(
    "R-open-repeated",
    title="an unanswered session-open is repeated word for word at the same verifier",
    profile="decisions",
    decisions=["D19"],
)
async def repeated(r: RouterWorld) -> None:
    verifier = await r.place.verifier()
    requested, opened = await opened_at(r, verifier)
    opened.drop()
    again = await verifier.opened()
    expect(again.incoming.request.body, opened.incoming.request.body, "body of the repeated session-open")
    again.accept()
    expect((await requested.location())["epoch"], 1, "epoch of the location")


@check(
    "R-open-no-answer-at-all",
    title="a verifier that never answers a session-open is fenced, and another one found",
    profile="decisions",
    decisions=["D19"],
)
async def never_answers(r: RouterWorld) -> None:
    first = await r.place.verifier()
    requested, opened = await opened_at(r, first)
    second = await r.place.verifier()
    first.box("a session-open").auto = lambda incoming: incoming.drop()
    opened.drop(connection=True)
    elsewhere = await second.opened(2 * r.patience_s)
    behind_fence(r, elsewhere)
    elsewhere.accept()
    expect((await requested.location())["verifier"], second.base, "verifier of the location")


@check(
    "R-open-stale-epoch",
    title="a session-open refused for its epoch is followed by a fence and an epoch above it",
    profile="decisions",
    decisions=["D19"],
)
async def stale_epoch(r: RouterWorld) -> None:
    verifier = await r.place.verifier()
    requested, opened = await opened_at(r, verifier)
    opened.refuse("sdcp-stale-epoch")
    again = await verifier.opened()
    behind_fence(r, again)
    again.accept()
    expect((await requested.location())["epoch"], again.message["epoch"], "epoch of the location")


@check(
    "R-open-overloaded",
    title="a verifier that answers 503 is passed over for another",
    profile="decisions",
    decisions=["D20"],
)
async def overloaded(r: RouterWorld) -> None:
    first = await r.place.verifier()
    requested, opened = await opened_at(r, first)
    second = await r.place.verifier()
    opened.refuse(503)
    (await second.opened()).accept()
    expect((await requested.location())["verifier"], second.base, "verifier of the location")


@check(
    "R-open-bad-contract",
    title="a contract that the verifier refuses reaches the front end as such",
    profile="decisions",
    decisions=["D33"],
)
async def bad_contract(r: RouterWorld) -> None:
    requested, opened = await opened_at(r, await r.place.verifier())
    opened.incoming.refuse("sdcp-bad-contract", "the stop tokens are too many")
    problem = (await requested.answer()).refused("sdcp-bad-contract")
    expect(problem.detail, "the stop tokens are too many", "detail of the refusal")


@check(
    "R-open-unlisted-status",
    "S5.1-unlisted-status",
    title="a 2xx that nobody listed is a success",
)
async def unlisted_success(r: RouterWorld) -> None:
    verifier, drafter = await r.place.verifier(), await r.place.drafter()
    requested, opened = await opened_at(r, verifier)
    opened.incoming.respond(201, opened.facts().state())
    verifier.sessions[opened.session] = opened.facts()
    put = await verifier.put()
    put.incoming.respond(299, opened.facts().state())
    (await drafter.assignment()).incoming.respond(202)
    expect((await requested.location())["session"], opened.session, "session of the location")
    await drafter.box("an assignment").none_within(MOMENT_S, "after one that was answered 202")


@check(
    "R-open-unknown-keys",
    "S5.2-unknown-keys",
    title="a session-state with unknown keys is as good as any",
)
async def unknown_keys(r: RouterWorld) -> None:
    verifier, drafter = await r.place.verifier(), await r.place.drafter()
    requested, opened = await opened_at(r, verifier)
    more: dict[Any, Any] = {"future": {"a": [1, {"b": None}]}, "0": 1.5, 7: b"\x00"}
    facts = verifier.sessions[opened.session] = opened.facts()
    opened.incoming.respond(200, {**facts.state(), **more})
    put = await verifier.put()
    put.incoming.respond(200, {**facts.state(), **more})
    (await drafter.assignment()).accept()
    expect((await requested.location())["session"], opened.session, "session of the location")


async def untrusted(r: RouterWorld, lies: list[dict[str, Any]]) -> None:
    """What a verifier answers so opens nothing: the session is opened anew, behind a fence, and drafted for there."""
    first, second, drafter = await r.place.verifier(), await r.place.verifier(), await r.place.drafter()
    for lie in lies:
        requested = r.request()
        opened = await open_at_any(first, second)
        opened.accept(**lie)
        again = await open_at_any(first, second)
        behind_fence(r, again)
        again.accept()
        put, _ = await assigned(again.verifier, drafter)
        expect(put.message["epoch"], again.message["epoch"], f"epoch of PUT drafter after the answer {lie}")
        expect((await requested.location())["epoch"], again.message["epoch"], f"epoch of the location after {lie}")


@check(
    "R-open-lying-prefix",
    title="an open answered with another d[0], round or length than contract and prompt have counts for nothing",
    profile="decisions",
    decisions=["D20"],
)
async def lying_prefix(r: RouterWorld) -> None:
    await untrusted(r, [{"digest": bytes(32)}, {"round": 1}, {"committed": 1}])


@check(
    "R-open-lying-session",
    title="a session-state of another session or epoch is no answer to a session-open",
    profile="decisions",
    decisions=["D19", "D20"],
)
async def lying_session(r: RouterWorld) -> None:
    await untrusted(r, [{"session": bytes(16)}, {"epoch": 2}, {"epoch": 0}])


@check(
    "R-open-malformed-answer",
    title="an answer that is no session-state, and a 5xx, count as no answer: the open is repeated",
    profile="decisions",
    decisions=["D19"],
)
async def malformed_answer(r: RouterWorld) -> None:
    verifier = await r.place.verifier()
    requested, opened = await opened_at(r, verifier)
    for status, body in ((200, b"\xff"), (500, b"{}")):
        opened.incoming.respond_raw(Response(status, (("content-type", SDCP_CBOR),), body))
        again = await verifier.opened()
        expect(again.incoming.request.body, opened.incoming.request.body, f"session-open after {status} {body!r}")
        opened = again
    opened.accept()
    expect((await requested.location())["epoch"], 1, "epoch of the location")


@check(
    "R-open-impostor",
    "S5.1-mutual-authentication",
    title="nothing is sent to a server whose certificate nobody trusts",
)
async def impostor(r: RouterWorld) -> None:
    base = r.place.seat.reserved["verifier"][0][2]
    foreign = r.town.stranger_authority.issue(r.town.new_name("impostor"), ["verifier"], [base])
    first = await r.place.verifier(serving_as=foreign)
    r.request()
    second = await r.place.verifier(load=90)
    await second.opened(2 * r.patience_s)
    expect(len(first.box("a session-open").all), 0, "session-opens sent to a server of an unknown authority")


@check(
    "R-open-other-server",
    title="nothing is sent to a server whose certificate has not the role and the base URI of a verifier",
    profile="decisions",
    decisions=["D9", "D10"],
)
async def other_server(r: RouterWorld) -> None:
    base = r.place.seat.reserved["verifier"][0][2]
    first = await r.place.verifier(serving_as=r.identity("impostor", ["drafter"], [base]))
    r.request()
    second = await r.place.verifier(load=90)
    await second.opened(2 * r.patience_s)
    expect(len(first.box("a session-open").all), 0, "session-opens sent to a server that is no verifier")
