"""Sound octets to begin with: every message as the tests draw it, and what the vectors hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from sdcp.machines.verifier_open import TargetFacts
from sdcp.messages.contract import Action, Contract, Sampling
from sdcp.messages.fields import Message
from sdcp.messages.lease import Lease
from sdcp.messages.listing import ListedEntry, Listing
from sdcp.messages.manifest import (
    ACCEPTED,
    SENT,
    AssignedRecord,
    EndRecord,
    ManifestRecord,
    OpenedRecord,
    PolicyRecord,
    PromptRecord,
    RequestRecord,
    TakenRecord,
    WithdrawnRecord,
)
from sdcp.messages.record import CommitRecord, FenceRecord
from sdcp.messages.request import GenerationRequest, Location, ProfileChange
from sdcp.messages.session import Resume, SessionOpen
from sdcp.rules.digest import contract_digest, extend_all, prefix_digest
from sdcp.wire import cbor

VECTORS = Path(__file__).parents[1] / "tests" / "data" / "vectors"
EXAMPLES = 12  # of each message
VERIFIER = TargetFacts(model=b"m" * 32, tokenizer=b"t" * 32, vocabulary=1000, context=256)
LOG_URI = "https://cache/logs/a"
PROMPT = (1, 2, 3)
CONTRACT = Contract(
    target=VERIFIER.model,
    tokenizer=VERIFIER.tokenizer,
    rule=2,
    sampling=Sampling(temperature_milli=700, top_k=5, seed=1),
    m_max=8,
    max_new=64,
    stop=(99,),
    low_rounds=2,
    fallback=(Action.REDUCE, Action.SWITCH, Action.FAIL),
)
START = prefix_digest(contract_digest(CONTRACT.to_plain()), PROMPT)
_OURS = (
    Lease(objects=("a", "b"), ttl_ms=1000),
    GenerationRequest(request=bytes(16), prompt=PROMPT, max_new=8, stop=(99,), rule=1, sampling=Sampling(seed=1)),
    Location(session=bytes(16), epoch=1, verifier="https://verifier/", ended=Action.FINISH, tokens=(4, 5)),
    ProfileChange(sampling=Sampling(top_k=5), from_round=3),
    ListedEntry(name="a", size=1, version=2, owner="https://v/", age_ms=3, leased=True, level="disk"),
    Listing(
        entries=(ListedEntry(name="l", size=0, expires_ms=9, objects=("a", "b")), ListedEntry(name="m", size=2**40))
    ),
)


@cache
def messages() -> tuple[Message, ...]:
    """Some of every kind, the same in every process."""
    from hypothesis import Phase, given, settings  # only who begins a corpus needs it

    from tests.unit.messages.samples import MESSAGES

    drawn: list[Message] = []
    for strategy in MESSAGES.values():
        quiet = settings(max_examples=EXAMPLES, derandomize=True, database=None, phases=[Phase.generate], deadline=None)
        quiet(given(strategy)(lambda message: drawn.append(message)))()
    return tuple(drawn)


def message_bodies() -> Iterator[bytes]:
    """The encodings of `messages`."""
    return (message.encode() for message in messages())


def message_bodies_by_kind() -> Iterator[tuple[type[Message], bytes]]:
    """The same, with what they are, and those that the draft has not."""
    for message in (*messages(), *_OURS):
        yield type(message), message.encode()


def opening_bodies() -> Iterator[bytes]:
    """A session-open with the log, the prompt object and the committed tokens that belong to it: new, and resumed."""
    fresh = SessionOpen(session=bytes(16), epoch=1, contract=CONTRACT, prompt=PROMPT, commit_log=LOG_URI)
    yield fresh.encode() + cbor.encode(b"")
    yield replace(fresh, prompt="https://cache/p").encode() + cbor.encode(b"") + cbor.encode(PROMPT)
    records = commit_records()
    last = records[-1]
    resume = Resume(round=last.round, committed=last.committed, digest=last.digest, committed_tokens="https://cache/c")
    log = b"".join(record.encode() for record in (*records, FenceRecord(epoch=2)))
    output = [token for record in records for token in record.tokens]
    resumed = replace(fresh, epoch=2, resume=resume)
    yield resumed.encode() + cbor.encode(log) + cbor.encode(output)
    at_once = Resume(round=0, committed=0, digest=START, committed_tokens="https://cache/c")
    yield replace(resumed, resume=at_once).encode() + cbor.encode(FenceRecord(epoch=2).encode())


def commit_records(epoch: int = 1) -> list[CommitRecord]:
    """Three rounds of the session of `CONTRACT` and `PROMPT`, each with its verdict."""
    records, digest, committed = [], START, 0
    for round_, tokens in enumerate(((4, 5, 6), (7,), (8, 9)), start=1):
        digest, committed = extend_all(digest, tokens), committed + len(tokens)
        records.append(
            CommitRecord(
                epoch=epoch,
                round=round_,
                tokens=tokens,
                committed=committed,
                digest=digest,
                proposed=4,
                accepted=len(tokens) - 1,
                action=Action.CONTINUE,
                m_cap=8,
                low=0,
                load=10,
            )
        )
    return records


def log_bodies() -> Iterator[bytes]:
    """Logs: sound, fenced, with void records, with records of several writers, with members that nobody knows."""
    first, second, third = (record.encode() for record in commit_records())
    fence, later = FenceRecord(epoch=2).encode(), FenceRecord(epoch=5).encode()
    yield first + second + third
    yield first + fence + second
    yield first + second + fence + third + commit_records(2)[2].encode() + later
    yield fence + later + fence
    yield first + cbor.encode({"epoch": 1, "round": 2, "tokens": [], "more": {1: [None]}})
    yield first + second[:-1]


def manifest_bodies() -> Iterator[bytes]:
    """Manifests: of a request alone, with a prompt in pieces, of a session that runs, that was resumed, that ended."""
    request = GenerationRequest(request=bytes(16), prompt=PROMPT, max_new=CONTRACT.max_new, stop=(99,), rule=2)
    first = RequestRecord(
        router="https://router/",
        life=b"l" * 16,
        owner="front end",
        session=bytes(16),
        contract=CONTRACT,
        commit_log=LOG_URI,
        request=request,
        prompt_length=len(PROMPT),
    )
    opened = OpenedRecord(serving=1, verifier="https://v/", prompt="https://cache/p")
    assigned = AssignedRecord(
        serving=1, after=0, verifier="https://v/", drafter="https://d/", committed=0, digest=START, m_init=4
    )
    resume = Resume(round=3, committed=6, digest=START, committed_tokens="https://cache/c")
    again = replace(opened, serving=3, verifier="https://w/", resume=resume)
    sent = PolicyRecord(stage=SENT, after=2, from_round=4, sampling=Sampling(top_k=5))
    pieces = replace(first, request=replace(request, prompt=PROMPT[:1])), PromptRecord(tokens=PROMPT[1:])
    taken = TakenRecord(router="https://router/", life=b"n" * 16)
    end = EndRecord(ended=Action.FINISH, committed=9)
    yield _numbered(first)
    yield _numbered(*pieces, opened)
    yield _numbered(first, opened, assigned, sent)
    yield _numbered(first, opened, assigned, sent, replace(sent, stage=ACCEPTED), taken, again)
    yield _numbered(first, opened, WithdrawnRecord())
    yield _numbered(first, opened, assigned, end)


def _numbered(*records: ManifestRecord) -> bytes:
    return b"".join(replace(each, epoch=number).encode() for number, each in enumerate(records, start=1))


def vector_bodies() -> Iterator[bytes]:
    """Every contract of the vectors in its encoding."""
    for path in sorted(VECTORS.glob("*.json")):
        for case in json.loads(path.read_text())["cases"]:
            yield from _hex_members(case)


def _hex_members(value: Any) -> Iterator[bytes]:
    if isinstance(value, dict):
        if isinstance(value.get("contract_cbor"), str):
            yield bytes.fromhex(value["contract_cbor"])
        for member in value.values():
            yield from _hex_members(member)
