"""The drafter's role: over real TLS, against a scripted verifier and router (6.1, 6.2, 6.9, D3, D7, D10, D20)."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdcp import errors
from sdcp.engines.bigram import BigramDrafter, write_bigram
from sdcp.http.authority import issue
from sdcp.http.client import Answer, Client
from sdcp.http.dispatch import answer as message_answer
from sdcp.http.exchange import Request, Response
from sdcp.http.problems import problem_response
from sdcp.http.resources import SDCP_CBOR
from sdcp.http.server import Server
from sdcp.http.tls import TlsFiles, client_context, server_context
from sdcp.messages.contract import Action, Contract
from sdcp.messages.output import Output
from sdcp.messages.round import Assignment, Proposal, Verdict
from sdcp.messages.status import Status
from sdcp.roles.drafter import DrafterFacts, DrafterRole
from sdcp.roles.telemetry import Metrics
from sdcp.rules.digest import contract_digest, extend_all, prefix_digest
from sdcp.stores.local import LocalCache
from sdcp.stores.memory import MemoryStore
from sdcp.wire import cbor
from sdcp.wire.rows import check_rows, decode_rows

WIDTH = 12
PROMPT = (3, 4)
PATIENCE_S = 20
PREFIX = "https://cache.example/"


def following(token: int) -> int:
    """The target: after t comes t + 1."""
    return (token + 1) % WIDTH


class Fake:
    """Verifier and router in one: keeps the sessions' truth, answers by script first, then honestly."""

    def __init__(self, cache: LocalCache) -> None:
        self.cache = cache
        self.base = ""
        self.contract: Contract | None = None
        self.output: tuple[int, ...] = ()
        self.round = 0
        self.last = Action.FINISH
        self.script: deque[Callable[[Proposal], Response | None]] = deque()
        self.proposals: list[Proposal] = []
        self.statuses: asyncio.Queue[Status] = asyncio.Queue()
        self.held: asyncio.Event | None = None
        self.arrived = asyncio.Event()
        self.over = asyncio.Event()
        self.verdicts: dict[int, Verdict] = {}

    def digest(self) -> bytes:
        assert self.contract is not None
        start = prefix_digest(contract_digest(self.contract.to_plain()), PROMPT)
        return extend_all(start, self.output)

    async def handle(self, request: Request) -> Response:
        body = await request.body(1 << 20)
        if request.path == "/proposals":
            return await self.propose(Proposal.decode(body))
        if request.path.startswith("/instances/"):
            self.statuses.put_nowait(Status.decode(body))
            return Response(204)
        assert request.headers["prefer"] == "wait=0"
        return message_answer(Output(session=b"s" * 16, epoch=1, from_=0, tokens=self.output, final=False))

    async def propose(self, proposal: Proposal) -> Response:
        self.proposals.append(proposal)
        self.arrived.set()
        if self.held is not None:
            await self.held.wait()
        if self.script and (scripted := self.script.popleft()(proposal)) is not None:
            return scripted
        if proposal.round not in self.verdicts:
            self.verdicts[proposal.round] = await self.judge(proposal)
        verdict = self.verdicts[proposal.round]
        if verdict.action is self.last:
            self.over.set()
        return message_answer(verdict)

    async def judge(self, proposal: Proposal) -> Verdict:
        assert self.contract is not None
        assert (proposal.base, proposal.base_digest) == (len(self.output), self.digest())
        if self.contract.rule == 2:
            await self.check_rows(proposal)
        last, accepted = (*PROMPT, *self.output)[-1], 0
        for token in proposal.tokens:
            if token != following(last):
                break
            last, accepted = token, accepted + 1
        room = self.contract.max_new - len(self.output)
        emitted = (*proposal.tokens[:accepted], following(last))[:room]
        self.output += emitted
        self.round = proposal.round
        ended = len(self.output) == self.contract.max_new
        return Verdict(
            session=proposal.session,
            epoch=proposal.epoch,
            round=proposal.round,
            accepted=accepted,
            emitted=emitted,
            committed=len(self.output),
            digest=self.digest(),
            action=Action.FINISH if ended else Action.CONTINUE,
            m_cap=4,
            low=0,
            load=0,
        )

    async def check_rows(self, proposal: Proposal) -> None:
        """What a verifier does with the rows, and that somebody keeps them for it."""
        assert proposal.q_rows is not None
        size = 4 * len(proposal.tokens) * WIDTH
        rows = decode_rows(await self.cache.fetch(proposal.q_rows, at_most=size), len(proposal.tokens), WIDTH)
        check_rows(rows, proposal.tokens)
        with pytest.raises(errors.Conflict):
            await self.cache.store.delete(proposal.q_rows.rpartition("/")[2])


class Town:
    """The drafter under test on its server, and everybody that it talks to."""

    def __init__(
        self, fake: Fake, role: DrafterRole, server: Server, router: Client, drafter_as_client: Client
    ) -> None:
        self.fake = fake
        self.role = role
        self.base = f"https://127.0.0.1:{server.port}"
        self.router = router
        self.drafter_as_client = drafter_as_client
        self.drained = False

    def assignment(self, contract: Contract, **members: Any) -> Assignment:
        self.fake.contract = contract
        given: dict[str, Any] = {
            "session": b"s" * 16,
            "epoch": 1,
            "contract": contract,
            "verifier": self.fake.base,
            "drafter": self.base,
            "prompt": PROMPT,
            "round": self.fake.round,
            "committed": len(self.fake.output),
            "digest": self.fake.digest(),
            "m_init": 4,
        }
        return Assignment(**{**given, **members})

    async def assign(self, message: Assignment, client: Client | None = None) -> Answer:
        return await (client or self.router).request(
            "POST", f"{self.base}/assignments", headers=[("content-type", SDCP_CBOR)], body=message.encode()
        )

    async def drain(self) -> None:
        self.drained = True
        await self.role.drain()


def contract(rule: int = 1, **members: Any) -> Contract:
    given: dict[str, Any] = {
        "target": b"T" * 32,
        "tokenizer": BigramDrafterFile.tokenizer,
        "rule": rule,
        "m_max": 6,
        "max_new": 15,
        "stop": (),
        "low_rounds": 3,
        "fallback": (Action.SWITCH,),
    }
    return Contract(**{**given, **members})


class BigramDrafterFile:
    """The draft model: right about most tokens, wrong after 5."""

    tokenizer = b""
    model = b""

    @classmethod
    def load(cls, folder: Path) -> BigramDrafter:
        logits = np.full((WIDTH, WIDTH), 0.0, np.float32)
        for token in range(WIDTH):
            logits[token, following(token) if token != 5 else 0] = 20.0
        write_bigram(folder / "draft.safetensors", logits)
        drafter = BigramDrafter(folder / "draft.safetensors")
        cls.tokenizer, cls.model = drafter.tokenizer, drafter.model
        return drafter


class Pki:
    def __init__(self, folder: Path) -> None:
        self.fake = issue(folder, "fake", ["verifier", "router"], ips=["127.0.0.1"])
        self.router = issue(folder, "router", "router")
        self.drafter = issue(folder, "drafter", "drafter", ips=["127.0.0.1"])


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def facts() -> DrafterFacts:
    return DrafterFacts(sessions=2, ttl_ms=600, drain_s=10)


@pytest.fixture
async def town(pki: Pki, facts: DrafterFacts, tmp_path: Path) -> AsyncIterator[Town]:
    cache = LocalCache(MemoryStore(), owner="drafter", prefix=PREFIX)
    fake = Fake(cache)
    faults: list[BaseException] = []

    def caller(files: TlsFiles) -> Client:
        return Client(client_context(files))

    async with asyncio.timeout(PATIENCE_S), Server(fake.handle, server_context(pki.fake)) as peer:
        fake.base = f"https://127.0.0.1:{peer.port}"
        role = DrafterRole(
            BigramDrafterFile.load(tmp_path),
            caller(pki.drafter),
            cache,
            replace(facts, routers=(fake.base,)),
            Metrics(),
            lambda _, fault: faults.append(fault),
        )
        async with (
            Server(role.handle, server_context(pki.drafter)) as server,
            caller(pki.router) as router,
            caller(pki.drafter) as other,
        ):
            built = Town(fake, role, server, router, other)
            await role.start(built.base)
            yield built
            if fake.held is not None:
                fake.held.set()
            if not built.drained:
                await role.drain()
    assert faults == []
    assert cache.store.figures()["leases"] == 0, "a lease was left behind"


def refusing(error: errors.ProblemError, state: dict[str, Any] | None = None) -> Callable[[Proposal], Response]:
    return lambda _: problem_response(error, state)


@pytest.mark.requirement("S5.1-post-assignments", "S6.2-proposal-base", "S6.2-proposal-round", "S6.2-one-outstanding")
async def test_rule_1_from_the_assignment_to_the_finish(town: Town) -> None:
    taken = await town.assign(town.assignment(contract()))
    assert (taken.status, taken.body) == (204, b"")
    await town.fake.over.wait()
    assert town.fake.output == tuple((5 + k) % WIDTH for k in range(15))
    assert [proposal.round for proposal in town.fake.proposals] == list(range(1, len(town.fake.proposals) + 1))
    assert all(1 <= len(proposal.tokens) <= 4 and proposal.q_rows is None for proposal in town.fake.proposals)


@pytest.mark.requirement("S6.2-artifacts-written", "S6.2-leases-until-verdict", "S5.2-sampled-from-row")
async def test_rule_2_rows_are_there_leased_and_gone_at_the_end(town: Town) -> None:
    """`Fake.judge` checks every row; the fixture checks that no lease is left."""
    await town.assign(town.assignment(contract(rule=2)))
    await town.fake.over.wait()
    assert all(proposal.q_rows for proposal in town.fake.proposals)
    await town.drain()
    assert town.fake.cache.store.figures()["objects"] == 0


@pytest.mark.requirement("S6.9-lost-verdict-retried")
async def test_a_lost_answer_is_asked_for_again_with_the_identical_proposal(town: Town) -> None:
    town.fake.script.append(lambda _: Response(500))
    await town.assign(town.assignment(contract()))
    await town.fake.over.wait()
    first, second = town.fake.proposals[:2]
    assert replace(second, status=first.status) == first


@pytest.mark.requirement("S6.9-problem-stale-base")
@pytest.mark.decision("D2", "D9a")
async def test_a_drafter_that_is_behind_catches_up_by_the_output(town: Town) -> None:
    message = town.assignment(contract())
    town.fake.output, town.fake.round = (5, 6), 4
    state = {"session": b"s" * 16, "epoch": 1, "round": 4, "committed": 2, "digest": town.fake.digest()}
    town.fake.script.append(refusing(errors.StaleBase("behind"), state))
    await town.assign(message)
    await town.fake.over.wait()
    assert [(proposal.round, proposal.base) for proposal in town.fake.proposals][:2] == [(1, 0), (5, 2)]


@pytest.mark.requirement("S6.9-problem-q-unavailable", "S6.9-problem-limit")
@pytest.mark.decision("D16-refused", "D31")
async def test_rows_are_written_again_and_proposals_cut_as_the_verifier_asks(town: Town) -> None:
    town.fake.script += [refusing(errors.QUnavailable("evicted")), refusing(errors.Limit("too long"))]
    await town.assign(town.assignment(contract(rule=2)))
    await town.fake.over.wait()
    first, again, cut = town.fake.proposals[:3]
    assert again.tokens == first.tokens
    assert again.q_rows != first.q_rows
    assert cut.tokens == first.tokens[:1]


@pytest.mark.decision("D20")
async def test_prompt_and_committed_tokens_are_taken_from_the_cache(town: Town) -> None:
    cache = town.fake.cache
    town.fake.output = (5, 6)
    prompt, output = await cache.create(cbor.encode(list(PROMPT))), await cache.create(cbor.encode([5, 6]))
    message = town.assignment(contract(), prompt=prompt, committed_tokens=output, round=7)
    assert (await town.assign(message)).status == 204
    await town.fake.over.wait()
    assert (town.fake.proposals[0].round, town.fake.proposals[0].base) == (8, 2)


@pytest.mark.decision("D3", "D11-prefixes", "D20")
@pytest.mark.parametrize(
    ("members", "status"),
    [
        ({"prompt": f"{PREFIX}objects/oGone"}, 503),
        ({"prompt": "https://elsewhere.example/objects/o1"}, 422),
        ({"digest": b"x" * 32}, 422),
        ({"drafter": "https://127.0.0.1:1"}, 422),
        ({"verifier": "ftp://127.0.0.1"}, 422),
    ],
)
async def test_assignments_that_cannot_be_taken(town: Town, members: dict[str, Any], status: int) -> None:
    refused = await town.assign(town.assignment(contract(), **members))
    assert (refused.status, refused.headers["content-type"]) == (status, "application/problem+json")
    assert town.role.status().load < 100
    assert town.fake.proposals == []


@pytest.mark.decision("D20")
@pytest.mark.parametrize("members", [{"drafters": (b"x" * 32,)}, {"tokenizer": b"t" * 32}])
async def test_another_model_or_tokenizer_is_not_permitted(town: Town, members: dict[str, Any]) -> None:
    refused = await town.assign(town.assignment(contract(**members)))
    assert (refused.status, json.loads(refused.body)["type"]) == (422, "about:blank")


@pytest.mark.decision("D20-array")
async def test_an_object_that_is_no_token_array_is_refused_with_422(town: Town) -> None:
    ref = await town.fake.cache.create(cbor.encode({"a": 1}))
    assert (await town.assign(town.assignment(contract(), prompt=ref))).status == 422


@pytest.mark.decision("D10-router")
async def test_only_a_router_may_assign(town: Town) -> None:
    refused = await town.assign(town.assignment(contract()), town.drafter_as_client)
    assert refused.status == 403


@pytest.mark.decision("D3")
async def test_beyond_its_limit_it_answers_503_and_reports_full_load(town: Town) -> None:
    town.fake.held = asyncio.Event()
    for number in range(2):
        message = town.assignment(contract(), session=bytes([number]) * 16)
        assert (await town.assign(message)).status == 204
    refused = await town.assign(town.assignment(contract(), session=b"z" * 16))
    assert (refused.status, "retry-after" in refused.headers) == (503, True)
    assert town.role.status().load == 100


@pytest.mark.decision("D28-higher-epoch")
async def test_a_higher_epoch_ends_the_wait_and_a_lower_one_is_refused(town: Town) -> None:
    town.fake.held = asyncio.Event()
    await town.assign(town.assignment(contract(rule=2)))
    await town.fake.arrived.wait()
    held, town.fake.held = town.fake.held, None
    assert (await town.assign(town.assignment(contract(rule=2), epoch=2))).status == 204
    await town.fake.over.wait()
    assert [proposal.epoch for proposal in town.fake.proposals][:2] == [1, 2]
    assert all(proposal.epoch == 2 for proposal in town.fake.proposals[1:])
    held.set()


@pytest.mark.decision("D28")
async def test_a_lower_epoch_is_told_so(town: Town) -> None:
    town.fake.held = asyncio.Event()
    await town.assign(town.assignment(contract(), epoch=5))
    refused = await town.assign(town.assignment(contract(), epoch=4))
    assert refused.status == 409
    assert json.loads(refused.body)["type"].endswith("#sdcp-stale-epoch")


@pytest.mark.requirement("S6.1-status-interval", "S5.1-put-status", "S5.2-status", "S5.2-status-accept-milli")
@pytest.mark.decision("D7-keys")
async def test_status_reports_come_by_themselves_and_say_who_we_are(town: Town) -> None:
    loop = asyncio.get_running_loop()
    first = await town.fake.statuses.get()
    began = loop.time()
    second = await town.fake.statuses.get()
    assert loop.time() - began < first.ttl_ms / 1000
    assert (second.instance, second.base, second.role) == (town.base, town.base, 1)
    assert (second.model, second.tokenizer) == (BigramDrafterFile.model, BigramDrafterFile.tokenizer)
    assert (second.accept_milli, second.cache_mbps) == (None, None)
    await town.assign(town.assignment(contract(rule=2)))
    await town.fake.over.wait()
    status = town.role.status()
    assert status.accept_milli is not None
    assert status.accept_milli > 300
    assert status.cache_mbps is not None


async def test_a_drain_waits_for_the_verdict_begins_nothing_and_says_goodbye(town: Town) -> None:
    town.fake.held = asyncio.Event()
    await town.assign(town.assignment(contract(rule=2)))
    await town.fake.arrived.wait()
    while not town.fake.statuses.empty():
        town.fake.statuses.get_nowait()
    draining = asyncio.create_task(town.drain())
    full = await town.fake.statuses.get()
    assert (full.load, full.ttl_ms) == (100, 600)
    refused = await town.assign(town.assignment(contract(rule=2), session=b"n" * 16))
    assert refused.status == 503
    town.fake.held.set()
    await draining
    assert len(town.fake.proposals) == 1
    assert town.fake.round == 1
    last = town.fake.statuses.get_nowait()
    assert (last.load, last.ttl_ms) == (100, 1)


async def test_a_session_refused_at_once_leaves_nothing_behind(town: Town) -> None:
    for number in range(4):
        message = town.assignment(contract(), session=bytes([number]) * 16, digest=b"x" * 32)
        assert (await town.assign(message)).status == 422
    assert (await town.assign(town.assignment(contract()))).status == 204
    await town.fake.over.wait()


def test_the_state_in_a_problem_is_json_as_d2_says() -> None:
    """What the scripted verifier sends is what D2 describes."""
    response = problem_response(errors.StaleBase("behind"), {"session": b"s" * 16, "round": 4})
    state = json.loads(bytes(response.body))["session-state"]
    assert state == {"session": base64.urlsafe_b64encode(b"s" * 16).rstrip(b"=").decode(), "round": 4}
