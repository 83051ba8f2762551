"""Rounds of rule 1 held against the ladder (6.5.2): after each, what the verifier does must be what the oracle does.

A trace plays the router too: after a switch or a self-decoding period it waits for the event and assigns a drafter.
"""

from __future__ import annotations

from typing import Any

from sdcp_conformance.oracle.control import CONTINUE, FAIL, SELF_DECODE, SWITCH, Ladder
from sdcp_conformance.outcome import expect
from sdcp_conformance.worlds.verifier import VerifierSession, VerifierWorld
from sdcp_conformance.worlds.world import DRAFTER, OTHER


class Trace:
    """`actions`: those of all rounds so far; `verdict`: the last one; `over`: whether the session has failed."""

    def __init__(self, session: VerifierSession) -> None:
        self.session = session
        self.ladder = Ladder(session.contract)
        self.actions: list[int] = []
        self.verdict: dict[str, Any] = {}
        self.who = "drafter"

    @classmethod
    async def begun(cls, v: VerifierWorld, **given: Any) -> Trace:
        """A trace of a new session; its contract leaves room for many rounds."""
        return cls(await v.begun(**{"max_new": 2000, "m_init": 4, **given}))

    @property
    def over(self) -> bool:
        """Whether the session has failed."""
        return self.actions[-1:] == [FAIL]

    async def round(self, right: int, count: int) -> int:
        """Propose `count` tokens of which the first `right` are; return the action, as foretold."""
        count = min(count, self.session.m_cap)
        tokens = self.session.half_right(min(right, count), count)
        drafter = DRAFTER if self.who == "drafter" else OTHER
        self.verdict = await self.session.advance(tokens, who=self.who, drafter=drafter)
        wanted = self.ladder.after(self.verdict["accepted"], count, self.verdict["load"])
        self.actions.append(self.verdict["action"])
        where = f"of round {self.session.round} (a = {self.verdict['accepted']}, M = {count}) after {self.actions[:-1]}"
        expect(self.verdict["action"], wanted, f"action {where}")
        if wanted == CONTINUE:
            expect(self.verdict["low"], self.ladder.c, f"low {where}")
        if wanted in (SWITCH, SELF_DECODE):
            await self.assigned_again()
        return wanted

    async def low(self) -> int:
        """A round without an accepted token."""
        return await self.round(0, 2)

    async def good(self) -> int:
        """A round of accepted tokens alone."""
        return await self.round(2, 2)

    async def assigned_again(self) -> None:
        """Wait for the event, take in what was decoded meanwhile, and assign the other drafter."""
        event = (await self.session.event()).message
        self.session.catch_up()
        expect(event.get("committed"), len(self.session.output), f"committed of the event after {self.actions}")
        self.who = "other" if self.who == "drafter" else "drafter"
        (await self.session.assign(drafter=DRAFTER if self.who == "drafter" else OTHER)).succeeded()
        self.session.m_cap = min(self.session.m_cap, self.session.m_init)  # within both, whichever holds (D16)
