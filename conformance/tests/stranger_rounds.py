"""How the stranger's verifier carries out a round: acceptance, commit, control, self-decoding, events, its cache."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
import struct
from dataclasses import dataclass, field
from typing import Any

from sdcp_conformance.encoding import decode, decode_sequence, encode
from sdcp_conformance.net.client import Client
from sdcp_conformance.net.connection import TransportFault
from sdcp_conformance.net.server import Request
from sdcp_conformance.oracle.bigram import Bigram
from sdcp_conformance.oracle.chain import extend, prefix_digest
from sdcp_conformance.oracle.control import FAIL, FINISH, SELF_DECODE, SWITCH, Ladder, Limit, is_low
from sdcp_conformance.oracle.rules import greedy, self_decoded, speculative, truncate
from sdcp_conformance.oracle.sampling import uniform
from sdcp_conformance.outcome import Failed
from sdcp_conformance.problems import TABLE_2


class Refusal(Exception):
    """A status, and a type of Table 2 if it has one."""

    def __init__(self, status: int, suffix: str | None = None, detail: str = "refused", **members: Any) -> None:
        kind = "about:blank" if suffix is None else f"https://stranger.test/problems/{suffix}"
        self.status = status
        self.body = {"type": kind, "status": status, "detail": detail, **members}


def table_2(suffix: str, detail: str = "refused", **members: Any) -> Refusal:
    """A refusal of Table 2."""
    return Refusal(TABLE_2[suffix], suffix, detail, **members)


@dataclass
class Session:
    """One session; `verdicts` by round, as they were sent, with what was proposed."""

    opening: dict[str, Any]
    prompt: list[int]
    output: list[int]
    round: int
    tag: str | None
    ladder: Ladder
    profiles: list[tuple[int, dict[str, Any]]]
    drafter: str | None = None
    limit: Limit | None = None
    closed: int | None = None
    fenced: bool = False
    waiting: bool = True
    verdicts: dict[int, bytes] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    news: asyncio.Condition = field(default_factory=asyncio.Condition)
    decoding: asyncio.Task[None] | None = None

    @property
    def contract(self) -> dict[str, Any]:
        return dict(self.opening["contract"])

    def digest_at(self, committed: int) -> bytes:
        return extend(prefix_digest(self.contract, self.prompt), self.output[:committed])

    def state(self) -> dict[str, Any]:
        facts = {"session": self.opening["session"], "epoch": self.opening["epoch"], "round": self.round}
        return {**facts, "committed": len(self.output), "digest": self.digest_at(len(self.output))}

    def profile(self, round_: int) -> dict[str, Any]:
        """Of updates with from_round up to this round the last received."""
        return [profile for first, profile in self.profiles if first <= round_][-1]


def check_epoch(session: Session, message: dict[str, Any]) -> None:
    """Fencing (6.3 step 2)."""
    if message["epoch"] != session.opening["epoch"]:
        raise table_2("sdcp-stale-epoch")


class Rounds:
    """What the role does with sessions that it has opened."""

    model: Bigram
    client: Client
    caches: list[str]
    routers: list[str]
    sessions: dict[bytes, Session]

    # -- a round (6.3) ------------------------------------------------------------------------------------------------

    async def _propose(self, message: dict[str, Any], request: Request) -> bytes:
        session = self.sessions.get(message["session"])
        if session is None:
            raise Refusal(404)
        named = message["drafter"] == session.drafter and message["drafter"] in request.peer.uris
        if not named or "drafter" not in request.peer.roles:
            raise table_2("sdcp-not-assigned")
        if session.fenced:
            raise table_2("sdcp-stale-epoch")
        check_epoch(session, message)
        async with session.lock:
            if message["round"] in session.verdicts:
                return session.verdicts[message["round"]]
            if session.fenced:
                raise table_2("sdcp-stale-epoch")
            return await asyncio.shield(self._verify(session, message))

    async def _verify(self, session: Session, message: dict[str, Any]) -> bytes:
        if session.closed is not None:
            raise table_2("sdcp-session-closed")
        if session.waiting:
            raise table_2("sdcp-not-assigned")
        committed, tokens = len(session.output), message["tokens"]
        base = (message["base"], message["base_digest"], message["round"])
        if base != (committed, session.digest_at(committed), session.round + 1):
            raise table_2("sdcp-stale-base", "resynchronize", **{"session-state": _json(session.state())})
        assert session.limit is not None
        if len(tokens) > session.limit.m_cap:
            raise table_2("sdcp-limit")
        if any(token >= len(self.model.rows) for token in tokens):
            raise table_2("sdcp-bad-proposal")
        accepted, emitted = await self._accepted(session, message)
        kept, finished = truncate(emitted, session.contract["stop"], committed, session.contract["max_new"])
        return await self._commit(session, accepted, len(tokens), kept, finished)

    async def _accepted(self, session: Session, message: dict[str, Any]) -> tuple[int, list[int]]:
        tokens, prefix = message["tokens"], session.prompt + session.output
        logits = self.model.along(prefix, tokens)
        if session.contract["rule"] == 1:
            return greedy(logits, tokens)
        rows = await self._rows(message)
        profile, identifier, round_ = session.profile(session.round + 1), message["session"], session.round + 1
        if "seed" in profile:
            return speculative(
                logits,
                rows,
                tokens,
                profile,
                lambda i, purpose: uniform(profile["seed"], identifier, round_, i, purpose),
            )
        return speculative(logits, rows, tokens, profile, lambda i, purpose: secrets.randbits(53) / 2**53)

    async def _rows(self, message: dict[str, Any]) -> list[tuple[float, ...]]:
        if "q_rows" not in message:
            raise table_2("sdcp-bad-proposal")
        octets = await self._object(message["q_rows"], table_2("sdcp-q-unavailable"))
        size, tokens = len(self.model.rows), message["tokens"]
        if len(octets) != 4 * size * len(tokens):
            raise table_2("sdcp-bad-proposal")
        rows = [struct.unpack_from(f"<{size}f", octets, 4 * size * index) for index in range(len(tokens))]
        for row, token in zip(rows, tokens, strict=True):
            if not row[token] > 0 or not all(0 <= q <= 2 for q in row) or abs(sum(row) - 1) > 1e-4:
                raise table_2("sdcp-bad-proposal")
        return rows

    async def _commit(self, session: Session, accepted: int, m: int, kept: list[int], finished: bool) -> bytes:
        await self._append(session, kept)
        assert session.limit is not None
        if finished:
            action = FINISH
        else:
            action = session.ladder.after(accepted, m, 0)
            low = is_low(accepted, m, session.contract.get("low_ratio", 0))
            session.limit.after(action, low)
        verdict = {**session.state(), "accepted": accepted, "emitted": kept, "action": action, "load": 0}
        verdict |= {"m_cap": session.limit.m_cap, "low": session.ladder.c}
        session.verdicts[session.round] = encode(verdict)
        await self._after(session, action)
        return session.verdicts[session.round]

    async def _append(self, session: Session, kept: list[int]) -> None:
        output = [*session.output, *kept]
        digest = extend(session.digest_at(len(session.output)), kept)
        record = {"epoch": session.opening["epoch"], "round": session.round + 1, "tokens": kept}
        record |= {"committed": len(output), "digest": digest}
        await self._append_record(session, record)
        session.output, session.round = output, session.round + 1
        async with session.news:
            session.news.notify_all()

    async def _append_record(self, session: Session, record: dict[str, Any]) -> None:
        while True:
            condition = ("if-none-match", "*") if session.tag is None else ("if-match", session.tag)
            with contextlib.suppress(TransportFault, Failed):
                answer = await self.client.request(
                    "PATCH",
                    session.opening["commit_log"],
                    encode(record),
                    headers=[condition],
                    media="application/cbor-seq",
                    watched=False,
                )
                if answer.status in (200, 201, 204):
                    session.tag = answer.headers["etag"]
                    return
                if answer.status == 409:
                    self._fence(session)
            session.tag, records = await self._log(session.opening["commit_log"])
            if records and records[-1] == record:
                return
            if any(each["epoch"] > record["epoch"] for each in records):
                self._fence(session)
            await asyncio.sleep(0.05)

    def _fence(self, session: Session) -> None:
        session.fenced = True
        raise table_2("sdcp-stale-epoch")

    async def _after(self, session: Session, action: int) -> None:
        if action in (FINISH, FAIL):
            await self._close(session, action)
        elif action == SWITCH:
            session.waiting = True
            await self._send_event(session, SWITCH)
        elif action == SELF_DECODE:
            session.waiting = True
            session.decoding = asyncio.create_task(self._self_decode(session))

    async def _self_decode(self, session: Session) -> None:
        contract, done = session.contract, 0
        while session.waiting and session.closed is None and done < contract.get("self_max", done + 1):
            async with session.lock:
                logits = self.model.after(session.prompt + session.output)
                profile = {"seed": secrets.randbits(63), **session.profile(session.round + 1)}
                token = self_decoded(logits, contract["rule"], profile, session.opening["session"], session.round + 1)
                kept, finished = truncate([token], contract["stop"], len(session.output), contract["max_new"])
                try:
                    await self._append(session, kept)
                except Refusal:
                    return
                done += 1
                if finished:
                    await self._close(session, FINISH)
        if session.closed is None and session.waiting:
            await self._send_event(session, SELF_DECODE)

    async def _close(self, session: Session, action: int) -> None:
        session.closed = action
        async with session.news:
            session.news.notify_all()
        await self._send_event(session, action)

    async def _send_event(self, session: Session, kind: int) -> None:
        state = session.state()
        message = {key: state[key] for key in ("session", "epoch", "committed", "digest")}
        task = asyncio.create_task(self._repeat_event({**message, "kind": kind}))
        TASKS.add(task)
        task.add_done_callback(TASKS.discard)

    async def _repeat_event(self, message: dict[str, Any]) -> None:
        while True:
            for router in self.routers:
                with contextlib.suppress(TransportFault, Failed):
                    answer = await self.client.request("POST", f"{router}/events", message, watched=False)
                    if answer.status == 204:
                        return
            await asyncio.sleep(0.1)

    # -- the cache, and statuses -------------------------------------------------------------------------------------

    async def _log(self, ref: str) -> tuple[str | None, list[Any]]:
        if not any(ref.startswith(f"{cache}/") for cache in self.caches):
            raise Refusal(422)
        try:
            answer = await self.client.request("GET", ref, watched=False)
        except (TransportFault, Failed):
            raise Refusal(503) from None
        if answer.status == 404:
            return None, []
        if answer.status != 200:
            raise Refusal(503)
        return answer.headers["etag"], decode_sequence(answer.body)

    async def _object(self, ref: str, refusal: Refusal) -> bytes:
        if not any(ref.startswith(f"{cache}/objects/") for cache in self.caches):
            raise refusal
        try:
            answer = await self.client.request("GET", ref, watched=False)
        except (TransportFault, Failed):
            raise refusal from None
        if answer.status != 200:
            raise refusal
        return answer.body

    async def _tokens(self, ref: str) -> list[int]:
        octets = await self._object(ref, Refusal(503))
        try:
            tokens = decode(octets)
        except ValueError:
            raise Refusal(422) from None
        if not isinstance(tokens, list) or not all(isinstance(token, int) and token >= 0 for token in tokens):
            raise Refusal(422)
        return tokens

    async def _report(self) -> None:
        status = {"instance": "stranger", "role": 2, "load": 0, "queue": 0, "ttl_ms": 3000}
        while True:
            for router in self.routers:
                with contextlib.suppress(TransportFault, Failed):
                    await self.client.request("PUT", f"{router}/instances/stranger/status", status, watched=False)
            await asyncio.sleep(1)


TASKS: set[asyncio.Task[None]] = set()


def _json(state: dict[str, Any]) -> dict[str, Any]:
    octets = {key: value for key, value in state.items() if isinstance(value, bytes)}
    return {**state, **{key: base64.urlsafe_b64encode(value).rstrip(b"=").decode() for key, value in octets.items()}}
