"""Hypothesis strategies for every message, and one small example of each; shared by the tests of messages and wire."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st

from sdcp.messages.contract import Action, Contract, ContractSampling, Sampling
from sdcp.messages.host_memory import DELETE, GET, LEASE, PUT, RELEASE, SegmentReply, SegmentRequest, Ticket
from sdcp.messages.lease import MAX_TTL_MS, Lease
from sdcp.messages.listing import ListedEntry, Listing
from sdcp.messages.manifest import (
    ACCEPTED,
    DROPPED,
    SENT,
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

U64 = st.integers(0, 2**64 - 1)
HASH = st.binary(min_size=32, max_size=32)
SESSION = st.binary(min_size=16, max_size=16)
TOKENS = st.lists(U64, max_size=8).map(tuple)
REF = st.text(max_size=20)
ACTION = st.sampled_from(Action)
PERCENT = st.integers(0, 100)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


def sampling(cls: type[Sampling] = Sampling) -> st.SearchStrategy[Any]:
    return st.builds(
        cls,
        temperature_milli=maybe(U64),
        top_k=maybe(U64),
        top_p_milli=maybe(st.integers(0, 1000)),
        seed=maybe(U64),
    )


CONTRACT = st.builds(
    Contract,
    target=HASH,
    tokenizer=HASH,
    drafters=maybe(st.lists(HASH, min_size=1, max_size=3).map(tuple)),
    rule=U64,
    sampling=maybe(sampling(ContractSampling)),
    m_max=st.integers(1, 64),
    max_new=U64,
    stop=TOKENS,
    low_rounds=st.integers(1, 2**64 - 1),
    low_ratio=maybe(PERCENT),
    fallback=st.lists(st.sampled_from([Action(1), Action(2), Action(3), Action(5)]), min_size=1, max_size=5).map(tuple),
    self_load=maybe(PERCENT),
    self_max=maybe(U64),
    scope=maybe(SESSION),
)
RESUME = st.builds(Resume, round=U64, committed=U64, digest=HASH, committed_tokens=REF, target_kv=maybe(REF))
STATUS = st.builds(
    Status,
    instance=REF,
    role=st.integers(1, 2),
    load=PERCENT,
    queue=U64,
    accept_milli=maybe(st.integers(0, 1000)),
    cache_mbps=maybe(U64),
    ttl_ms=U64,
    base=maybe(REF),
    model=maybe(HASH),
    tokenizer=maybe(HASH),
)
COMMIT = st.builds(
    CommitRecord,
    epoch=U64,
    round=U64,
    tokens=TOKENS,
    committed=U64,
    digest=HASH,
    proposed=maybe(U64),
    kv=maybe(REF),
    accepted=maybe(U64),
    action=maybe(ACTION),
    m_cap=maybe(U64),
    low=maybe(U64),
    load=maybe(PERCENT),
    g=maybe(U64),
    j=maybe(U64),
)
REQUEST = st.builds(
    GenerationRequest,
    request=SESSION,
    prompt=TOKENS,
    max_new=U64,
    stop=TOKENS,
    rule=U64,
    sampling=maybe(sampling()),
    tokenizer=maybe(HASH),
    target=maybe(HASH),
)

LISTED = st.builds(
    ListedEntry,
    name=REF,
    size=U64,
    version=maybe(U64),
    owner=maybe(REF),
    age_ms=maybe(U64),
    leased=maybe(st.booleans()),
    expires_ms=maybe(U64),
    objects=maybe(st.lists(REF, max_size=3).map(tuple)),
    level=maybe(REF),
)
MESSAGES: dict[type, st.SearchStrategy[Any]] = {
    Contract: CONTRACT,
    Sampling: sampling(),
    Resume: RESUME,
    SessionOpen: st.builds(
        SessionOpen,
        session=SESSION,
        epoch=U64,
        contract=CONTRACT,
        prompt=TOKENS | REF,
        prompt_kv=maybe(REF),
        commit_log=REF,
        resume=maybe(RESUME),
    ),
    SessionState: st.builds(
        SessionState, session=SESSION, epoch=U64, round=U64, committed=U64, digest=HASH, state=maybe(U64)
    ),
    Assignment: st.builds(
        Assignment,
        session=SESSION,
        epoch=U64,
        contract=CONTRACT,
        verifier=REF,
        drafter=REF,
        prompt=TOKENS | REF,
        round=U64,
        sampling=maybe(sampling()),
        committed=U64,
        digest=HASH,
        committed_tokens=maybe(REF),
        m_init=U64,
    ),
    Proposal: st.builds(
        Proposal,
        session=SESSION,
        epoch=U64,
        round=U64,
        drafter=REF,
        base=U64,
        base_digest=HASH,
        tokens=st.lists(U64, min_size=1, max_size=8).map(tuple),
        q_rows=maybe(REF),
        draft_kv=maybe(REF),
        status=STATUS,
    ),
    Verdict: st.builds(
        Verdict,
        session=SESSION,
        epoch=U64,
        round=U64,
        accepted=U64,
        emitted=TOKENS,
        committed=U64,
        digest=HASH,
        action=ACTION,
        m_cap=U64,
        low=U64,
        load=PERCENT,
    ),
    Output: st.builds(
        Output,
        session=SESSION,
        epoch=U64,
        from_=U64,
        tokens=TOKENS,
        final=st.booleans(),
        finish=maybe(ACTION),
        passes=maybe(U64),
        accepted=maybe(U64),
        proposed=maybe(U64),
    ),
    Status: STATUS,
    Event: st.builds(Event, session=SESSION, epoch=U64, kind=ACTION, committed=U64, digest=HASH),
    Policy: st.builds(Policy, session=SESSION, from_round=U64, sampling=sampling()),
    CommitRecord: COMMIT,
    FenceRecord: st.builds(FenceRecord, epoch=U64),
    GenerationRequest: REQUEST,
    Location: st.builds(Location, session=SESSION, epoch=U64, verifier=REF, ended=maybe(ACTION), tokens=maybe(TOKENS)),
    ProfileChange: st.builds(ProfileChange, sampling=sampling(), from_round=maybe(U64)),
    Lease: st.builds(Lease, objects=st.lists(REF, max_size=4).map(tuple), ttl_ms=st.integers(1, MAX_TTL_MS)),
    ListedEntry: LISTED,
    Listing: st.builds(Listing, entries=st.lists(LISTED, max_size=3).map(tuple)),
    Ticket: st.builds(Ticket, path=REF, ticket=SESSION),
    SegmentRequest: st.builds(
        SegmentRequest,
        id=U64,
        do=st.sampled_from([PUT, GET, LEASE, RELEASE, DELETE]),
        name=REF,
        size=maybe(U64),
        objects=maybe(st.lists(REF, max_size=4).map(tuple)),
        ttl_ms=maybe(st.integers(1, MAX_TTL_MS)),
    ),
    SegmentReply: st.builds(SegmentReply, id=U64, status=st.integers(200, 599), size=maybe(U64), detail=maybe(REF)),
    RequestRecord: st.builds(
        RequestRecord,
        epoch=U64,
        router=REF,
        life=SESSION,
        owner=REF,
        session=SESSION,
        contract=CONTRACT,
        commit_log=REF,
        request=REQUEST,
        prompt_length=U64,
    ),
    PromptRecord: st.builds(PromptRecord, epoch=U64, tokens=TOKENS),
    TakenRecord: st.builds(TakenRecord, epoch=U64, router=REF, life=SESSION),
    OpenedRecord: st.builds(
        OpenedRecord, epoch=U64, serving=U64, verifier=REF, prompt=maybe(REF), resume=maybe(RESUME)
    ),
    AssignedRecord: st.builds(
        AssignedRecord,
        epoch=U64,
        serving=U64,
        after=U64,
        verifier=REF,
        drafter=REF,
        prompt=maybe(REF),
        sampling=maybe(sampling()),
        committed=U64,
        digest=HASH,
        committed_tokens=maybe(REF),
        m_init=U64,
    ),
    PolicyRecord: st.builds(
        PolicyRecord,
        epoch=U64,
        after=U64,
        stage=st.sampled_from([SENT, ACCEPTED, DROPPED]),
        from_round=U64,
        sampling=sampling(),
    ),
    WithdrawnRecord: st.builds(WithdrawnRecord, epoch=U64),
    EndRecord: st.builds(EndRecord, epoch=U64, ended=ACTION, committed=U64),
}


def required(message: Any) -> list[str]:
    """CDDL keys of a message that may not be absent."""
    return [f.name.removesuffix("_") for f in dataclasses.fields(message) if f.default is dataclasses.MISSING]
