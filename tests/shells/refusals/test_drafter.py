"""POST assignments at a drafter's process: what it does not take, and that it still takes the right one (D20, D28)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from sdcp.http.client import Answer
from sdcp.wire import cbor
from tests.shells.refusals.expected import check_refused
from tests.shells.refusals.played_cache import always, played
from tests.shells.refusals.processes import CONTEXT, V
from tests.shells.refusals.requests import SilentVerifier, silent_verifier
from tests.shells.refusals.session import PROMPT, Session, contract_for
from tests.shells.refusals.town import MISSING, OTHER, Town

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def verifier(town: Town) -> AsyncIterator[SilentVerifier]:
    """Where the drafter sends the proposals of what it takes; each test has it take one session."""
    async with silent_verifier(town) as verifier:
        yield verifier
        await verifier.asked.wait()


class Assigned(Session):
    """A session as the router of this test assigns it to the drafter's process."""

    def __init__(self, town: Town, verifier: SilentVerifier, **contract: Any) -> None:
        super().__init__(town, **contract)
        self.places = {"verifier": verifier.base, "drafter": town.bases["drafter-process"]}

    async def give(self, who: str = "router", **changes: Any) -> Answer:
        url = f"{self.town.bases['drafter-process']}/assignments"
        return await self.town.ask(who, "POST", url, self.assignment(**{**self.places, **changes}))

    async def taken(self) -> None:
        """The right assignment is taken."""
        answer = await self.give()
        assert (answer.status, answer.body) == (204, b""), answer


UNCOMMITTED = {"committed": 3, "round": 1}

CASES: dict[str, tuple[int | str, Any]] = {
    "for another drafter": (422, {"drafter": OTHER}),
    "for a drafter beside it": (422, lambda s: {"drafter": s.places["drafter"] + "/x"}),
    "for no drafter": (422, {"drafter": "drafter"}),
    "of a verifier over http": (422, {"verifier": "http://127.0.0.1/"}),
    "of a verifier that is none": (422, {"verifier": ""}),
    "with another tokenizer": (422, lambda s: {"contract": contract_for(s.town, tokenizer=bytes(32))}),
    "with other draft models": (422, lambda s: {"contract": contract_for(s.town, drafters=[bytes(32)])}),
    "of another prefix": (422, {"digest": bytes(32)}),
    "with another prompt": (422, {"prompt": [3, 5]}),
    "with more committed than max_new": (422, {"committed": 61}),
    "with a prompt token not below V": (422, {"prompt": [3, V]}),
    "with a prompt token of 64 bits": (422, {"prompt": [3, 2**64 - 1]}),
    "over the context": (422, lambda s: {"contract": contract_for(s.town, max_new=CONTEXT)}),
    "with a prompt elsewhere": (422, {"prompt": "https://cache.test/objects/x"}),
    "with a prompt that is a log": (422, lambda s: {"prompt": s.log}),
    "with a prompt that is not there": (503, lambda s: {"prompt": s.town.new_name("objects")}),
    "with a prompt in a cache that is down": (503, lambda s: {"prompt": s.town.new_name("objects", "elsewhere")}),
    "with tokens elsewhere": (422, {**UNCOMMITTED, "committed_tokens": "https://cache.test/objects/x"}),
    "with tokens not there": (503, lambda s: {**UNCOMMITTED, "committed_tokens": s.town.new_name("objects")}),
    "with an unknown rule": ("sdcp-bad-contract", lambda s: {"contract": contract_for(s.town, rule=3)}),
    "with an unknown key in it": ("sdcp-bad-contract", lambda s: {"contract": contract_for(s.town, extra=1)}),
    "with m_max 0": ("sdcp-bad-contract", lambda s: {"contract": contract_for(s.town, m_max=0)}),
    "with a ladder that finishes": ("sdcp-bad-contract", lambda s: {"contract": contract_for(s.town, fallback=[4])}),
    "without a rule": ("sdcp-bad-contract", lambda s: {"contract": contract_for(s.town, rule=MISSING)}),
    "with a contract that is no map": ("sdcp-bad-contract", {"contract": 1}),
}


@pytest.mark.requirement("S5.1-post-assignments", "S6.1-drafter-permitted")
@pytest.mark.decision("D3", "D5", "D6", "D9", "D11", "D20")
@pytest.mark.parametrize(("kind", "changes"), CASES.values(), ids=CASES.keys())
async def test_an_assignment_that_cannot_be_taken(
    town: Town, verifier: SilentVerifier, kind: int | str, changes: Any
) -> None:
    session = Assigned(town, verifier)
    check_refused(await session.give(**(changes(session) if callable(changes) else changes)), kind)
    assert not verifier.asked.is_set()
    await session.taken()


@pytest.mark.decision("D3", "D20-array")
@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", cbor.encode("prompt"), cbor.encode([3, -4]), cbor.encode(PROMPT) + b"\x00", cbor.encode([3, V])],
    ids=["nothing", "a break", "text", "a negative token", "an octet more", "not below V"],
)
async def test_a_prompt_object_that_is_none_is_422(town: Town, verifier: SilentVerifier, content: bytes) -> None:
    session = Assigned(town, verifier)
    check_refused(await session.give(prompt=await town.put_object(content)), 422)
    await session.taken()


@pytest.mark.decision("D3", "D11-redirects")
async def test_a_cache_that_redirects_or_breaks_is_503(town: Town, verifier: SilentVerifier) -> None:
    session = Assigned(town, verifier)
    there = await town.put_tokens(PROMPT)
    for handler in (always(307, b"", ("location", there)), always(500)):
        async with played(town, handler):
            check_refused(await session.give(prompt=town.new_name("objects", "elsewhere")), 503, "now")
    await session.taken()


@pytest.mark.requirement("S6.9-problem-stale-epoch", "S4.1-contract-never-modified")
@pytest.mark.decision("D21", "D28")
async def test_a_session_that_is_held(town: Town, verifier: SilentVerifier) -> None:
    session = Assigned(town, verifier)
    session.epoch = 2
    await session.taken()
    check_refused(await session.give(epoch=1), "sdcp-stale-epoch", "epoch 2")
    check_refused(await session.give(epoch=0, digest=bytes(32)), "sdcp-stale-epoch", "epoch 2")
    check_refused(await session.give(contract=contract_for(town, max_new=61)), 422, "contract")
    check_refused(await session.give(drafter=OTHER), 422, "this one is")
    check_refused(await session.give(who="drafter"), 403)
    await session.taken()
