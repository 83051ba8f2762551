"""A verifier's statuses to its routers (5.2, 6.1, D7)."""

from __future__ import annotations

from itertools import pairwise
from urllib.parse import quote

from sdcp_conformance.oracle.bigram import TARGET, TOKENIZER
from sdcp_conformance.outcome import NotApplicable, ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.verifier import VerifierWorld

LONGEST_TTL_S = 10.0


@check(
    "V-status-interval",
    "S6.1-status-interval",
    "S5.1-put-status",
    title="statuses come at intervals shorter than their ttl_ms",
    limits={"status_ttl_ms": 1500},
)
async def interval(v: VerifierWorld) -> None:
    ttl_s = (await v.reported(1))[0].message["ttl_ms"] / 1000
    if ttl_s > LONGEST_TTL_S:
        raise NotApplicable(f"a status holds for {ttl_s:g} s, which is too long to wait for the next ones")
    statuses = await v.reported(4, 3 * ttl_s + v.patience_s)
    passed_s = sorted(after.at - before.at for before, after in pairwise(statuses[:4]))
    # the middle one: a machine may be too busy to hear one status of three in time
    ensure(passed_s[1] < ttl_s, f"expected a status every {ttl_s:g} s at least, they came {passed_s[1]:.2f} s apart")


@check(
    "V-status-role",
    "S5.2-status",
    title="a verifier's status has role 2, and always the same instance",
)
async def role(v: VerifierWorld) -> None:
    statuses = [each.message for each in await v.reported(2)]
    expect({status["role"] for status in statuses}, {2}, "roles in statuses")
    expect(len({status["instance"] for status in statuses}), 1, "number of instances in the statuses of one process")


@check(
    "V-status-path",
    "S5.1-put-status",
    title="{id} in the path of a status is its instance, percent-encoded as one segment",
    profile="decisions",
    decisions=["D7"],
)
async def path(v: VerifierWorld) -> None:
    for each in await v.reported(1):
        segment = each.request.path.removesuffix("/status").rpartition("/instances/")[2]
        expect(segment.upper(), quote(each.message["instance"], safe="").upper(), "{id} of instances/{id}/status")


@check(
    "V-status-keys",
    title="a status has the keys base, model and tokenizer",
    profile="decisions",
    decisions=["D7"],
)
async def keys(v: VerifierWorld) -> None:
    status = (await v.reported(1))[-1].message
    wanted = (v.base, TARGET.digest, TOKENIZER)
    expect(tuple(status.get(key) for key in ("base", "model", "tokenizer")), wanted, "base, model and tokenizer")
