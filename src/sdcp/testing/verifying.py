"""A verifier instance of a world: a real target engine, and a machine for each epoch of the session that it holds.

A crash is a restart: the instance comes back at once, at the same URI, and knows nothing. Requests for a session that
it does not hold get 404, from which routers know that it was lost (D19).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sdcp.errors import InvalidContent, ProblemError, QUnavailable, UnknownResource
from sdcp.machines.control import Busy
from sdcp.machines.effects import (
    AppendLog,
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
    Verify,
)
from sdcp.machines.inputs import (
    DrafterAssigned,
    EngineFailed,
    EventDelivered,
    KvPublished,
    LogUnanswered,
    OpenReceived,
    OutputRequested,
    PolicyReceived,
    Prefilled,
    PrefillFailed,
    ProposalReceived,
    RandomDrawn,
    RowsRefused,
    SelfDecoded,
    StopRequested,
    Superseded,
    TokensUnavailable,
    Verified,
)
from sdcp.machines.reader import replayed_verdict
from sdcp.machines.verifier import VerifierSession
from sdcp.machines.verifier_open import TargetFacts
from sdcp.messages.fields import U64_MAX
from sdcp.messages.output import Event
from sdcp.messages.round import Assignment, Proposal
from sdcp.messages.session import Policy, SessionOpen
from sdcp.ports import PrefillJob, Target, VerifyJob
from sdcp.testing.checks import Broken
from sdcp.testing.driven import Driven, Perform
from sdcp.testing.network import SILENCE, Answer, Call
from sdcp.testing.store import Rows
from sdcp.testing.surroundings import CACHE, ROUTER, UNREACHABLE, Client, Surroundings

EVENT_PAUSE_MS = 100.0

_KV = "memory:/objects/kv-"

Events = Callable[[Event], Callable[[Call], None]]
"""How an event arrives at the router."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How verifiers behave. `load` in percent is asked each time; `uniforms(count)` are the values of DrawRandom."""

    load: Callable[[], int]
    uniforms: Callable[[int], tuple[float, ...]]
    busy: Busy | None = None
    kv_interval: int = 0


class VerifierInstance:
    """One verifier at a base URI. `performed` is called after each effect of its machines."""

    def __init__(
        self,
        uri: str,
        target: Target,
        around: Surroundings,
        habits: Habits,
        events: Events,
        performed: Callable[[], None],
    ) -> None:
        self.uri = uri
        self._target = target
        self._around = around
        self._habits = habits
        self._events = events
        self._performed = performed
        self._epochs: dict[int, Driven] = {}

    def machine(self, epoch: int) -> VerifierSession | None:
        """The machine of an epoch, if it is held here."""
        held = self._epochs.get(epoch)
        return held.machine if held is not None and isinstance(held.machine, VerifierSession) else None

    def crash(self) -> None:
        """Lose everything, between two effects."""
        epochs, self._epochs = self._epochs, {}
        for held in epochs.values():
            held.die()

    def stop(self) -> None:
        """Begin no round any more; what is under way ends."""
        for held in [*self._epochs.values()]:
            held.handle(StopRequested())

    # ---- requests ----------------------------------------------------------------------------------------------------

    def opens(self, message: SessionOpen) -> Callable[[Call], None]:
        """POST sessions."""
        return lambda call: self._open(call, self._around.network.carried(message))

    def assigns(self, message: Assignment) -> Callable[[Call], None]:
        """PUT sessions/{id}/drafter."""
        return self._request(message, DrafterAssigned)

    def updates(self, message: Policy) -> Callable[[Call], None]:
        """POST sessions/{id}/policy."""
        return self._request(message, PolicyReceived)

    def proposes(self, message: Proposal, client: Client) -> Callable[[Call], None]:
        """POST proposals."""
        return self._request(message, lambda request, carried: ProposalReceived(request, carried, client))

    def reads(self, start: int, wait_ms: int, client: Client | None = None) -> Callable[[Call], None]:
        """GET sessions/{id}/output."""
        return self._request(None, lambda request, _: OutputRequested(request, start, wait_ms, client))

    def _request(self, message: Any, make: Callable[[int, Any], Any]) -> Callable[[Call], None]:
        def arrive(call: Call) -> None:
            held = self._serving()
            if held is None:
                self._around.network.answer(call, Refuse(0, UnknownResource("No such session.")))
            else:
                held.ask(call, lambda request: make(request, self._around.network.carried(message)))

        return arrive

    def _serving(self) -> Driven | None:
        """The machine of the highest epoch that is open; while none is, the one that is being opened."""
        opened = [held for held in self._epochs.values() if _phase(held) is not None]
        return next(reversed(opened or [*self._epochs.values()]), None)

    def _open(self, call: Call, message: SessionOpen) -> None:
        newest = max(self._epochs, default=0)
        if message.epoch > newest:
            self._epochs[message.epoch] = self._begin(message.epoch)
            newest = message.epoch
        held = self._epochs.get(message.epoch, self._epochs[newest])
        held.ask(call, lambda request: OpenReceived(request, message))

    def _begin(self, epoch: int) -> Driven:
        target, around = self._target, self._around
        facts = TargetFacts(
            model=target.model, tokenizer=target.tokenizer, vocabulary=target.vocabulary, context=target.context
        )
        machine = VerifierSession(
            facts,
            self._habits.busy,
            enforces_fences=around.store.enforces_fences,
            kv_interval=self._habits.kv_interval,
        )
        held = Driven(
            machine,
            around.agenda,
            around.network,
            watch=self._leaves,
            performed=self._performed,
            party=self.uri,
            observer=around.observer,
        )
        return held.able(self._performers(held, epoch))

    def _leaves(self, answer: Reply | Refuse) -> None:
        """An answer leaves the verifier; after the one to an open, a lower epoch is over here (D19)."""
        self._around.leaves(answer)
        if len(self._epochs) > 1:
            self._around.agenda.add(self._supersede)

    def _supersede(self) -> None:
        opened = [epoch for epoch, held in self._epochs.items() if _phase(held) is not None]
        for epoch in [epoch for epoch in self._epochs if opened and epoch < max(opened)]:
            self._epochs.pop(epoch).handle(Superseded())

    # ---- effects -----------------------------------------------------------------------------------------------------

    def _performers(self, held: Driven, epoch: int) -> dict[type, Perform]:
        store, rows, load = self._around.store, dict[int, Rows](), self._habits.load
        answers = self._around.network.answer
        return {
            FetchTokens: lambda effect: held.send(
                lambda call: answers(call, store.fetch_tokens(effect)),
                lambda answer: TokensUnavailable(effect.ref, UNREACHABLE) if answer is SILENCE else answer,
                CACHE,
            ),
            FetchRows: lambda effect: self._fetch_rows(held, effect, rows),
            AppendLog: lambda effect: held.send(
                lambda call: answers(call, store.append(effect, load())), _or_unanswered, CACHE
            ),
            ReadLog: lambda effect: held.send(lambda call: answers(call, store.read(effect)), _or_unanswered, CACHE),
            ReplayVerdict: lambda effect: self._replay(held, effect),
            SendEvent: lambda effect: self._tell(held, effect.message),
            Prefill: lambda effect: held.work(lambda: self._prefill(effect)),
            DrawRandom: lambda effect: held.work(
                lambda: RandomDrawn(effect.round, self._habits.uniforms(effect.count))
            ),
            Verify: lambda effect: held.work(lambda: self._verify(effect, rows)),
            SelfDecode: lambda effect: held.work(lambda: self._self_decode(effect)),
            PublishKv: lambda effect: held.work(lambda: _published(effect)),
            DropOlderKv: lambda effect: _check_kv(effect.ref, U64_MAX),
            CloseEngine: lambda _: self._target.close(self._around.session),
            EndSession: lambda _: self._forget(epoch),
        }

    def _fetch_rows(self, held: Driven, effect: FetchRows, kept: dict[int, Rows]) -> None:
        """Keep the rows once the answer is here: one that comes too late must not replace those of a later fetch."""
        store, answers, fetched = self._around.store, self._around.network.answer, dict[int, Rows]()

        def read(answer: Answer) -> Any:
            if answer is SILENCE:
                return RowsRefused(effect.round, QUnavailable("No answer."))
            kept.update(fetched)
            return answer

        width = self._target.vocabulary
        held.send(lambda call: answers(call, store.fetch_rows(effect, width, fetched)), read, CACHE)

    def _forget(self, epoch: int) -> None:
        self._epochs.pop(epoch, None)

    def _replay(self, held: Driven, effect: ReplayVerdict) -> None:
        """Read the record, however often it takes, and answer with its verdict."""
        store, network = self._around.store, self._around.network

        def read(answer: Answer) -> None:
            if answer is SILENCE:
                self._replay(held, effect)
            else:
                held.answer(Reply(effect.request, replayed_verdict(self._around.session, effect.round, answer)))

        held.send(lambda call: network.answer(call, store.octets(effect.ref, effect.start)), read, CACHE)

    def _tell(self, held: Driven, event: Event) -> None:
        """Send an event until a router answers 204 (D17)."""

        def read(answer: Answer) -> EventDelivered | None:
            if isinstance(answer, Reply):
                return EventDelivered(event)
            again = f"event {event.kind}"
            self._around.agenda.set_timer(held, again, lambda _: self._tell(held, event), EVENT_PAUSE_MS, self.uri)
            return None

        if not held.gone:
            held.send(self._events(event), read, ROUTER)

    def _prefill(self, effect: Prefill) -> Prefilled | PrefillFailed:
        if effect.kv is not None:
            _check_kv(effect.kv, len(effect.prefix))
        job = PrefillJob(self._around.session, effect.prefix, len(effect.prefix), effect.empty_prompt)
        if not effect.prefix and not self._target.takes_empty_prompt:
            return PrefillFailed(InvalidContent("The model has no distribution after an empty prefix (D26)."))
        try:
            while not all(self._target.prefill([job], 1 << 20)):
                pass
        except ProblemError as refusal:
            return PrefillFailed(refusal)
        return Prefilled()

    def _verify(self, effect: Verify, kept: dict[int, Rows]) -> Verified | EngineFailed:
        rows = kept.pop(effect.round, None)
        kept.clear()
        job = VerifyJob(
            self._around.session,
            effect.prefix,
            effect.length,
            effect.tokens,
            effect.rule,
            effect.profile,
            effect.luck,
            rows,
            effect.room,
        )
        try:
            result = self._target.verify([job])[0]
        except (ProblemError, ValueError) as fault:
            return EngineFailed(effect.round, str(fault))
        return Verified(effect.round, result.accepted, result.additional, self._habits.load())

    def _self_decode(self, effect: SelfDecode) -> SelfDecoded | EngineFailed:
        session, rule = self._around.session, effect.rule
        job = VerifyJob(session, effect.prefix, effect.length, (), rule, effect.profile, effect.luck, None, 1)
        try:
            token = self._target.verify([job])[0].additional
        except (ProblemError, ValueError) as fault:
            return EngineFailed(effect.round, str(fault))
        assert token is not None  # there was room for one
        return SelfDecoded(effect.round, token, self._habits.load())


def _published(effect: PublishKv) -> KvPublished:
    """Nothing is stored, since tables have no KV: the name says how many tokens it would be of. Some are refused."""
    return KvPublished(effect.length, None if effect.length % 5 == 0 else f"{_KV}{effect.length}")


def _check_kv(ref: str, most: int) -> None:
    """What a log names is what was published, and of no more than what is committed (D44)."""
    length = ref.removeprefix(_KV)
    if length == ref or not 0 < int(length) <= most:
        raise Broken(f"{ref} is no KV of a prefix of {most} tokens")


def _phase(held: Driven) -> Any:
    return held.machine.phase if isinstance(held.machine, VerifierSession) else None


def _or_unanswered(answer: Answer) -> Any:
    return LogUnanswered() if answer is SILENCE else answer
