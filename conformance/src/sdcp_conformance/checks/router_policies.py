"""Changes of the sampling profile on their way through a router (6.6, D21). Front ends ask for them as D33 says."""

from __future__ import annotations

import asyncio
from typing import Any

from sdcp_conformance.net.client import Answer
from sdcp_conformance.oracle.control import FINISH, SWITCH
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.routed import MOMENT_S, answer_states, assigned, failed_over
from sdcp_conformance.worlds.router import RouterWorld, Running

COLD: dict[str, Any] = {"temperature_milli": 0}
WARM: dict[str, Any] = {"temperature_milli": 900, "top_k": 5}


async def changed(r: RouterWorld, run: Running, sampling: dict[str, Any], **members: Any) -> dict[str, Any]:
    """Change the profile of a running session; returns the policy, when verifier and drafter have taken it."""
    asking = r.background(run.request.change_profile(sampling, **members))
    policy = await run.verifier.policy()
    policy.accept()
    (await run.drafter.assignment()).accept()
    (await asking).succeeded()
    return policy.message


@check(
    "R-policy-sent",
    "S6.6-from-round",
    "S5.1-post-policy",
    "S5.2-policy",
    title="a new profile goes to the verifier, for rounds after the current one",
    profile="decisions",
    decisions=["D33"],
)
async def sent(r: RouterWorld) -> None:
    run = await r.running()
    r.background(run.request.change_profile(WARM))
    message = (await run.verifier.policy()).message
    expect((message["session"], message["sampling"]), (run.session, WARM), "session and sampling of the policy")
    ensure(message["from_round"] > 0, f"expected from_round above the current round 0, came {message['from_round']}")


@check(
    "R-policy-answered",
    title="the front end is told the policy as it was applied, once the verifier has taken it",
    profile="decisions",
    decisions=["D33"],
)
async def answered(r: RouterWorld) -> None:
    run = await r.running()
    asking: asyncio.Task[Answer] = r.background(run.request.change_profile(WARM))
    policy = await run.verifier.policy()
    done, _ = await asyncio.wait([asking], timeout=MOMENT_S)
    ensure(not done, "expected no answer to the front end before the verifier's")
    policy.accept()
    expect((await asking).message, policy.message, "the answer to the front end")


@check(
    "R-policy-exact",
    title="with from_round, the policy is for that round, or refused",
    profile="decisions",
    decisions=["D33"],
)
async def exact(r: RouterWorld) -> None:
    run = await r.running()
    expect((await changed(r, run, WARM, from_round=7))["from_round"], 7, "from_round of the policy")
    asking = r.background(run.request.change_profile(COLD, from_round=1))
    (await run.verifier.policy()).refuse(409)
    (await asking).refused(409)


@check(
    "R-policy-too-late",
    "S6.6-from-round",
    title="without from_round, a policy that came too late is sent for a later round",
    profile="decisions",
    decisions=["D33"],
)
async def too_late(r: RouterWorld) -> None:
    run = await r.running()
    answer_states(run.verifier, run.facts, "a session-open")
    asking = r.background(run.request.change_profile(WARM))
    for _ in range(2):
        policy = await run.verifier.policy()
        run.verifier.commit(run.session, [7])
        run.verifier.commit(run.session, [7])
        policy.refuse(409)
    policy = await run.verifier.policy()
    ensure(policy.message["from_round"] > 2, f"expected a later from_round, came {policy.message['from_round']}")
    policy.accept()
    expect((await asking).message["from_round"], policy.message["from_round"], "from_round that the front end is told")


@check(
    "R-policy-drafter-told",
    "S6.6-in-assignments",
    title="the current drafter is told by an assignment alone, without PUT drafter",
    profile="decisions",
    decisions=["D21", "D33"],
)
async def drafter_told(r: RouterWorld) -> None:
    run = await r.running()
    r.background(run.request.change_profile(WARM))
    (await run.verifier.policy()).accept()
    before = len(run.verifier.box("a PUT drafter").all)
    message = (await run.drafter.assignment()).message
    expect((message["session"], message.get("sampling")), (run.session, WARM), "session and sampling of the assignment")
    expect(len(run.verifier.box("a PUT drafter").all), before, "PUT drafters before and after the policy")


@check(
    "R-policy-in-assignments",
    "S6.6-in-assignments",
    "S5.2-assignment-sampling",
    title="later assignments carry the new profile",
    profile="decisions",
    decisions=["D33"],
)
async def in_assignments(r: RouterWorld) -> None:
    run = await r.running(sampling=COLD)
    await changed(r, run, WARM)
    other = await r.place.drafter()
    run.verifier.commit(run.session, [7])
    (await run.verifier.send_event(run.session, SWITCH)).no_content()
    _, assignment = await assigned(run.verifier, other)
    expect(assignment.message.get("sampling"), WARM, "sampling of a later assignment")


@check(
    "R-policy-contract-unchanged",
    "S6.6-in-assignments",
    "S4.1-contract-never-modified",
    "S6.6-rule-unchanged",
    title="the contract in later assignments is the one that was opened",
    profile="decisions",
    decisions=["D33"],
)
async def contract_unchanged(r: RouterWorld) -> None:
    run = await r.running(sampling=COLD)
    await changed(r, run, WARM)
    other = await r.place.drafter()
    run.verifier.commit(run.session, [7])
    (await run.verifier.send_event(run.session, SWITCH)).no_content()
    for each in await assigned(run.verifier, other):
        expect(each.message["contract"], run.opened.message["contract"], "contract after the change of the profile")


@check(
    "R-policy-none-yet",
    "S5.2-assignment-sampling",
    title="an assignment has `sampling` only once the profile was updated",
    profile="decisions",
    decisions=["D21"],
)
async def none_yet(r: RouterWorld) -> None:
    run = await r.running(sampling=COLD)
    expect(run.assignment.get("sampling"), None, "sampling of an assignment before any update")


@check(
    "R-policy-last-wins",
    "S6.6-in-assignments",
    title="of two changes the later one is in force",
    profile="decisions",
    decisions=["D21", "D33"],
)
async def last_wins(r: RouterWorld) -> None:
    run = await r.running()
    await changed(r, run, WARM)
    await changed(r, run, COLD)
    other = await r.place.drafter()
    run.verifier.commit(run.session, [7])
    (await run.verifier.send_event(run.session, SWITCH)).no_content()
    _, assignment = await assigned(run.verifier, other)
    expect(assignment.message.get("sampling"), COLD, "sampling of a later assignment")


@check(
    "R-policy-failover",
    "S6.6-applies-from-round",
    title="a new verifier is sent the profile in force before PUT drafter, from the next round on",
    profile="decisions",
    decisions=["D21", "D33"],
)
async def failover(r: RouterWorld) -> None:
    run = await r.running()
    await changed(r, run, WARM)
    run.verifier.commit(run.session, [7])
    run.verifier.commit(run.session, [8])
    opened = await failed_over(r, run)
    opened.accept()
    policy = await opened.verifier.policy()
    found = (policy.message["from_round"], policy.message["sampling"])
    expect(found, (3, WARM), "from_round and sampling of the policy at the new verifier")
    expect(len(opened.verifier.box("a PUT drafter").all), 0, "PUT drafters before the policy")
    policy.accept()
    _, assignment = await assigned(opened.verifier, run.drafter)
    expect(assignment.message.get("sampling"), WARM, "sampling of the new assignment")


@check(
    "R-policy-failover-pending",
    title="a new verifier is sent the profile in force first, then those for later rounds",
    profile="decisions",
    decisions=["D21", "D33"],
)
async def failover_pending(r: RouterWorld) -> None:
    run = await r.running()
    await changed(r, run, WARM, from_round=1)
    await changed(r, run, COLD, from_round=30)
    run.verifier.commit(run.session, [7])
    opened = await failed_over(r, run)
    opened.accept()
    found = []
    for _ in range(2):
        policy = await opened.verifier.policy()
        found.append((policy.message["from_round"], policy.message["sampling"]))
        policy.accept()
    expect(found, [(2, WARM), (30, COLD)], "from_round and sampling of the policies at the new verifier")


@check(
    "R-policy-ended",
    title="the profile of a session that has ended is not changed",
    profile="decisions",
    decisions=["D33"],
)
async def ended(r: RouterWorld) -> None:
    run = await r.running()
    (await run.verifier.send_event(run.session, FINISH)).no_content()
    (await run.request.change_profile(WARM)).rejected("a change after the end")
    expect(len(run.verifier.box("a policy").all), 0, "policies after the end")


@check(
    "R-policy-wrong",
    title="a profile that 4.1 does not permit is refused, and goes to nobody",
    profile="decisions",
    decisions=["D33"],
)
async def wrong(r: RouterWorld) -> None:
    run = await r.running()
    profiles: list[Any] = [{"top_p_milli": 1001}, {"temperature_milli": -1}, {"top_k": 1.5}, {"seed": b"1"}, []]
    for sampling in profiles:
        answer = await r.ask("front-end", "POST", f"{run.request.path}/policy", {"sampling": sampling})
        answer.rejected(f"the profile {sampling}")
    (await r.ask("front-end", "POST", f"{run.request.path}/policy", {})).rejected("no profile at all")
    expect(len(run.verifier.box("a policy").all), 0, "policies of profiles that are none")
