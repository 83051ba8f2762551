"""What checks of a router do again and again: get a session opened, assigned, moved on; take its instances away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sdcp_conformance.encoding import decode
from sdcp_conformance.outcome import Failed, ensure, expect
from sdcp_conformance.worlds.router import (
    Assigned,
    Instance,
    Opened,
    PlayedDrafter,
    PlayedVerifier,
    Put,
    Requested,
    RouterWorld,
    Running,
    Seat,
)
from sdcp_conformance.worlds.session import SessionFacts

MOMENT_S = 0.3
"""How long it is waited to see that nothing happens."""


async def opened_at(r: RouterWorld, verifier: PlayedVerifier, **members: Any) -> tuple[Requested, Opened]:
    """A request, and its session-open at that verifier, which is still to be answered."""
    requested = r.request(**members)
    return requested, await verifier.opened()


async def open_at_any(*verifiers: PlayedVerifier) -> Opened:
    """The next session-open at any of these verifiers."""
    taking = [asyncio.ensure_future(verifier.opened()) for verifier in verifiers]
    try:
        done, _ = await asyncio.wait(taking, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for each in taking:
            each.cancel()
        await asyncio.gather(*taking, return_exceptions=True)


async def assigned(verifier: PlayedVerifier, drafter: PlayedDrafter) -> tuple[Put, Assigned]:
    """PUT drafter and the assignment that follows it, both accepted."""
    put = await verifier.put()
    put.accept()
    assignment = await drafter.assignment()
    assignment.accept()
    return put, assignment


async def lose(instance: Instance) -> None:
    """Let its status expire."""
    (await instance.report(ttl_ms=1)).no_content()


async def failed_over(r: RouterWorld, running: Running) -> Opened:
    """The session-open at a second verifier, when the first one has expired; still to be answered."""
    second = await r.place.verifier()
    await lose(running.verifier)
    return await second.opened()


def behind_fence(r: RouterWorld, opened: Opened) -> None:
    """Fail unless the commit log has the fence of this session-open's epoch, and none that is higher."""
    epoch, log = opened.message["epoch"], r.cache.log(opened.message["commit_log"])
    ensure(epoch > 1, f"expected another epoch than the first verifier had, came {epoch}")
    expect(log.fence, epoch, "the highest fence in the commit log when the session is opened elsewhere")


def object_tokens(r: RouterWorld, ref: Any, what: str) -> list[int]:
    """The tokens of an object (D20)."""
    ensure(isinstance(ref, str), f"{what}: expected the URI of an object, came {ref!r:.80}")
    data = r.cache.get(ref)
    if data is None:
        raise Failed(f"{what}: expected an object at {ref}, there is none")
    value = decode(data)
    ensure(isinstance(value, list), f"{what}: expected an array of tokens, came {value!r:.80}")
    return list(value)


def prompt_tokens(r: RouterWorld, message: dict[str, Any]) -> list[int]:
    """The prompt of a message, wherever it is."""
    prompt = message["prompt"]
    return object_tokens(r, prompt, "prompt") if isinstance(prompt, str) else list(prompt)


def answer_states(verifier: PlayedVerifier, facts: SessionFacts, *kinds: str) -> None:
    """Answer messages of these kinds (see `PlayedVerifier.kind_of`) with the session's state as soon as they come."""
    for kind in kinds:
        verifier.box(kind).auto = lambda incoming: incoming.respond(200, facts.state())


@asynccontextmanager
async def relatives(r: RouterWorld, **same: bytes) -> AsyncIterator[tuple[RouterWorld, RouterWorld]]:
    """Two worlds on a router of their own: this check's instances, and others that have `same` in common with them."""
    seats = (r.place.seat, Seat(r.town))
    for name, digest in same.items():
        setattr(seats[1], name, digest)
    subject = await r.town.subject(instances=[each for seat in seats for each in seat.instances()])
    ours, others = (RouterWorld(r.town, subject, seat) for seat in seats)
    try:
        yield ours, others
    finally:
        for world in (ours, others):
            await world.close()
            r.watch.faults += world.watch.faults
        seats[1].close()
        await subject.stop()
