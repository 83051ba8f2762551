"""A verifier's statuses to its routers (5.2, 6.1, D7)."""

from __future__ import annotations

from urllib.parse import quote

from sdcp_conformance.oracle.bigram import TARGET, TOKENIZER
from sdcp_conformance.outcome import expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.verifier import VerifierWorld


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
