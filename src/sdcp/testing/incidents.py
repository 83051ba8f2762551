"""What happens to the parties of a world from outside, planned beforehand: each at a moment, or after so many effects.

A process that crashes comes back and knows nothing; one that stands still goes on later as if no time had passed, with
all it had, past its fencing; one that is told to stop ends what is under way and then ends itself. A router that keeps
a manifest (D45) crashes too, or gets a second life while the first one goes on; one that keeps none does neither, since
its session would be lost with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from sdcp.messages.contract import Sampling
from sdcp.testing.observer import describe, short
from sdcp.testing.surroundings import ROUTER

if TYPE_CHECKING:
    from sdcp.testing.world import World

VERIFIER: Final = "the verifier"
DRAFTER: Final = "the drafter"
"""Whoever it is at that moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """`who` is a party, or VERIFIER or DRAFTER; `other` the second one of a cut.

    It happens at `at_ms`, or when `who` has carried out `after_effects` effects; what lasts, lasts `for_ms`.
    """

    what: str
    who: str = ""
    other: str = ""
    at_ms: float = 0.0
    for_ms: float = 0.0
    after_effects: int | None = None
    sampling: Sampling | None = None
    from_round: int | None = None

    def __str__(self) -> str:
        when = f"at {self.at_ms:.1f} ms" if self.after_effects is None else f"after {self.after_effects} effects"
        whom = f" {short(self.who)}" if self.who else ""
        other = f" and {short(self.other)}" if self.other else ""
        lasting = f", for {self.for_ms:.0f} ms" if self.for_ms else ""
        profile = f" {describe(self.sampling)} from round {self.from_round}" if self.sampling else ""
        return f"{when}: {self.what}{whom}{other}{profile}{lasting}"


def happen(world: World, incident: Incident) -> None:
    """Let it happen now. Where it names nobody who is there, nothing does."""
    party = _whom(world, incident.who)
    if incident.who and party is None:
        return
    world.recorder.remark(party or "", str(incident))
    _ACTS[incident.what](world, incident, party or "")


def _whom(world: World, who: str) -> str | None:
    if who == VERIFIER:
        return world.router.machine.verifier
    return world.router.machine.drafter if who == DRAFTER else who


def _crash(world: World, incident: Incident, party: str) -> None:
    if party == ROUTER:
        _crash_router(world, incident)
        return
    instance = world.verifiers.get(party) or world.drafters[party]
    instance.crash()
    if incident.for_ms:
        world.wires.down.add(party)
        world.clock.watch_for("", incident.for_ms, world.wires.down.discard, party)


def _crash_router(world: World, incident: Incident) -> None:
    world.router.crash()
    world.wires.down.add(ROUTER)
    world.clock.watch_for("", incident.for_ms, _start_router, world)


def _start_router(world: World) -> None:
    world.wires.down.discard(ROUTER)
    world.router.start_again()


def _split(world: World, incident: Incident, party: str) -> None:
    world.router.split()


def _stand_still(world: World, incident: Incident, party: str) -> None:
    world.clock.stop(party)
    world.clock.watch_for("", incident.for_ms, world.clock.go_on, party)


def _cut(world: World, incident: Incident, party: str) -> None:
    other = _whom(world, incident.other)
    if other is not None:
        world.wires.cut(party, other)
        world.clock.watch_for("", incident.for_ms, world.wires.mend, party, other)


def _suspect(world: World, incident: Incident, party: str) -> None:
    world.router.lose_verifier() if party in world.verifiers else world.router.lose_drafter()


def _stop(world: World, incident: Incident, party: str) -> None:
    (world.verifiers.get(party) or world.drafters[party]).stop()
    ending = Incident(what="crash", who=party, for_ms=incident.for_ms)
    world.clock.watch_for("", incident.for_ms, happen, world, ending)


def _break(world: World, incident: Incident, party: str) -> None:
    engine = world.target if party in world.verifiers else world.drafters[party].engine
    _set_broken(engine, True)
    world.broken = world.broken or party in world.verifiers
    world.clock.watch_for("", incident.for_ms, _set_broken, engine, False)


def _set_broken(engine: object, broken: bool) -> None:
    if hasattr(engine, "broken"):  # fakes that can break
        engine.broken = broken


def _change_profile(world: World, incident: Incident, party: str) -> None:
    assert incident.sampling is not None
    world.front_end.change_profile(incident.sampling, incident.from_round)


def _withdraw(world: World, incident: Incident, party: str) -> None:
    world.withdrawn = True
    world.front_end.withdraw()


_ACTS: Mapping[str, Callable[[World, Incident, str], None]] = MappingProxyType(
    {
        "crash": _crash,
        "begin another life of": _split,
        "stand still": _stand_still,
        "cut off": _cut,
        "suspect": _suspect,
        "stop": _stop,
        "break the engine of": _break,
        "change the profile": _change_profile,
        "withdraw": _withdraw,
    }
)
