"""Fencing a commit log that moves, fails, loses answers, or has been fenced by others (6.8, 6.9, D19, D20)."""

from __future__ import annotations

from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.played.cache import answered, lost_answer, lost_request
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.routed import MOMENT_S, behind_fence, failed_over, lose, object_tokens
from sdcp_conformance.worlds.router import Opened, RouterWorld


def resumed(opened: Opened) -> tuple[int, int, bytes]:
    """round, committed, digest."""
    resume = opened.message["resume"]
    return resume["round"], resume["committed"], resume["digest"]


@check(
    "R-fence-race",
    "S6.8-conditional-append",
    "S6.9-resume",
    title="what the old verifier commits just before the fence is in, is resumed",
)
async def race(r: RouterWorld) -> None:
    run = await r.running()
    run.verifier.commit(run.session, [7])
    hold = r.hold("PATCH", run.facts.log_ref)
    second = await r.place.verifier()
    await lose(run.verifier)
    await hold.reached()
    facts = run.verifier.commit(run.session, [8, 9])
    hold.release()
    opened = await second.opened()
    behind_fence(r, opened)
    expect(resumed(opened), (2, 3, facts.digest), "round, committed and digest of resume")


@check(
    "R-fence-many-races",
    "S6.8-conditional-append",
    "S6.9-fence-first",
    title="a log that moves again and again is fenced in the end",
)
async def many_races(r: RouterWorld) -> None:
    run = await r.running(max_new=20)
    second = await r.place.verifier()
    holds = [r.hold("PATCH", run.facts.log_ref) for _ in range(4)]
    await lose(run.verifier)
    for hold in holds:
        await hold.reached()
        facts = run.verifier.commit(run.session, [7])
        hold.release()
    opened = await second.opened()
    behind_fence(r, opened)
    expect(resumed(opened), (4, 4, facts.digest), "round, committed and digest of resume")


@check(
    "R-fence-lost-answer",
    "S6.9-fence-first",
    "S6.8-conditional-append",
    title="a fence whose answer is lost: the session is opened with the epoch of the highest fence that is in the log",
)
async def lost_fence_answer(r: RouterWorld) -> None:
    run = await r.running()
    facts = run.verifier.commit(run.session, [7])
    r.cache.on("PATCH", facts.log_ref, lost_answer())
    opened = await failed_over(r, run)
    behind_fence(r, opened)
    expect(resumed(opened), (1, 1, facts.digest), "round, committed and digest of resume")


@check(
    "R-fence-lost-request",
    "S6.9-fence-first",
    title="a fence that never arrived does not count: nothing is opened before one is in the log",
)
async def lost_fence_request(r: RouterWorld) -> None:
    run = await r.running()
    run.verifier.commit(run.session, [7])
    r.cache.on("PATCH", run.facts.log_ref, lost_request(), answered(503), lost_request())
    behind_fence(r, await failed_over(r, run))


@check(
    "R-fence-unreadable",
    "S6.9-resume",
    title="a log that cannot be read for a while is read before the session is opened elsewhere",
)
async def unreadable(r: RouterWorld) -> None:
    run = await r.running()
    facts = run.verifier.commit(run.session, [7])
    run.verifier.commit(run.session, [8])
    r.cache.on("GET", facts.log_ref, answered(503), lost_request(), answered(500), answered(503))
    opened = await failed_over(r, run)
    behind_fence(r, opened)
    expect(resumed(opened), (2, 2, facts.digest), "round, committed and digest of resume")


@check(
    "R-fence-held",
    "S6.9-fence-first",
    title="while the fence is on its way, nothing is opened",
)
async def fence_held(r: RouterWorld) -> None:
    run = await r.running()
    run.verifier.commit(run.session, [7])
    hold = r.hold("PATCH", run.facts.log_ref)
    second = await r.place.verifier()
    await lose(run.verifier)
    await hold.reached()
    await second.box("a session-open").none_within(MOMENT_S, "before the fence is in the log")
    hold.release()
    behind_fence(r, await second.opened())


@check(
    "R-fence-above-others",
    "S6.9-fence-first",
    "S6.8-fence-refuses-older",
    title="a log that somebody has fenced already is fenced above that",
)
async def above_others(r: RouterWorld) -> None:
    run = await r.running()
    run.verifier.commit(run.session, [7])
    r.cache.append(run.facts.log_ref, {"epoch": 6})
    opened = await failed_over(r, run)
    ensure(opened.message["epoch"] > 6, f"expected an epoch above 6, came {opened.message['epoch']}")
    behind_fence(r, opened)


@check(
    "R-fence-overtaken",
    title="a fence that somebody fences above before the log is read again is repeated above that",
    profile="decisions",
    decisions=["D19"],
)
async def overtaken(r: RouterWorld) -> None:
    run = await r.running()
    run.verifier.commit(run.session, [7])
    second = await r.place.verifier()
    fence = r.hold("PATCH", run.facts.log_ref)
    await lose(run.verifier)
    await fence.reached()
    reading = r.hold("GET", run.facts.log_ref)
    fence.release()
    await reading.reached()
    r.cache.append(run.facts.log_ref, {"epoch": 9})
    reading.release()
    opened = await second.opened()
    ensure(opened.message["epoch"] > 9, f"expected an epoch above 9, came {opened.message['epoch']}")
    behind_fence(r, opened)


@check(
    "R-fence-void-records",
    title="a commit record below a fence is void: it is not resumed",
    profile="decisions",
    decisions=["D20"],
)
async def void_records(r: RouterWorld) -> None:
    run = await r.running()
    facts = run.verifier.commit(run.session, [7])
    digest = facts.digest
    r.cache.append(facts.log_ref, {"epoch": 2})
    run.verifier.commit(run.session, [8, 9])  # of epoch 1
    opened = await failed_over(r, run)
    behind_fence(r, opened)
    expect(resumed(opened), (1, 1, digest), "round, committed and digest of resume")
    ref = opened.message["resume"]["committed_tokens"]
    expect(object_tokens(r, ref, "committed_tokens"), [7], "tokens of committed_tokens")


@check(
    "R-fence-unknown-keys",
    title="unknown keys of commit records are ignored",
    profile="decisions",
    decisions=["D20"],
)
async def unknown_keys(r: RouterWorld) -> None:
    run = await r.running()
    facts = run.facts
    record = facts.commit([7, 8])
    r.cache.append(facts.log_ref, {**record, "future": {"a": [1, None]}, "another": b"\x00"})
    opened = await failed_over(r, run)
    expect(resumed(opened), (1, 2, facts.digest), "round, committed and digest of resume")
