"""The instances that a router knows, and the choice among them (6.1, 6.9, D7): a pure table, told the time.

Words: an instance is *alive* until its status' ttl has passed since the status was received, on the receiver's
monotonic clock (D7); then it is *expired*, and never chosen. An instance is *lost* once, when somebody first looks
after its expiry. It is *complete* when its base URI, model and tokenizer are known, from the status itself or from
the router's configuration.

Choice is a local policy (6.1). Ours takes the lowest score, equal scores by instance name:

    score = load + 10 (queue + assigned) - accept_milli / 20

load in percent as reported; `assigned` counts the sessions given to the instance since its last status, so that a
burst between two reports is spread; acceptance, for drafters alone, is worth at most 50 points, 25 when not reported.

Not here: who may report a status (D10), and what becomes of the sessions of a lost instance (`sdcp.machines.router`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from sdcp.messages.contract import Contract
from sdcp.messages.status import DRAFTER, VERIFIER, Status

QUEUE_POINTS = 10
ACCEPTANCE_DIVISOR = 20
ACCEPT_UNKNOWN_MILLI = 500


@dataclass(frozen=True, slots=True)
class Known:
    """What configuration says of an instance whose status does not say it (D7)."""

    base: str | None = None
    model: bytes | None = None
    tokenizer: bytes | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """An instance whose status has expired: `role` as in a status, and its base URI."""

    role: int
    base: str


@dataclass(slots=True)
class Entry:
    """One instance: its last status, completed, and when it was received. Times in ms of the caller's clock."""

    status: Status
    base: str | None
    model: bytes | None
    tokenizer: bytes | None
    received_ms: int
    assigned: int = 0

    def alive(self, now_ms: int) -> bool:
        """Whether the status still counts (6.1: an expired instance is never chosen)."""
        return now_ms < self.received_ms + self.status.ttl_ms

    def score(self) -> float:
        """The lower, the sooner chosen; see the head of this module."""
        points = self.status.load + QUEUE_POINTS * (self.status.queue + self.assigned)
        if self.status.role == VERIFIER:
            return points
        accept_milli = ACCEPT_UNKNOWN_MILLI if self.status.accept_milli is None else self.status.accept_milli
        return points - accept_milli / ACCEPTANCE_DIVISOR


class Roster:
    """All instances by name. `allowed` is the local policy of 4.1: draft models to use when a contract names none."""

    def __init__(self, known: Mapping[str, Known] | None = None, allowed: Set[bytes] | None = None) -> None:
        self._known = dict(known or {})
        self._allowed = allowed
        self._entries: dict[str, Entry] = {}
        self._moved: list[Lost] = []

    def report(self, status: Status, now_ms: int) -> Entry:
        """Take a status in, received at `now_ms`. What it lacks comes from configuration (D7).

        An instance without a base URI can serve nobody and is not kept, and of several names of one base URI only the
        last: so a peer takes up as much room as its certificate has URIs, whatever names and times it reports.
        """
        known = self._known.get(status.instance, Known())
        entry = Entry(
            status,
            status.base or known.base,
            status.model or known.model,
            status.tokenizer or known.tokenizer,
            now_ms,
        )
        before = self._entries.get(status.instance)
        if before is not None and before.base is not None and before.base != entry.base:
            self._moved.append(Lost(before.status.role, before.base))
        if entry.base is None:
            self._entries.pop(status.instance, None)
            return entry
        self._forget_names(status, entry.base)
        self._entries[status.instance] = entry
        return entry

    def _forget_names(self, status: Status, base: str) -> None:
        at_base = [
            name for name, entry in self._entries.items() if (entry.status.role, entry.base) == (status.role, base)
        ]
        for name in at_base:
            del self._entries[name]

    def base_of(self, status: Status) -> str | None:
        """Return the base URI that a status is about, by itself or by configuration (D7)."""
        return status.base or self._known.get(status.instance, Known()).base

    def base_in_use(self, instance: str, now_ms: int) -> str | None:
        """Return the base URI under which an instance of that name is alive now."""
        entry = self._entries.get(instance)
        return entry.base if entry is not None and entry.alive(now_ms) else None

    def lost(self, now_ms: int) -> list[Lost]:
        """Return the instances that have expired, or moved to another base URI, since the last call; forget them."""
        gone = [(name, entry) for name, entry in self._entries.items() if not entry.alive(now_ms)]
        for name, _ in gone:
            del self._entries[name]
        lost = [*self._moved, *(Lost(entry.status.role, entry.base) for _, entry in gone if entry.base is not None)]
        self._moved.clear()
        serving = {(entry.status.role, entry.base) for entry in self._entries.values()}
        return [each for each in lost if (each.role, each.base) not in serving]

    def alive(self, now_ms: int) -> Iterator[Entry]:
        """Yield every instance whose status counts, complete or not."""
        return (entry for _, entry in sorted(self._entries.items()) if entry.alive(now_ms))

    def choose_verifier(self, target: bytes, tokenizer: bytes, but: Set[str], now_ms: int) -> str | None:
        """Return the base URI of the verifier to open a session at, none of `but`; None when there is none now."""
        return self._take(
            [
                entry
                for entry in self.alive(now_ms)
                if entry.status.role == VERIFIER
                and (entry.model, entry.tokenizer) == (target, tokenizer)
                and entry.base not in but
            ]
        )

    def choose_drafter(self, contract: Contract, but: Set[str], now_ms: int) -> str | None:
        """Return the base URI of a drafter with a permitted model and the contract's tokenizer; None: none now.

        One of `but` is taken only when there is no other: with a single drafter alive a switch leads back to it.
        """
        permitted = [entry for entry in self.alive(now_ms) if self._permitted(entry, contract)]
        return self._take([entry for entry in permitted if entry.base not in but] or permitted)

    def _permitted(self, entry: Entry, contract: Contract) -> bool:
        if entry.status.role != DRAFTER or entry.base is None or entry.tokenizer != contract.tokenizer:
            return False
        if contract.drafters is not None:
            return entry.model in contract.drafters
        return self._allowed is None or entry.model in self._allowed

    @staticmethod
    def _take(candidates: list[Entry]) -> str | None:
        """The lowest score wins, and is charged with one more session until its next status."""
        complete = [entry for entry in candidates if entry.base is not None]
        if not complete:
            return None
        best = min(complete, key=lambda entry: (entry.score(), entry.status.instance))
        best.assigned += 1
        return best.base
