"""A drafter instance of a world: a real draft engine and the machine of the session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sdcp.errors import ProblemError
from sdcp.machines.drafter import DrafterSession
from sdcp.machines.drafter_joining import DraftModel
from sdcp.machines.drafter_rounds import Patience
from sdcp.machines.effects import (
    Draft,
    EndSession,
    FetchOutput,
    FetchTokens,
    Refuse,
    ReleaseRows,
    Reply,
    SendProposal,
    WriteRows,
)
from sdcp.machines.inputs import (
    AssignmentReceived,
    Drafted,
    DraftFailed,
    OutputFetched,
    OutputUnavailable,
    ProposalRefused,
    ProposalUnanswered,
    RowsWritten,
    StopRequested,
    TokensUnavailable,
    VerdictReceived,
)
from sdcp.messages.output import Output
from sdcp.messages.round import Assignment, Verdict
from sdcp.ports import Drafter, DraftJob
from sdcp.testing.driven import Driven, Perform
from sdcp.testing.network import SILENCE, Answer, Call
from sdcp.testing.surroundings import CACHE, UNREACHABLE, Client, Surroundings
from sdcp.testing.verifying import VerifierInstance
from sdcp.wire.rows import encode_rows

ELAPSED_MS = 1.0
"""What every verification is said to take. Drafting is said to take nothing: it always pays to propose all M."""

ENDLESS = Patience(tries=1 << 30)
"""No number of faults wears it out: without time, nothing lasts long."""


class DrafterInstance:
    """One drafter at a base URI. `verifiers` finds a verifier by its own; `resyncs` counts fetches of the output."""

    def __init__(
        self,
        uri: str,
        engine: Drafter,
        around: Surroundings,
        verifiers: Callable[[str], VerifierInstance],
        patience: Patience = ENDLESS,
    ) -> None:
        self.uri = uri
        self.engine = engine
        self.resyncs = 0
        self._around = around
        self._verifiers = verifiers
        self._patience = patience
        self._rows: dict[int, NDArray[np.float32]] = {}
        self._refs: dict[int, list[str]] = {}
        self._held = self._begin()

    @property
    def epoch(self) -> int | None:
        """The epoch of the session that is held; None: none is."""
        return self._machine.epoch

    def crash(self) -> None:
        """Lose everything and come back at once."""
        self._held.die()
        self._free()
        self._held = self._begin()

    def stop(self) -> None:
        """Give the session up, when the verdict is here."""
        self._held.handle(StopRequested())

    def assigned(self, message: Assignment) -> Callable[[Call], None]:
        """POST assignments."""

        def arrive(call: Call) -> None:
            carried = self._around.network.carried(message)
            self._held.ask(call, lambda request: AssignmentReceived(request, carried))

        return arrive

    def _begin(self) -> Driven:
        engine, around = self.engine, self._around
        model = DraftModel(
            model=engine.model, tokenizer=engine.tokenizer, width=engine.vocabulary, context=engine.context
        )
        self._machine = DrafterSession(model, self._patience)
        held = Driven(self._machine, around.agenda, around.network, party=self.uri, observer=around.observer)
        return held.able(self._performers(held))

    def _performers(self, held: Driven) -> dict[type, Perform]:
        store, answers, client = self._around.store, self._around.network.answer, Client(self.uri)
        return {
            FetchTokens: lambda effect: held.send(
                lambda call: answers(call, store.fetch_tokens(effect)),
                lambda answer: TokensUnavailable(effect.ref, UNREACHABLE) if answer is SILENCE else answer,
                CACHE,
            ),
            FetchOutput: lambda effect: self._fetch(held, effect),
            Draft: lambda effect: held.work(lambda: self._draft(effect)),
            WriteRows: lambda effect: held.send(
                lambda call: answers(call, self._write(effect)),
                lambda answer: DraftFailed(effect.round, "no answer") if answer is SILENCE else answer,
                CACHE,
            ),
            ReleaseRows: lambda effect: self._release(effect.round),
            SendProposal: lambda effect: held.send(
                self._verifiers(effect.verifier).proposes(effect.message, client),
                lambda answer: _judged(effect.message.round, answer),
                effect.verifier,
            ),
            EndSession: lambda _: self._free(),
        }

    def _fetch(self, held: Driven, effect: FetchOutput) -> None:
        self.resyncs += 1
        held.send(self._verifiers(effect.verifier).reads(effect.start, 0, Client(self.uri)), _output, effect.verifier)

    def _draft(self, effect: Draft) -> Drafted | DraftFailed:
        job = DraftJob(self._around.session, effect.prefix, effect.length, effect.count, effect.rule, effect.profile)
        try:
            result = self.engine.draft([job])[0]
        except (ProblemError, ValueError) as fault:
            return DraftFailed(effect.round, str(fault))
        if result.rows is not None:
            self._rows[effect.round] = result.rows
        return Drafted(effect.round, result.tokens, 0.0)

    def _write(self, effect: WriteRows) -> RowsWritten | DraftFailed:
        rows = self._rows.get(effect.round)
        if rows is None:  # an answer that nobody waits for any more
            return DraftFailed(effect.round, "released")
        ref = self._around.store.put(encode_rows(rows[: effect.count]))
        self._refs.setdefault(effect.round, []).append(ref)
        return RowsWritten(effect.round, ref, 0.0)

    def _release(self, round: int) -> None:
        self._rows.pop(round, None)
        for ref in self._refs.pop(round, ()):
            self._around.store.delete(ref)

    def _free(self) -> None:
        """Give back what a session holds. A crashed process leaves its objects to the end of their lease."""
        for round in {*self._rows, *self._refs}:
            self._release(round)
        self.engine.close(self._around.session)


def _output(answer: Answer) -> OutputFetched | OutputUnavailable:
    match answer:
        case Reply(message=Output() as output):
            return OutputFetched(output.from_, output.tokens, output.epoch, output.final)
        case Refuse(error=error):
            return OutputUnavailable(error)
    return OutputUnavailable(None)


def _judged(round: int, answer: Answer) -> Any:
    match answer:
        case Reply(message=Verdict() as verdict):
            return VerdictReceived(verdict, ELAPSED_MS)
        case Refuse(error=error, state=state):
            return ProposalRefused(round, error, state.round if state else None)
    return ProposalUnanswered(round)
