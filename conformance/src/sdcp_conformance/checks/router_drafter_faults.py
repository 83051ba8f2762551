"""Drafters that refuse, do not answer or are lost, and verifiers that lie about where a session stands (6.1, 6.9)."""

from __future__ import annotations

from sdcp_conformance.outcome import expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.routed import (
    MOMENT_S,
    answer_states,
    assigned,
    behind_fence,
    lose,
    object_tokens,
    opened_at,
)
from sdcp_conformance.worlds.router import RouterWorld


@check(
    "R-drafter-expired",
    "S6.9-drafter-expired",
    title="when a drafter's status expires, its session goes to another one, the verifier informed first",
)
async def expired(r: RouterWorld) -> None:
    run = await r.running()
    other = await r.place.drafter()
    await lose(run.drafter)
    put = await run.verifier.put()
    expect(put.message["drafter"], other.base, "drafter of the new PUT drafter")
    await other.box("an assignment").none_within(MOMENT_S, "before PUT drafter is answered")
    put.accept()
    expect((await other.assignment()).message["drafter"], other.base, "drafter of the new assignment")


@check(
    "R-drafter-next-starts",
    "S6.9-new-drafter-starts",
    "S6.1-assignment-carries-state",
    title="the next drafter starts from the committed prefix",
)
async def next_starts(r: RouterWorld) -> None:
    run = await r.running()
    other = await r.place.drafter()
    run.verifier.commit(run.session, [7, 8])
    facts = run.verifier.commit(run.session, [9])
    await lose(run.drafter)
    _, assignment = await assigned(run.verifier, other)
    found = tuple(assignment.message[key] for key in ("epoch", "round", "committed", "digest"))
    expect(found, (1, 2, 3, facts.digest), "epoch, round, committed and digest of the new assignment")


@check(
    "R-drafter-lost-twice",
    "S6.9-drafter-expired",
    title="a session is reassigned as often as its drafters are lost",
)
async def lost_twice(r: RouterWorld) -> None:
    run = await r.running()
    former = run.drafter
    for count in (1, 2):
        other = await r.place.drafter()
        facts = run.verifier.commit(run.session, [7])
        await lose(former)
        _, assignment = await assigned(run.verifier, other)
        found = (assignment.message["round"], assignment.message["digest"])
        expect(found, (count, facts.digest), "round and digest of the new assignment")
        former = other


async def replaced(r: RouterWorld, status: int) -> None:
    """The drafter that is chosen first answers so; PUT drafter and the assignment go to another one."""
    verifier, first = await r.place.verifier(), await r.place.drafter()
    _, opened = await opened_at(r, verifier)
    opened.accept()
    (await verifier.put()).accept()
    assignment = await first.assignment()
    second = await r.place.drafter()
    assignment.refuse(status)
    put, _ = await assigned(verifier, second)
    expect(put.message["drafter"], second.base, f"drafter of PUT drafter after {status}")


@check(
    "R-drafter-overloaded",
    title="a drafter that answers an assignment with 503 is replaced, the verifier informed first",
    profile="decisions",
    decisions=["D20"],
)
async def overloaded(r: RouterWorld) -> None:
    await replaced(r, 503)


@check(
    "R-drafter-refuses",
    title="a drafter that refuses an assignment with 422 is replaced",
    profile="decisions",
    decisions=["D20"],
)
async def refuses(r: RouterWorld) -> None:
    await replaced(r, 422)


@check(
    "R-drafter-unlisted-status",
    "S5.1-unlisted-status",
    title="a drafter that refuses with a status that nobody listed is replaced",
    profile="decisions",
    decisions=["D37"],
)
async def unlisted(r: RouterWorld) -> None:
    await replaced(r, 477)


@check(
    "R-drafter-unanswered",
    title="a drafter that does not answer an assignment is replaced",
    profile="decisions",
    decisions=["D37"],
)
async def unanswered(r: RouterWorld) -> None:
    verifier, first = await r.place.verifier(), await r.place.drafter()
    _, opened = await opened_at(r, verifier)
    opened.accept()
    (await verifier.put()).accept()
    assignment = await first.assignment()
    second = await r.place.drafter()
    assignment.drop(connection=True)
    put, _ = await assigned(verifier, second)
    expect(put.message["drafter"], second.base, "drafter of the second PUT drafter")


@check(
    "R-drafter-all-refuse",
    title="a session whose drafters all refuse is assigned as soon as one takes it",
    profile="decisions",
    decisions=["D37"],
)
async def all_refuse(r: RouterWorld) -> None:
    verifier, drafter = await r.place.verifier(), await r.place.drafter()
    _, opened = await opened_at(r, verifier)
    facts = opened.accept()
    answer_states(verifier, facts, "a PUT drafter")
    for _ in range(3):
        (await drafter.assignment()).refuse(503)
    (await drafter.assignment()).accept()


@check(
    "R-verifier-lost-session",
    title="a verifier that knows the session no longer is fenced: next epoch, even at the same base URI",
    profile="decisions",
    decisions=["D19"],
)
async def lost_session(r: RouterWorld) -> None:
    run = await r.running()
    await r.place.drafter()
    run.verifier.commit(run.session, [7])
    await lose(run.drafter)
    (await run.verifier.put()).refuse(404)
    again = await run.verifier.opened()
    behind_fence(r, again)
    expect(again.message["epoch"], 2, "epoch of the new session-open")
    expect(again.message["resume"]["committed"], 1, "committed length that it resumes")


@check(
    "R-verifier-stale-epoch",
    title="a verifier that calls the router's epoch stale is fenced, and the session opened above that",
    profile="decisions",
    decisions=["D19", "D28"],
)
async def stale_epoch(r: RouterWorld) -> None:
    run = await r.running()
    await r.place.drafter()
    await lose(run.drafter)
    (await run.verifier.put()).refuse("sdcp-stale-epoch")
    behind_fence(r, await run.verifier.opened())


@check(
    "R-verifier-lying-digest",
    title="a verifier whose answer to PUT drafter the log contradicts is fenced; no drafter hears of it",
    profile="decisions",
    decisions=["D20", "D28"],
)
async def lying_digest(r: RouterWorld) -> None:
    verifier, drafter = await r.place.verifier(), await r.place.drafter()
    _, opened = await opened_at(r, verifier)
    opened.accept()
    (await verifier.put()).accept(digest=bytes(32))
    again = await verifier.opened()
    behind_fence(r, again)
    expect(len(drafter.box("an assignment").all), 0, "assignments on the word of a verifier that lies")


@check(
    "R-verifier-ahead-of-log",
    title="a committed length that the log does not have yet is not assigned before the log has it",
    profile="decisions",
    decisions=["D20", "D28"],
)
async def ahead_of_log(r: RouterWorld) -> None:
    verifier, drafter = await r.place.verifier(), await r.place.drafter()
    _, opened = await opened_at(r, verifier)
    facts = opened.accept()
    record = facts.commit([7, 8])
    (await verifier.put()).accept()
    await drafter.box("an assignment").none_within(MOMENT_S, "of tokens that are not in the commit log")
    r.cache.append(facts.log_ref, record)
    message = (await drafter.assignment()).message
    expect(object_tokens(r, message["committed_tokens"], "committed_tokens"), [7, 8], "tokens of the object")


@check(
    "R-verifier-other-session",
    title="a session-state of another session is no answer to PUT drafter",
    profile="decisions",
    decisions=["D28"],
)
async def other_session(r: RouterWorld) -> None:
    verifier, drafter = await r.place.verifier(), await r.place.drafter()
    _, opened = await opened_at(r, verifier)
    opened.accept()
    (await verifier.put()).accept(session=bytes(16))
    await drafter.box("an assignment").none_within(MOMENT_S, "after an answer about another session")
