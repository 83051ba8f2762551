"""A router whose verifier is lost: fence, read, resume, assign again (6.8, 6.9, D19, D20)."""

from __future__ import annotations

from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.routed import (
    MOMENT_S,
    assigned,
    behind_fence,
    failed_over,
    lose,
    object_tokens,
    open_at_any,
)
from sdcp_conformance.worlds.router import Opened, RouterWorld


def resumes(opened: Opened, round_: int, committed: int, digest: bytes) -> None:
    """Fail unless the session-open says so in its `resume`."""
    resume = opened.message.get("resume")
    ensure(isinstance(resume, dict), f"expected `resume` in the session-open of a failover, came {resume!r:.80}")
    found = tuple(opened.message["resume"].get(key) for key in ("round", "committed", "digest"))
    expect(found, (round_, committed, digest), "round, committed and digest of resume")


@check(
    "R-failover-fence-first",
    "S6.9-fence-first",
    "S6.8-fence-record",
    title="the log is fenced with the new epoch before the session is opened again",
)
async def fence_first(r: RouterWorld) -> None:
    run = await r.running()
    run.verifier.commit(run.session, [7])
    opened = await failed_over(r, run)
    behind_fence(r, opened)
    fences = [record for record in r.cache.log(run.facts.log_ref).records if "round" not in record]
    expect(fences, [{"epoch": opened.message["epoch"]}], "fence records of the commit log")


@check(
    "R-failover-reads-after-fence",
    "S6.9-fence-first",
    "S6.9-resume",
    title="the last commit record is read after the fence has been appended",
)
async def reads_after_fence(r: RouterWorld) -> None:
    run = await r.running()
    run.verifier.commit(run.session, [7])
    name = r.cache.name_of(run.facts.log_ref)
    await failed_over(r, run)
    done = [each.method for each in r.cache.journal if (each.kind, each.name) == ("logs", name) and each.status < 300]
    fenced = len(done) - 1 - done[::-1].index("PATCH") if "PATCH" in done else len(done)
    ensure("GET" in done[fenced:], f"expected the log to be read after the fence, it was asked: {', '.join(done)}")


@check(
    "R-failover-same-session",
    "S6.9-resume",
    "S5.2-session-open",
    title="the session is opened elsewhere with its own identifier, prompt and commit log",
)
async def same_session(r: RouterWorld) -> None:
    run = await r.running()
    run.verifier.commit(run.session, [7])
    opened = await failed_over(r, run)
    for key in ("session", "contract", "prompt", "commit_log"):
        expect(opened.message[key], run.opened.message[key], f"{key} of the second session-open")


@check(
    "R-failover-last-record",
    "S6.9-resume",
    title="resume says what the last record of the log says, however many the router never heard of",
)
async def last_record(r: RouterWorld) -> None:
    run = await r.running()
    for tokens in ([7], [8, 9], [1]):
        facts = run.verifier.commit(run.session, tokens)
    resumes(await failed_over(r, run), 3, 4, facts.digest)


@check(
    "R-failover-nothing-committed",
    title="a session without any record resumes with round 0, committed 0 and d[0]",
    profile="decisions",
    decisions=["D19"],
)
async def nothing_committed(r: RouterWorld) -> None:
    run = await r.running()
    opened = await failed_over(r, run)
    behind_fence(r, opened)
    resumes(opened, 0, 0, run.facts.digest)
    expect(object_tokens(r, opened.message["resume"]["committed_tokens"], "committed_tokens"), [], "its tokens")


@check(
    "R-failover-committed-tokens",
    "S5.2-cache-ref",
    title="committed_tokens of resume is a leased object with exactly the committed output",
    profile="decisions",
    decisions=["D20"],
)
async def committed_tokens(r: RouterWorld) -> None:
    run = await r.running()
    run.verifier.commit(run.session, [7])
    run.verifier.commit(run.session, [8, 9])
    ref = (await failed_over(r, run)).message["resume"]["committed_tokens"]
    expect(object_tokens(r, ref, "committed_tokens"), [7, 8, 9], "tokens of the object")
    ensure(r.cache.leased(ref), "expected a lease on committed_tokens, there is none")


@check(
    "R-failover-assigned-again",
    "S6.9-reassigned-after-resume",
    "S6.1-verifier-informed-first",
    title="after resume the verifier is informed of the drafter, then the drafter gets a new assignment",
)
async def assigned_again(r: RouterWorld) -> None:
    run = await r.running()
    facts = run.verifier.commit(run.session, [7])
    opened = await failed_over(r, run)
    opened.accept()
    put = await opened.verifier.put()
    await run.drafter.box("an assignment").none_within(MOMENT_S, "before PUT drafter is answered")
    put.accept()
    message = (await run.drafter.assignment()).message
    expect(message["epoch"], opened.message["epoch"], "epoch of the new assignment")
    expect(message["verifier"], opened.verifier.base, "verifier of the new assignment")
    found = tuple(message[key] for key in ("round", "committed", "digest"))
    expect(found, (1, 1, facts.digest), "round, committed and digest of the new assignment")


@check(
    "R-failover-not-before-opened",
    "S6.9-reassigned-after-resume",
    title="no drafter is assigned to the new epoch before the new verifier has opened the session",
)
async def not_before_opened(r: RouterWorld) -> None:
    run = await r.running()
    run.verifier.commit(run.session, [7])
    opened = await failed_over(r, run)
    before = len(run.drafter.box("an assignment").all)
    await opened.verifier.box("a PUT drafter").none_within(MOMENT_S, "before the session-open is answered")
    expect(len(run.drafter.box("an assignment").all), before, "assignments before and after that time")


@check(
    "R-failover-old-verifier",
    "S6.9-fence-first",
    title="the verifier that is lost is told nothing any more of the session's new epoch",
)
async def old_verifier(r: RouterWorld) -> None:
    run = await r.running()
    run.verifier.commit(run.session, [7])
    opened = await failed_over(r, run)
    before = [len(run.verifier.box(kind).all) for kind in ("a session-open", "a PUT drafter")]
    opened.accept()
    await assigned(opened.verifier, run.drafter)
    after = [len(run.verifier.box(kind).all) for kind in ("a session-open", "a PUT drafter")]
    expect(after, before, "session-opens and PUT drafters at the first verifier, since the fence")


@check(
    "R-failover-twice",
    "S6.9-fence-first",
    "S6.9-resume",
    title="two failovers in a row: each has a higher epoch, and resumes where the log ends",
)
async def twice(r: RouterWorld) -> None:
    run = await r.running()
    run.verifier.commit(run.session, [7])
    opened = await failed_over(r, run)
    opened.accept()
    await assigned(opened.verifier, run.drafter)
    facts = opened.verifier.commit(run.session, [8, 9])
    (await run.verifier.report()).no_content()  # it serves again, if not this session
    await lose(opened.verifier)
    again = await run.verifier.opened()
    behind_fence(r, again)
    ensure(again.message["epoch"] > opened.message["epoch"], "expected a higher epoch at each failover")
    resumes(again, 2, 3, facts.digest)


@check(
    "R-failover-while-opening",
    "S6.9-fence-first",
    title="a verifier lost before it answers the session-open is fenced too, and its late answer is without effect",
)
async def while_opening(r: RouterWorld) -> None:
    first, drafter = await r.place.verifier(), await r.place.drafter()
    r.request()
    opened = await first.opened()
    second = await r.place.verifier()
    await lose(first)
    again = await second.opened()
    behind_fence(r, again)
    opened.accept()
    await first.box("a PUT drafter").none_within(MOMENT_S, "at a verifier that is fenced")
    again.accept()
    put, _ = await assigned(second, drafter)
    expect(put.message["epoch"], again.message["epoch"], "epoch of PUT drafter")


@check(
    "R-failover-refused",
    title="a verifier that cannot resume the session now is passed over, until one can",
    profile="decisions",
    decisions=["D20"],
)
async def refused(r: RouterWorld) -> None:
    run = await r.running()
    facts = run.verifier.commit(run.session, [7])
    opened = await failed_over(r, run)
    (await run.verifier.report()).no_content()
    opened.refuse(503)
    again = await open_at_any(run.verifier, opened.verifier)
    behind_fence(r, again)
    resumes(again, 1, 1, facts.digest)


@check(
    "R-failover-lying",
    title="a verifier that answers resume with another prefix does not get the session",
    profile="decisions",
    decisions=["D20"],
)
async def lying(r: RouterWorld) -> None:
    run = await r.running()
    facts = run.verifier.commit(run.session, [7])
    opened = await failed_over(r, run)
    (await run.verifier.report()).no_content()
    opened.accept(committed=0, digest=facts.digest_at(0))
    again = await run.verifier.opened()
    behind_fence(r, again)
    ensure(again.message["epoch"] > opened.message["epoch"], "expected a fence against a verifier that lies")
    expect(len(opened.verifier.box("a PUT drafter").all), 0, "PUT drafters at a verifier that lies")


@check(
    "R-failover-complete",
    title="output that was complete in the log is resumed, and nobody drafts for it",
    profile="decisions",
    decisions=["D19"],
)
async def complete(r: RouterWorld) -> None:
    run = await r.running(max_new=3)
    facts = run.verifier.commit(run.session, [7, 8, 9])
    opened = await failed_over(r, run)
    resumes(opened, 1, 3, facts.digest)
    opened.accept()
    await opened.verifier.box("a PUT drafter").none_within(MOMENT_S, "for output that is complete")
