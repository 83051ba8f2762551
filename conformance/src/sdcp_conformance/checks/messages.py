"""What every message is held against, whichever check it belongs to: faults that no other check was blamed for."""

from __future__ import annotations

from sdcp_conformance.outcome import ensure
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.world import World

TITLE = "messages that belong to no other check match their CDDL and media type"


@check("V-messages", "S5.1-media-type", "S5.2-session-state", "S5.2-verdict", "S5.2-event", title=TITLE, last=True)
@check("D-messages", "S5.1-media-type", "S5.2-proposal", "S5.2-status", title=TITLE, last=True)
@check("R-messages", "S5.1-media-type", "S5.2-session-open", "S5.2-assignment", "S5.2-policy", title=TITLE, last=True)
async def sound(world: World) -> None:
    faults = world.town.watch.faults
    ensure(not faults, f"expected only sound messages, came: {'; '.join(dict.fromkeys(faults))}")


ENCODED = "messages are in core deterministic encoding"


@check("V-deterministic", title=ENCODED, profile="decisions", decisions=["D4"], last=True)
@check("D-deterministic", title=ENCODED, profile="decisions", decisions=["D4"], last=True)
@check("R-deterministic", title=ENCODED, profile="decisions", decisions=["D4"], last=True)
async def deterministic(world: World) -> None:
    found = list(dict.fromkeys(world.town.watch.not_deterministic))
    ensure(not found, f"expected core deterministic encoding, came {len(found)} messages without, as {found[:1]}")
