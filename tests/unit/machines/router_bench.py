"""A router session on the bench: feeds inputs, keeps what it wants done, and plays a well-behaved world on demand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

from sdcp.machines import effects as fx
from sdcp.machines import inputs
from sdcp.machines.router import Patience, RouterSession
from sdcp.messages.contract import Action, Contract, Sampling
from sdcp.messages.output import Event
from sdcp.messages.record import CommitRecord, FenceRecord
from sdcp.messages.session import SessionState
from sdcp.rules.digest import contract_digest, extend_all, prefix_digest

SESSION = bytes(range(16))
LOG = "https://cache/logs/s"
V1, V2, D1, D2 = "https://v1", "https://v2", "https://d1", "https://d2"
PROMPT = (5, 6, 7)
STOP = 99
CONTRACT = Contract(
    target=bytes([1]) * 32,
    tokenizer=bytes([2]) * 32,
    rule=1,
    m_max=8,
    max_new=20,
    stop=(STOP,),
    low_rounds=2,
    fallback=(Action.SWITCH,),
)
START = prefix_digest(contract_digest(CONTRACT.to_plain()), PROMPT)

QUIET = (fx.Reply, fx.Refuse, fx.SetTimer, fx.CancelTimer)  # nobody answers these

E = TypeVar("E")


class Bench:
    """`log` holds the records of a simulated commit log; `verifier`, `drafter` are what the roster answers next."""

    def __init__(self, contract: Contract = CONTRACT, **patience: int) -> None:
        self.session = RouterSession(SESSION, contract, PROMPT, LOG, Patience(**patience))
        self.done: list[Any] = []  # every effect, in order
        self.pending: list[Any] = []
        self.log: list[CommitRecord | FenceRecord] = []
        self.objects: dict[str, tuple[int, ...]] = {}
        self.verifiers: list[str | None] = [V1]
        self.drafters: list[str | None] = [D1]
        self.round, self.tokens = 0, []
        self.digest = prefix_digest(contract_digest(contract.to_plain()), PROMPT)
        self.state: int | None = None
        self._numbers = count(100)

    # ---- feeding and looking --------------------------------------------------------------------------------------

    def give(self, event: object) -> list[Any]:
        """Hand in one input; return what it brought."""
        effects = self.session.handle(event)
        self.done += effects
        self.pending += [each for each in effects if not isinstance(each, QUIET)]
        return effects

    def ask(self, make: Callable[[int], object]) -> int:
        """Hand in a request; return its number."""
        number = next(self._numbers)
        self.give(make(number))
        return number

    def take(self, kind: type[E]) -> E:
        """The one pending effect of this class, which is thereby no longer pending."""
        found = [each for each in self.pending if type(each) is kind]
        assert len(found) == 1, f"{kind.__name__}: {self.pending}"
        self.pending.remove(found[0])
        return found[0]

    def all_done(self, kind: type[E]) -> list[E]:
        return [each for each in self.done if type(each) is kind]

    def names(self) -> list[str]:
        """What has been done, in order, replies and timers left out."""
        return [type(each).__name__ for each in self.done if not isinstance(each, QUIET)]

    def answer_to(self, request: int) -> Any:
        """What a request was answered with: a message or an error; fails when it still waits."""
        found = [each for each in self.done if isinstance(each, fx.Reply | fx.Refuse) and each.request == request]
        assert len(found) == 1, found
        return found[0].message if isinstance(found[0], fx.Reply) else found[0].error

    def waits(self, request: int) -> bool:
        return not any(isinstance(each, fx.Reply | fx.Refuse) and each.request == request for each in self.done)

    # ---- a world that works -----------------------------------------------------------------------------------------

    def commit(self, *tokens: int, epoch: int | None = None, action: Action = Action.CONTINUE) -> CommitRecord:
        """The verifier commits a round."""
        self.round += 1
        self.tokens += tokens
        self.digest = extend_all(self.digest, tokens)
        record = CommitRecord(
            epoch=epoch or self.session.epoch,
            round=self.round,
            tokens=tokens,
            committed=len(self.tokens),
            digest=self.digest,
            action=action,
        )
        self.log.append(record)
        return record

    def session_state(self, **members: Any) -> SessionState:
        basics = {
            "session": SESSION,
            "epoch": self.session.epoch,
            "round": self.round,
            "committed": len(self.tokens),
            "digest": self.digest,
            "state": self.state,
        }
        return SessionState(**{**basics, **members})

    def octets(self) -> bytes:
        return b"".join(record.encode() for record in self.log)

    def etag(self) -> str | None:
        return f'"{len(self.log)}"' if self.log else None

    def event(self, kind: Action, **members: Any) -> Event:
        basics = {
            "session": SESSION,
            "epoch": self.session.epoch,
            "kind": kind,
            "committed": len(self.tokens),
            "digest": self.digest,
        }
        return Event(**{**basics, **members})

    def perform(self, effect: Any) -> object | None:
        """The answer of a world in which everything works."""
        match effect:
            case fx.ChooseVerifier():
                return inputs.VerifierChosen(_next(self.verifiers))
            case fx.ChooseDrafter():
                return inputs.DrafterChosen(_next(self.drafters))
            case fx.SendOpen() | fx.SendDrafter() | fx.SendPolicy():
                return inputs.StateReceived(self.session_state(), effect)
            case fx.SendAssignment():
                return inputs.AssignmentTaken(effect)
            case fx.StoreTokens():
                ref = f"https://cache/objects/{len(self.objects)}"
                self.objects[ref] = effect.tokens
                return inputs.TokensStored(ref, effect)
            case fx.ReadLog():
                return inputs.LogRead(effect.start, self.octets()[effect.start :], self.etag())
            case fx.AppendLog():
                return self._append(effect)
        return None

    def _append(self, effect: fx.AppendLog) -> object:
        if effect.etag != self.etag():
            return inputs.LogMoved()
        record = FenceRecord.decode(effect.data)
        if any(record.epoch <= other.epoch for other in self.log):
            return inputs.LogFenced()
        self.log.append(record)
        return inputs.LogAppended(str(self.etag()), 0)

    def run(self, until: type | None = None) -> None:
        """Perform what is pending, in order, until nothing is; stop before the first effect of class `until`."""
        while self.pending:
            effect = self.pending[0]
            if until is not None and type(effect) is until:
                return
            del self.pending[0]
            answer = self.perform(effect)
            if answer is not None:
                self.give(answer)

    def fire(self, name: str = "retry") -> None:
        self.give(inputs.TimerFired(name))

    def start(self) -> int:
        """Submit and come to RUNNING."""
        number = self.ask(inputs.RequestSubmitted)
        self.run()
        return number

    def change(self, sampling: Sampling, from_round: int | None = None) -> int:
        return self.ask(lambda number: inputs.ProfileChanged(number, sampling, from_round))

    def locate(self, epoch: int | None, wait_ms: int = 1000) -> int:
        return self.ask(lambda number: inputs.LocationRequested(number, epoch, wait_ms))

    def tell(self, event: Event) -> int:
        return self.ask(lambda number: inputs.EventReceived(number, event))


def _next(answers: list[str | None]) -> str | None:
    """Answers in turn; the last one for good."""
    return answers.pop(0) if len(answers) > 1 else answers[0]
