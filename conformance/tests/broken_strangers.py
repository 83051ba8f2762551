"""The stranger with one fault each: what the kit must notice.

python broken_strangers.py FAULT verifier --config FILE
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import stranger
from sdcp_conformance.encoding import decode, encode
from stranger_rounds import TASKS


class Forgetful(stranger.Stranger):
    """Answers before the record is durable."""

    async def _append(self, session: Any, kept: list[int]) -> None:
        session.output, session.round = [*session.output, *kept], session.round + 1
        TASKS.add(asyncio.ensure_future(self._append_record(session, {"epoch": 1})))


class Trusting(stranger.Stranger):
    """Takes a proposal from whoever names the assigned drafter."""

    async def _propose(self, message: dict[str, Any], request: Any) -> bytes:
        session = self.sessions[message["session"]]
        async with session.lock:
            return bytes(await self._verify(session, message))


class Careless(stranger.Stranger):
    """Serves any target model."""

    def _check_contract(self, contract: dict[str, Any]) -> None:
        self.digest = contract["target"]
        super()._check_contract(contract)


class Wordless(stranger.Stranger):
    """Sends verdicts that lack a member."""

    async def _verify(self, session: Any, message: dict[str, Any]) -> bytes:
        verdict = decode(await super()._verify(session, message))
        del verdict["low"]
        return bytes(encode(verdict))


class Silent(stranger.Stranger):
    """Never sends an event."""

    async def _send_event(self, session: Any, kind: int) -> None:
        return None


class Mortal(stranger.Stranger):
    """Ends when a round is low."""

    async def _commit(self, session: Any, accepted: int, *rest: Any) -> bytes:
        if not accepted:
            print("farewell", file=sys.stderr, flush=True)
            os._exit(9)
        return bytes(await super()._commit(session, accepted, *rest))


if __name__ == "__main__":
    stranger.Stranger = globals()[sys.argv.pop(1)]
    sys.exit(stranger.main())
