"""What the core asks of models and of the multi-level cache.

An engine is a plain, synchronous object used by one worker thread at a time; it does no I/O after loading. A cache is
asynchronous. Both raise `sdcp.errors.ProblemError` subclasses for what a peer may be told, and nothing else on purpose.

Words: V is the width of the target's logits (D5). M is the number of proposed tokens. `prefix[:length]` is the
committed prefix, prompt then output; it only ever grows, so an engine keeps the KV of what it has seen and computes
the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from sdcp.errors import ConfigurationError
from sdcp.messages.contract import Sampling
from sdcp.wire.kv_object import KvBlock


@dataclass(frozen=True, slots=True)
class PrefillJob:
    """Compute the KV of `prefix[:length]` for `session` (all of it but the last token may suffice).

    `empty_prompt`: P = 0, and the prefix, if any, is output: the engine conditions on BOS (D26).
    """

    session: bytes
    prefix: Sequence[int]
    length: int
    empty_prompt: bool = False


@dataclass(frozen=True, slots=True)
class VerifyJob:
    """Score `tokens` after `prefix[:length]` and apply `rule` (6.3 steps 6, 7).

    rows: float32 [M, V], or None under rule 1. luck: as in `effects.Verify`. room: max_new - n, at least 1 (D14).
    `tokens` may be empty: then the outcome is the additional token alone (self-decoding), luck () or one value.
    """

    session: bytes
    prefix: Sequence[int]
    length: int
    tokens: tuple[int, ...]
    rule: int
    profile: Sampling
    luck: tuple[float, ...]
    rows: npt.NDArray[np.float32] | None
    room: int


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """a accepted tokens, and the additional token (None when it lies beyond `room`)."""

    accepted: int
    additional: int | None


@dataclass(frozen=True, slots=True)
class DraftJob:
    """Sample up to `count` tokens after `prefix[:length]` (6.2). Rule 1: the most probable tokens; rows not needed."""

    session: bytes
    prefix: Sequence[int]
    length: int
    count: int
    rule: int
    profile: Sampling


@dataclass(frozen=True, slots=True)
class DraftResult:
    """tokens: at most `count` (none only if nothing can be). rows: float32 [len(tokens), V], or None (rule 1)."""

    tokens: tuple[int, ...]
    rows: npt.NDArray[np.float32] | None


class Engine(Protocol):
    """What target and drafter engines share."""

    @property
    def vocabulary(self) -> int:
        """V: logits have this many entries."""
        ...

    @property
    def context(self) -> int | None:
        """The greatest number of tokens of prompt and output together; None: unlimited."""
        ...

    @property
    def model(self) -> bytes:
        """SHA-256 of the weights (docs/reference-model.md)."""
        ...

    @property
    def tokenizer(self) -> bytes:
        """SHA-256 of the tokenizer's definition."""
        ...

    def close(self, session: bytes) -> None:
        """Give the KV of a session back; unknown sessions are fine."""
        ...


class Target(Engine, Protocol):
    """The target model of a verifier."""

    @property
    def takes_empty_prompt(self) -> bool:
        """Whether P = 0 can be served (D26)."""
        ...

    @property
    def capacity(self) -> int:
        """How many sessions can hold KV at once."""
        ...

    def prefill(self, jobs: Sequence[PrefillJob], budget: int) -> list[bool]:
        """Compute at most `budget` tokens in all; tell for each job whether it is complete. Called until it is."""
        ...

    def verify(self, jobs: Sequence[VerifyJob]) -> list[VerifyResult]:
        """Score all jobs in one ragged batch, apply their rules, keep the KV of the accepted prefix only."""
        ...

    def next_logits(self, session: bytes, prefix: Sequence[int], length: int) -> npt.NDArray[np.float32]:
        """Return the logits [V] after `prefix[:length]`, by a pass of one token: for checks, not for rounds (D32)."""
        ...

    @property
    def kv_layout(self) -> str | None:
        """The layout of KV that this engine gives and takes (`sdcp.wire.kv_object`); None: it shares none (D44)."""
        ...

    def held_kv(self, session: bytes, prefix: Sequence[int], length: int, *, empty_prompt: bool = False) -> int:
        """Tell of how many tokens of `prefix[:length]` a session need not compute the KV: its own, or that of others.

        Overloaded when no session more can hold KV.
        """
        ...

    def export_kv(self, session: bytes, prefix: Sequence[int], length: int) -> KvBlock | None:
        """Copy the KV of `prefix[:length]` out; None if the session holds less, as it does of the latest token."""
        ...

    def import_kv(
        self, session: bytes, prefix: Sequence[int], length: int, block: KvBlock, *, empty_prompt: bool = False
    ) -> int:
        """Take up the KV of `prefix[:length]` for a session that holds less; return how many tokens that spares.

        The block must have been checked: what its numbers say is believed. empty_prompt: as in PrefillJob. ValueError
        if layout, length or shapes do not fit; Overloaded when no session more can hold KV.
        """
        ...


class Drafter(Engine, Protocol):
    """A draft model. Its own randomness is independent of the contract's seed (6.4, D31)."""

    def draft(self, jobs: Sequence[DraftJob]) -> list[DraftResult]:
        """Draft for all jobs, in one batch per position where the engine can; rows exactly those sampled from."""
        ...


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Octets of a log from `start` to its end, and its entity tag; `etag` None: there is no log yet."""

    start: int
    data: bytes
    etag: str | None


Kind: TypeAlias = Literal["objects", "logs", "leases"]
"""What a cache keeps."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that a cache keeps, as a listing shows it; what its backend does not know is None or empty.

    size: octets; of a lease 0. version: the number in the entity tag, where it is one. owner: who created the object or
    took the lease. age_s: since it was created, or a log was appended to. leased: whether a lease holds the object.
    expires_s: until the lease ends. objects: the names that the lease holds. level: where the octets are (docs/mlc.md).
    """

    name: str
    size: int
    version: int | None = None
    owner: str = ""
    age_s: float | None = None
    leased: bool = False
    expires_s: float | None = None
    objects: tuple[str, ...] = ()
    level: str = ""


class LogMovedError(Exception):
    """The log's entity tag is no longer the one given (412)."""


class LogFencedError(Exception):
    """A record below the highest fence, or a fence not above every epoch (409, mlc)."""


class StoreUnavailableError(Exception):
    """No answer, 5xx or deadline: whether a write was done is unknown; a read may be tried again."""


class SilentCacheError(ConfigurationError):
    """What a URI names does not answer now. What is wrong with the URI or the server, if anything, nobody knows yet."""


class NoListingError(StoreUnavailableError):
    """This cache never says what it keeps."""


class LogDamagedError(StoreUnavailableError):
    """Octets of this log that were acknowledged cannot be read: it takes no append, and is never shortened (D47).

    intact: octets that precede the damage. data: of those, the ones that a read asked for.
    """

    def __init__(self, detail: str, intact: int, data: bytes = b"") -> None:
        super().__init__(detail)
        self.intact = intact
        self.data = data


class StoreFullError(Exception):
    """507: nothing more fits; the writer carries on without the object."""


class ObjectMissingError(Exception):
    """404: absent or evicted."""


class Cache(Protocol):
    """The multi-level cache as a role sees it (docs/mlc.md), all named by URI under configured prefixes (D11)."""

    def allows(self, ref: str) -> bool:
        """Tell whether `ref` names an object under a configured prefix (D11)."""
        ...

    def allows_log(self, ref: str) -> bool:
        """Tell whether `ref` names a log under a configured prefix (D11)."""
        ...

    async def fetch(self, ref: str, *, at_most: int) -> bytes | memoryview:
        """Return an object's octets, which nobody can change; a read-only view where they lie in shared memory (D40).

        ObjectMissingError, StoreUnavailableError; ValueError if larger or not allowed.
        """
        ...

    async def create(self, data: bytes | memoryview, *, name: str | None = None) -> str:
        """Create an immutable object under a fresh name of 128 random bits; return its URI. StoreFullError.

        A `name` of the caller's must hold as many bits that nobody guesses. The same octets there already: no matter.
        Conflict when there are others.
        """
        ...

    async def lease(self, lease: str, refs: Sequence[str], ttl_ms: int) -> None:
        """Take or renew the lease `lease` on objects, all or nothing. ObjectMissingError."""
        ...

    async def release(self, lease: str) -> None:
        """Release a lease; idempotent."""
        ...

    async def delete(self, ref: str) -> None:
        """Delete an object of ours; idempotent, silent when leased by another."""
        ...

    def ref_of(self, kind: Kind, name: str) -> str:
        """Return the URI of what has this name in the cache where new objects, or new logs, go; nothing is asked."""
        ...

    def enforces_fences(self, ref: str) -> bool:
        """Tell whether the log's store refuses stale epochs itself; if not, who appends reads back (6.8)."""
        ...

    async def listing(self, kind: Kind, prefix: str = "", after: str = "", limit: int = 1000) -> list[Entry]:
        """Return what is kept where new objects, or new logs, go: at most `limit` entries in the order of their names.

        Of names that begin with `prefix` and come after `after`. StoreUnavailableError, of which NoListingError.
        """
        ...

    async def sweep(self) -> None:
        """Let go what time has ended, where the store does not do that by itself. Cheap enough to be called often."""
        ...

    async def close(self) -> None:
        """Give back what was opened with this cache; nothing is asked of it after."""
        ...

    async def append(self, ref: str, data: bytes, etag: str | None) -> str:
        """Append records durably if the log's tag is `etag`; return the new tag.

        LogMovedError, LogFencedError, StoreUnavailableError (unknown whether done), StoreFullError.
        """
        ...

    async def read_log(self, ref: str, start: int = 0, stop: int | None = None) -> LogSlice:
        """Return the log's octets from `start` (to `stop`, when given)."""
        ...
