"""The same of a verifier's statuses to routers and of a drafter's (5.2, 6.1)."""

from __future__ import annotations

from itertools import pairwise

from sdcp_conformance.outcome import NotApplicable, ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.router import ROLE_NUMBERS
from sdcp_conformance.worlds.world import World

LONGEST_TTL_S = 10.0

INTERVAL = "statuses come at intervals shorter than their ttl_ms"
SHORT = {"status_ttl_ms": 1500}


@check("V-status-interval", "S6.1-status-interval", "S5.1-put-status", title=INTERVAL, limits=SHORT)
@check("D-status-interval", "S6.1-status-interval", "S5.1-put-status", title=INTERVAL, limits=SHORT)
async def interval(world: World) -> None:
    ttl_s = (await world.reported(1))[0].message["ttl_ms"] / 1000
    if ttl_s > LONGEST_TTL_S:
        raise NotApplicable(f"a status holds for {ttl_s:g} s, which is too long to wait for the next ones")
    statuses = await world.reported(4, 3 * ttl_s + world.patience_s)
    passed_s = sorted(after.at - before.at for before, after in pairwise(statuses[:4]))
    # the middle one: a machine may be too busy to hear one status of three in time
    ensure(passed_s[1] < ttl_s, f"expected a status every {ttl_s:g} s at least, they came {passed_s[1]:.2f} s apart")


@check("V-status-role", "S5.2-status", title="a verifier's status has role 2, and always the same instance")
@check("D-status-role", "S5.2-status", title="a drafter's status has role 1, and always the same instance")
async def role(world: World) -> None:
    statuses = [each.message for each in await world.reported(2)]
    expect({status["role"] for status in statuses}, {ROLE_NUMBERS[world.town.role]}, "roles in statuses")
    expect(len({status["instance"] for status in statuses}), 1, "number of instances in the statuses of one process")
