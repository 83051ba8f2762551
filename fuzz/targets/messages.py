"""Every message, and the opening of a session with all its checks (5.2, D4, D6, D19).

The first octet of an input says what follows: the body of one kind of message (those of caches and the records of a
manifest are among them), or a CBOR sequence of a session-open, the octets of its commit log, its prompt object and its
committed tokens.

What must hold: a body is refused with MalformedBody, in the contract with BadContract, and with nothing else; what is
accepted is written as octets that are read as the same message; a contract that is accepted has no member that we did
not read, and the digest of what came is the digest of what we hold; a refusal can be told to the peer in few octets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from random import Random

from fuzz.attempts import attempt
from fuzz.cbor_mutator import Octets, mutate_sequence
from fuzz.seeds import VERIFIER, message_bodies_by_kind, opening_bodies
from sdcp.errors import (
    BadContract,
    Conflict,
    InvalidContent,
    MalformedBody,
    Overloaded,
    ProblemError,
    StaleEpoch,
)
from sdcp.machines.effects import FetchTokens, ReadLog
from sdcp.machines.inputs import LogRead, Prefilled, TokensFetched, TokensUnavailable
from sdcp.machines.verifier_open import Answer, Effect, Opened, check_contract, check_prompt, is_repeat, open_session
from sdcp.messages.contract import Contract, Sampling
from sdcp.messages.fields import TOKENS, Message
from sdcp.messages.host_memory import SegmentReply, SegmentRequest, Ticket
from sdcp.messages.lease import Lease
from sdcp.messages.listing import ListedEntry, Listing
from sdcp.messages.manifest import (
    AssignedRecord,
    EndRecord,
    OpenedRecord,
    PolicyRecord,
    PromptRecord,
    RequestRecord,
    TakenRecord,
    WithdrawnRecord,
)
from sdcp.messages.output import Event, Output
from sdcp.messages.record import CommitRecord, FenceRecord
from sdcp.messages.request import GenerationRequest, Location, ProfileChange
from sdcp.messages.round import Assignment, Proposal, Verdict
from sdcp.messages.session import Policy, Resume, SessionOpen, SessionState
from sdcp.messages.status import Status
from sdcp.rules.digest import CONTRACT_DOMAIN, contract_digest
from sdcp.wire import cbor
from sdcp.wire.problem import MAX_DETAIL, MEDIA_TYPE, decode_problem, encode_problem

KINDS: tuple[type[Message] | None, ...] = (
    Contract,
    Sampling,
    Resume,
    SessionOpen,
    SessionState,
    Assignment,
    Proposal,
    Verdict,
    Output,
    Status,
    Event,
    Policy,
    CommitRecord,
    FenceRecord,
    Lease,
    GenerationRequest,
    Location,
    ProfileChange,
    None,  # an opening
    None,  # as often again
    Ticket,
    SegmentRequest,
    SegmentReply,
    ListedEntry,
    Listing,
    RequestRecord,
    PromptRecord,
    TakenRecord,
    OpenedRecord,
    AssignedRecord,
    PolicyRecord,
    WithdrawnRecord,
    EndRecord,
)
OPENING = KINDS.index(None)
HOLD_CONTRACTS = (Contract, SessionOpen, Assignment, RequestRecord)
OPEN_REFUSALS = (BadContract, Conflict, InvalidContent, Overloaded, StaleEpoch)
LONGEST_PROBLEM = 6 * MAX_DETAIL + 500  # octets, all escaped: whatever a peer sends, a refusal is a few lines


def one(data: bytes) -> None:
    """Try one body, or one opening."""
    kind = KINDS[data[0] % len(KINDS) if data else 0]
    if kind is None:
        _open(data[1:])
    else:
        _body(kind, data[1:])


def _body(kind: type[Message], body: bytes) -> Message | None:
    message, refusal = attempt(lambda: kind.decode(body), MalformedBody, BadContract)
    if refusal is not None:
        assert isinstance(refusal, MalformedBody) or kind in HOLD_CONTRACTS, "no contract in it"
        _check_problem(refusal)
        return None
    assert message is not None
    encoded = message.encode()
    again = kind.decode(encoded)
    assert again == message, "what we write is read as another message"
    assert again.encode() == encoded, "written twice, written differently"
    if isinstance(message, Contract):
        _check_contract(message, body)
    return message


def _check_contract(contract: Contract, body: bytes) -> None:
    came = cbor.decode(body)
    assert contract.to_plain() == came, "a contract that holds more or less than came"
    digest = hashlib.sha256(CONTRACT_DOMAIN + cbor.encode(came)).digest()
    assert contract_digest(contract.to_plain()) == digest, "another digest than that of what came"
    for check in (lambda: check_contract(contract, VERIFIER), lambda: check_prompt((1, 2, 3), contract, VERIFIER)):
        _, refusal = attempt(check, BadContract)
        if refusal is not None:
            _check_problem(refusal)


def _check_problem(refusal: ProblemError) -> None:
    """The refusal travels, is short, and is understood."""
    status, headers, body = encode_problem(refusal)
    assert len(body) <= LONGEST_PROBLEM, f"a refusal of {len(body)} octets"
    told = decode_problem(status, dict(headers)["content-type"], body)
    assert isinstance(refusal, type(told)), "the peer understands another refusal"
    assert told.status == refusal.status, "the peer understands another status"
    assert dict(headers)["content-type"] == MEDIA_TYPE, "a refusal of another media type"


# -- opening -----------------------------------------------------------------------------------------------------------


def _open(data: bytes) -> None:
    items: list[object] = []
    attempt(lambda: items.extend(value for _, value in cbor.decode_sequence(data)), MalformedBody)
    body = cbor.encode(items[0]) if items else b""
    message = _body(SessionOpen, body)
    if not isinstance(message, SessionOpen):
        return
    assert is_repeat(message, message, None), "not a repeat of itself"
    opened, refusal = attempt(lambda: _run(message, items), *OPEN_REFUSALS)
    if refusal is not None:
        _check_problem(refusal)
        return
    assert opened is not None
    assert is_repeat(message, message, opened.prompt_digest), "not a repeat of itself once it is open"
    committed = message.resume.committed if message.resume else 0
    assert opened.history.committed == committed <= message.contract.max_new, "more tokens than the contract allows"
    assert opened.reader.fence in (0, message.epoch), "opened below or above the fence"


def _run(message: SessionOpen, items: list[object]) -> Opened:
    """Open the session, answering what it asks from the input."""
    opening = open_session(message, VERIFIER)
    fetched = iter(items[2:])
    try:
        effect = next(opening)
        while True:
            effect = opening.send(_answer(effect, items, fetched))
    except StopIteration as done:
        opened: Opened = done.value
        return opened


def _answer(effect: Effect, items: list[object], fetched: Iterable[object]) -> Answer:
    match effect:
        case FetchTokens(ref=ref):
            tokens, _ = attempt(lambda: TOKENS.parse(next(iter(fetched), [])), ValueError)
            if tokens is None:
                return TokensUnavailable(ref, InvalidContent("no tokens"))
            return TokensFetched(ref, tokens)
        case ReadLog(start=start):
            log = items[1] if len(items) > 1 else b""
            return LogRead(start, log if isinstance(log, bytes) else b"", None)
    return Prefilled()


def mutate(data: bytes, luck: Random, octets: Octets) -> bytes:
    """Change the body as CBOR, now and then the kind, or the octets."""
    chance = luck.random()
    if chance < 0.05:
        return bytes([luck.randrange(len(KINDS))]) + data[1:]
    if chance < 0.2 or len(data) < 2:
        return octets(data, len(data) + 16)
    return data[:1] + mutate_sequence(data[1:], luck, octets)


def seeds() -> Iterable[bytes]:
    """Every message, and openings that succeed."""
    for kind, body in message_bodies_by_kind():
        yield bytes([KINDS.index(kind)]) + body
    for body in opening_bodies():
        yield bytes([OPENING]) + body
