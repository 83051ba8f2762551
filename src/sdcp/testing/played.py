"""A session played from outside, over HTTP: this is its router and its drafter, the verifiers and the cache are real.

What is proposed depends on the round alone, so two runs of a session can be compared token by token, wherever it moved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from sdcp.errors import InternalFault
from sdcp.http.client import Client
from sdcp.http.resources import SDCP_CBOR, encode_id
from sdcp.machines.recorded import Recorded
from sdcp.messages.contract import Contract
from sdcp.messages.fields import Message
from sdcp.messages.record import FenceRecord
from sdcp.messages.round import Assignment, Proposal, Verdict
from sdcp.messages.session import Resume, SessionOpen, SessionState
from sdcp.messages.status import Status
from sdcp.ports import Cache
from sdcp.rules.acceptance import RULES
from sdcp.rules.digest import digest_of, prefix_digest
from sdcp.wire import cbor
from sdcp.wire.problem import decode_problem
from sdcp.wire.rows import encode_rows

ANSWER_S = 600.0  # a long prompt on a slow machine

Proposals = Callable[[int], tuple[int, ...]]
"""What is proposed after so many rounds."""

_NUMBERS = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """The clients of a router and of a drafter, the cache as each of them sees it, and V."""

    router: Client
    drafter: Client
    router_cache: Cache
    drafter_cache: Cache
    drafter_uri: str
    vocabulary: int

    async def ask(self, client: Client, method: str, url: str, message: Message, answer: type[Any]) -> Any:
        """Send a message and return the answer; raises the problem that came instead."""
        headers = [("content-type", SDCP_CBOR)]
        found = await client.request(method, url, headers=headers, body=message.encode(), deadline_s=ANSWER_S)
        if found.status != 200:
            raise decode_problem(found.status, found.headers.get("content-type"), found.body)
        return answer.decode(found.body)


class Played:
    """One session. `output` is what verdicts said; `recorded` what the log says, as far as it was read."""

    def __init__(
        self, peers: Outside, contract: Contract, prompt: tuple[int, ...], session: bytes, proposals: Proposals
    ) -> None:
        """A verifier's refusal is raised as the problem that it is, by whatever asked."""
        self.contract, self.prompt, self.session = contract, prompt, session
        self.epoch, self.round = 1, 0
        self.digest = prefix_digest(digest_of(contract), prompt)
        self.output: tuple[int, ...] = ()
        self.verifier = ""
        self.log = peers.router_cache.ref_of("logs", f"c{encode_id(session)}-{next(_NUMBERS)}")
        self.recorded = Recorded(contract, self.digest)
        self._peers = peers
        self._proposals = proposals

    async def open(self, verifier: str, resume: Resume | None = None) -> Played:
        """POST sessions, then PUT drafter."""
        self.verifier = verifier
        peers = self._peers
        message = SessionOpen(
            session=self.session,
            epoch=self.epoch,
            contract=self.contract,
            prompt=self.prompt,
            commit_log=self.log,
            resume=resume,
        )
        state = await peers.ask(peers.router, "POST", f"{verifier}/sessions", message, SessionState)
        if (state.round, state.committed, state.digest) != (self.round, len(self.output), self.digest):
            raise InternalFault(f"The verifier opened the session at round {state.round}, not {self.round}.")
        assignment = Assignment(
            session=self.session,
            epoch=self.epoch,
            contract=self.contract,
            verifier=verifier,
            drafter=peers.drafter_uri,
            prompt=self.prompt,
            round=self.round,
            committed=len(self.output),
            digest=self.digest,
            m_init=self.contract.m_max,
        )
        path = f"{verifier}/sessions/{encode_id(self.session)}/drafter"
        await peers.ask(peers.router, "PUT", path, assignment, SessionState)
        return self

    async def play(self, rounds: int | None = None) -> Played:
        """So many rounds more; None: to the end."""
        played = 0
        while len(self.output) < self.contract.max_new and played != rounds:
            await self._play_round()
            played += 1
        return self

    async def read(self) -> Recorded:
        """Read on in the log."""
        found = await self._peers.router_cache.read_log(self.log, self.recorded.end)
        self.recorded.take(found.start, found.data, found.etag)
        return self.recorded

    async def fail_over(self, verifier: str, kv: str | None = None, *, with_kv: bool = True) -> Played:
        """Fence, read, open at another verifier, with the KV that the log names, or this, or none (6.9)."""
        await self.fence()
        recorded = await self.read()
        self.round, self.output, self.digest = recorded.round, tuple(recorded.tokens), recorded.digest
        tokens = await self._peers.router_cache.create(cbor.encode(recorded.tokens))
        resume = Resume(
            round=self.round,
            committed=len(self.output),
            digest=self.digest,
            committed_tokens=tokens,
            target_kv=kv or (recorded.kv if with_kv else None),
        )
        return await self.open(verifier, resume)

    async def fence(self) -> None:
        """Take the session from its verifier."""
        recorded = await self.read()
        self.epoch += 1
        await self._peers.router_cache.append(self.log, FenceRecord(epoch=self.epoch).encode(), recorded.etag)

    async def _play_round(self) -> None:
        peers, room = self._peers, self.contract.max_new - len(self.output)
        tokens = self._proposals(self.round)[:room]
        proposal = Proposal(
            session=self.session,
            epoch=self.epoch,
            round=self.round + 1,
            drafter=peers.drafter_uri,
            base=len(self.output),
            base_digest=self.digest,
            tokens=tokens,
            q_rows=await self._rows(tokens) if RULES[self.contract.rule].needs_rows else None,
            status=Status(instance=peers.drafter_uri, role=1, load=0, queue=0, ttl_ms=1000),
        )
        verdict = await peers.ask(peers.drafter, "POST", f"{self.verifier}/proposals", proposal, Verdict)
        self.output += verdict.emitted
        self.round, self.digest = verdict.round, verdict.digest

    async def _rows(self, tokens: tuple[int, ...]) -> str:
        """Rows of a drafter to whom all tokens are alike."""
        width = self._peers.vocabulary
        rows = np.full((len(tokens), width), 1 / width, np.float32)
        return await self._peers.drafter_cache.create(encode_rows(rows))
