"""The verifier's role over TLS, with a scripted router and drafter (6.1, 6.3, 6.7, D2, D3, D8 to D11, D17, D27)."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdcp import errors
from sdcp.engines.bigram import BigramTarget, write_bigram
from sdcp.http.authority import issue
from sdcp.http.client import Answer, Client
from sdcp.http.exchange import Request, Response
from sdcp.http.resources import SDCP_CBOR, encode_id
from sdcp.http.server import Server
from sdcp.http.tls import client_context, server_context
from sdcp.messages.contract import Action, Contract
from sdcp.messages.output import Event, Output
from sdcp.messages.record import FenceRecord
from sdcp.messages.round import Assignment, Proposal, Verdict
from sdcp.messages.session import Policy, Resume, Sampling, SessionOpen, SessionState, State
from sdcp.messages.status import Status
from sdcp.ports import (
    LogFencedError,
    LogMovedError,
    LogSlice,
    PrefillJob,
    StoreFullError,
    StoreUnavailableError,
    VerifyJob,
    VerifyResult,
)
from sdcp.roles.telemetry import Metrics
from sdcp.roles.verifier import VerifierFacts, VerifierRole
from sdcp.rules.digest import contract_digest, extend_all, prefix_digest
from sdcp.stores.local import LocalCache
from sdcp.stores.memory import MemoryStore
from sdcp.wire import cbor
from sdcp.wire.rows import encode_rows

WIDTH = 12
PROMPT = (3, 4)
SESSION = b"\xffs" * 8
DRAFTER = "https://drafter.example/"
PATIENCE_S = 20
PREFIX = "https://cache.example/"
UNIFORM = np.full((1, WIDTH), 1 / WIDTH, np.float32)


class Gated(BigramTarget):
    """The reference target, which a test can stop before a pass, or break."""

    def __init__(self, path: Path, capacity: int) -> None:
        super().__init__(path, capacity)
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()
        self.broken = False
        self.refusal: errors.ProblemError | RuntimeError | None = None
        self.outcome: VerifyResult | None = None
        self.drawn: list[float] = []  # all random values that came with jobs

    def prefill(self, jobs: Sequence[PrefillJob], budget: int) -> list[bool]:
        if self.refusal is not None:
            raise self.refusal
        return super().prefill(jobs, budget)

    def verify(self, jobs: Sequence[VerifyJob]) -> list[VerifyResult]:
        self.drawn += (value for job in jobs for value in job.luck)
        self.reached.set()
        assert self.gate.wait(PATIENCE_S)
        if self.broken:
            raise RuntimeError("out of memory")
        return [self.outcome] * len(jobs) if self.outcome else super().verify(jobs)


class Flaky(LocalCache):
    """A cache whose next calls can be made to fail: `faults` are raised one after the other, by name of the call.

    None lets a call pass; `lost` does the append and raises all the same.
    """

    def __init__(self) -> None:
        super().__init__(MemoryStore(), owner="verifier", prefix=PREFIX)
        self.faults: dict[str, list[BaseException | None]] = {}
        self.lost = False

    def _raise(self, call: str) -> None:
        if self.faults.get(call) and (fault := self.faults[call].pop(0)) is not None:
            raise fault

    async def append(self, ref: str, data: bytes, etag: str | None) -> str:
        if self.lost:
            self.lost = False
            await super().append(ref, data, etag)
            raise StoreUnavailableError("no answer")
        self._raise("append")
        return await super().append(ref, data, etag)

    async def read_log(self, ref: str, start: int = 0, stop: int | None = None) -> LogSlice:
        self._raise("read_log")
        return await super().read_log(ref, start, stop)

    async def fetch(self, ref: str, *, at_most: int) -> bytes | memoryview:
        self._raise("fetch")
        return await super().fetch(ref, at_most=at_most)


class Pki:
    def __init__(self, folder: Path) -> None:
        self.router = issue(folder, "router", "router", ips=["127.0.0.1"])
        self.verifier = issue(folder, "verifier", "verifier", ips=["127.0.0.1"])
        self.drafter = issue(folder, "drafter", "drafter", uris=[DRAFTER])
        self.other = issue(folder, "other", "drafter", uris=["https://other.example/"])
        self.front_end = issue(folder, "front", "front-end")


class Town:
    """The verifier under test on its server, and everybody that it talks to."""

    def __init__(self, pki: Pki, target: Gated, cache: Flaky) -> None:
        self.target = target
        self.cache = cache
        self.log = cache.ref_of("logs", "one")
        self.statuses: list[Status] = []
        self.reported = asyncio.Event()
        self.full = asyncio.Event()
        self.events: list[Event] = []
        self.told = asyncio.Event()
        self.deaf = 0  # so many events get no 204
        self.faults: list[BaseException] = []
        self.expected: list[BaseException] = []  # faults of ours that the test provoked
        self.metrics = Metrics()
        self.names = {
            name: Client(client_context(getattr(pki, name))) for name in ("router", "drafter", "other", "front_end")
        }
        self.role: VerifierRole
        self.base = ""
        self.drained = False
        self.contract = Contract(
            target=target.model,
            tokenizer=target.tokenizer,
            rule=1,
            m_max=6,
            max_new=9,
            stop=(),
            low_rounds=2,
            fallback=(Action.SWITCH,),
        )
        self.output: tuple[int, ...] = ()
        self.round = 0
        self.epoch = 1

    async def router(self, request: Request) -> Response:
        """What the router makes of our status and events."""
        body = await request.body(1 << 20)
        if request.path == "/events":
            if self.deaf:
                self.deaf -= 1
                return Response(503)
            self.events.append(Event.decode(body))
            self.told.set()
        else:
            self.statuses.append(Status.decode(body))
            self.reported.set()
            if self.statuses[-1].load == 100:
                self.full.set()
        return Response(204)

    def digest(self) -> bytes:
        return extend_all(prefix_digest(contract_digest(self.contract.to_plain()), PROMPT), self.output)

    async def ask(self, who: str, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        fields = [*headers.items()]
        if body is not None:
            fields.append(("content-type", SDCP_CBOR))
        return await self.names[who].request(method, f"{self.base}/{path}", headers=fields, body=body)

    async def open(self, who: str = "router", **members: Any) -> Answer:
        message = SessionOpen(session=SESSION, epoch=1, contract=self.contract, prompt=PROMPT, commit_log=self.log)
        return await self.ask(who, "POST", "sessions", replace(message, **members).encode())

    async def assign(self, who: str = "router", **members: Any) -> Answer:
        message = Assignment(
            session=SESSION,
            epoch=self.epoch,
            contract=self.contract,
            verifier=self.base,
            drafter=DRAFTER,
            prompt=PROMPT,
            round=self.round,
            committed=len(self.output),
            digest=self.digest(),
            m_init=6,
        )
        path = f"sessions/{encode_id(SESSION)}/drafter"
        return await self.ask(who, "PUT", path, replace(message, **members).encode())

    def proposal(self, *tokens: int, **members: Any) -> Proposal:
        message = Proposal(
            session=SESSION,
            epoch=self.epoch,
            round=self.round + 1,
            drafter=DRAFTER,
            base=len(self.output),
            base_digest=self.digest(),
            tokens=tokens,
            status=Status(instance="d", role=1, load=0, queue=0, ttl_ms=1000),
        )
        return replace(message, **members)

    async def send(self, proposal: Proposal, who: str = "drafter") -> Answer:
        return await self.ask(who, "POST", "proposals", proposal.encode())

    async def propose(self, *tokens: int, **members: Any) -> Answer:
        answer = await self.send(self.proposal(*tokens, **members))
        if answer.status == 200:
            verdict = Verdict.decode(answer.body)
            self.output += verdict.emitted
            self.round = verdict.round
            assert verdict.digest == self.digest()
        return answer

    async def read(self, who: str = "front_end", start: str = "?from=0", wait: str = "wait=0") -> Answer:
        return await self.ask(who, "GET", f"sessions/{encode_id(SESSION)}/output{start}", prefer=wait)

    async def started(self, **members: Any) -> Town:
        self.contract = replace(self.contract, **members)
        assert (await self.open()).status == 200
        assert (await self.assign()).status == 200
        return self

    async def drain(self) -> None:
        self.drained = True
        await self.role.drain()


def problem(answer: Answer) -> tuple[int, str]:
    """The status of a refusal, and the suffix of its type."""
    assert answer.headers["content-type"] == "application/problem+json"
    kind: str = json.loads(answer.body)["type"]
    return answer.status, kind.rpartition("#")[2]


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def facts() -> VerifierFacts:
    return VerifierFacts(sessions=1, ttl_ms=600, drain_s=10, fetch_s=5)


@pytest.fixture
def capacity() -> int:
    """Sessions that the engine takes."""
    return 1024


@pytest.fixture
async def town(pki: Pki, facts: VerifierFacts, capacity: int, tmp_path: Path) -> AsyncIterator[Town]:
    logits = np.zeros((WIDTH, WIDTH), np.float32)
    for token in range(WIDTH):
        logits[token, (token + 1) % WIDTH] = 20.0
    write_bigram(tmp_path / "target.safetensors", logits, context=64)
    target = Gated(tmp_path / "target.safetensors", capacity)
    town = Town(pki, target, Flaky())
    async with asyncio.timeout(PATIENCE_S), Server(town.router, server_context(pki.router)) as router:
        routers = (f"https://127.0.0.1:{router.port}",)
        town.role = VerifierRole(
            target,
            Client(client_context(pki.verifier)),
            town.cache,
            replace(facts, routers=routers),
            town.metrics,
            lambda _, fault: town.faults.append(fault),
        )
        async with Server(town.role.handle, server_context(pki.verifier)) as server:
            town.base = f"https://127.0.0.1:{server.port}"
            await town.role.start(town.base)
            yield town
            target.gate.set()
            if not town.drained:
                await town.role.drain()
            for client in town.names.values():
                await client.close()
    assert town.faults == town.expected


# ---- a session from open to finish -----------------------------------------------------------------------------------


@pytest.mark.decision("D17-kinds")
@pytest.mark.requirement("S5.1-post-sessions", "S5.1-put-drafter", "S5.1-post-proposals", "S5.1-get-output")
@pytest.mark.requirement("S5.1-session-path-id", "S5.1-media-type")
async def test_rule_1_from_the_open_to_the_finish(town: Town) -> None:
    opened = await town.open()
    assert (opened.status, opened.headers["content-type"]) == (200, SDCP_CBOR)
    state = SessionState.decode(opened.body)
    assert (state.round, state.committed, state.digest) == (0, 0, town.digest())
    await town.assign()
    reading = asyncio.create_task(town.read(wait="wait=20"))
    verdict = Verdict.decode((await town.propose(5, 6, 9)).body)
    assert (verdict.accepted, verdict.emitted, verdict.action) == (2, (5, 6, 7), Action.CONTINUE)
    assert Output.decode((await reading).body).tokens == (5, 6, 7)
    await town.propose(8, 9, 10, 11, 0)
    await town.propose(2)
    assert town.output == tuple((5 + k) % WIDTH for k in range(9))
    output = Output.decode((await town.read(start="?from=4")).body)
    assert (output.from_, output.tokens, output.final, output.finish) == (4, town.output[4:], True, Action.FINISH)
    await town.told.wait()
    assert [(event.kind, event.committed, event.digest) for event in town.events] == [(Action.FINISH, 9, town.digest())]


@pytest.mark.requirement("S6.3-idempotency")
async def test_a_verdict_of_long_ago_is_read_from_the_log(town: Town) -> None:
    await town.started()
    first = town.proposal(5)
    verdicts = [await town.propose(5), await town.propose(7), await town.propose(2)]
    assert (await town.send(first)).body == verdicts[0].body


@pytest.mark.requirement("S5.1-post-policy")
async def test_a_policy_is_taken(town: Town) -> None:
    await town.started()
    message = Policy(session=SESSION, from_round=1, sampling=Sampling(top_k=1))
    path = f"sessions/{encode_id(SESSION)}/policy"
    assert SessionState.decode((await town.ask("router", "POST", path, message.encode())).body).round == 0
    late = replace(message, from_round=0)
    assert problem(await town.ask("router", "POST", path, late.encode())) == (409, "about:blank")


@pytest.mark.requirement("S6.3-base-check")
@pytest.mark.decision("D2-session-state")
async def test_a_stale_base_carries_the_state(town: Town) -> None:
    await town.started()
    answer = await town.propose(5, base=3)
    assert problem(answer) == (409, "sdcp-stale-base")
    state = json.loads(answer.body)["session-state"]
    assert (state["session"], state["round"], state["committed"]) == (encode_id(SESSION), 0, 0)


# ---- who may, and what is there --------------------------------------------------------------------------------------


@pytest.mark.decision("D3", "D9a-output", "D10-router", "D10-front-end")
async def test_what_each_role_may_call(town: Town) -> None:
    await town.started()
    for who in ("drafter", "front_end"):
        assert problem(await town.open(who)) == (403, "about:blank")
        assert problem(await town.assign(who)) == (403, "about:blank")
    for who in ("router", "front_end", "other"):
        assert problem(await town.send(town.proposal(5), who)) == (403, "sdcp-not-assigned")
    assert [(await town.read(who)).status for who in ("router", "front_end", "drafter", "other")] == [200] * 3 + [403]


async def test_what_is_not_there_is_404(town: Town) -> None:
    assert problem(await town.assign()) == (404, "about:blank")
    assert problem(await town.read()) == (404, "about:blank")
    assert problem(await town.send(town.proposal(5))) == (404, "about:blank")
    assert problem(await town.ask("front_end", "GET", "sessions/short/output")) == (404, "about:blank")


@pytest.mark.decision("D8-from")
@pytest.mark.parametrize("start", ["?from=x", "?from=-1", "?from=", "?from=1&from=2", "?from=18446744073709551616"])
async def test_an_index_that_is_none_is_400(town: Town, start: str) -> None:
    await town.started()
    assert problem(await town.read(start=start)) == (400, "about:blank")


@pytest.mark.decision("D8-wait")
@pytest.mark.parametrize("wait", ["wait=0", 'respond-async, wait="0"', "WAIT=0;foo=bar"])
async def test_a_reader_that_wants_no_wait_is_answered_at_once(town: Town, wait: str) -> None:
    await town.started()
    output = Output.decode((await town.read(start="", wait=wait)).body)
    assert (output.from_, output.tokens, output.final) == (0, (), False)


async def test_a_message_for_another_session_than_its_path_is_refused(town: Town) -> None:
    await town.started()
    assert problem(await town.assign(session=b"x" * 16)) == (422, "about:blank")


@pytest.mark.decision("D11-prefixes")
async def test_a_log_outside_the_caches_is_refused(town: Town) -> None:
    assert problem(await town.open(commit_log="https://elsewhere.example/logs/one")) == (422, "about:blank")


# ---- admission, retention, epochs ------------------------------------------------------------------------------------


@pytest.mark.decision("D3")
@pytest.mark.parametrize(("facts", "capacity"), [(VerifierFacts(sessions=1), 9), (VerifierFacts(sessions=9), 1)])
async def test_beyond_its_capacity_a_verifier_says_when_to_come_back(town: Town) -> None:
    await town.started()
    refused = await town.open(session=b"x" * 16)
    assert problem(refused) == (503, "about:blank")
    assert int(refused.headers["retry-after"]) >= 1
    assert town.role.status().load == 100
    assert (await town.open()).status == 200  # a repeat is no new session
    await town.propose(5, 6, 7, 8, 9, 10)
    await town.propose(0)
    await town.propose(2)
    assert (await town.open(session=b"x" * 16, commit_log=town.cache.ref_of("logs", "two"))).status == 200


async def test_refusals_are_counted_by_type_or_status(town: Town) -> None:
    await town.started()
    await town.open(session=b"x" * 16)
    await town.propose(5, base=3)
    await town.propose(5, base=3)
    shown = town.metrics.render().decode()
    assert 'sdcp_events_total{event="refused_503"} 1.0' in shown
    assert 'sdcp_events_total{event="refused_sdcp-stale-base"} 2.0' in shown


async def test_committed_tokens_are_counted_once(town: Town) -> None:
    await town.started()
    proposal = town.proposal(5, 6)
    for _ in range(2):
        assert (await town.send(proposal)).status == 200
    emitted = Verdict.decode((await town.send(proposal)).body).emitted
    assert f'sdcp_events_total{{event="tokens_committed"}} {len(emitted)}.0' in town.metrics.render().decode()


@pytest.mark.requirement("S6.5.1-lowered-under-load")
@pytest.mark.parametrize("facts", [VerifierFacts(busy_load=0, busy_cap=2)])
async def test_a_busy_verifier_cuts_the_limit_to_what_is_set(town: Town) -> None:
    await town.started()
    assert Verdict.decode((await town.propose(5, 6)).body).m_cap == 2


@pytest.mark.parametrize("facts", [VerifierFacts(retention_s=0.0)])
@pytest.mark.decision("D8-retention")
async def test_an_ended_session_is_forgotten_after_its_retention(town: Town) -> None:
    await town.started(max_new=2)
    await town.propose(5)
    while (await town.read()).status != 404:
        pass


@pytest.mark.parametrize("facts", [VerifierFacts(sessions=1, idle_s=0.01)])
@pytest.mark.decision("D19")
async def test_a_session_that_everybody_has_left_alone_is_given_up(town: Town) -> None:
    """A router that lost its memory ends no session and assigns none: without an end they would fill the verifier."""
    await town.started()
    while town.role.status().load == 100:  # the one session that fits
        await asyncio.sleep(0)
    assert (await town.read()).status == 404


@pytest.mark.decision("D19")
async def test_a_refused_open_takes_no_room(town: Town) -> None:
    for _ in range(3):
        assert problem(await town.open(prompt=f"{PREFIX}objects/oGone")) == (503, "about:blank")
    assert problem(await town.open(contract=replace(town.contract, rule=9))) == (422, "sdcp-bad-contract")
    assert (await town.open()).status == 200


@pytest.mark.requirement("S6.9-resume")
@pytest.mark.decision("D19", "D30")
async def test_the_next_epoch_may_open_at_the_same_verifier(town: Town) -> None:
    await town.started()
    await town.propose(5, 6)
    waiting = asyncio.create_task(town.read(start="?from=9", wait="wait=20"))
    early = await town.open(epoch=2, resume=await resume(town))
    assert problem(early) == (409, "about:blank")  # no fence yet: the old epoch goes on
    assert (await town.propose(8)).status == 200
    version = len((await town.cache.read_log(town.log)).data)
    assert version
    await town.cache.append(town.log, FenceRecord(epoch=2).encode(), (await town.cache.read_log(town.log)).etag)
    opened = SessionState.decode((await town.open(epoch=2, resume=await resume(town))).body)
    assert (opened.epoch, opened.round, opened.committed) == (2, 2, 5)
    assert problem(await waiting) == (409, "sdcp-stale-epoch")
    assert problem(await town.assign()) == (409, "sdcp-stale-epoch")
    assert problem(await town.open()) == (409, "sdcp-stale-epoch")
    town.epoch = 2
    assert (await town.assign()).status == 200
    assert (await town.propose(10)).status == 200
    assert Output.decode((await town.read()).body).tokens == town.output


async def resume(town: Town) -> Resume:
    tokens = await town.cache.create(cbor.encode(list(town.output)))
    return Resume(round=town.round, committed=len(town.output), digest=town.digest(), committed_tokens=tokens)


# ---- q rows (D11, D25) -----------------------------------------------------------------------------------------------


async def rows_of(town: Town, rows: Any) -> str:
    return await town.cache.create(encode_rows(rows))


@pytest.mark.requirement("S6.3-rows-before-random", "S5.2-q-rows-format")
async def test_rule_2_takes_rows_from_the_cache(town: Town) -> None:
    await town.started(rule=2)
    ref = await rows_of(town, np.repeat(UNIFORM, 2, axis=0))
    verdict = Verdict.decode((await town.propose(5, 6, q_rows=ref)).body)
    assert verdict.emitted[0] == 5  # p is all but certain


@pytest.mark.requirement("S6.4-unseeded", "S6.4-random-independent")
async def test_without_a_seed_every_value_of_every_round_is_drawn_anew(town: Town) -> None:
    await town.started(rule=2)
    for _ in range(2):
        answer = await town.propose(5, 6, q_rows=await rows_of(town, np.repeat(UNIFORM, 2, axis=0)))
        assert answer.status == 200
    drawn = town.target.drawn
    assert len(set(drawn)) == len(drawn) == 6  # M + 1 a round (D27)
    assert all(0 <= value < 1 and (value * 2**53).is_integer() for value in drawn)


@pytest.mark.requirement("S6.3-q-unavailable", "S6.4-zero-q-rejected", "S5.2-q-rows-format")
@pytest.mark.decision("D11-prefixes", "D25")
async def test_rows_that_cannot_be_had_or_used_refuse_the_round(town: Town) -> None:
    await town.started(rule=2)
    zero = UNIFORM.copy()
    zero[0, 5], zero[0, 6] = 0, 2 / WIDTH
    for ref, expected in [
        (f"{PREFIX}objects/oGone", (409, "sdcp-q-unavailable")),
        ("https://elsewhere.example/objects/o", (409, "sdcp-q-unavailable")),
        (await rows_of(town, np.repeat(UNIFORM, 2, axis=0)), (422, "sdcp-bad-proposal")),
        (await rows_of(town, UNIFORM[:, 1:]), (422, "sdcp-bad-proposal")),
        (await rows_of(town, 2 * UNIFORM), (422, "sdcp-bad-proposal")),
        (await rows_of(town, zero), (422, "sdcp-bad-proposal")),
    ]:
        assert problem(await town.propose(5, q_rows=ref)) == expected
    assert (await town.cache.read_log(town.log)).data == b""
    assert (await town.propose(5, q_rows=await rows_of(town, UNIFORM))).status == 200


# ---- rounds under way (D27) ------------------------------------------------------------------------------------------


async def under_way(town: Town) -> asyncio.Task[Answer]:
    """A proposal whose scoring is held."""
    town.target.reached.clear()
    town.target.gate.clear()
    task = asyncio.create_task(town.send(town.proposal(5)))
    await asyncio.to_thread(town.target.reached.wait, PATIENCE_S)
    return task


@pytest.mark.decision("D27-cancelled")
async def test_a_proposer_that_disconnects_ends_its_wait_alone(town: Town) -> None:
    await town.started()
    task = await under_way(town)
    task.cancel()
    town.target.gate.set()
    output = Output.decode((await town.read(wait="wait=20")).body)
    assert output.tokens == (5, 6)
    assert Verdict.decode((await town.send(town.proposal(5))).body).emitted == (5, 6)


@pytest.mark.parametrize("facts", [VerifierFacts(sessions=9)])
@pytest.mark.decision("D27-not-abandoned")
async def test_a_drain_finishes_the_round_and_opens_nothing(town: Town) -> None:
    await town.started()
    task = await under_way(town)
    drain = asyncio.create_task(town.drain())
    await town.full.wait()
    assert problem(await town.open(session=b"x" * 16)) == (503, "about:blank")
    assert not drain.done()
    town.target.gate.set()
    assert Verdict.decode((await task).body).emitted == (5, 6)
    await drain
    assert town.statuses[-1].ttl_ms == 1


@pytest.mark.decision("D30-fail")
async def test_a_broken_engine_fails_the_session_once_the_router_knows(town: Town) -> None:
    await town.started()
    town.target.broken, town.deaf = True, 1
    assert problem(await town.propose(5)) == (410, "sdcp-session-closed")
    output = Output.decode((await town.read(wait="wait=20")).body)
    assert [event.kind for event in town.events] == [Action.FAIL]
    assert (output.tokens, output.final, output.finish) == ((), True, Action.FAIL)
    town.expected = town.faults[:1]


# ---- what routers hear -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("S5.1-put-status", "S6.1-status-interval")
@pytest.mark.decision("D7-keys")
async def test_status_is_reported_with_who_we_are(town: Town) -> None:
    await town.reported.wait()
    status = town.statuses[0]
    assert (status.instance, status.role, status.base) == (town.base, 2, town.base)
    assert (status.model, status.tokenizer) == (town.target.model, town.target.tokenizer)


@pytest.mark.requirement("S5.1-post-events", "S6.5.2-switch-event")
@pytest.mark.decision("D17-repeated")
async def test_an_event_is_repeated_until_a_router_answers_204(town: Town) -> None:
    await town.started()
    town.deaf = 2
    for token in (9, 9):
        answer = await town.propose(token)
    assert Verdict.decode(answer.body).action == Action.SWITCH
    await town.told.wait()
    assert [event.kind for event in town.events] == [Action.SWITCH]
    assert SessionState.decode((await town.open()).body).state == State.WAITING


# ---- what the engine and the cache may do ----------------------------------------------------------------------------


@pytest.mark.requirement("S6.5.2-self-decode", "S6.5.2-self-decode-event")
async def test_a_self_decoding_period(town: Town) -> None:
    await town.started(low_rounds=1, fallback=(Action.SELF_DECODE,), self_load=100, self_max=3)
    assert Verdict.decode((await town.propose(9)).body).action == Action.SELF_DECODE
    await town.told.wait()
    assert [(event.kind, event.committed) for event in town.events] == [(Action.SELF_DECODE, 4)]
    assert Output.decode((await town.read()).body).tokens == (5, 6, 7, 8)


@pytest.mark.decision("D27")
@pytest.mark.parametrize(
    "faults", [[StoreUnavailableError("no answer")], [StoreFullError("full")], [LogMovedError("moved")]]
)
async def test_a_store_that_does_not_answer_costs_time_alone(town: Town, faults: list[BaseException | None]) -> None:
    await town.started()
    town.cache.faults = {"append": faults, "read_log": [StoreUnavailableError("nor now")]}
    assert Verdict.decode((await town.propose(5)).body).emitted == (5, 6)


@pytest.mark.decision("D27")
async def test_an_append_whose_answer_was_lost_is_recognized(town: Town) -> None:
    await town.started()
    town.cache.lost = True
    assert (await town.propose(5)).status == 200
    assert (await town.propose(7)).status == 200
    assert town.output == (5, 6, 7, 8)


@pytest.mark.requirement("S6.3-fenced-append")
async def test_a_store_that_says_fenced_ends_it(town: Town) -> None:
    await town.started()
    town.cache.faults = {"append": [LogFencedError("epoch 2")]}
    assert problem(await town.propose(5)) == (409, "sdcp-stale-epoch")
    assert problem(await town.read()) == (409, "sdcp-stale-epoch")


async def test_an_old_verdict_that_cannot_be_read_now_is_503(town: Town) -> None:
    await town.started()
    first = town.proposal(5)
    await town.propose(5)
    await town.propose(7)
    town.cache.faults = {"read_log": [StoreUnavailableError("busy")]}
    assert problem(await town.send(first)) == (503, "about:blank")
    assert (await town.send(first)).status == 200


@pytest.mark.decision("D19")
async def test_a_log_that_cannot_be_read_refuses_the_open(town: Town) -> None:
    town.cache.faults = {"read_log": [StoreUnavailableError("busy")]}
    assert problem(await town.open()) == (503, "about:blank")


@pytest.mark.decision("D11-deadline")
async def test_objects_that_come_too_late_do_not_come(town: Town) -> None:
    town.cache.faults = {"fetch": [TimeoutError(), TimeoutError()]}
    assert problem(await town.open(prompt=f"{PREFIX}objects/oLate")) == (503, "about:blank")
    await town.started(rule=2)
    assert problem(await town.propose(5, q_rows=f"{PREFIX}objects/oLate")) == (409, "sdcp-q-unavailable")


@pytest.mark.decision("D19", "D26")
@pytest.mark.parametrize(
    ("refusal", "expected"),
    [(errors.Overloaded("no room"), 503), (errors.InvalidContent("too long"), 422), (RuntimeError("broken"), 500)],
)
async def test_an_engine_that_cannot_prefill_refuses_the_open(town: Town, refusal: Any, expected: int) -> None:
    town.target.refusal = refusal
    assert problem(await town.open()) == (expected, "about:blank")
    town.expected = town.faults if isinstance(refusal, RuntimeError) else []
    town.target.refusal = None
    assert (await town.open()).status == 200


@pytest.mark.decision("D26-start")
async def test_an_empty_prompt_needs_a_model_that_can_begin_from_nothing(town: Town) -> None:
    assert problem(await town.open(prompt=())) == (422, "about:blank")


async def test_a_bug_costs_its_session_and_no_other(town: Town) -> None:
    await town.started()
    town.target.outcome = VerifyResult(0, 2**40)  # no engine may say this
    assert problem(await town.propose(5)) == (503, "about:blank")
    assert len(town.faults) == 1
    town.expected = town.faults
    assert problem(await town.read()) == (404, "about:blank")
    assert (await town.open(commit_log=town.cache.ref_of("logs", "two"))).status == 200


async def test_big_rows_are_checked_off_the_loop(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sdcp.roles.verifying.BIG_ROWS", 1)
    await town.started(rule=2)
    assert (await town.propose(5, q_rows=await rows_of(town, UNIFORM))).status == 200
    assert problem(await town.propose(7, q_rows=await rows_of(town, 2 * UNIFORM))) == (422, "sdcp-bad-proposal")


@pytest.mark.requirement("S6.1-prompt-kv")
@pytest.mark.decision("D20-kv")
async def test_a_kv_object_that_does_not_match_is_ignored(town: Town) -> None:
    """It only saves work: one of nonsense, and one that is not there, change neither the answer nor the tokens."""
    nonsense = await town.cache.create(b"no safetensors")
    assert (await town.open(prompt_kv=nonsense)).status == 200
    assert (await town.assign()).status == 200
    assert Verdict.decode((await town.propose(5, 6)).body).emitted == (5, 6, 7)
    await town.cache.append(town.log, FenceRecord(epoch=2).encode(), (await town.cache.read_log(town.log)).etag)
    gone = replace(await resume(town), target_kv=PREFIX + "gone")
    assert SessionState.decode((await town.open(epoch=2, resume=gone)).body).committed == 3
    town.epoch = 2
    assert (await town.assign()).status == 200
    assert Verdict.decode((await town.propose(8)).body).emitted == (8, 9)
