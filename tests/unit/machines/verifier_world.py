"""A shell for the verifier's machine in tests: a log, objects, an engine made of `rules` and a table of logits.

Effects queue up in order. `run` answers them until none is left; classes in `hold` are left for the test to answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sdcp.errors import InvalidContent, ProblemError
from sdcp.machines.control import Busy
from sdcp.machines.effects import (
    AppendLog,
    CancelTimer,
    CloseEngine,
    DrawRandom,
    DropOlderKv,
    EndSession,
    FetchRows,
    FetchTokens,
    Prefill,
    PublishKv,
    ReadLog,
    Refuse,
    ReplayVerdict,
    Reply,
    SelfDecode,
    SendEvent,
    SetTimer,
    Verify,
)
from sdcp.machines.inputs import (
    DrafterAssigned,
    KvPublished,
    LogAppended,
    LogFenced,
    LogMoved,
    LogRead,
    OpenReceived,
    OutputRequested,
    PolicyReceived,
    Prefilled,
    ProposalReceived,
    RandomDrawn,
    RowsObtained,
    SelfDecoded,
    TimerFired,
    TokensFetched,
    TokensUnavailable,
    Verified,
)
from sdcp.machines.reader import LogReader, replayed_verdict
from sdcp.machines.verifier import VerifierSession
from sdcp.machines.verifier_open import TargetFacts
from sdcp.messages.contract import Action, Contract, Sampling
from sdcp.messages.output import Event, Output
from sdcp.messages.record import CommitRecord, FenceRecord
from sdcp.messages.round import Assignment, Proposal, Verdict
from sdcp.messages.session import Policy, Resume, SessionOpen, SessionState
from sdcp.messages.status import Status
from sdcp.rules import acceptance
from sdcp.rules.digest import contract_digest, extend_all, prefix_digest

V = 8
SESSION = b"s" * 16
TARGET = TargetFacts(model=b"T" * 32, tokenizer=b"t" * 32, vocabulary=V, context=64)
PROMPT = (1, 2, 3)
DRAFTER = "https://drafter-1.example/"
OTHER = "https://drafter-2.example/"
LOG = "https://mlc.example/logs/one"
STATUS = Status(instance="d", role=1, load=0, queue=0, ttl_ms=1000)
CONTRACT = Contract(
    target=TARGET.model,
    tokenizer=TARGET.tokenizer,
    rule=1,
    m_max=8,
    max_new=20,
    stop=(),
    low_rounds=3,
    fallback=(Action.REDUCE, Action.SWITCH),
)


def successor(token: int) -> int:
    """The greedy target says t + 1, around the vocabulary."""
    return (token + 1) % V


def greedy(last: int, count: int) -> tuple[int, ...]:
    """What the target decodes after `last`."""
    return tuple((last + step) % V for step in range(1, count + 1))


LOGITS = np.array([[3.0 if u == successor(t) else -0.25 * u for u in range(V)] for t in range(V)])


@dataclass(frozen=True)
class Client:
    """An authenticated client that stands for some base URIs (D9)."""

    bases: tuple[str, ...] = (DRAFTER,)

    def owns(self, base_uri: str) -> bool:
        return base_uri in self.bases


@dataclass
class Log:
    """A commit log with conditional appends; `enforces` says whether the store refuses stale epochs itself."""

    data: bytes = b""
    version: int = 0
    enforces: bool = True

    @property
    def etag(self) -> str | None:
        return f'"{self.version}"' if self.version else None

    @property
    def fence(self) -> int:
        return self.read().fence

    def read(self) -> LogReader:
        reader = LogReader()
        reader.read(self.data)
        return reader

    def records(self, *, void: bool = False) -> list[CommitRecord]:
        return [
            entry.record
            for entry in LogReader().entries(self.data)
            if isinstance(entry.record, CommitRecord) and entry.void is void
        ]

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for record in self.records() for token in record.tokens)

    def put(self, *records: CommitRecord | FenceRecord) -> None:
        """Append as somebody else."""
        for record in records:
            self.data += record.encode()
            self.version += 1

    def append(self, effect: AppendLog, load: int = 0) -> LogAppended | LogMoved | LogFenced:
        epoch = CommitRecord.decode(effect.data).epoch
        if self.enforces and epoch < self.fence:
            return LogFenced()
        if effect.etag != self.etag:
            return LogMoved()
        self.data += effect.data
        self.version += 1
        assert self.etag is not None
        return LogAppended(self.etag, load)


@dataclass
class World:
    """One session and what surrounds it."""

    contract: Contract = CONTRACT
    target: TargetFacts = TARGET
    log: Log = field(default_factory=Log)
    objects: dict[str, tuple[int, ...] | ProblemError] = field(default_factory=dict)
    hold: set[type] = field(default_factory=set)
    busy: Busy | None = None
    load: int = 0
    logits: Any = field(default_factory=lambda: LOGITS)
    luck: deque[float] = field(default_factory=deque)
    kv_interval: int = 0

    def __post_init__(self) -> None:
        self.machine = VerifierSession(
            self.target, self.busy, enforces_fences=self.log.enforces, kv_interval=self.kv_interval
        )
        self.queue: deque[Any] = deque()
        self.seen: list[Any] = []
        self.held: list[Any] = []
        self.answers: dict[int, Reply | Refuse] = {}
        self.events: list[Event] = []
        self.timers: dict[str, int] = {}
        self.requests = 0

    # ---- inputs

    def handle(self, given: Any) -> list[Any]:
        """Give one input, run what follows, and return all effects that were seen meanwhile."""
        before = len(self.seen)
        self._take(self.machine.handle(given))
        self.run()
        return self.seen[before:]

    def ask(self, make: Any, *args: Any) -> int:
        self.requests += 1
        self.handle(make(self.requests, *args))
        return self.requests

    def open(self, message: SessionOpen | None = None) -> int:
        return self.ask(OpenReceived, message or self.session_open())

    def assign(self, drafter: str = DRAFTER, **members: Any) -> int:
        return self.ask(DrafterAssigned, self.assignment(drafter, **members))

    def propose(self, *tokens: int, client: Client | None = None, **members: Any) -> int:
        return self.ask(ProposalReceived, self.proposal(*tokens, **members), client or Client())

    def policy(self, from_round: int, **sampling: int) -> int:
        message = Policy(session=SESSION, from_round=from_round, sampling=Sampling(**sampling))
        return self.ask(PolicyReceived, message)

    def output(self, start: int = 0, wait_ms: int = 0, client: Client | None = None) -> int:
        return self.ask(OutputRequested, start, wait_ms, client)

    def started(self, **members: Any) -> World:
        """Open and assign; members change the assignment."""
        self.open()
        self.assign(**members)
        return self

    # ---- messages

    def session_open(self, **members: Any) -> SessionOpen:
        message = SessionOpen(session=SESSION, epoch=1, contract=self.contract, prompt=PROMPT, commit_log=LOG)
        return replace(message, **members)

    def resume(self, epoch: int = 2, **members: Any) -> SessionOpen:
        """Fence the log and open from its last record, as a router does (6.9)."""
        self.log.put(FenceRecord(epoch=epoch))
        return self.resumed(epoch, **members)

    def resumed(self, epoch: int, **members: Any) -> SessionOpen:
        tokens = self.log.tokens
        self.objects["tokens"] = tokens
        last = self.log.records()[-1] if self.log.records() else None
        place = Resume(
            round=last.round if last else 0,
            committed=last.committed if last else 0,
            digest=self.digest(tokens),
            committed_tokens="tokens",
        )
        return self.session_open(epoch=epoch, resume=replace(place, **members))

    def digest(self, output: Sequence[int] = ()) -> bytes:
        return extend_all(prefix_digest(contract_digest(self.contract.to_plain()), PROMPT), output)

    @property
    def state(self) -> SessionState:
        state = self.machine.state
        assert state is not None
        return state

    @property
    def m_cap(self) -> int:
        """The limit of the last verdict; m_init before the first."""
        records = self.log.records()
        return records[-1].m_cap or 0 if records else self.contract.m_max

    @property
    def last(self) -> int:
        """The last token of the committed prefix."""
        return self.log.tokens[-1] if self.log.tokens else PROMPT[-1]

    def right(self, count: int) -> tuple[int, ...]:
        """The greedy target's next tokens."""
        return greedy(self.last, count)

    def wrong(self) -> tuple[int, ...]:
        """One token that the greedy target rejects."""
        return (successor(successor(self.last)),)

    def assignment(self, drafter: str = DRAFTER, **members: Any) -> Assignment:
        message = Assignment(
            session=SESSION,
            epoch=self.machine.epoch,
            contract=self.contract,
            verifier="https://verifier.example/",
            drafter=drafter,
            prompt=PROMPT,
            round=0,
            committed=0,
            digest=self.digest(),
            m_init=8,
        )
        return replace(message, **members)

    def proposal(self, *tokens: int, **members: Any) -> Proposal:
        output = self.log.tokens
        message = Proposal(
            session=SESSION,
            epoch=self.machine.epoch,
            round=(self.log.records()[-1].round if self.log.records() else 0) + 1,
            drafter=DRAFTER,
            base=len(output),
            base_digest=self.digest(output),
            tokens=tokens or self.right(1),
            q_rows="rows" if self.contract.rule == 2 else None,
            status=STATUS,
        )
        return replace(message, **members)

    # ---- answers

    def verdict(self, request: int) -> Verdict:
        answer = self.answers[request]
        assert isinstance(answer, Reply), answer
        assert isinstance(answer.message, Verdict)
        return answer.message

    def told(self, request: int) -> SessionState:
        answer = self.answers[request]
        assert isinstance(answer, Reply), answer
        assert isinstance(answer.message, SessionState)
        return answer.message

    def read(self, request: int) -> Output:
        answer = self.answers[request]
        assert isinstance(answer, Reply), answer
        assert isinstance(answer.message, Output)
        return answer.message

    def refusal(self, request: int) -> ProblemError:
        answer = self.answers[request]
        assert isinstance(answer, Refuse), answer
        return answer.error

    def play(self, *rounds: tuple[int, ...] | Callable[[], tuple[int, ...]]) -> list[Verdict]:
        """Propose and see each round to its verdict."""
        return [self.verdict(self.propose(*(each() if callable(each) else each))) for each in rounds]

    # ---- effects

    def run(self) -> None:
        while self.queue:
            effect = self.queue.popleft()
            if type(effect) in self.hold:
                self.held.append(effect)
                continue
            answer = self.perform(effect)
            if answer is not None:
                self._take(self.machine.handle(answer))

    def release(self, answer: Any = None, index: int = 0) -> list[Any]:
        """Answer a held effect, the oldest one, by itself when the test has no answer of its own."""
        before, effect = len(self.seen), self.held.pop(index)
        given = self.perform(effect) if answer is None else answer
        if given is not None:
            self.handle(given)
        return self.seen[before:]

    def fire(self, name: str) -> list[Any]:
        """Let a timer that was set fire."""
        del self.timers[name]
        return self.handle(TimerFired(name))

    def _take(self, effects: list[Any]) -> None:
        self.seen += effects
        self.queue += effects

    def perform(self, effect: Any) -> Any:
        match effect:
            case Reply() | Refuse():
                assert effect.request not in self.answers, "answered twice"
                self.answers[effect.request] = effect
            case SetTimer():
                self.timers[effect.name] = effect.delay_ms
            case CancelTimer():
                self.timers.pop(effect.name, None)
            case SendEvent():
                self.events.append(effect.message)
            case CloseEngine() | EndSession() | DropOlderKv():
                pass
            case ReplayVerdict():
                assert effect.ref == LOG
                verdict = replayed_verdict(SESSION, effect.round, self.log.data[effect.start :])
                self.perform(Reply(effect.request, verdict))
            case _:
                return self.answer(effect)
        return None

    def answer(self, effect: Any) -> Any:
        match effect:
            case FetchTokens():
                return self._fetch(effect)
            case ReadLog():
                return LogRead(effect.start, self.log.data[effect.start :], self.log.etag)
            case AppendLog():
                return self.log.append(effect, self.load)
            case Prefill():
                return Prefilled()
            case PublishKv():
                return KvPublished(effect.length, f"kv of {effect.length}")
            case FetchRows():
                return RowsObtained(effect.round)
            case DrawRandom():
                return RandomDrawn(effect.round, tuple(self.luck.popleft() for _ in range(effect.count)))
            case Verify():
                return self._verify(effect)
            case SelfDecode():
                logits = self.logits[effect.prefix[effect.length - 1]]
                token = acceptance.self_decode(effect.rule, logits, effect.profile, effect.luck)
                return SelfDecoded(effect.round, token, self.load)
        raise AssertionError(effect)

    def _fetch(self, effect: FetchTokens) -> TokensFetched | TokensUnavailable:
        found = self.objects.get(effect.ref, InvalidContent("no such object"))
        if isinstance(found, ProblemError):
            return TokensUnavailable(effect.ref, found)
        return TokensFetched(effect.ref, found)

    def _verify(self, effect: Verify) -> Verified:
        tokens = effect.tokens
        scores = [self.logits[token] for token in (effect.prefix[effect.length - 1], *tokens)]
        rows = np.full((len(tokens), V), 1 / V, dtype=np.float32)
        outcome = acceptance.accept(effect.rule, scores, tokens, rows, effect.profile, effect.luck, room=effect.room)
        return Verified(effect.round, outcome.accepted, outcome.additional, self.load)


def of(effects: Sequence[Any], kind: type) -> list[Any]:
    """The effects of one class, in order."""
    return [effect for effect in effects if isinstance(effect, kind)]
