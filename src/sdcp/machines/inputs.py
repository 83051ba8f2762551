"""What the machines are told: past participles, frozen and complete when made.

`request` is an opaque number by which the shell knows a waiting peer: the machine gives it back in `Reply` or `Refuse`.
`load` is the verifier's own load in percent at that moment (6.5). Times are durations in ms; no machine sees a clock.
Every input answers an effect or a peer; which one, its docstring says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sdcp.errors import ProblemError
from sdcp.messages.contract import Sampling
from sdcp.messages.output import Event
from sdcp.messages.round import Assignment, Proposal, Verdict
from sdcp.messages.session import Policy, SessionOpen, SessionState


class Identity(Protocol):
    """The authenticated client of a request, as far as a machine needs it (D9)."""

    def owns(self, base_uri: str) -> bool:
        """Tell whether the client's certificate stands for this base URI."""
        ...


# ---- requests of peers to a verifier session ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenReceived:
    """POST sessions (6.1, D19)."""

    request: int
    message: SessionOpen


@dataclass(frozen=True, slots=True)
class DrafterAssigned:
    """PUT sessions/{id}/drafter (6.1, D28)."""

    request: int
    message: Assignment


@dataclass(frozen=True, slots=True)
class ProposalReceived:
    """POST proposals (6.3)."""

    request: int
    message: Proposal
    client: Identity


@dataclass(frozen=True, slots=True)
class PolicyReceived:
    """POST sessions/{id}/policy (6.6, D21)."""

    request: int
    message: Policy


@dataclass(frozen=True, slots=True)
class OutputRequested:
    """GET sessions/{id}/output (6.7, D8, D9a). `wait_ms` is already cut to the server's limit.

    `client` is None for a front-end or router, whose role suffices; a drafter must be the one assigned.
    """

    request: int
    start: int
    wait_ms: int
    client: Identity | None = None


@dataclass(frozen=True, slots=True)
class RequestCancelled:
    """The peer went away. Ends its wait, never a round (D27)."""

    request: int


# ---- answers to effects ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TokensFetched:
    """Answers FetchTokens: the token array of an object (D20)."""

    ref: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokensUnavailable:
    """Answers FetchTokens: unreachable or evicted (Overloaded, 503), or not such an object (InvalidContent, 422)."""

    ref: str
    error: ProblemError


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Answers Prefill: the engine holds the KV of the prefix."""


@dataclass(frozen=True, slots=True)
class PrefillFailed:
    """Answers Prefill: the engine could not (no room: Overloaded; empty prompt without BOS: InvalidContent, D26)."""

    error: ProblemError


@dataclass(frozen=True, slots=True)
class RowsObtained:
    """Answers FetchRows: the rows are here and passed every check of D25; the worker keeps them under the round."""

    round: int


@dataclass(frozen=True, slots=True)
class RowsRefused:
    """Answers FetchRows: QUnavailable or BadProposal. Nothing has been drawn (6.3 step 5)."""

    round: int
    error: ProblemError


@dataclass(frozen=True, slots=True)
class RandomDrawn:
    """Answers DrawRandom: values in [0, 1) from the operating system's generator."""

    round: int
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Verified:
    """Answers Verify: a accepted tokens and the additional one (None when it lies beyond max_new, D14)."""

    round: int
    accepted: int
    additional: int | None
    load: int


@dataclass(frozen=True, slots=True)
class SelfDecoded:
    """Answers SelfDecode: the target's own next token (6.5.2, D29)."""

    round: int
    token: int
    load: int


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """Answers Verify or SelfDecode: the engine broke. The session fails; nothing of the round is released."""

    round: int
    detail: str


@dataclass(frozen=True, slots=True)
class KvPublished:
    """Answers PublishKv: `ref` is in the MLC and leased; None: it could not be put there, and nobody misses it."""

    length: int
    ref: str | None


@dataclass(frozen=True, slots=True)
class LogRead:
    """Answers ReadLog: the bytes of the log from `start` to its end; `etag` None when there is no log yet."""

    start: int
    data: bytes
    etag: str | None


@dataclass(frozen=True, slots=True)
class LogAppended:
    """Answers AppendLog: durable. `load` lets a self-decoding period look at the load before its next token."""

    etag: str
    load: int


@dataclass(frozen=True, slots=True)
class LogMoved:
    """Answers AppendLog: 412, somebody else appended since (6.8)."""


@dataclass(frozen=True, slots=True)
class LogFenced:
    """Answers AppendLog: 409, a fence of a higher epoch stands before the record (6.8)."""


@dataclass(frozen=True, slots=True)
class LogUnanswered:
    """Answers AppendLog or ReadLog: no answer, or 5xx: whether it was done is unknown.

    `damage` says that the log has lost octets, and which: it takes no append any more (D47).
    """

    damage: str | None = None


@dataclass(frozen=True, slots=True)
class Superseded:
    """A higher epoch of the session has opened at this verifier: this one stops as if fenced (6.9, D19, D30)."""


@dataclass(frozen=True, slots=True)
class EventDelivered:
    """Answers SendEvent: a router answered 204 (D17)."""

    message: Event


@dataclass(frozen=True, slots=True)
class TimerFired:
    """Answers SetTimer."""

    name: str


# ---- a drafter session ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AssignmentReceived:
    """POST assignments (6.1)."""

    request: int
    message: Assignment


@dataclass(frozen=True, slots=True)
class Drafted:
    """Answers Draft: tokens sampled (D31), what one token took, and whether rows stand ready under the round."""

    round: int
    tokens: tuple[int, ...]
    token_ms: float


@dataclass(frozen=True, slots=True)
class DraftFailed:
    """Answers Draft or WriteRows: the engine or the cache failed; the drafter gives the session up or tries again."""

    round: int
    detail: str


@dataclass(frozen=True, slots=True)
class RowsWritten:
    """Answers WriteRows: the object is in the MLC and leased (6.2)."""

    round: int
    ref: str
    write_ms: float


@dataclass(frozen=True, slots=True)
class VerdictReceived:
    """Answers SendProposal."""

    message: Verdict
    elapsed_ms: float


@dataclass(frozen=True, slots=True)
class ProposalRefused:
    """Answers SendProposal: a problem of Table 2 or D3; `last_round` is that of the session-state inside it (D2)."""

    round: int
    error: ProblemError
    last_round: int | None = None


@dataclass(frozen=True, slots=True)
class ProposalUnanswered:
    """Answers SendProposal: no answer (6.9 Lost messages)."""

    round: int


@dataclass(frozen=True, slots=True)
class OutputFetched:
    """Answers FetchOutput (D9a): committed tokens from `start`, and whether the session has ended."""

    start: int
    tokens: tuple[int, ...]
    epoch: int
    final: bool


@dataclass(frozen=True, slots=True)
class OutputUnavailable:
    """Answers FetchOutput: refused or no answer (`error` None)."""

    error: ProblemError | None


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The process is to end: what was proposed is finished, nothing else begins. A verifier session takes it too."""


# ---- a router session -----------------------------------------------------------------------------------------------

# An answer of this part names in `answers` the very effect that it answers, so that one that comes after the session
# has moved on is known for what it is; None: the effect now outstanding.


@dataclass(frozen=True, slots=True)
class RequestSubmitted:
    """POST requests at the router (D33), the first time or again: answered with the location, once there is one."""

    request: int


@dataclass(frozen=True, slots=True)
class LocationRequested:
    """GET requests/{id} (D33). `epoch`: the one that serves the front end no longer; None: any location will do."""

    request: int
    epoch: int | None
    wait_ms: int


@dataclass(frozen=True, slots=True)
class RequestWithdrawn:
    """DELETE requests/{id}: nobody wants the output any more (D34)."""

    request: int


@dataclass(frozen=True, slots=True)
class ProfileChanged:
    """POST requests/{id}/policy (6.6, D33). `from_round` None: the earliest round that the verifier accepts."""

    request: int
    sampling: Sampling
    from_round: int | None


@dataclass(frozen=True, slots=True)
class EventReceived:
    """POST events, from the session's own verifier (D17)."""

    request: int
    message: Event


@dataclass(frozen=True, slots=True)
class StateReceived:
    """Answers SendOpen, SendDrafter or SendPolicy: the verifier's session-state."""

    message: SessionState
    answers: object | None = None


@dataclass(frozen=True, slots=True)
class VerifierRefused:
    """Answers SendOpen, SendDrafter or SendPolicy: a problem from the verifier."""

    error: ProblemError
    answers: object | None = None


@dataclass(frozen=True, slots=True)
class VerifierUnanswered:
    """Answers SendOpen, SendDrafter or SendPolicy: no answer (D19: never open elsewhere without a fence)."""

    answers: object | None = None


@dataclass(frozen=True, slots=True)
class AssignmentTaken:
    """Answers SendAssignment: 204."""

    answers: object | None = None


@dataclass(frozen=True, slots=True)
class AssignmentRefused:
    """Answers SendAssignment: a problem, or no answer (`error` None); the router picks another drafter."""

    error: ProblemError | None
    answers: object | None = None


@dataclass(frozen=True, slots=True)
class VerifierLost:
    """The verifier's status expired, it is unreachable, or it answered 404 for the session (6.9, D19)."""


@dataclass(frozen=True, slots=True)
class DrafterLost:
    """The drafter's status expired, or it said that it dropped the session (6.9)."""


@dataclass(frozen=True, slots=True)
class VerifierChosen:
    """Answers ChooseVerifier: a live instance, or None when there is none now."""

    base_uri: str | None


@dataclass(frozen=True, slots=True)
class DrafterChosen:
    """Answers ChooseDrafter: a live instance with a permitted model, or None when there is none now."""

    base_uri: str | None


@dataclass(frozen=True, slots=True)
class TokensStored:
    """Answers StoreTokens: the object's URI (D20)."""

    ref: str
    answers: object | None = None


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """Answers StoreTokens: the cache refused or did not answer."""

    detail: str
    answers: object | None = None


# ---- the manifest of a router session (D45) -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ManifestAnswered:
    """Answers AppendManifest or ReadManifest: what a log answers, and to which effect."""

    answer: LogAppended | LogMoved | LogFenced | LogUnanswered | LogRead
    answers: object


@dataclass(frozen=True, slots=True)
class TakenUp:
    """The session's manifest was read by a router that did not know the session: it is to go on."""
