"""A verifier session: the sole commit authority over one output (1.3, 6.1, 6.3, 6.5, 6.6, 6.7, 6.9).

    state          comes from                                           a new proposal gets
    opening        OpenReceived; a refused open leaves nothing behind   503
    drafting    0  a good open, PUT drafter                             the nine steps of 6.3
    waiting     2  action switch; the end of a self-decoding period     403 sdcp-not-assigned (D13)
    self-dec.   3  action self_decode                                   403 sdcp-not-assigned (D13)
    finished    4  a stop token, max_new                                410 sdcp-session-closed
    failed      5  action fail, a broken engine                         410 sdcp-session-closed
    fenced         a fence in the log, a higher epoch at this verifier  409 sdcp-stale-epoch (D30)

    opening ──▶ drafting ──switch──────▶ waiting ──PUT drafter──▶ drafting
                   └───────self_decode─▶ self-decoding ──load, self_max──▶ waiting
                                               └───────PUT drafter───────▶ drafting
    drafting, self-decoding ──▶ finished, failed          any ──fence──▶ fenced

A round or token on its way always ends first; what came meanwhile takes effect then (D27, D28, D29).

This file opens a session and hands all else to `verifier_serving`. The rest of the machine: checks of an open
(`verifier_open`) and of a proposal (`verifier_checks`), a round on its way (`verifier_round`), its arithmetic
(`control`), the append and its troubles (`commit_log`), long polls (`output`), what is committed
(`verifier_committed`), KV for another verifier (`verifier_kv`). Two epochs of one session are two machines; whoever
holds them sends `Superseded` to the older.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from sdcp.errors import Conflict, Overloaded, ProblemError, StaleEpoch
from sdcp.machines import verifier_open
from sdcp.machines.control import Busy
from sdcp.machines.effects import CloseEngine, EndSession, Refuse, Reply
from sdcp.machines.inputs import (
    DrafterAssigned,
    OpenReceived,
    OutputRequested,
    PolicyReceived,
    ProposalReceived,
    RequestCancelled,
    Superseded,
)
from sdcp.machines.verifier_open import Opened, TargetFacts, is_answer, is_repeat, open_session
from sdcp.machines.verifier_serving import ENDED, Phase, Serving
from sdcp.messages.session import SessionOpen, SessionState

Effect = Any
Input = Any
Opening = Generator[verifier_open.Effect, verifier_open.Answer, Opened]


class VerifierSession:
    """One session under one epoch. It begins with the first OpenReceived, and ends with EndSession if that is refused.

    `busy` says when load makes long proposals costly (6.5.1); `enforces_fences` whether the log's store refuses
    appends below a fence by itself (6.8); `kv_interval` after how many committed tokens KV is published, 0 never (D44).
    """

    def __init__(
        self, target: TargetFacts, busy: Busy | None = None, *, enforces_fences: bool = True, kv_interval: int = 0
    ) -> None:
        self._target = target
        self._busy = busy or Busy()
        self._enforces_fences = enforces_fences
        self._kv_interval = kv_interval
        self._first: SessionOpen | None = None
        self._opening: Opening | None = None
        self._wanted: verifier_open.Effect | None = None  # what the opening waits for
        self._openers: list[int] = []
        self._prompt_digest: bytes | None = None
        self._serving: Serving | None = None

    @property
    def epoch(self) -> int:
        """The session's epoch; 0 before the first open."""
        return self._first.epoch if self._first else 0

    @property
    def phase(self) -> Phase | None:
        """The state of the table; None while opening."""
        return self._serving.phase if self._serving else None

    @property
    def state(self) -> SessionState | None:
        """The session-state that peers are told; None while opening and when fenced."""
        return self._serving.state if self._serving and self.phase is not Phase.FENCED else None

    @property
    def ended(self) -> bool:
        """Whether no round will follow: finished, failed or fenced."""
        return self.phase in ENDED

    @property
    def working(self) -> bool:
        """Whether an open or a round is on its way: a drain waits for it (D27)."""
        return self._opening is not None or (self._serving is not None and self._serving.working)

    def handle(self, given: Input) -> list[Effect]:
        """Take one input; return what has to happen, in order. An answer to what nobody asked changes nothing."""
        match given:
            case OpenReceived():
                return self._on_open(given)
            case _ if self._serving is not None:
                return self._serving.handle(given)
            case DrafterAssigned() | ProposalReceived() | PolicyReceived() | OutputRequested():
                return [Refuse(given.request, Overloaded("The session is being opened."))]
            case RequestCancelled():
                self._openers = [request for request in self._openers if request != given.request]
            case Superseded() if self._opening is not None:
                return self._refuse_open(StaleEpoch(f"A higher epoch than {self.epoch} of the session has opened."))
            case _ if self._opening is not None and is_answer(given, self._wanted):
                return self._advance(self._opening, given)
        return []

    def _on_open(self, given: OpenReceived) -> list[Effect]:
        """Open, or answer a repeat (D19). An open that is under way answers its repeats when it is done."""
        if self._first is None:
            self._first, self._openers = given.message, [given.request]
            self._opening = open_session(given.message, self._target)
            return self._advance(self._opening, None)
        refusal = self._refusal(given.message, self._first)
        if refusal is not None:
            return [Refuse(given.request, refusal)]
        if self._serving is not None:
            return [Reply(given.request, self._serving.state)]
        self._openers.append(given.request)
        return []

    def _refusal(self, message: SessionOpen, first: SessionOpen) -> ProblemError | None:
        if message.epoch < first.epoch or self.phase is Phase.FENCED:
            return StaleEpoch(f"The session was opened with epoch {first.epoch}; a lower one is over.")
        if message.epoch > first.epoch or not is_repeat(message, first, self._prompt_digest):
            return Conflict(f"The session was opened under epoch {first.epoch} with other content.")
        return None

    def _advance(self, opening: Opening, answer: verifier_open.Answer | None) -> list[Effect]:
        """Let the opening take its next step."""
        try:
            self._wanted = next(opening) if answer is None else opening.send(answer)
        except StopIteration as done:
            return self._open_as(done.value)
        except ProblemError as error:
            return self._refuse_open(error)
        return [self._wanted]

    def _open_as(self, opened: Opened) -> list[Effect]:
        self._opening = self._wanted = None
        self._prompt_digest = opened.prompt_digest
        if not isinstance(opened.message.prompt, str):
            self._first = replace(opened.message, prompt=())  # d[0] stands for its tokens from now on
        self._serving = Serving(
            opened,
            self._busy,
            self._target.vocabulary,
            enforces_fences=self._enforces_fences,
            kv_interval=self._kv_interval,
        )
        openers, self._openers = self._openers, []
        state = self._serving.state
        return [*(Reply(request, state) for request in openers), *self._serving.start()]

    def _refuse_open(self, error: ProblemError) -> list[Effect]:
        """Nothing stays behind: the next open is a first one."""
        openers, self._openers = self._openers, []
        self._first = self._opening = self._wanted = None
        return [*(Refuse(request, error) for request in openers), CloseEngine(), EndSession()]
