"""Who contends for one session's commit log in `sdcp.testing.interleavings`: verifiers and routers (6.3, 6.8, 6.9).

A contender is a value: the real machine of a role, and the one operation on the log that it wants next. Its methods
return the contender that it becomes and leave it as it was, so that an exploration can go back to any moment. Timers
fire at once: time only says when an operation happens, and the exploration tries every moment anyway.

A verifier always has a next round. What it commits is a function of epoch and round, or, with `GREEDY`, of the round
alone: then records of two verifiers have the same tokens and digests, as those of greedy sessions do.

Not here: the log, what happens to answers, and whether all this is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, TypeAlias

from sdcp.errors import Overloaded, ProblemError
from sdcp.machines.commit_log import CommitLog, Fenced, Recorded
from sdcp.machines.effects import AppendLog, CancelTimer, FetchTokens, ReadLog, SetTimer
from sdcp.machines.fencing import Fencing
from sdcp.machines.inputs import LogUnanswered, Prefilled, TimerFired, TokensFetched
from sdcp.machines.reader import LogReader
from sdcp.machines.recorded import Recorded as Committed
from sdcp.machines.verifier_open import Opened, TargetFacts, open_session
from sdcp.messages.contract import Action, Contract
from sdcp.messages.fields import Message
from sdcp.messages.record import CommitRecord
from sdcp.messages.session import Resume, SessionOpen
from sdcp.rules.digest import contract_digest, extend_all, prefix_digest
from sdcp.testing.blind_log import BlindLog

REF: Final = "memory:/cache/logs/contended"
TARGET: Final = TargetFacts(model=b"T" * 32, tokenizer=b"t" * 32, vocabulary=1 << 16)
PROMPT: Final = (1, 2)
CONTRACT: Final = Contract(
    target=TARGET.model,
    tokenizer=TARGET.tokenizer,
    rule=1,
    m_max=8,
    max_new=1 << 10,
    stop=(),
    low_rounds=1,
    fallback=(Action.FAIL,),
)
START: Final = prefix_digest(contract_digest(CONTRACT.to_plain()), PROMPT)
DRAWN: Final = 100
"""By so much the tokens of one epoch differ from those of the epoch before."""
GREEDY: Final = 0

Operation: TypeAlias = AppendLog | ReadLog
Key: TypeAlias = tuple[Any, ...]


# ---- verifiers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verifier:
    """One verifier of the session, opening it until `machine` is there.

    `released`: offsets and octets of the records whose verdicts it may have sent. `dropped`: those of which its machine
    said that they never count. `over`: why it serves no more. `life` counts its restarts. `blind`: of another make.
    """

    message: SessionOpen
    tokens: tuple[int, ...]
    spread: int
    enforces_fences: bool
    wants: Operation | None
    life: int = 0
    blind: bool = False
    machine: CommitLog | BlindLog | None = None
    reader: LogReader | None = None
    sent: CommitRecord | None = None
    released: tuple[tuple[int, bytes], ...] = ()
    dropped: tuple[bytes, ...] = ()
    over: str | None = None

    @property
    def epoch(self) -> int:
        """The epoch under which it was told to open the session."""
        return self.message.epoch

    @property
    def key(self) -> Key:
        """All that it is."""
        return (
            Verifier,
            self.message,
            self.wants,
            self.life,
            _frozen(self.machine),
            self.sent,
            self.released,
            self.dropped,
            self.over,
        )

    def answered(self, answer: Any) -> Verifier:
        """What it becomes when its operation is answered."""
        if self.machine is None:
            return self._opening(answer)
        machine, reader = _copied((self.machine, self.reader))
        effects, outcome = machine.handle(answer)
        while any(isinstance(effect, SetTimer) for effect in effects):
            effects, outcome = machine.handle(TimerFired(effects[0].name))
        return replace(self, machine=machine, reader=reader)._after(machine, effects, outcome)

    def unanswered(self) -> Verifier:
        """What it becomes when no answer comes; while it opens, the router asks it again."""
        return self if self.machine is None else self.answered(LogUnanswered())

    def restarted(self) -> Verifier:
        """The same verifier after its process has died, asked by the router to open again (D19)."""
        anew = verifier(self.message, self.tokens, self.spread, enforces_fences=self.enforces_fences)
        return replace(anew, life=self.life + 1, released=self.released)

    def _opening(self, answer: Any) -> Verifier:
        try:
            opened = _opened(self.message, self.tokens, answer)
        except Overloaded:
            return self
        except ProblemError as refusal:
            return replace(self, wants=None, over=type(refusal).__name__)
        make = BlindLog if self.blind else CommitLog
        machine = make(REF, self.epoch, opened.reader, opened.etag, enforces_fences=self.enforces_fences)
        point = self.message.resume
        place = (point.round, point.committed, point.digest) if point else (0, 0, START)
        record = self._record(*place)
        effects, outcome = machine.append(record)
        return replace(self, machine=machine, reader=opened.reader, sent=record)._after(machine, effects, outcome)

    def _after(
        self, machine: CommitLog | BlindLog, effects: Sequence[Any], outcome: Recorded | Fenced | None
    ) -> Verifier:
        assert self.sent is not None
        match outcome:
            case None:
                (wants,) = effects
                return replace(self, wants=wants)
            case Fenced():
                return replace(self, wants=None, over="Fenced", dropped=(*self.dropped, self.sent.encode()))
            case Recorded(start=start):
                released = (*self.released, (start, self.sent.encode()))
                record = self._record(self.sent.round, self.sent.committed, self.sent.digest)
                return replace(self, released=released, sent=record)._after(machine, *machine.append(record))

    def _record(self, round: int, committed: int, digest: bytes) -> CommitRecord:
        """The next round's record. `load` is what its process measures: another life, another load."""
        first = 1000 + self.spread * self.epoch + 2 * round
        tokens = (first, first + 1) if round % 2 else (first,)
        return CommitRecord(
            epoch=self.epoch,
            round=round + 1,
            tokens=tokens,
            committed=committed + len(tokens),
            digest=extend_all(digest, tokens),
            load=self.life,
        )


def verifier(message: SessionOpen, tokens: tuple[int, ...], spread: int, *, enforces_fences: bool) -> Verifier:
    """A verifier that is told to open the session; `tokens` are those of the object in `resume`."""
    return Verifier(
        message=message, tokens=tokens, spread=spread, enforces_fences=enforces_fences, wants=ReadLog(REF, 0)
    )


def _opened(message: SessionOpen, tokens: tuple[int, ...], answer: Any) -> Opened:
    """Open by the real procedure. Raises ProblemError."""
    opening = open_session(message, TARGET)
    try:
        effect = next(opening)
        while True:
            match effect:
                case FetchTokens():
                    effect = opening.send(TokensFetched(effect.ref, tokens))
                case ReadLog():
                    effect = opening.send(answer)
                case _:
                    effect = opening.send(Prefilled())
    except StopIteration as done:
        opened: Opened = done.value
        return opened


# ---- routers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Router:
    """A router that takes the session from its verifier, opens it at another, and then may do so again at any time.

    `fenced` is the epoch of its last fence that is done, `opens` what it sent to a new verifier then, `tokens` the
    committed output of which it did.
    """

    fencing: Fencing
    recorded: Committed
    wants: Operation | None
    fenced: int = 0
    opens: SessionOpen | None = None
    tokens: tuple[int, ...] = ()

    @property
    def key(self) -> Key:
        """All that it is."""
        return (Router, self.wants, _frozen((self.fencing, self.recorded)), self.fenced, self.opens, self.tokens)

    def answered(self, answer: Any) -> Router:
        """What it becomes when its operation is answered."""
        fencing, recorded = _copied((self.fencing, self.recorded))
        effects = [each for each in fencing.handle(answer) if not isinstance(each, CancelTimer)]
        while any(isinstance(effect, SetTimer) for effect in effects):
            effects = list(fencing.handle(TimerFired(effects[0].name)))
        if not fencing.done:
            (wants,) = effects
            return replace(self, fencing=fencing, recorded=recorded, wants=wants)
        again = _begun(recorded, fencing.epoch)
        message = _session_open(fencing.epoch, recorded)
        return replace(again, fenced=fencing.epoch, opens=message, tokens=tuple(recorded.tokens))

    def unanswered(self) -> Router:
        """What it becomes when no answer comes."""
        return self.answered(LogUnanswered())


def router() -> Router:
    """A router that has opened the session under epoch 1 and knows no more of it."""
    return _begun(Committed(CONTRACT, START), 1)


def _begun(recorded: Committed, above: int) -> Router:
    fencing = Fencing(recorded, REF, above, retry_ms=1)
    (wants,) = fencing.begin()
    return Router(fencing=fencing, recorded=recorded, wants=wants)


def _session_open(epoch: int, recorded: Committed | None = None) -> SessionOpen:
    resume = None
    if recorded is not None:
        resume = Resume(
            round=recorded.round,
            committed=len(recorded.tokens),
            digest=recorded.digest,
            committed_tokens="memory:/cache/objects/committed",
        )
    return SessionOpen(
        session=b"sdcp-contended-1", epoch=epoch, contract=CONTRACT, prompt=PROMPT, commit_log=REF, resume=resume
    )


FIRST_OPEN: Final = _session_open(1)


# ---- machines as values ----------------------------------------------------------------------------------------------


def _members(value: object) -> Iterator[tuple[str, Any]]:
    names = getattr(type(value), "__slots__", None) or vars(value)
    return ((name, getattr(value, name)) for name in names)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, int | bytes | str | Enum | Message | AppendLog | ReadLog)


def _frozen(value: Any) -> Any:
    """The whole state of a machine as a value that can be compared and hashed."""
    if _is_plain(value):
        return value
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    return (type(value), *(_frozen(member) for _, member in _members(value)))


def _copied(value: Any, copies: dict[int, Any] | None = None) -> Any:
    """A machine's copy that shares nothing that changes; what was one object twice stays one."""
    copies = {} if copies is None else copies
    if _is_plain(value):
        return value
    if id(value) in copies:
        return copies[id(value)]
    if isinstance(value, list | tuple):
        return type(value)(_copied(each, copies) for each in value)
    copy = copies[id(value)] = object.__new__(type(value))
    for name, member in _members(value):
        setattr(copy, name, _copied(member, copies))
    return copy
