"""For checks of a verifier: the kit is its router, its drafters, its front ends and its cache.

async def some_check(v: VerifierWorld) -> None:
    session = await v.begun(low_rounds=1)           # opened, and assigned to DRAFTER
    verdict = await session.advance()               # a right proposal, its verdict checked against the oracle
    answer = await session.propose([1, 2], round=7)  # any member changed
    answer.refused("sdcp-stale-base")
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from typing import Any

from sdcp_conformance.net.client import Answer
from sdcp_conformance.oracle.bigram import TARGET
from sdcp_conformance.oracle.rules import greedy, seeded, speculative, truncate
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.played.cache import Log
from sdcp_conformance.played.inbox import Incoming
from sdcp_conformance.worlds.session import PROMPT, SessionFacts, contract_of, tokens_object
from sdcp_conformance.worlds.world import DRAFTER, World


class VerifierWorld(World):
    """See the head of this module."""

    def session(self, *, prompt: Sequence[int] = PROMPT, m_init: int = 3, **contract: Any) -> VerifierSession:
        """A session that nobody has opened yet; `contract` changes members of its contract."""
        return VerifierSession(self, contract_of(**contract), prompt, m_init)

    async def opened(self, **given: Any) -> VerifierSession:
        """A session that the verifier has opened, and no drafter has."""
        session = self.session(**given)
        (await session.open()).succeeded()
        return session

    async def begun(self, **given: Any) -> VerifierSession:
        """A session that is assigned to DRAFTER."""
        session = await self.opened(**given)
        (await session.assign()).succeeded()
        return session


class VerifierSession(SessionFacts):
    """One session at the subject. Messages are right unless a member is changed."""

    def __init__(self, world: VerifierWorld, contract: dict[str, Any], prompt: Sequence[int], m_init: int) -> None:
        super().__init__(contract, prompt, m_init)
        self.world = world
        world.subject.sessions += 1
        self.log_ref = world.town.new_ref("logs")
        self.resume: dict[str, Any] | None = None
        world.town.watches[self.id] = world.watch
        world.town.watches[world.cache.name_of(self.log_ref).encode()] = world.watch

    # -- requests -----------------------------------------------------------------------------------------------------

    async def open(self, who: str = "router", **changes: Any) -> Answer:
        """POST sessions."""
        resume = {} if self.resume is None else {"resume": self.resume}
        return await self.world.ask(who, "POST", "sessions", self.open_message(**{**resume, **changes}))

    async def assign(self, who: str = "router", drafter: str = DRAFTER, **changes: Any) -> Answer:
        """PUT sessions/{id}/drafter."""
        message = self.assignment_message(self.world.base, drafter, **changes)
        return await self.world.ask(who, "PUT", f"{self.path}/drafter", message)

    async def propose(
        self, tokens: Sequence[int] | None = None, who: str = "drafter", drafter: str = DRAFTER, **changes: Any
    ) -> Answer:
        """POST proposals; without `tokens` the two that the target wants."""
        message = self.proposal_message(self.next_tokens(2) if tokens is None else tokens, drafter, **changes)
        return await self.world.ask(who, "POST", "proposals", message)

    async def set_policy(self, sampling: dict[str, Any], from_round: int | None = None, who: str = "router") -> Answer:
        """POST sessions/{id}/policy; without `from_round` from the next round on."""
        first = self.round + 1 if from_round is None else from_round
        message = {"session": self.id, "from_round": first, "sampling": sampling}
        return await self.world.ask(who, "POST", f"{self.path}/policy", message)

    async def heard(self) -> None:
        """Wait until the subject has heard all that the drafter sent so far on its connection."""
        await self.read(who="drafter")

    async def read(self, first: int | None = 0, wait_s: int | None = 0, who: str = "front-end") -> Answer:
        """GET sessions/{id}/output; `wait_s` as Prefer: wait (D8), None: without it."""
        query = "" if first is None else f"?from={first}"
        headers = [] if wait_s is None else [("prefer", f"wait={wait_s}")]
        timeout_s = self.world.patience_s + 60  # a server need not know Prefer
        return await self.world.ask(who, "GET", f"{self.path}/output{query}", headers=headers, timeout_s=timeout_s)

    async def event(self, limit_s: float | None = None) -> Incoming:
        """The next event that the subject sends for this session."""
        return await self.world.town.events_of(self.id).take(limit_s)

    # -- rounds -------------------------------------------------------------------------------------------------------

    async def advance(self, tokens: Sequence[int] | None = None, **given: Any) -> dict[str, Any]:
        """A round of rule 1: propose, and check the verdict against the oracle; return it.

        Without `tokens` as many right ones as the limit allows, at most two.
        """
        proposed = list(self.next_tokens(min(2, self.m_cap)) if tokens is None else tokens)
        expected = greedy(TARGET.along(self.prefix, proposed), proposed)
        return self.learn(await self.propose(proposed, **given), *expected)

    async def advance_sampled(
        self, tokens: Sequence[int], rows: Sequence[Sequence[float]], profile: dict[str, Any], **given: Any
    ) -> dict[str, Any]:
        """A round of rule 2 under a profile with a seed: rows written, verdict checked against the oracle."""
        exact = [[float(x) for x in struct.unpack(f"<{len(row)}f", struct.pack(f"<{len(row)}f", *row))] for row in rows]
        value = seeded(profile, self.id, self.round + 1)
        expected = speculative(TARGET.along(self.prefix, tokens), exact, tokens, profile, value)
        answer = await self.propose(tokens, q_rows=self.put_rows(rows), **given)
        return self.learn(answer, *expected)

    def put_rows(self, rows: Sequence[Sequence[float]]) -> str:
        """Put q rows into the cache, binary32 little-endian (5.2); return the URI."""
        return self.world.put_object(b"".join(struct.pack(f"<{len(row)}f", *row) for row in rows))

    def learn(
        self, answer: Answer, accepted: int | None = None, emitted: Sequence[int] | None = None
    ) -> dict[str, Any]:
        """Take a verdict in, check that it goes on from what was committed and, if given, says a and these tokens.

        `emitted` is before truncation (6.3 step 7).
        """
        verdict = answer.message
        what = f"of the verdict of round {self.round + 1}"
        if emitted is not None:
            kept, _ = truncate(emitted, self.contract["stop"], len(self.output), self.contract["max_new"])
            expect(verdict.get("emitted"), kept, f"emitted {what}")
            if len(emitted) <= self.contract["max_new"] - len(self.output):  # else a may count fewer (D14)
                expect(verdict.get("accepted"), accepted, f"accepted {what}")
        self.commit(verdict["emitted"])
        for key, value in self.state().items():
            expect(verdict.get(key), value, f"{key} {what}")
        self.m_cap = verdict["m_cap"]
        return verdict

    def catch_up(self) -> list[int]:
        """Take in the rounds in the commit log that no verdict told of, such as those of self-decoding; return tokens.

        Fails unless each follows the round before, with its n and d[n].
        """
        before = len(self.output)
        for record in self.log.records:
            if record.get("round", 0) > self.round:
                for key, value in self.commit(record["tokens"]).items():
                    expect(record.get(key), value, f"{key} of the commit record of round {self.round}")
        return self.output[before:]

    async def read_to_the_end(self) -> dict[str, Any]:
        """Read output until it is final, then take the rounds in as `catch_up` does; return the final message.

        Fails the check when that takes longer than what must come may take.
        """
        until = time.monotonic() + self.world.patience_s
        output = (await self.read()).message
        while not output["final"]:
            ensure(time.monotonic() < until, f"expected the output to become final within {self.world.patience_s:g} s")
            output = (await self.read(len(output["tokens"]) + output["from"], wait_s=None)).message
        self.catch_up()
        return output

    # -- what is so ---------------------------------------------------------------------------------------------------

    @property
    def log(self) -> Log:
        """The commit log in the cache."""
        return self.world.cache.log(self.log_ref)

    async def tokens(self) -> list[int]:
        """All output that the subject gives out now."""
        return list((await self.read()).message["tokens"])

    async def released(self, count: int) -> list[int]:
        """Wait, with GET output, until at least `count` tokens are out or the session is over; return them all."""
        limit = time.monotonic() + self.world.patience_s
        tokens: list[int] = []
        final = False
        while len(tokens) < count and not final:
            ensure(time.monotonic() < limit, f"expected {count} tokens of output in time, came {tokens}")
            message = (await self.read(len(tokens), wait_s=1)).message
            expect(message.get("from"), len(tokens), "from of the output")
            tokens, final = tokens + message["tokens"], message["final"]
        return tokens

    async def everything(self) -> tuple[Any, ...]:
        """All that a refused request must leave as it is: output, final, commit log, without waiting."""
        output = (await self.read()).message
        return output["tokens"], output["final"], output.get("finish"), self.log.data

    # -- failover (6.9) -----------------------------------------------------------------------------------------------

    def fence(self, epoch: int | None = None) -> None:
        """Append a fence record, of the next epoch unless told otherwise."""
        self.world.cache.append(self.log_ref, {"epoch": self.epoch + 1 if epoch is None else epoch})

    async def fail_over(self, **changes: Any) -> Answer:
        """Fence, and open the next epoch at the same subject with `resume`."""
        self.fence()
        self.epoch += 1
        ref = self.world.put_object(tokens_object(self.output))
        self.resume = {"round": self.round, "committed": len(self.output), "digest": self.digest}
        self.resume["committed_tokens"] = ref
        return await self.open(**changes)
