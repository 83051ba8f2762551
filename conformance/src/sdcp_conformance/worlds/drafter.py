"""For checks of a drafter: the kit is its router, its verifier (one for each session) and its cache.

async def some_check(d: DrafterWorld) -> None:
    session = await d.assigned()            # a verifier is played, the assignment was answered 204
    proposal = await session.proposal()     # the next proposal; its base, round and M are checked
    proposal.judge()                        # answer it with the verdict that the target would give
    (await session.proposal()).refuse("sdcp-session-closed")
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from sdcp_conformance.authority import Identity
from sdcp_conformance.net.client import Answer
from sdcp_conformance.net.server import Request, Response, Server
from sdcp_conformance.oracle.bigram import TARGET, V
from sdcp_conformance.oracle.control import CONTINUE
from sdcp_conformance.oracle.rules import greedy
from sdcp_conformance.outcome import ensure, expect
from sdcp_conformance.played.inbox import Incoming, Mailbox
from sdcp_conformance.worlds.session import PROMPT, SessionFacts, contract_of
from sdcp_conformance.worlds.world import World

QUIET_S = 0.3
"""How long to look for a proposal that must not come."""


class DrafterWorld(World):
    """See the head of this module."""

    async def session(self, *, prompt: Sequence[int] = PROMPT, m_init: int = 3, **contract: Any) -> DrafterSession:
        """A session whose verifier is played, and which is not assigned yet."""
        session = DrafterSession(self, contract_of(**contract), prompt, m_init)
        session.verifier, session.identity, session.server = await self.serve(session.handle, ["verifier"])
        return session

    async def assigned(self, **given: Any) -> DrafterSession:
        """A session that the drafter has taken."""
        session = await self.session(**given)
        (await session.assign()).no_content()
        return session


class DrafterSession(SessionFacts):
    """One session at the subject. `verifier` is the base URI that the kit plays for it.

    `strays`: requests that no verifier gets from a drafter. `read_answers`: what the next GETs of output are answered
    instead of the output.
    """

    verifier: str
    identity: Identity
    server: Server

    def __init__(self, world: DrafterWorld, contract: dict[str, Any], prompt: Sequence[int], m_init: int) -> None:
        super().__init__(contract, prompt, m_init)
        self.world = world
        world.subject.sessions += 1
        self.proposals = Mailbox(f"a proposal for session {self.id.hex()}", world.patience_s)
        self.reads = 0
        self.finished: int | None = None
        self.strays: list[str] = []
        self.read_answers: list[Response] = []

    async def assign(self, who: str = "router", **changes: Any) -> Answer:
        """POST assignments."""
        message = self.assignment_message(self.verifier, self.world.base, **changes)
        return await self.world.ask(who, "POST", "assignments", message)

    async def proposal(self, limit_s: float | None = None, *, check: bool = True) -> Proposed:
        """The next proposal that nobody took; with `check` it must extend the prefix as 6.2 says."""
        proposed = Proposed(self, await self.proposals.take(limit_s))
        if check:
            proposed.check()
        return proposed

    async def perhaps(self, limit_s: float = 1.0, *, check: bool = True) -> Proposed | None:
        """The next proposal, or None when none comes in this time, where the draft leaves it to the drafter to stop."""
        if not await self.proposals.comes_within(limit_s):
            return None
        return await self.proposal(check=check)

    async def quiet(self, because: str) -> None:
        """Fail when another proposal comes. `because` continues "expected no proposal"."""
        await self.proposals.none_within(QUIET_S, because)

    async def goes_on(self) -> None:
        """A proposal comes that extends the prefix, and after its verdict another; then the session is over."""
        (await self.proposal()).judge()
        await self.finish()

    async def goes_on_if_at_all(self) -> None:
        """The same where the drafter may stop as well: what comes, if anything does, extends the true prefix."""
        proposal = await self.perhaps()
        if proposal is not None:
            proposal.judge()
            await self.finish()

    async def finish(self) -> None:
        """Let the next proposal know that the session is over, so that the subject forgets it."""
        (await self.proposal()).refuse("sdcp-session-closed")

    async def handle(self, request: Request) -> Response:
        """Play the verifier: proposals wait for the check, output is given as it stands (D9a)."""
        self.world.watch.request(request.method, request.path, request.headers, request.body)
        incoming = Incoming(request)
        if request.method == "POST" and request.path.endswith("/proposals"):
            self.proposals.deliver(incoming)
        elif request.method == "GET" and request.path.endswith(f"{self.path}/output"):
            self.reads += 1
            if self.read_answers:
                return self.read_answers.pop(0)
            first = int(request.query.get("from", "0"))
            output = {"session": self.id, "epoch": self.epoch, "from": first, "tokens": self.output[first:]}
            end = {} if self.finished is None else {"finish": self.finished}
            incoming.respond(200, {**output, "final": self.finished is not None, **end})
        else:
            self.strays.append(str(request))
            incoming.refuse(404)
        return await incoming.response()


class Proposed:
    """One proposal of the subject, waiting for its answer. `message` is its map."""

    def __init__(self, session: DrafterSession, incoming: Incoming) -> None:
        self.session = session
        self.incoming = incoming
        self.message: dict[str, Any] = incoming.message if isinstance(incoming.message, dict) else {}

    @property
    def tokens(self) -> list[int]:
        """x[1..M]."""
        return list(self.message.get("tokens", []))

    def check(self) -> None:
        """Fail unless it is for the next round, on the committed prefix, within the limits (6.2)."""
        session = self.session
        wanted = session.proposal_message(self.tokens, session.world.base)
        for key in ("session", "epoch", "round", "drafter", "base", "base_digest"):
            expect(self.message.get(key), wanted[key], f"{key} of the proposal for round {session.round + 1}")
        most = min(session.contract["m_max"], session.m_cap)
        ensure(
            1 <= len(self.tokens) <= most,
            f"M of the proposal for round {session.round + 1}: expected 1 to {most}, came {len(self.tokens)}",
        )

    def repeats(self, first: Proposed) -> None:
        """Fail unless it equals an earlier one in every member but `status`, which may have changed meanwhile."""
        ours, theirs = ({**each.message, "status": None} for each in (self, first))
        different = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
        ensure(not different, f"expected the same proposal once more, it differs in {', '.join(map(str, different))}")

    def rows(self) -> list[tuple[float, ...]]:
        """The q rows that it names, read from the cache; fails unless they are M rows of V binary32 values."""
        ref = self.message.get("q_rows")
        data = None if ref is None else self.session.world.cache.get(ref)
        ensure(data is not None, f"q_rows: expected an object in the cache, came {ref!r}")
        assert data is not None
        expect(len(data), 4 * V * len(self.tokens), "octets of q_rows (M * V * 4)")
        return [struct.unpack_from(f"<{V}f", data, 4 * V * index) for index in range(len(self.tokens))]

    def judge(self, **changes: Any) -> dict[str, Any]:
        """Answer with the verdict of rule 1; members changed. Returns the verdict."""
        accepted, emitted = greedy(TARGET.along(self.session.prefix, self.tokens), self.tokens)
        return self.accept(accepted, emitted[-1], **changes)

    def accept(self, accepted: int, additional: int, **changes: Any) -> dict[str, Any]:
        """Answer that a tokens stand and one follows, whatever the rule says. The session goes on from there."""
        session = self.session
        session.commit([*self.tokens[:accepted], additional])
        verdict = {**session.state(), "accepted": accepted, "emitted": [*self.tokens[:accepted], additional]}
        verdict |= {"action": CONTINUE, "m_cap": session.m_cap, "low": 0, "load": 0, **changes}
        session.m_cap = verdict["m_cap"]
        self.incoming.respond(200, verdict)
        return verdict

    def refuse(self, kind: str | int, **members: Any) -> None:
        """Answer with a refusal; `sdcp-stale-base` should come with `**{"session-state": …}` (D2)."""
        self.incoming.refuse(kind, **members)

    def drop(self, *, connection: bool = False) -> None:
        """Reset the stream instead of answering, or cut the whole connection off: the answer is lost."""
        self.incoming.drop(connection=connection)
