"""What must be so of a commit log and of all who have to do with it, at every moment (6.3 step 8, 6.8, 6.9, D19, D20).

`read_plainly` is an account of a log of its own, from its octets alone. Everything else is held against it: what all
readers say, what verifiers have released or dropped, what a router resumes from. What does not hold raises `Broken`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from sdcp.machines.reader import LogReader
from sdcp.machines.recorded import Recorded
from sdcp.testing.checks import Broken
from sdcp.testing.contenders import CONTRACT, START, Router, Verifier
from sdcp.wire import cbor

FIRST_EPOCH: Final = 1


@dataclass(frozen=True, slots=True)
class Plain:
    """A log: its valid records by offset (`records`), and what they say together. `digest` is d[n]."""

    octets: bytes = b""
    fence: int = 0
    highest: int = 0
    void: int = 0
    records: tuple[tuple[int, bytes], ...] = ()
    tokens: tuple[int, ...] = ()
    digest: bytes = START
    epochs: frozenset[int] = frozenset()
    """The epochs of the valid records."""


def read_plainly(octets: bytes, *, enforced: bool) -> Plain:
    """Read a log. Raises Broken for one that must not be; with `enforced` no void record may be in it."""
    log, start = Plain(), 0
    for end, record in cbor.decode_sequence(octets):
        assert isinstance(record, dict)
        log = _with(log, start, octets[start:end], record)
        start = end
    _hold(not (enforced and log.void), "a record below the fence is in the log (6.8)")
    _readers_agree(log)
    return log


def _with(log: Plain, start: int, octets: bytes, record: dict[object, object]) -> Plain:
    """The log with one record more."""
    epoch = record["epoch"]
    assert isinstance(epoch, int)
    valid, fence, void = False, log.fence, log.void
    if "round" not in record:
        _hold(epoch > log.highest, f"a fence of epoch {epoch} in a log that has epoch {log.highest}")
        fence = epoch
    elif epoch < log.fence:
        void += 1
    else:
        valid = True
    tokens, digest = (_followed(log, record), _digest(record)) if valid else (log.tokens, log.digest)
    return Plain(
        log.octets + octets,
        fence,
        max(log.highest, epoch),
        void,
        (*log.records, (start, octets)) if valid else log.records,
        tokens,
        digest,
        log.epochs | {epoch} if valid else log.epochs,
    )


def _followed(log: Plain, record: dict[object, object]) -> tuple[int, ...]:
    """All tokens, when a valid record goes on from the log: its epoch, round, length and digest (4.2, 6.3 step 8)."""
    round, committed, tokens = record["round"], record["committed"], record["tokens"]
    assert isinstance(tokens, list)
    expected = max(log.fence, FIRST_EPOCH)
    _hold(record["epoch"] == expected, f"epoch {record['epoch']} commits where epoch {expected} alone may")
    _hold(round == len(log.records) + 1, f"round {round} follows round {len(log.records)}")
    _hold(committed == len(log.tokens) + len(tokens), f"round {round} ends at {committed}")
    digest = log.digest
    for token in tokens:
        digest = hashlib.sha256(digest + token.to_bytes(4, "big")).digest()
    _hold(record["digest"] == digest, f"the chain is cut at round {round}")
    return (*log.tokens, *tokens)


def _digest(record: dict[object, object]) -> bytes:
    digest = record["digest"]
    assert isinstance(digest, bytes)
    return digest


def _readers_agree(log: Plain) -> None:
    """Every reader of the product skips the same records: read at once or piece by piece, checking the chain or not."""
    whole, pieces, unchecked, router = LogReader(START), LogReader(START), LogReader(), Recorded(CONTRACT, START)
    whole.read(log.octets)
    unchecked.read(log.octets)
    start = 0
    for end, _ in cbor.decode_sequence(log.octets):
        pieces.read(log.octets[start:end])
        router.take(start, log.octets[start:end], "any")
        start = end
    last = log.records[-1][1] if log.records else None
    for reader in (whole, pieces, unchecked):
        found = reader.last.encode() if reader.last else None
        _hold((reader.size, reader.fence, found) == (start, log.fence, last), "a reader reads something else")
    known = (router.end, router.fence, router.highest, router.round, router.digest, tuple(router.tokens))
    plain = (start, log.fence, log.highest, len(log.records), log.digest, log.tokens)
    _hold(known == plain, "the router reads something else")


# ---- contenders ------------------------------------------------------------------------------------------------------


def check_verifier(log: Plain, verifier: Verifier, *, restarts: bool) -> None:
    """Hold what a verifier has done and said up to now against the log. `restarts`: whether verifiers may die."""
    epoch, records = verifier.epoch, {record for _, record in log.records}
    _hold(set(log.records).issuperset(verifier.released), f"epoch {epoch} released what readers skip or do not find")
    _hold(records.isdisjoint(verifier.dropped), f"epoch {epoch} dropped a record that counts")
    entitled = log.fence <= epoch and not (restarts and epoch in log.epochs)
    _hold(not (verifier.over and entitled), f"epoch {epoch} has stopped ({verifier.over}) with no fence above it")


def check_step(log: Plain, was: Verifier | Router, now: Verifier | Router) -> None:
    """Hold what one of them did just now against the log, which is as it read it."""
    if isinstance(now, Router):
        assert isinstance(was, Router)
        if now.fenced != was.fenced:
            _check_fence(log, now)
        return
    assert isinstance(was, Verifier)
    if was.machine is None and now.machine is not None and now.reader is not None:
        last = log.records[-1][1] if log.records else None
        found = now.reader.last.encode() if now.reader.last else None
        _hold((found, log.tokens) == (last, now.tokens), f"epoch {now.epoch} does not go on from the last valid record")
        _hold(log.fence in (0, now.epoch), f"epoch {now.epoch} opens under the fence {log.fence}")


def _check_fence(log: Plain, router: Router) -> None:
    """The router's fence stands as the highest, and it resumes from the last record that counts (6.9)."""
    _hold(router.fenced == log.fence, f"the fence {router.fenced} is in, and the log says {log.fence}")
    resume = router.opens.resume if router.opens else None
    found = (resume.round, resume.committed, resume.digest, router.tokens) if resume else None
    plain = (len(log.records), len(log.tokens), log.digest, log.tokens)
    _hold(found == plain, "the router resumes from another record than the last valid one")


def _hold(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)
