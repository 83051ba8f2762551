"""A round on its way, from a proposal that passed its checks to a record that is durable (6.3 steps 5 to 9, D27).

    begin ──▶ rows ──▶ random values ──▶ scoring ──▶ recording ──▶ Recorded
               └─▶ Refused                 └─▶ Broken    └─▶ Lost (fenced)

One round at a time; it only moves forward. Everything that decides its outcome, profile, tokens, rows and all random
values, is fixed before scoring begins, and from there on nothing but a broken engine or a fence ends it (D27). A
self-decoding round is one without a proposal: no rows, no verdict (D29).
Not here: who may propose (`verifier_checks`), what follows from the outcome (`verifier_serving`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias

from sdcp.errors import ProblemError
from sdcp.machines import commit_log
from sdcp.machines.commit_log import CommitLog
from sdcp.machines.control import Busy, close_round, close_self_decoded
from sdcp.machines.effects import DrawRandom, FetchRows, SelfDecode, Verify
from sdcp.machines.inputs import (
    EngineFailed,
    LogAppended,
    LogFenced,
    LogMoved,
    LogRead,
    LogUnanswered,
    ProposalReceived,
    RandomDrawn,
    RowsObtained,
    RowsRefused,
    SelfDecoded,
    TimerFired,
    Verified,
)
from sdcp.machines.verifier_committed import Committed
from sdcp.messages.contract import Sampling
from sdcp.messages.record import CommitRecord
from sdcp.messages.round import Proposal
from sdcp.rules.acceptance import RULES
from sdcp.rules.draws import seeded_luck


class Stage(Enum):
    """How far a round has come."""

    ROWS = auto()
    RANDOM = auto()
    SCORING = auto()
    RECORDING = auto()


@dataclass(slots=True)
class Round:
    """The round under verification. `waiting`: those who will be given its verdict, the proposer first (D12)."""

    number: int
    proposal: Proposal | None
    profile: Sampling
    waiting: list[ProposalReceived] = field(default_factory=list)
    stage: Stage = Stage.ROWS

    @property
    def tokens(self) -> tuple[int, ...]:
        """The proposed tokens x[1..M]; none when self-decoding."""
        return self.proposal.tokens if self.proposal else ()

    def forget(self, request: int) -> None:
        """Drop one who went away; the round goes on without (D27)."""
        self.waiting = [each for each in self.waiting if each.request != request]


@dataclass(frozen=True, slots=True)
class Recorded:
    """The round is committed: its record is durable and valid, and starts at octet `start`. `load`: the last known."""

    round: Round
    record: CommitRecord
    start: int
    load: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Its rows were refused: nothing was drawn, nothing is committed, the round never was (6.3 step 5)."""

    round: Round
    error: ProblemError


@dataclass(frozen=True, slots=True)
class Broken:
    """The engine broke; nothing of the round is released."""

    round: Round


@dataclass(frozen=True, slots=True)
class Lost:
    """The log is fenced; nothing of the round is released (6.3 step 8)."""

    round: Round


Effect: TypeAlias = FetchRows | DrawRandom | Verify | SelfDecode | commit_log.Effect
Outcome: TypeAlias = Recorded | Refused | Broken | Lost
Step: TypeAlias = tuple[list[Effect], Outcome | None]
LogAnswer: TypeAlias = LogAppended | LogMoved | LogFenced | LogUnanswered | LogRead | TimerFired
Answer: TypeAlias = RowsObtained | RowsRefused | RandomDrawn | Verified | SelfDecoded | EngineFailed | LogAnswer

NOTHING: Step = ([], None)


class Rounds:
    """Takes one round after the other through its stages; `current` is the one on its way."""

    def __init__(self, committed: Committed, log: CommitLog, busy: Busy) -> None:
        self.current: Round | None = None
        self._committed = committed
        self._log = log
        self._busy = busy
        self._draws = RULES[committed.contract.rule].needs_rows  # the rule that compares with q is the one that draws
        self._record: CommitRecord | None = None
        self._load = 0

    def begin(self, round: Round) -> Step:
        """Start a round; none other may be on its way."""
        self.current = round
        if self._draws and round.proposal is not None and round.proposal.q_rows is not None:
            return [FetchRows(round.number, round.proposal.q_rows, round.tokens)], None
        return self._find_luck(round)

    def abandon(self) -> Round | None:
        """Forget the round on its way: the session is fenced. Late answers change nothing."""
        round, self.current = self.current, None
        return round

    def handle(self, answer: Answer) -> Step:
        """Take the answer to an effect; one that no round waits for changes nothing."""
        round = self.current
        if round is None:
            return NOTHING
        match answer, round.stage:
            case RowsObtained(number), Stage.ROWS if number == round.number:
                return self._find_luck(round)
            case RowsRefused(number, error), Stage.ROWS if number == round.number:
                return self._end(Refused(round, error))
            case RandomDrawn(number, values), Stage.RANDOM if number == round.number:
                return self._score(round, values)
            case Verified(number), Stage.SCORING if number == round.number and round.proposal is not None:
                return self._verified(round, answer)
            case SelfDecoded(number), Stage.SCORING if number == round.number and round.proposal is None:
                return self._self_decoded(round, answer)
            case EngineFailed(number), Stage.SCORING if number == round.number:
                return self._end(Broken(round))
            case (
                (LogAppended() | LogMoved() | LogFenced() | LogUnanswered() | LogRead() | TimerFired()),
                Stage.RECORDING,
            ):
                return self._follow(round, self._log.handle(answer))
        return NOTHING

    def _find_luck(self, round: Round) -> Step:
        """Fix every random value of the round before any outcome is computed (6.4, D27)."""
        if not self._draws:
            return self._score(round, ())
        if round.profile.seed is not None:
            luck = seeded_luck(round.profile.seed, self._committed.session, round.number, len(round.tokens))
            return self._score(round, luck.values)
        round.stage = Stage.RANDOM
        return [DrawRandom(round.number, len(round.tokens) + 1)], None

    def _score(self, round: Round, luck: tuple[float, ...]) -> Step:
        round.stage = Stage.SCORING
        now, rule = self._committed, self._committed.contract.rule
        prefix, length = now.history, len(now.history)
        if round.proposal is None:
            return [SelfDecode(round.number, prefix, length, rule, round.profile, luck)], None
        return [Verify(round.number, prefix, length, round.tokens, rule, round.profile, luck, now.room)], None

    def _verified(self, round: Round, given: Verified) -> Step:
        return self._append(
            round,
            close_round(self._committed, round.tokens, given.accepted, given.additional, given.load, self._busy),
            given.load,
        )

    def _self_decoded(self, round: Round, given: SelfDecoded) -> Step:
        return self._append(round, close_self_decoded(self._committed, given.token, given.load), given.load)

    def _append(self, round: Round, record: CommitRecord, load: int) -> Step:
        round.stage = Stage.RECORDING
        self._record, self._load = record, load
        return self._follow(round, self._log.append(record))

    def _follow(self, round: Round, step: commit_log.Step) -> Step:
        effects, outcome = step
        match outcome:
            case commit_log.Recorded(start, load) if self._record is not None:
                return self._end(Recorded(round, self._record, start, self._load if load is None else load))
            case commit_log.Fenced():
                return self._end(Lost(round))
        return [*effects], None

    def _end(self, outcome: Outcome) -> Step:
        self.current = self._record = None
        return [], outcome
