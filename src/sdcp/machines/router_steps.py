"""What the parts of a router session share: the step it is in, the effect it waits for, where it stands (5.2, 6.6).

At any time the session does one thing, its *step*, and waits for the answer to one effect. An answer to another effect
than that comes from a step that was interrupted, and changes nothing. `sdcp.machines.router` says how steps follow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from sdcp.errors import Overloaded, ProblemError
from sdcp.machines.effects import Keep, SetTimer
from sdcp.machines.locating import Locating
from sdcp.machines.recorded import Recorded
from sdcp.messages.contract import Action, Contract, Sampling
from sdcp.messages.manifest import ManifestRecord
from sdcp.messages.round import Assignment
from sdcp.messages.session import SessionOpen, SessionState, State
from sdcp.rules.digest import digest_of, prefix_digest

TIMER = "retry"
REMINDER = "reminder"

Effects = list[Any]


@dataclass(frozen=True, slots=True)
class Patience:
    """How a router goes about a session. Times in ms; `inline_prompt` in tokens; `failovers` without any progress."""

    m_init: int = 4
    inline_prompt: int = 8192
    retry_ms: int = 200
    attempts: int = 3
    verifier_wait_ms: int = 10_000
    recovery_wait_ms: int = 120_000
    drafter_wait_ms: int = 600_000
    reminder_ms: int = 5_000
    failovers: int = 8


@dataclass(frozen=True, slots=True)
class Point:
    """Where the session stood when its verifier last said so; `ref` is the object of its `committed` tokens (D20)."""

    round: int
    committed: int
    digest: bytes
    ref: str | None = None


class Step(Enum):
    """What the session waits for."""

    NEW = auto()
    STORING_PROMPT = auto()
    CHOOSING_VERIFIER = auto()
    OPENING = auto()
    FENCING = auto()
    STORING_RESUME = auto()
    UPDATING = auto()  # a policy is at the verifier
    REFRESHING = auto()  # asking for the current round, because a policy came too late
    CHOOSING_DRAFTER = auto()
    PUTTING = auto()
    READING = auto()  # the log, for tokens that the new drafter needs
    STORING_COMMITTED = auto()
    ASSIGNING = auto()
    TELLING = auto()  # the drafter about a policy (D21)
    PROBING = auto()  # asking whether the verifier still has the session (D33)
    REMINDING = auto()  # the verifier of the drafter that it has (D37)
    RUNNING = auto()
    ENDED = auto()


HAS_NO_VERIFIER = frozenset(
    (Step.NEW, Step.STORING_PROMPT, Step.CHOOSING_VERIFIER, Step.FENCING, Step.STORING_RESUME, Step.ENDED)
)
HAS_DRAFTER = frozenset(
    (
        Step.ASSIGNING,
        Step.TELLING,
        Step.UPDATING,
        Step.REFRESHING,
        Step.PROBING,
        Step.REMINDING,
        Step.RUNNING,
    )
)


class Stepping(ABC):
    """The state of a router session. `verifier` and `drafter` are the base URIs in use or being tried.

    `ended` is 4 or 5 at the end; `failure` is what the front end is told when no verifier ever had the session.
    `keeps`: whether what a router has to know again, should it lose its memory, is kept in a manifest (D45).
    """

    def __init__(
        self,
        session: bytes,
        contract: Contract,
        prompt: Sequence[int],
        commit_log: str,
        patience: Patience | None = None,
    ) -> None:
        """`commit_log` is a fresh name under which there is no log yet."""
        self.session = session
        self.contract = contract
        self.epoch = 1
        self.verifier: str | None = None
        self.drafter: str | None = None
        self.ended: Action | None = None
        self.failure: ProblemError | None = None
        self.keeps = False
        start_digest = prefix_digest(digest_of(contract), prompt)
        self._prompt_tokens = tuple(prompt)
        self._prompt: tuple[int, ...] | str = self._prompt_tokens
        self._log = commit_log
        self._patience = patience or Patience()
        self._recorded = Recorded(contract, start_digest)
        self._point = Point(0, 0, start_digest)
        self._locating = Locating()
        self._step = Step.NEW
        self._awaited: Any = None
        self._pausing = False
        self._attempts = 0
        self._waited_ms = 0  # since the session last got on
        self._refusing: set[str] = set()  # instances that would not take the session just now
        self._refusal: ProblemError | None = None
        self._refusals = 0  # in a row, by instances that could not take the session
        self._may_commit = False  # an open has gone out, and no fence after it
        self._wanted: frozenset[str] | None = None  # a drafter is needed, preferably none of these
        self._proposers: list[tuple[int, str]] = []  # the last two, and after which round their turn came
        self._catching_up = False  # with the log, before a drafter is chosen
        self._open: SessionOpen | None = None
        self._put: Assignment | None = None
        self._put_kept: Assignment | None = None
        self._committed = 0  # tokens at the end, as far as a verifier has said

    @property
    def refusal(self) -> ProblemError | None:
        """Why the session did not get on, the last time that it did not."""
        return self._refusal

    def awaits(self, effect: object) -> bool:
        """Tell whether the session still waits for the answer to this effect."""
        return self._awaited is effect

    def repeats(self, message: Assignment) -> bool:
        """Tell whether this PUT drafter is one that a drafter has taken an assignment after."""
        return message is self._put_kept

    def _keep(self, record: ManifestRecord) -> Effects:
        return [Keep(record)] if self.keeps else []

    def _awaits(self, answered: object) -> bool:
        return self._awaited is not None and (answered is None or answered is self._awaited)

    def _ask(self, step: Step, effect: object) -> Effects:
        """Begin a step: do this, and wait for its answer."""
        self._step, self._awaited, self._pausing, self._attempts = step, effect, False, 0
        return [effect]

    def _rest(self, step: Step) -> None:
        """Begin a step that waits for no answer."""
        self._step, self._awaited, self._pausing = step, None, False

    def _pause(self) -> Effects:
        """Do what is awaited once more, in a moment."""
        if self._waited_ms >= self._patience.drafter_wait_ms:
            return self._give_up()
        self._pausing = True
        self._waited_ms += self._patience.retry_ms
        return [SetTimer(TIMER, self._patience.retry_ms)]

    def _store_anew(self) -> bool:
        """Whether to store what an instance needs once more: it was refused, and perhaps the object is gone.

        At the first refusal in a row, the second, the fourth and so on: most refusals are for other reasons.
        """
        self._refusals += 1
        return self._refusals & (self._refusals - 1) == 0

    @property
    def _prompt_is_loose(self) -> bool:
        """Whether the prompt is too long to travel in messages, and not stored."""
        return isinstance(self._prompt, tuple) and len(self._prompt) > self._patience.inline_prompt

    @property
    def kv(self) -> str | None:
        """The target KV object that the commit log names, as far as it was read (D44)."""
        return self._recorded.kv

    @property
    def _verifier_uri(self) -> str:
        assert self.verifier is not None  # no step that needs a verifier begins without one
        return self.verifier

    @abstractmethod
    def _next(self) -> Effects:
        """The step is over: turn to what has come up meanwhile, or rest."""

    @abstractmethod
    def _resumed(self) -> None:
        """The session goes on from the log: what later steps know is of an earlier epoch."""

    @property
    @abstractmethod
    def _current_sampling(self) -> Sampling | None:
        """The profile that assignments carry, once it was updated (6.6)."""

    @abstractmethod
    def _send_assignment(self, step: Step) -> Effects:
        """Tell the drafter where the session stands, and with which profile."""

    @abstractmethod
    def _fence(self) -> Effects:
        """Take the session from its verifier, and open it elsewhere or end it."""

    @abstractmethod
    def _unanswered(self) -> Effects:
        """The verifier did not answer: repeat, in the end fence."""

    @abstractmethod
    def _give_up(self) -> Effects:
        """End the session for good."""

    @abstractmethod
    def _end(self, action: Action, committed: int = 0) -> Effects:
        """The session has ended, with at least so many tokens."""


def ended_by(state: SessionState) -> Action | None:
    """What a session-state says about the end; nothing when it comes without `state` (D18)."""
    if state.state == State.FINISHED:
        return Action.FINISH
    return Action.FAIL if state.state == State.FAILED else None


def unclear(error: ProblemError) -> bool:
    """A 5xx other than 503 may come from a proxy: whether the request was carried out is unknown."""
    return error.status >= 500 and not isinstance(error, Overloaded)
