"""What every check is given, whatever the role: the subject, clients with any certificate, the cache, the watch."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from sdcp_conformance.authority import Identity
from sdcp_conformance.net.client import Answer, Client
from sdcp_conformance.net.raw import Attempt, attempt, context_of
from sdcp_conformance.net.server import Handler, Server
from sdcp_conformance.oracle.bigram import DRAFT, TARGET, TOKENIZER
from sdcp_conformance.outcome import ensure
from sdcp_conformance.played.cache import Hold, PlayedCache, as_always
from sdcp_conformance.played.inbox import Incoming
from sdcp_conformance.subject import Subject
from sdcp_conformance.town import Town
from sdcp_conformance.watch import SDCP_CBOR, Watch

T = TypeVar("T")
DRAFTER = "https://drafter.test/d"
OTHER = "https://other.test/d"
MISSING = object()
"""As the value of a change: leave the member out."""

IDENTITIES: dict[str, dict[str, Any]] = {
    "router": {"roles": ["router"], "uris": ["https://router.test/r"]},
    "front-end": {"roles": ["front-end"], "uris": ["https://front.test/f"]},
    "other-front-end": {"roles": ["front-end"], "uris": ["https://other-front.test/f"]},
    "drafter": {"roles": ["drafter"], "uris": [DRAFTER]},
    "other": {"roles": ["drafter"], "uris": [OTHER]},
    "verifier": {"roles": ["verifier"], "uris": ["https://verifier.test/v"]},
    "host": {"roles": ["drafter"], "dns": ["drafter.test"]},
    "nobody": {"uris": [DRAFTER]},
}
"""Certificates by the name that `who` takes: `host` has only the host of the drafter's base URI, `nobody` no role."""


def changed(message: Mapping[Any, Any], changes: Mapping[Any, Any]) -> dict[Any, Any]:
    """The map with members set, or left out where the value is MISSING."""
    return {key: value for key, value in {**message, **changes}.items() if value is not MISSING}


def path_id(identifier: bytes) -> str:
    """An identifier as it stands in a path: base64url without padding (5.1)."""
    return base64.urlsafe_b64encode(identifier).rstrip(b"=").decode()


class World:
    """One check's surroundings. `base`: the subject's base URI. `watch`: what broke the draft so far."""

    target = TARGET
    draft = DRAFT
    tokenizer = TOKENIZER

    def __init__(self, town: Town, subject: Subject) -> None:
        self.town = town
        self.subject = subject
        self.base = subject.base
        self.patience_s = town.patience_s
        self.watch = Watch()
        self._clients: dict[str, Client] = {}
        self._servers: list[Server] = []
        self._tasks: list[asyncio.Task[Any]] = []

    @property
    def cache(self) -> PlayedCache:
        """The cache that the kit plays."""
        return self.town.cache

    def client(self, who: str) -> Client:
        """The client with the certificate of this name (see IDENTITIES)."""
        if who not in self._clients:
            self._clients[who] = self.client_of(self.town.identity(who, **IDENTITIES[who]))
        return self._clients[who]

    def client_of(self, identity: Identity) -> Client:
        """A new client with any certificate; close it with the world."""
        client = Client(identity.client_context(), self.watch, self.patience_s)
        self._clients[f"#{len(self._clients)}"] = client
        return client

    def identity(self, name: str, roles: Sequence[str] = (), uris: Sequence[str] = ()) -> Identity:
        """A certificate of our own for this check."""
        return self.town.authority.issue(self.town.new_name(name), roles, uris)

    async def ask(
        self,
        who: str,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Iterable[tuple[str, str]] = (),
        media: str | None = SDCP_CBOR,
        timeout_s: float | None = None,
        watched: bool = True,
    ) -> Answer:
        """One request to the subject, at `path` below its base URI, such as `sessions` (see `Client.request`)."""
        url = f"{self.base}/{path}"
        client = self.client(who)
        return await client.request(
            method, url, body, headers=headers, media=media, timeout_s=timeout_s, watched=watched
        )

    def statuses(self) -> list[Incoming]:
        """The statuses that this very process has reported to the played router, by its certificate, in order."""
        every = [each for reported in self.town.statuses.values() for each in reported]
        ours = [each for each in every if self.base in each.request.peer.uris]
        return sorted(ours, key=lambda each: each.at)

    async def reported(self, count: int, limit_s: float | None = None) -> list[Incoming]:
        """The same once there are so many. Fails the check when they do not come in time."""
        limit_s = limit_s or self.patience_s
        try:
            async with asyncio.timeout(limit_s):
                while len(self.statuses()) < count:
                    self.town.status_came.clear()
                    await self.town.status_came.wait()
        except TimeoutError:
            ensure(False, f"expected {count} statuses within {limit_s:g} s, came {len(self.statuses())}")
        return self.statuses()

    async def attempt(
        self,
        octets: bytes,
        who: str | None = "router",
        *,
        tls12: bool = False,
        alpn: Sequence[str] = ("h2",),
        limit_s: float = 3.0,
    ) -> Attempt:
        """Connect to the subject by hand and send octets (see `net.raw`); `who` None: without a certificate."""
        identity = None if who is None else self.town.identity(who, **IDENTITIES[who])
        context = context_of(self.town.authority.ca, identity, tls12=tls12, alpn=alpn)
        return await attempt(self.base, context, octets, limit_s)

    async def attempt_foreign(self, octets: bytes, limit_s: float = 3.0) -> Attempt:
        """The same with a certificate that says `router`, of an authority that nobody trusts."""
        foreign = self.town.stranger_authority.issue(self.town.new_name("foreign"), ["router"])
        return await attempt(self.base, context_of(self.town.authority.ca, foreign), octets, limit_s)

    def put_object(self, data: bytes) -> str:
        """Put octets into the cache; return the URI."""
        return self.cache.put(data, self.cache.name_of(self.town.new_ref("objects")))

    def hold(self, method: str, ref: str, after: int = 0) -> Hold:
        """Let the cache hold the next request of this method for `ref`, behind `after` others."""
        hold = Hold(self.patience_s)
        self.cache.on(method, ref, *[as_always] * after, hold)
        return hold

    async def serve(
        self, handler: Handler, roles: Sequence[str], *, foreign: bool = False
    ) -> tuple[str, Identity, Server]:
        """Play a role at a base URI of its own: base URI, certificate and server.

        `foreign`: the certificate is of an authority that nobody trusts.
        """
        bound, base = self.town.reserve()
        authority = self.town.stranger_authority if foreign else self.town.authority
        identity = authority.issue(self.town.new_name("-".join(roles) or "played"), roles, [base])
        server = Server(handler, identity.server_context(), bound)
        await server.start()
        self._servers.append(server)
        return base, identity, server

    def background(self, doing: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do something meanwhile; what is not over when the check ends is cancelled."""
        task = asyncio.create_task(doing)
        self._tasks.append(task)
        return task

    async def close(self) -> None:
        """Close connections and servers of this check."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in tuple(self._clients.values()):  # a handler of ours may still open one
            await client.close()
        for server in self._servers:
            await server.close()
