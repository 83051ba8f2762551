"""A verifier that somebody else could have written: built on the kit's oracle and nothing of `sdcp`.

It exists to prove that the command contract suffices, and that the draft profile judges by the draft: where decisions
of ours go beyond the draft it often does otherwise. It offers no other role.

    python stranger.py verifier --config FILE
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import signal
import socket
import struct
import sys
import tomllib
from pathlib import Path
from typing import Any

from sdcp_conformance import messages
from sdcp_conformance.authority import Identity
from sdcp_conformance.encoding import decode, encode
from sdcp_conformance.net.client import Client
from sdcp_conformance.net.server import Request, Response, Server
from sdcp_conformance.oracle.bigram import TOKENIZER, Bigram
from sdcp_conformance.oracle.control import FINISH, Ladder, Limit
from sdcp_conformance.watch import SDCP_CBOR, Watch
from stranger_rounds import Refusal, Rounds, Session, check_epoch, table_2


class Stranger(Rounds):
    """The role. `model` is read from the settings' safetensors file."""

    def __init__(self, settings: dict[str, Any], folder: Path) -> None:
        tls = settings["tls"]
        self.identity = Identity(*(folder / tls[key] for key in ("certificate", "key", "ca")))
        self.base = settings["server"]["base_uri"]
        self.path = "/" + self.base.removeprefix("https://").partition("/")[2]
        self.caches = settings["cache"]["prefixes"]
        self.routers = settings["routers"]["base_uris"]
        self.wait_s = min(0.3, settings["limits"]["wait_ms"] / 1000)  # server-chosen (6.7); Prefer is not known here
        self.body_bytes = settings["limits"]["body_bytes"]
        file = (folder / settings["model"]["path"]).read_bytes()
        self.model, self.digest = _read_model(file)
        self.client = Client(self.identity.client_context(), Watch(), 5.0)
        self.sessions: dict[bytes, Session] = {}

    async def serve(self, listen: str) -> None:
        host, _, port = listen.partition(":")
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, int(port)))
        server = Server(self.handle, self.identity.server_context(), bound)
        await server.start()
        reporting = asyncio.create_task(self._report())
        print("ready", flush=True)
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await stop.wait()
        reporting.cancel()
        await server.close()

    async def handle(self, request: Request) -> Response:
        try:
            status, message = await self._route(request)
        except Refusal as refusal:
            body = json.dumps(refusal.body).encode()
            fields = (("content-type", "application/problem+json"), ("allow", "GET, POST, PUT"))
            return Response(refusal.status, fields, body)
        body = message if isinstance(message, bytes) else encode(message)
        return Response(status, (("content-type", SDCP_CBOR),), body)

    # -- requests -----------------------------------------------------------------------------------------------------

    async def _route(self, request: Request) -> tuple[int, Any]:
        if not request.path.startswith(f"{self.path}/"):
            raise Refusal(404)
        match request.path.removeprefix(f"{self.path}/").split("/"):
            case ["sessions"]:
                self._expect(request, "POST", "router")
                return 200, await self._open(self._body(request, "session-open"))
            case ["proposals"]:
                self._expect(request, "POST")
                return 200, await self._propose(self._body(request, "proposal"), request)
            case ["sessions", identifier, "drafter"]:
                self._expect(request, "PUT", "router")
                return 200, await self._assign(self._session(identifier), self._body(request, "assignment"))
            case ["sessions", identifier, "policy"]:
                self._expect(request, "POST", "router")
                return 200, await self._policy(self._session(identifier), self._body(request, "policy"))
            case ["sessions", identifier, "output"]:
                self._expect(request, "GET")
                return 200, await self._output(self._session(identifier), request)
        raise Refusal(404)

    def _expect(self, request: Request, method: str, role: str | None = None) -> None:
        if request.method != method:
            raise Refusal(405)
        if role is not None and role not in request.peer.roles:
            raise Refusal(403)

    def _body(self, request: Request, rule: str) -> dict[str, Any]:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != SDCP_CBOR:
            raise Refusal(415)
        if len(request.body) > self.body_bytes:
            raise Refusal(413)
        try:
            value = decode(request.body)
        except ValueError as fault:
            raise Refusal(400, detail=str(fault)) from None
        if not isinstance(value, dict):
            raise Refusal(400)
        if isinstance(value.get("contract"), dict):
            self._check_contract(value["contract"])
        if messages.value_faults(rule, value):
            raise table_2("sdcp-bad-contract") if "contract" in value and rule == "session-open" else Refusal(400)
        return value

    def _check_contract(self, contract: dict[str, Any]) -> None:
        faults = messages.value_faults("contract", contract)
        known = messages.known_keys("contract") >= contract.keys()
        known = known and (faults or messages.known_keys("sampling") >= contract.get("sampling", {}).keys())
        if faults or not known or contract["m_max"] == 0 or contract["rule"] not in (1, 2):
            raise table_2("sdcp-bad-contract", "; ".join(faults) or "a key or value that is not defined")
        if (contract["target"], contract["tokenizer"]) != (self.digest, TOKENIZER):
            raise table_2("sdcp-bad-contract", "another model or tokenizer")

    def _session(self, identifier: str) -> Session:
        try:
            session = self.sessions[base64.urlsafe_b64decode(identifier + "==")]
        except (ValueError, KeyError):
            raise Refusal(404) from None
        if session.fenced:
            raise table_2("sdcp-stale-epoch")
        return session

    # -- opening (6.1, 6.9) -------------------------------------------------------------------------------------------

    async def _open(self, message: dict[str, Any]) -> dict[str, Any]:
        held = self.sessions.get(message["session"])
        if held is not None:
            if message["epoch"] < held.opening["epoch"]:
                raise table_2("sdcp-stale-epoch")
            if message["epoch"] == held.opening["epoch"]:
                if any(message.get(key) != held.opening.get(key) for key in ("contract", "prompt", "resume")):
                    raise Refusal(409)
                return held.state()
        prompt = message["prompt"] if isinstance(message["prompt"], list) else await self._tokens(message["prompt"])
        if not prompt or any(token >= len(self.model.rows) for token in prompt):
            raise Refusal(422)
        session = await self._restored(message, prompt)
        self.sessions[message["session"]] = session
        await self._finish_if_over(session)
        return session.state()

    async def _restored(self, message: dict[str, Any], prompt: list[int]) -> Session:
        tag, records = await self._log(message["commit_log"])
        resume = message.get("resume")
        contract = message["contract"]
        start = Session(message, prompt, [], 0, tag, Ladder(contract), [(0, dict(contract.get("sampling", {})))])
        if resume is None:
            if message["epoch"] != 1 or records:
                raise Refusal(409)
            return start
        if [record for record in records if "round" not in record][-1:] != [{"epoch": message["epoch"]}]:
            raise table_2("sdcp-stale-epoch")
        start.output, start.round = await self._tokens(resume["committed_tokens"]), resume["round"]
        if start.digest_at(len(start.output)) != resume["digest"] or len(start.output) != resume["committed"]:
            raise Refusal(409)
        return start

    async def _finish_if_over(self, session: Session) -> None:
        contract, output = session.contract, session.output
        if len(output) >= contract["max_new"] or (output and output[-1] in contract["stop"]):
            await self._close(session, FINISH)

    # -- assignment and policy ----------------------------------------------------------------------------------------

    async def _assign(self, session: Session, message: dict[str, Any]) -> dict[str, Any]:
        check_epoch(session, message)
        if message["contract"] != session.contract:
            raise Refusal(422)
        async with session.lock:
            if session.closed is not None:
                raise table_2("sdcp-session-closed")
            if session.drafter != message["drafter"]:
                session.limit = Limit(session.contract["m_max"], message["m_init"])
            session.drafter, session.waiting = message["drafter"], False
            return session.state()

    async def _policy(self, session: Session, message: dict[str, Any]) -> dict[str, Any]:
        if session.closed is not None:
            raise table_2("sdcp-session-closed")
        if message["from_round"] <= session.round + session.lock.locked():
            raise Refusal(409)
        session.profiles.append((message["from_round"], dict(message["sampling"])))
        return session.state()

    # -- output (6.7) -------------------------------------------------------------------------------------------------

    async def _output(self, session: Session, request: Request) -> dict[str, Any]:
        roles = request.peer.roles
        if not roles & {"router", "front-end"} and session.drafter not in request.peer.uris:
            raise Refusal(403)
        text = request.query.get("from", "0")
        if not (text.isascii() and text.isdecimal()):
            raise Refusal(400)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.wait_s), session.news:
                await session.news.wait_for(lambda: len(session.output) > int(text) or session.closed is not None)
        facts = session.state()
        output = {"session": facts["session"], "epoch": facts["epoch"], "from": int(text)}
        output |= {"tokens": session.output[int(text) :], "final": session.closed is not None}
        return output if session.closed is None else {**output, "finish": session.closed}


def _read_model(file: bytes) -> tuple[Bigram, bytes]:
    (size,) = struct.unpack_from("<Q", file)
    shape = json.loads(file[8 : 8 + size])["logits"]["shape"]
    values = struct.unpack_from(f"<{shape[0] * shape[1]}f", file, 8 + size)
    rows = tuple(tuple(values[start : start + shape[1]]) for start in range(0, len(values), shape[1]))
    return Bigram(rows), hashlib.sha256(file).digest()


def main() -> int:
    """Serve, or say that the role is not offered."""
    role, _, config = sys.argv[1:4]
    if role != "verifier":
        return 127
    settings = tomllib.loads(Path(config).read_text())
    asyncio.run(Stranger(settings, Path(config).parent).serve(settings["server"]["listen"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
