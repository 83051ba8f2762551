"""For checks of a router: the kit is its verifiers, its drafters, its front end and its cache.

Each check has a `Place`: models of its own, so that no other check's instances are chosen for its sessions.

    async def some_check(r: RouterWorld) -> None:
        verifier, drafter = await r.place.verifier(), await r.place.drafter()   # both have reported their status
        request = r.request(max_new=8)                  # POST requests, answered later
        opened = await verifier.opened()                # session-open, waiting for its answer
        opened.accept()
        (await verifier.put()).accept()                 # PUT drafter
        (await drafter.assignment()).accept()           # POST assignments
        location = await request.location()
        await verifier.send_event(opened.session, 4)
"""

from __future__ import annotations

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from sdcp_conformance.authority import Identity
from sdcp_conformance.encoding import decode
from sdcp_conformance.net.client import Answer, Client
from sdcp_conformance.net.server import Request, Response, Server
from sdcp_conformance.oracle.chain import prefix_digest
from sdcp_conformance.outcome import ensure
from sdcp_conformance.played.inbox import Incoming, Mailbox
from sdcp_conformance.subject import Subject
from sdcp_conformance.town import Town
from sdcp_conformance.worlds.session import PROMPT, SessionFacts
from sdcp_conformance.worlds.world import World, changed, path_id

TTL_MS = 120_000
ROLE_NUMBERS = {"drafter": 1, "verifier": 2}


class RouterWorld(World):
    """See the head of this module. `place` has the check's own instances."""

    def __init__(self, town: Town, subject: Subject, seat: Seat) -> None:
        super().__init__(town, subject)
        self.place = Place(self, seat)
        self.requests: list[Requested] = []

    def request(self, *, who: str = "front-end", wait_s: float | None = None, **members: Any) -> Requested:
        """POST requests for this place's model, in the background; `members` change the request (D33)."""
        right = {"request": secrets.token_bytes(16), "prompt": PROMPT, "max_new": 8, "stop": [], "rule": 1}
        right |= {"target": self.place.seat.target, "tokenizer": self.place.seat.tokenizer}
        requested = Requested(self, changed(right, members), who, wait_s)
        self.requests.append(requested)
        return requested

    async def running(self, **members: Any) -> Running:
        """A session that is opened at a played verifier and assigned to a played drafter."""
        verifier, drafter = await self.place.verifier(), await self.place.drafter()
        requested = self.request(**members)
        opened = await verifier.opened()
        opened.accept()
        (await verifier.put()).accept()
        assignment = await drafter.assignment()
        assignment.accept()
        await requested.location()
        return Running(requested, opened, verifier, drafter, assignment.message)

    async def close(self) -> None:
        """Withdraw what was requested, then close."""
        for requested in self.requests:
            await requested.withdraw_quietly()
        self.place.drop_all()
        await super().close()


class Seat:
    """What the router's settings say of one place: digests, and two verifiers and three drafters by name and base."""

    def __init__(self, town: Town) -> None:
        self.target, self.model, self.tokenizer = (secrets.token_bytes(32) for _ in range(3))
        self.reserved = {
            role: [(town.new_name(role), *town.reserve()) for _ in range(count)]
            for role, count in (("verifier", 2), ("drafter", 3))
        }

    def close(self) -> None:
        """Give back what no check asked for."""
        for _, bound, _ in (each for places in self.reserved.values() for each in places):
            bound.close()

    def instances(self) -> list[dict[str, str]]:
        """`[[instances]]` of the router's settings (D7)."""
        models = {"verifier": self.target, "drafter": self.model}
        return [
            {"instance": name, "base": base, "model": models[role].hex(), "tokenizer": self.tokenizer.hex()}
            for role, places in self.reserved.items()
            for name, _, base in places
        ]


class Place:
    """The instances of one check; each is asked for once, in turn."""

    def __init__(self, world: RouterWorld, seat: Seat) -> None:
        self.world = world
        self.seat = seat
        self.instances: list[Instance] = []

    async def verifier(self, *, serving_as: Identity | None = None, **status: Any) -> PlayedVerifier:
        """The next verifier, serving, its status reported with `status` changed.

        `serving_as`: the certificate that its server shows, if not that of its status.
        """
        verifier = PlayedVerifier(self.world, "verifier", self.seat.target)
        await self._begin(verifier, status, serving_as)
        return verifier

    async def drafter(self, **status: Any) -> PlayedDrafter:
        """The next drafter, serving, its status reported with `status` changed."""
        drafter = PlayedDrafter(self.world, "drafter", self.seat.model)
        await self._begin(drafter, status, None)
        return drafter

    def waiting(self) -> str:
        """What waits for an answer at any instance, for failures."""
        boxes = [box for instance in self.instances for box in instance.boxes.values()]
        found = [f"{box.unanswered} of {box.what}" for box in boxes if box.unanswered]
        return f" (unanswered meanwhile: {', '.join(found)})" if found else ""

    def drop_all(self) -> None:
        """Leave what still waits without an answer."""
        for instance in self.instances:
            instance.drop_all()

    async def _begin(self, instance: Instance, status: dict[str, Any], serving_as: Identity | None) -> None:
        name, bound, base = self.seat.reserved[instance.role].pop(0)
        instance.name, instance.base = name, base
        instance.identity = self.world.identity(name, [instance.role], [base])
        instance.server = Server(instance.handle, (serving_as or instance.identity).server_context(), bound)
        await instance.server.start()
        self.world._servers.append(instance.server)
        instance.client = self.world.client_of(instance.identity)
        self.instances.append(instance)
        (await instance.report(**status)).no_content()


class Instance(ABC):
    """A played verifier or drafter. `report` sends its status."""

    name: str
    base: str
    identity: Identity
    server: Server
    client: Client

    def __init__(self, world: RouterWorld, role: str, model: bytes) -> None:
        self.world = world
        self.role = role
        self.model = model
        self.boxes: dict[str, Mailbox] = {}

    async def report(self, **changes: Any) -> Answer:
        """PUT instances/{id}/status."""
        status = {"instance": self.name, "role": ROLE_NUMBERS[self.role], "load": 0, "queue": 0, "ttl_ms": TTL_MS}
        status |= {"base": self.base, "model": self.model, "tokenizer": self.world.place.seat.tokenizer}
        url = f"{self.world.base}/instances/{quote(self.name, safe='')}/status"
        return await self.client.request("PUT", url, changed(status, changes))

    def box(self, kind: str) -> Mailbox:
        """Where messages of a kind wait."""
        if kind not in self.boxes:
            self.boxes[kind] = Mailbox(f"{kind} at the {self.role} {self.name}", self.world.patience_s)
            self.boxes[kind].meanwhile = self.world.place.waiting
        return self.boxes[kind]

    def drop_all(self) -> None:
        """Leave whatever still waits without an answer."""
        for box in self.boxes.values():
            box.drop_all()

    async def handle(self, request: Request) -> Response:
        """Keep a request for the check."""
        self.world.watch.request(request.method, request.path, request.headers, request.body)
        incoming = Incoming(request)
        kind = self.kind_of(request)
        if kind is None:
            incoming.refuse(404)
        else:
            self.box(kind).deliver(incoming)
        return await incoming.response()

    @abstractmethod
    def kind_of(self, request: Request) -> str | None:
        """The mailbox for a request; None: there is no such resource."""


class PlayedVerifier(Instance):
    """A verifier; `sessions` are those that it has accepted, as the check moves them on."""

    def __init__(self, world: RouterWorld, role: str, model: bytes) -> None:
        super().__init__(world, role, model)
        self.sessions: dict[bytes, SessionFacts] = {}

    def kind_of(self, request: Request) -> str | None:
        """session-open, PUT drafter, a policy, GET output."""
        last = request.path.rpartition("/")[2]
        kinds = {"POST sessions": "a session-open", "PUT drafter": "a PUT drafter"}
        kinds |= {"POST policy": "a policy", "GET output": "a GET output"}
        return kinds.get(f"{request.method} {last}")

    async def opened(self, limit_s: float | None = None) -> Opened:
        """The next session-open."""
        return Opened(self, await self.box("a session-open").take(limit_s))

    async def put(self, limit_s: float | None = None) -> Put:
        """The next PUT drafter."""
        return Put(self, await self.box("a PUT drafter").take(limit_s))

    async def policy(self, limit_s: float | None = None) -> Put:
        """The next policy."""
        return Put(self, await self.box("a policy").take(limit_s))

    async def output_read(self, limit_s: float | None = None) -> Incoming:
        """The next GET output."""
        return await self.box("a GET output").take(limit_s)

    async def send_event(self, session: bytes, kind: int, **changes: Any) -> Answer:
        """POST events for a session that this verifier accepted."""
        facts = self.sessions.get(session)
        right: dict[str, Any] = {"session": session, "epoch": 1, "committed": 0, "digest": bytes(32)}
        if facts is not None:
            right = {key: facts.state()[key] for key in right}
        message = changed({**right, "kind": kind}, changes)
        return await self.client.request("POST", f"{self.world.base}/events", message)

    def commit(self, session: bytes, tokens: Sequence[int]) -> SessionFacts:
        """Commit a round of these tokens, and write its record to the session's commit log."""
        facts = self.sessions[session]
        self.world.cache.append(facts.log_ref, facts.commit(tokens))
        return facts


class PlayedDrafter(Instance):
    """A drafter that takes assignments."""

    def kind_of(self, request: Request) -> str | None:
        """assignments only."""
        return "an assignment" if (request.method, request.path[-11:]) == ("POST", "assignments") else None

    async def assignment(self, limit_s: float | None = None) -> Assigned:
        """The next assignment."""
        return Assigned(await self.box("an assignment").take(limit_s))


class Received:
    """A message of the router that waits for its answer. `message` is its map."""

    def __init__(self, incoming: Incoming) -> None:
        self.incoming = incoming
        self.message: dict[str, Any] = incoming.message if isinstance(incoming.message, dict) else {}

    @property
    def session(self) -> bytes:
        """Its session."""
        return bytes(self.message.get("session", b""))

    def refuse(self, kind: str | int, **members: Any) -> None:
        """Answer with a refusal."""
        self.incoming.refuse(kind, **members)

    def drop(self, *, connection: bool = False) -> None:
        """Reset the stream instead of answering, or cut the whole connection off: the answer is lost."""
        self.incoming.drop(connection=connection)


class Assigned(Received):
    """POST assignments."""

    def accept(self) -> None:
        """204."""
        self.incoming.respond(204)


class Opened(Received):
    """session-open."""

    def __init__(self, verifier: PlayedVerifier, incoming: Incoming) -> None:
        super().__init__(incoming)
        self.verifier = verifier

    def facts(self) -> SessionFacts:
        """What the message says of the session, ready to go on from."""
        message, prompt = self.message, self.message["prompt"]
        if isinstance(prompt, str):
            prompt = decode(self.verifier.world.cache.get(prompt) or b"")
        facts = SessionFacts(message["contract"], prompt, epoch=message["epoch"])
        facts.id = self.session
        facts.log_ref = message["commit_log"]
        if (resume := message.get("resume")) is not None:
            tokens = self.verifier.world.cache.get(resume["committed_tokens"])
            facts.round, facts.output = resume["round"], decode(tokens or b"\x80")
        return facts

    def accept(self, **changes: Any) -> SessionFacts:
        """Answer with the session-state of what was opened; returns the facts, which the verifier keeps."""
        facts = self.facts()
        if facts.round == 0:
            ensure(facts.digest == prefix_digest(facts.contract, facts.prompt), "d[0] of the kit is wrong")
        self.verifier.sessions[facts.id] = facts
        self.incoming.respond(200, facts.state(**changes))
        return facts


class Put(Received):
    """PUT drafter or a policy."""

    def __init__(self, verifier: PlayedVerifier, incoming: Incoming) -> None:
        super().__init__(incoming)
        self.verifier = verifier

    def accept(self, **changes: Any) -> None:
        """Answer with the session-state."""
        self.incoming.respond(200, self.verifier.sessions[self.session].state(**changes))


class Requested:
    """A request of the front end that the kit plays (D33). `id` as in its path."""

    def __init__(self, world: RouterWorld, message: dict[str, Any], who: str, wait_s: float | None) -> None:
        self.world = world
        self.message = message
        self.who = who
        self.path = f"requests/{path_id(message['request'])}" if isinstance(message.get("request"), bytes) else ""
        limit_s = wait_s or 3 * world.patience_s
        self._asking = asyncio.ensure_future(world.ask(who, "POST", "requests", message, timeout_s=limit_s))

    async def answer(self) -> Answer:
        """The answer to POST requests."""
        return await self._asking

    async def location(self) -> dict[str, Any]:
        """The location in it. Fails the check when it is a refusal."""
        return (await self._asking).message

    async def locate(self, query: str = "", wait_s: int = 0, who: str | None = None) -> Answer:
        """GET requests/{id}."""
        headers = [("prefer", f"wait={wait_s}")]
        timeout_s = self.world.patience_s + wait_s
        return await self.world.ask(who or self.who, "GET", self.path + query, headers=headers, timeout_s=timeout_s)

    async def change_profile(self, sampling: dict[str, Any], **members: Any) -> Answer:
        """POST requests/{id}/policy."""
        return await self.world.ask(self.who, "POST", f"{self.path}/policy", {"sampling": sampling, **members})

    async def withdraw(self, who: str | None = None) -> Answer:
        """DELETE requests/{id}."""
        return await self.world.ask(who or self.who, "DELETE", self.path)

    async def withdraw_quietly(self) -> None:
        """Forget the request, whatever the subject says: the check is over."""
        if self.path and self.world.subject.exit_code is None:
            asking = self.world.ask(self.who, "DELETE", self.path, watched=False, timeout_s=2)
            await asyncio.gather(asking, return_exceptions=True)
        self._asking.cancel()
        await asyncio.gather(self._asking, return_exceptions=True)


class Running:
    """A session that runs: who serves it, and the assignment that the drafter was sent."""

    def __init__(
        self,
        request: Requested,
        opened: Opened,
        verifier: PlayedVerifier,
        drafter: PlayedDrafter,
        assignment: dict[str, Any],
    ) -> None:
        self.request = request
        self.opened = opened
        self.verifier = verifier
        self.drafter = drafter
        self.assignment = assignment

    @property
    def session(self) -> bytes:
        """Its identifier."""
        return self.opened.session

    @property
    def facts(self) -> SessionFacts:
        """Where it stands at the verifier that opened it first."""
        return self.verifier.sessions[self.session]
