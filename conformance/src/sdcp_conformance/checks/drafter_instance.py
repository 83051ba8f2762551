"""A drafter as an instance: what it tells routers of itself (5.2, 6.1, D7)."""

from __future__ import annotations

from urllib.parse import quote

from sdcp_conformance.oracle.bigram import DRAFT, TOKENIZER
from sdcp_conformance.outcome import NotApplicable, ensure, expect
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.drafter import DrafterSession, DrafterWorld

ROUNDS = 12


@check(
    "D-status-path",
    title="a status is put at its instance, percent-encoded as one segment, and says base, model and tokenizer",
    profile="decisions",
    decisions=["D7"],
)
async def path(d: DrafterWorld) -> None:
    report = (await d.reported(1))[-1]
    status = report.message
    ending = f"/instances/{quote(status['instance'], safe='')}/status"
    ensure(report.request.path.endswith(ending), f"expected a path with {ending}, came {report.request.path}")
    who = (status.get("base"), status.get("model"), status.get("tokenizer"))
    expect(who, (d.base, DRAFT.digest, TOKENIZER), "base, model and tokenizer of a status")


@check(
    "D-status-accept",
    "S5.2-status-accept-milli",
    title="accept_milli averages a/M in thousandths: it is high after rounds that accept all, lower after others",
    own=True,
)
async def accept(d: DrafterWorld) -> None:
    session = await d.assigned(m_init=2, max_new=1000)
    high = await _rounds(session, accepted=True)
    if high is None:
        raise NotApplicable("statuses have no accept_milli")
    ensure(high > 100, f"accept_milli after {ROUNDS} rounds with a = M: expected it to come near 1000, came {high}")
    low = await _rounds(session, accepted=False)
    ensure(low is not None and low < high, f"accept_milli after {ROUNDS} rounds with a = 0: expected less, came {low}")
    await session.finish()


async def _rounds(session: DrafterSession, *, accepted: bool) -> int | None:
    """Judge some rounds, all accepted or none; return accept_milli in the last proposal's status."""
    said: int | None = None
    for _ in range(ROUNDS):
        proposal = await session.proposal()
        said = proposal.message["status"].get("accept_milli")
        proposal.accept(len(proposal.tokens) if accepted else 0, 1)
    return said
