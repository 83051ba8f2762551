"""A session at a verifier whose router and drafter the test plays; messages are plain maps in the words of 5.2.

It remembers what is committed, so that each message is right unless the test changes a member of it.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from sdcp.http.client import Answer
from sdcp.rules.digest import contract_digest, extend_all, prefix_digest
from sdcp.wire import cbor
from tests.shells.refusals.processes import V, follow
from tests.shells.refusals.town import DRAFTER, TOKENIZER, Town, changed

PROMPT = [3, 4]
CONTINUE, REDUCE, SWITCH, SELF_DECODE, FINISH, FAIL = range(6)


def path_id(identifier: bytes) -> str:
    """Base64url without padding (5.1)."""
    return base64.urlsafe_b64encode(identifier).rstrip(b"=").decode()


def contract_for(town: Town, **members: Any) -> dict[str, Any]:
    """A contract that the verifiers of the town can keep, with `members` changed."""
    contract = {
        "target": town.target,
        "tokenizer": TOKENIZER,
        "rule": 1,
        "m_max": 4,
        "max_new": 60,
        "stop": [],
        "low_rounds": 3,
        "fallback": [SWITCH],
    }
    return changed(contract, members)


class Session:
    """One session; `committed` output, the last `round` and the `epoch` as the test knows them."""

    def __init__(self, town: Town, at: str = "verifier", m_init: int = 3, **contract: Any) -> None:
        self.town = town
        self.base = town.bases[at]
        self.id = secrets.token_bytes(16)
        self.contract = contract_for(town, **contract)
        self.log = town.new_name("logs")
        self.m_init = m_init
        self.epoch = 1
        self.round = 0
        self.output: list[int] = []
        self.resume: dict[str, Any] | None = None

    @property
    def url(self) -> str:
        """The session's own resources lie below it."""
        return f"{self.base}/sessions/{path_id(self.id)}"

    @property
    def digest(self) -> bytes:
        """d[n]."""
        return self.digest_of(len(self.output))

    def digest_of(self, committed: int) -> bytes:
        """d[k] for k = `committed` tokens of the output."""
        return extend_all(prefix_digest(contract_digest(self.contract), PROMPT), self.output[:committed])

    def next_tokens(self, count: int) -> list[int]:
        """The tokens that the target finds most probable from here on."""
        tokens = [follow((self.output or PROMPT)[-1])]
        while len(tokens) < count:
            tokens.append(follow(tokens[-1]))
        return tokens

    def wrong_tokens(self, count: int = 2) -> list[int]:
        """Tokens of which the target accepts none."""
        return [(self.next_tokens(1)[0] + 1) % V] * count

    # -- messages -----------------------------------------------------------------------------------------------------

    def opening(self, **changes: Any) -> dict[str, Any]:
        """session-open."""
        message: dict[str, Any] = {"session": self.id, "epoch": self.epoch, "contract": self.contract}
        message |= {"prompt": PROMPT, "commit_log": self.log}
        return changed(message if self.resume is None else {**message, "resume": self.resume}, changes)

    def assignment(self, **changes: Any) -> dict[str, Any]:
        """assignment, of the drafter that the test plays."""
        message: dict[str, Any] = {"session": self.id, "epoch": self.epoch, "contract": self.contract}
        message |= {"verifier": self.base, "drafter": DRAFTER, "prompt": PROMPT, "round": self.round}
        message |= {"committed": len(self.output), "digest": self.digest, "m_init": self.m_init}
        return changed(message, changes)

    def proposal(self, **changes: Any) -> dict[str, Any]:
        """proposal, of the two tokens that the target wants."""
        status = {"instance": DRAFTER, "role": 1, "load": 0, "queue": 0, "ttl_ms": 1000}
        message: dict[str, Any] = {"session": self.id, "epoch": self.epoch, "round": self.round + 1}
        message |= {"drafter": DRAFTER, "base": len(self.output), "base_digest": self.digest}
        message |= {"tokens": self.next_tokens(2), "status": status}
        return changed(message, changes)

    def policy(self, **changes: Any) -> dict[str, Any]:
        """policy, for the next round."""
        message = {"session": self.id, "from_round": self.round + 1, "sampling": {"temperature_milli": 0}}
        return changed(message, changes)

    # -- requests -----------------------------------------------------------------------------------------------------

    async def open(self, who: str = "router", **changes: Any) -> Answer:
        return await self.town.ask(who, "POST", f"{self.base}/sessions", self.opening(**changes))

    async def assign(self, who: str = "router", **changes: Any) -> Answer:
        return await self.town.ask(who, "PUT", f"{self.url}/drafter", self.assignment(**changes))

    async def propose(self, who: str = "drafter", **changes: Any) -> Answer:
        return await self.town.ask(who, "POST", f"{self.base}/proposals", self.proposal(**changes))

    async def propose_rows(self, rows: Any, **changes: Any) -> Answer:
        """Propose with an object that holds `rows`: an array, or the octets themselves."""
        octets = rows if isinstance(rows, bytes) else np.asarray(rows, "<f4").tobytes()
        return await self.propose(q_rows=await self.town.put_object(octets), **changes)

    async def set_policy(self, who: str = "router", **changes: Any) -> Answer:
        return await self.town.ask(who, "POST", f"{self.url}/policy", self.policy(**changes))

    async def read(self, start: int | str = 0, who: str = "front-end", wait_s: int = 0) -> Answer:
        """GET output, with `Prefer: wait=` so many seconds."""
        return await self.town.ask(who, "GET", f"{self.url}/output?from={start}", None, ("prefer", f"wait={wait_s}"))

    # -- steps --------------------------------------------------------------------------------------------------------

    async def begin(self, rounds: int = 1) -> Session:
        """Open, assign, and have so many rounds committed."""
        await self.opened()
        answer = await self.assign()
        assert answer.status == 200, answer
        for _ in range(rounds):
            await self.advance()
        return self

    async def opened(self) -> Session:
        """Open, no more."""
        answer = await self.open()
        assert answer.status == 200, answer
        return self

    async def advance(self, **changes: Any) -> dict[str, Any]:
        """Propose rightly: all is accepted, whatever was refused before. Returns the verdict.

        Under rule 2 the rows are uniform, so that p/q is above 1 for each token.
        """
        if self.contract["rule"] == 2:
            changes["q_rows"] = await self.town.put_object(np.full((2, V), 1 / V, "<f4").tobytes())
        proposed = self.proposal(**changes)["tokens"]
        verdict = self.learn(await self.propose(**changes))
        assert verdict["accepted"] == len(proposed)
        assert verdict["emitted"][: len(proposed)] == proposed[: len(verdict["emitted"])]
        return verdict

    def learn(self, answer: Answer) -> dict[str, Any]:
        """Take a verdict in, and check that it goes on from what was committed."""
        assert answer.status == 200, (answer.status, answer.body)
        verdict = cbor.decode(answer.body)
        assert isinstance(verdict, dict)
        self.round += 1
        self.output += verdict["emitted"]
        expected = {"session": self.id, "epoch": self.epoch, "round": self.round}
        expected |= {"committed": len(self.output), "digest": self.digest}
        assert {key: verdict[key] for key in expected} == expected
        return verdict

    async def fence(self, epoch: int) -> None:
        """What a router that gives the verifier up does first (6.9)."""
        etag, _ = await self.town.read_log(self.log)
        await self.town.append(self.log, {"epoch": epoch}, etag)

    async def fail_over(self) -> Session:
        """Fence, and open the next epoch at the same verifier."""
        await self.fence(self.epoch + 1)
        self.epoch += 1
        tokens = await self.town.put_tokens(self.output)
        self.resume = {"round": self.round, "committed": len(self.output), "digest": self.digest}
        self.resume["committed_tokens"] = tokens
        return await self.opened()

    # -- what is so ---------------------------------------------------------------------------------------------------

    async def state(self) -> dict[str, Any]:
        """The session-state, as a repeated open is told it (D19)."""
        answer = await self.open()
        assert answer.status == 200, answer
        state = cbor.decode(answer.body)
        assert isinstance(state, dict)
        return state

    async def everything(self) -> tuple[Any, ...]:
        """All that a refused request must leave as it is: session-state, output, commit log."""
        output = await self.read()
        assert output.status == 200, output
        return await self.state(), cbor.decode(output.body), await self.town.read_log(self.log)


Act = Callable[[Session], Awaitable[Answer]]
"""A request to make of a session."""


def acts(**named: Act) -> pytest.MarkDecorator:
    """Cases, each under its name."""
    return pytest.mark.parametrize("act", named.values(), ids=[name.replace("_", "-") for name in named])
