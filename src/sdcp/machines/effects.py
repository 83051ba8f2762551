"""What the machines want done: imperatives, carried out in the order given.

Durability is in the order (6.3 step 8): `AppendLog` goes out, and only handling `LogAppended` yields the verdict's
`Reply`. A shell that performs effects one after another cannot send a verdict early. No effect holds an array:
`Verify` names a round, and the worker that scores it holds logits and rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sdcp.errors import ProblemError
from sdcp.machines.history import History
from sdcp.messages.contract import Contract, Sampling
from sdcp.messages.fields import Message
from sdcp.messages.manifest import ManifestRecord
from sdcp.messages.output import Event
from sdcp.messages.round import Assignment, Proposal
from sdcp.messages.session import Policy, SessionOpen, SessionState

# ---- answers to peers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer a waiting request: 200 with the message, or 204 with None."""

    request: int
    message: Message | None


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer a waiting request with a problem; `state` travels inside it (D2)."""

    request: int
    error: ProblemError
    state: SessionState | None = None


# ---- objects and engine ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FetchTokens:
    """Fetch an object of one token array, under the limits of D11, D20."""

    ref: str
    at_most: int


@dataclass(frozen=True, slots=True)
class Prefill:
    """Make the engine hold the KV of `prefix`: what `kv` has of it, if that is all right, and the rest computed (D44).

    `empty_prompt`: P = 0, so the engine conditions on BOS, also where output is committed already (D26).
    """

    prefix: History
    kv: str | None
    empty_prompt: bool = False


@dataclass(frozen=True, slots=True)
class FetchRows:
    """Obtain and check the q rows of a round: exactly M rows, D25 (6.3 step 5)."""

    round: int
    ref: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DrawRandom:
    """Draw `count` values in [0, 1) from a cryptographically secure generator (6.4)."""

    round: int
    count: int


@dataclass(frozen=True, slots=True)
class Verify:
    """Score `tokens` after `prefix` and apply the rule (6.3 steps 6, 7; D27: everything is fixed here).

    `prefix` is the whole committed prefix (prompt, then output), append-only and shared, never copied: take its
    `length` now. `luck` is empty under rule 1; under rule 2 it holds the M acceptance values, then the additional
    token's values for a = 0..M (one value for all, when unseeded: then its length is M + 1).
    `room` is max_new - n: positions beyond it need not be evaluated (D14).
    """

    round: int
    prefix: Sequence[int]
    length: int
    tokens: tuple[int, ...]
    rule: int
    profile: Sampling
    luck: tuple[float, ...]
    room: int


@dataclass(frozen=True, slots=True)
class SelfDecode:
    """Let the target produce one token after `prefix[:length]` (6.5.2, D29). `luck` is () or one value."""

    round: int
    prefix: Sequence[int]
    length: int
    rule: int
    profile: Sampling
    luck: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PublishKv:
    """Put the target KV of `prefix[:length]`, as much of it as there is, into the MLC under a lease (6.3, D44).

    It is done beside the rounds, and none waits for it.
    """

    prefix: History
    length: int


@dataclass(frozen=True, slots=True)
class DropOlderKv:
    """The commit log names the KV object `ref` durably: lease and object of those published before it may go (D44)."""

    ref: str


@dataclass(frozen=True, slots=True)
class CloseEngine:
    """Give the session's KV back; no round will follow."""


# ---- commit log -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AppendLog:
    """Append encoded records at the end of the log, only if its entity tag is still `etag` (None: no log yet)."""

    ref: str
    data: bytes
    etag: str | None


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Read the log from octet `start` to its end."""

    ref: str
    start: int


@dataclass(frozen=True, slots=True)
class ReplayVerdict:
    """Answer `request` with the verdict in the commit record of `round` at octet `start` of the log (6.3 step 3)."""

    request: int
    ref: str
    round: int
    start: int


# ---- time and events ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Fire `name` after `delay_ms`; setting it again moves it."""

    name: str
    delay_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Forget the timer `name`."""

    name: str


@dataclass(frozen=True, slots=True)
class SendEvent:
    """POST events at a router until one answers 204; the shell repeats it (D17)."""

    message: Event


# ---- a drafter session ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Draft:
    """Sample at most `count` tokens after `prefix[:length]` under the profile, keeping the rows sampled from (D31).

    Fewer tokens mean the engine decided, before drawing, that more do not pay; none is allowed only for lookup.
    """

    round: int
    prefix: Sequence[int]
    length: int
    count: int
    rule: int
    profile: Sampling


@dataclass(frozen=True, slots=True)
class WriteRows:
    """Write the round's rows (first `count`) to the MLC and take a lease (6.2); replaces what was written before."""

    round: int
    count: int


@dataclass(frozen=True, slots=True)
class ReleaseRows:
    """Forget the round's rows, written or not, and release their lease: its verdict is here or never comes (6.3)."""

    round: int


@dataclass(frozen=True, slots=True)
class SendProposal:
    """POST proposals at the verifier. The shell fills in `status` just before it sends."""

    verifier: str
    message: Proposal


@dataclass(frozen=True, slots=True)
class FetchOutput:
    """GET output?from=start at the verifier without waiting, to resynchronize (D9a)."""

    verifier: str
    session: bytes
    start: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """Stop everything that is under way and would be answered: none of it is answered any more (D28).

    Timers stay. What was asked of a peer may have been done by it all the same.
    """


@dataclass(frozen=True, slots=True)
class EndSession:
    """The machine has nothing more to do: forget it and free what it holds."""


# ---- a router session -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChooseVerifier:
    """Choose a live verifier for the contract, none of `but`."""

    contract: Contract
    but: frozenset[str]


@dataclass(frozen=True, slots=True)
class ChooseDrafter:
    """Choose a live drafter whose model the contract permits, none of `but` while there are others."""

    contract: Contract
    but: frozenset[str]


@dataclass(frozen=True, slots=True)
class SendOpen:
    """POST sessions."""

    verifier: str
    message: SessionOpen


@dataclass(frozen=True, slots=True)
class SendDrafter:
    """PUT sessions/{id}/drafter."""

    verifier: str
    message: Assignment


@dataclass(frozen=True, slots=True)
class SendPolicy:
    """POST sessions/{id}/policy."""

    verifier: str
    message: Policy


@dataclass(frozen=True, slots=True)
class SendAssignment:
    """POST assignments at the drafter."""

    drafter: str
    message: Assignment


@dataclass(frozen=True, slots=True)
class StoreTokens:
    """Write an object of one token array and lease it until the session ends (D20)."""

    tokens: tuple[int, ...]


# ---- the manifest of a router session (D45) -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Keep:
    """Write a record into the session's manifest. It never leaves the machines: `KeptSession` turns it into appends."""

    record: ManifestRecord


@dataclass(frozen=True, slots=True)
class AppendManifest(AppendLog):
    """The same as AppendLog for the manifest."""


@dataclass(frozen=True, slots=True)
class ReadManifest(ReadLog):
    """The same as ReadLog for the manifest."""


@dataclass(frozen=True, slots=True)
class LetGo:
    """Another life of a router has the session: touch nothing of it any more, its objects neither."""
