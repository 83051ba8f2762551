"""What all checks of one role share: a folder, the authority, the cache, and the subject's processes.

Each check opens a `World` on it: its own connections, its own watch, its own played roles, closed when it ends.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sdcp_conformance.authority import Authority, Identity
from sdcp_conformance.net.connection import Peer
from sdcp_conformance.net.server import Handler, Request, Response, Server, reserve
from sdcp_conformance.oracle.bigram import DRAFT, TARGET
from sdcp_conformance.played.cache import PlayedCache
from sdcp_conformance.played.inbox import Incoming, Mailbox
from sdcp_conformance.subject import Subject
from sdcp_conformance.watch import Watch

PATH = "/sdcp"
BODY_BYTES = 65_536
LIMITS: dict[str, Any] = {"body_bytes": BODY_BYTES, "drain_s": 10.0, "sessions": 1000}
TIRED = 600
"""After so many sessions the shared process makes room for another: checks leave theirs as they are."""
WAIT_MS = 2000
VERIFIER_LIMITS: dict[str, Any] = {"wait_ms": WAIT_MS, "fetch_ms": 2000}
ROUTER_CONTRACT: dict[str, Any] = {
    "m_max": 4,
    "m_init": 3,
    "low_rounds": 3,
    "fallback": ["reduce", "switch", "fail"],
    "self_load": 100,
    "self_max": 4,
}


class Town:
    """Everything around the subject in one role. `patience_s`: how long a check waits for what must come."""

    def __init__(self, command: str, role: str, folder: Path, patience_s: float = 10.0) -> None:
        self.role = role
        self.folder = folder
        self.patience_s = patience_s
        self.authority = Authority(folder)
        self.stranger_authority = Authority(folder, "another-ca")
        self.watch = Watch()
        self.statuses: dict[str, list[Incoming]] = {}
        self.status_came = asyncio.Event()  # cleared by who waits for another one
        self.events: dict[bytes, Mailbox] = {}
        self.watches: dict[bytes, Watch] = {}
        self.instances: list[dict[str, str]] = []
        self._command = command
        self._servers: list[Server] = []
        self._identities: dict[str, Identity] = {}
        self._subjects: list[Subject] = []
        self._sockets: list[socket.socket] = []
        self._shared: Subject | None = None
        self._starting = asyncio.Lock()
        self._names = 0
        (folder / "target.safetensors").write_bytes(TARGET.file)
        (folder / "draft.safetensors").write_bytes(DRAFT.file)

    async def start(self) -> None:
        """Begin to play the cache and, for the subject's statuses and events, the router."""
        bound, base = self.reserve()
        self.cache = PlayedCache(base)
        self.cache.on_append = self._appended
        await self.serve(self.cache.handle, self.authority.issue("cache", ["cache"], [base]), bound)
        bound, self.router_base = self.reserve()
        self.router = self.authority.issue("router-server", ["router"], [self.router_base])
        await self.serve(self._as_router, self.router, bound)
        bound, self.elsewhere = self.reserve()
        self._sockets.append(bound)  # bound, and nobody serves there: a cache that is down

    async def subject(self, limits: Mapping[str, Any] | None = None, **sections: Any) -> Subject:
        """Start a process of the subject. Raises SubjectError or NotOffered."""
        name = self.new_name(f"subject-{self.role}")
        base = f"https://127.0.0.1:{_free_port()}{PATH}"
        self.authority.issue(name, [self.role], [base])
        subject = Subject(self._command, self.role, self.folder, name, base)
        self._subjects.append(subject)
        await subject.start({**self._settings(name, base, limits or {}), **sections})
        return subject

    async def shared_subject(self) -> Subject:
        """The process that most checks share; another one when it has ended, or has sessions enough."""
        async with self._starting:
            if self._shared is None or self._shared.exit_code is not None or self._shared.sessions >= TIRED:
                self._shared = await self.subject()
            return self._shared

    async def serve(self, handler: Handler, identity: Identity, bound: socket.socket) -> Server:
        """Serve on a reserved socket until the town closes."""
        server = Server(handler, identity.server_context(), bound)
        await server.start()
        self._servers.append(server)
        return server

    def reserve(self) -> tuple[socket.socket, str]:
        """A socket to serve on, and the base URI that it will have."""
        bound = reserve()
        return bound, f"https://127.0.0.1:{bound.getsockname()[1]}{PATH}"

    def identity(
        self, name: str, roles: Sequence[str] = (), uris: Sequence[str] = (), dns: Sequence[str] = ("localhost",)
    ) -> Identity:
        """The certificate of this name; issued when it is first asked for."""
        if name not in self._identities:
            self._identities[name] = self.authority.issue(self.new_name(name), roles, uris, dns)
        return self._identities[name]

    def new_name(self, what: str) -> str:
        """A file name that nothing has yet."""
        self._names += 1
        return f"{what}-{self._names}"

    def new_ref(self, kind: str) -> str:
        """The URI of an object or log of the cache that is not there yet."""
        return f"{self.cache.base}/{kind}/k{secrets.token_hex(16)}"

    def events_of(self, session: bytes) -> Mailbox:
        """The events that the subject sends for a session; answered 204 unless the check takes `auto` away."""
        if session not in self.events:
            mailbox = Mailbox(f"an event of session {session.hex()}", self.patience_s)
            mailbox.auto = lambda incoming: incoming.respond(204)
            self.events[session] = mailbox
        return self.events[session]

    async def close(self) -> None:
        """End every process, stop every server."""
        await asyncio.gather(*(subject.stop() for subject in self._subjects))
        await asyncio.gather(*(server.close() for server in self._servers))
        for bound in self._sockets:
            bound.close()

    # -- the subject's settings (docs/conformance-cli.md) -------------------------------------------------------------

    def _settings(self, name: str, base: str, limits: Mapping[str, Any]) -> dict[str, Any]:
        listen = base.removeprefix("https://").partition("/")[0]
        settings: dict[str, Any] = {
            "server": {"listen": listen, "base_uri": base},
            "tls": {"certificate": f"{name}.pem", "key": f"{name}.key", "ca": "ca.pem"},
            "limits": {**LIMITS, **(VERIFIER_LIMITS if self.role == "verifier" else {}), **limits},
            "cache": {"prefixes": [self.cache.base, self.elsewhere]},
        }
        if self.role == "router":
            return {**settings, "contract": ROUTER_CONTRACT, "instances": self.instances}
        model = "target" if self.role == "verifier" else "draft"
        settings["model"] = {"engine": "bigram", "path": f"{model}.safetensors"}
        return {**settings, "routers": {"base_uris": [self.router_base]}}

    # -- what the subject sends to the played router ------------------------------------------------------------------

    async def _as_router(self, request: Request) -> Response:
        incoming = Incoming(request)
        segments = request.path.removeprefix(f"{PATH}/").split("/")
        message = incoming.message if isinstance(incoming.message, dict) else {}
        if request.method == "PUT" and segments[0] == "instances":
            self.watch.request(request.method, request.path, request.headers, request.body)
            self.statuses.setdefault(str(message.get("instance")), []).append(incoming)
            self.status_came.set()
            return Response(204)
        if request.method == "POST" and segments == ["events"]:
            session = message.get("session", b"")
            watch = self.watches.get(session, self.watch)
            watch.request(request.method, request.path, request.headers, request.body)
            self.events_of(session).deliver(incoming)
            return await incoming.response()
        incoming.refuse(404)
        return await incoming.response()

    def _appended(self, name: str, records: list[Any], peer: Peer) -> None:
        if peer.roles & {self.role}:
            watch = self.watches.get(name.encode(), self.watch)
            for record in records:
                watch.record(record)


def _free_port() -> int:
    """A port below those that outgoing connections are given, so that it stays free until the subject takes it."""
    while True:
        port = random.randrange(18_000, 32_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
