"""The processes under test, and everybody who talks to them: one client for each certificate (D9, D10)."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from sdcp.http.authority import issue
from sdcp.http.client import Answer, Client
from sdcp.http.tls import TlsFiles, client_context
from sdcp.wire import cbor
from tests.shells.refusals.processes import Processes

SDCP_CBOR = "application/sdcp+cbor"
CBOR_SEQ = "application/cbor-seq"
DRAFTER = "https://drafter.test/d"
OTHER = "https://other.test/d"
TOKENIZER = hashlib.sha256(b"sdcp-identity-tokenizer-1").digest()

MISSING = object()
"""As the value of a change: leave the member out."""

_CERTIFICATES: dict[str, dict[str, Any]] = {
    "router": {"role": "router"},
    "front-end": {"role": "front-end"},
    "another-front-end": {"role": "front-end", "uris": ["https://front.test/"]},
    "drafter": {"role": "drafter", "uris": [DRAFTER]},
    "other": {"role": "drafter", "uris": [OTHER]},
    "host": {"role": "drafter", "dns": ["drafter.test"]},  # the base URI's host alone is not enough by default (D9)
    "impostor": {"role": "verifier", "uris": [DRAFTER]},
    "nobody": {"role": [], "uris": [DRAFTER]},
}


def changed(message: Mapping[Any, Any], changes: Mapping[Any, Any]) -> dict[Any, Any]:
    """The map with members set, or left out where the value is MISSING."""
    return {key: value for key, value in {**message, **changes}.items() if value is not MISSING}


class Town:
    """Who is where. `bases`: base URIs of the processes by name."""

    def __init__(self, processes: Processes, bases: Mapping[str, str], files: Mapping[str, TlsFiles]) -> None:
        self.processes = processes
        self.bases = dict(bases)
        self.target = hashlib.sha256((processes.folder / "target.safetensors").read_bytes()).digest()
        self.draft = hashlib.sha256((processes.folder / "draft.safetensors").read_bytes()).digest()
        played = {name: issue(processes.folder, f"as-{name}", **names) for name, names in _CERTIFICATES.items()}
        self.files = {**files, **played}
        self._clients: dict[str, Client] = {}

    async def ask(
        self,
        who: str,
        method: str,
        url: str,
        body: Any = None,
        *headers: tuple[str, str],
        media: str | None = SDCP_CBOR,
        deadline_s: float = 30.0,
    ) -> Answer:
        """One request with the certificate of `who`. A body that is a map or list is sent as CBOR."""
        fields = [*headers] if body is None or media is None else [("content-type", media), *headers]
        content = cbor.encode(body) if isinstance(body, dict | list) else body
        return await self.client(who).request(method, url, headers=fields, body=content, deadline_s=deadline_s)

    def client(self, who: str) -> Client:
        """The client with this certificate."""
        if who not in self._clients:
            self._clients[who] = Client(client_context(self.files[who]))
        return self._clients[who]

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.close()

    # -- the cache, as a peer uses it ---------------------------------------------------------------------------------

    def new_name(self, kind: str, prefix: str = "cache") -> str:
        """The URI of an object or log that is not there yet; its name ends in 128 random bits."""
        return f"{self.bases[prefix]}/{kind}/t{secrets.token_hex(16)}"

    async def put_object(self, data: bytes, who: str = "drafter") -> str:
        """Create an object; return its URI."""
        ref = self.new_name("objects")
        answer = await self.ask(who, "PUT", ref, data, media="application/octet-stream")
        assert answer.status == 201, answer
        return ref

    async def put_tokens(self, tokens: Iterable[int]) -> str:
        """Create an object of tokens (D20); return its URI."""
        return await self.put_object(cbor.encode([*tokens]), "router")

    async def append(self, log: str, record: Mapping[str, Any], etag: str | None = None) -> str:
        """Append a record as a router; return the log's new tag."""
        condition = ("if-none-match", "*") if etag is None else ("if-match", etag)
        answer = await self.ask("router", "PATCH", log, {**record}, condition, media=CBOR_SEQ)
        assert answer.status in (201, 204), answer
        return answer.headers["etag"]

    async def read_log(self, log: str) -> tuple[str | None, bytes]:
        """Tag and octets of a log; None and nothing where there is none."""
        answer = await self.ask("router", "GET", log)
        return (answer.headers["etag"], answer.body) if answer.status == 200 else (None, b"")
