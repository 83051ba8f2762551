"""What every message is held against, whichever check it belongs to: faults that no other check was blamed for."""

from __future__ import annotations

from sdcp_conformance.outcome import ensure
from sdcp_conformance.registry import check
from sdcp_conformance.worlds.world import World

_SENT = {
    "V": ("S5.2-session-state", "S5.2-verdict", "S5.2-output", "S5.2-event", "S5.2-status"),
    "D": ("S5.2-proposal", "S5.2-status"),
    "R": ("S5.2-session-open", "S5.2-assignment", "S5.2-policy"),
}


async def _sound(world: World) -> None:
    faults = world.town.watch.faults
    ensure(not faults, f"expected only sound messages, came: {'; '.join(dict.fromkeys(faults))}")


async def _deterministic(world: World) -> None:
    found = list(dict.fromkeys(world.town.watch.not_deterministic))
    ensure(not found, f"expected core deterministic encoding, came {len(found)} messages without, as {found[:1]}")


for _role, _rules in _SENT.items():
    check(
        f"{_role}-messages",
        "S5.1-media-type",
        "S5.1-problem-details",
        *_rules,
        title="messages that belong to no other check match their CDDL and media type",
        last=True,
    )(_sound)
    check(
        f"{_role}-deterministic",
        title="messages are in core deterministic encoding",
        profile="decisions",
        decisions=["D4"],
        last=True,
    )(_deterministic)
