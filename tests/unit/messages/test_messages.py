"""Every message of 5.2 and 4.1: round trip, absent and unknown members, wrong types (D4, D6)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp.errors import BadContract, MalformedBody
from sdcp.messages.contract import Action, Contract
from sdcp.messages.host_memory import SegmentRequest
from sdcp.messages.output import Event, Output
from sdcp.messages.record import CommitRecord, FenceRecord, parse_record
from sdcp.messages.request import Location
from sdcp.messages.round import Assignment, Proposal, Verdict
from sdcp.messages.session import SessionOpen
from sdcp.messages.status import Status
from sdcp.wire import cbor
from tests.unit.messages.samples import CONTRACT, MESSAGES, required

MESSAGE = st.sampled_from(list(MESSAGES)).flatmap(lambda cls: MESSAGES[cls])
HASH = bytes(range(32))
CONTRACT_MAP: dict[str, Any] = {
    "target": HASH,
    "tokenizer": HASH,
    "rule": 1,
    "m_max": 4,
    "max_new": 10,
    "stop": [2],
    "low_rounds": 2,
    "fallback": [1, 5],
}


def contract_with(**members: Any) -> dict[str, Any]:
    return {**CONTRACT_MAP, **members}


@pytest.mark.requirement(
    "S4.1-contract", "S4.1-sampling", "S5.2-session-open", "S5.2-session-state", "S5.2-assignment", "S5.2-proposal",
    "S5.2-verdict", "S5.2-output", "S5.2-status", "S5.2-event", "S5.2-policy", "S5.2-session-id", "S5.2-cache-ref",
)  # fmt: skip
@given(MESSAGE)
def test_a_message_survives_its_bytes(message: Any) -> None:
    assert type(message).decode(message.encode()) == message


@pytest.mark.decision("D4-senders")
@given(MESSAGE)
def test_a_message_is_encoded_as_its_plain_map_is(message: Any) -> None:
    assert message.encode() == cbor.encode(message.to_plain())


@pytest.mark.requirement("S5.2-unknown-keys")
@given(MESSAGE, st.integers() | st.text(min_size=9) | st.binary(), st.integers() | st.lists(st.floats(allow_nan=False)))
def test_unknown_keys_are_ignored_outside_the_contract(message: Any, key: Any, value: Any) -> None:
    plain = {key: value, **message.to_plain()}
    if isinstance(message, Contract):
        with pytest.raises(BadContract, match="unknown member"):
            Contract.parse(plain)
    else:
        assert type(message).parse(plain) == message


@given(MESSAGE, st.data())
def test_a_missing_member_is_named(message: Any, data: st.DataObject) -> None:
    names = required(message)
    if not names:
        return
    name = data.draw(st.sampled_from(names))
    plain = message.to_plain()
    del plain[name]
    with pytest.raises(type(message).fault, match=f"{name!r}"):
        type(message).parse(plain)


@given(MESSAGE, st.data())
def test_a_member_of_another_type_is_refused(message: Any, data: st.DataObject) -> None:
    plain = message.to_plain()
    if not plain:
        return
    name = data.draw(st.sampled_from(sorted(plain)))
    wrong = data.draw(st.sampled_from([None, True, -1, 1.5, {"a": 1}]))
    if type(wrong) is type(plain[name]):
        return
    with pytest.raises((MalformedBody, BadContract)):
        type(message).parse({**plain, name: wrong})


@pytest.mark.requirement("S4.1-unknown-contract-key")
@pytest.mark.decision("D6-unknown-key")
@pytest.mark.parametrize("where", ["contract", "sampling"])
def test_an_unknown_contract_key_is_bad_contract_inside_any_message(where: str) -> None:
    contract = contract_with(extra=1) if where == "contract" else contract_with(sampling={"extra": 1})
    opening = {"session": bytes(16), "epoch": 1, "contract": contract, "prompt": [1], "commit_log": "x"}
    with pytest.raises(BadContract, match="extra"):
        SessionOpen.parse(opening)


@pytest.mark.requirement(
    "S4.1-m-max", "S4.1-low-rounds-range", "S6.5.2-fallback-entries", "S4.1-target-digest", "S4.1-tokenizer-digest"
)
@pytest.mark.decision("D6-detail", "D6-range", "D6-fallback")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("m_max", 0),
        ("m_max", 65),
        ("m_max", True),
        ("low_rounds", 0),
        ("low_ratio", 101),
        ("self_load", 101),
        ("fallback", []),
        ("fallback", [0]),
        ("fallback", [1, 4]),
        ("fallback", [6]),
        ("target", bytes(31)),
        ("tokenizer", "text"),
        ("drafters", []),
        ("drafters", [bytes(33)]),
        ("rule", -1),
        ("max_new", 2**64),
        ("stop", [1, -1]),
        ("stop", None),
        ("scope", bytes(15)),
        ("sampling", {"top_p_milli": 1001}),
        ("sampling", {"temperature_milli": 1.0}),
        ("sampling", []),
    ],
)
def test_a_contract_out_of_range_names_the_member(name: str, value: Any) -> None:
    with pytest.raises(BadContract, match=f"'{name}'"):
        Contract.parse(contract_with(**{name: value}))


@pytest.mark.requirement("S5.2-unknown-action", "S4.1-actions")
@pytest.mark.decision("D4-unknown-action")
@given(st.integers(6, 2**64 - 1))
def test_an_unknown_action_means_fail(value: int) -> None:
    event = {"session": bytes(16), "epoch": 1, "kind": value, "committed": 0, "digest": HASH}
    assert Event.parse(event).kind is Action.FAIL
    verdict = {
        "session": bytes(16), "epoch": 1, "round": 1, "accepted": 0, "emitted": [1], "committed": 1, "digest": HASH,
        "action": value, "m_cap": 1, "low": 0, "load": 0,
    }  # fmt: skip
    assert Verdict.parse(verdict).action is Action.FAIL


@given(CONTRACT)
def test_a_refused_contract_never_turns_into_another_fault(contract: Contract) -> None:
    plain = contract.to_plain()
    assert Contract.parse(plain).to_plain() == plain


@pytest.mark.decision("D20-log")
def test_a_record_with_a_round_is_a_commit_record() -> None:
    commit = CommitRecord(epoch=1, round=1, tokens=(5,), committed=1, digest=HASH)
    assert parse_record({**commit.to_plain(), "note": "ignored"}) == commit
    assert parse_record({"epoch": 3, "other": 1}) == FenceRecord(epoch=3)
    with pytest.raises(MalformedBody):
        parse_record([1])


@pytest.mark.decision("D7-keys")
def test_a_status_carries_what_a_router_needs_without_inventory() -> None:
    status = Status(instance="d1", role=1, load=0, queue=0, ttl_ms=1, base="https://a", model=HASH, tokenizer=HASH)
    assert Status.decode(status.encode()) == status


@pytest.mark.parametrize(
    ("name", "value"), [("final", 1), ("final", None), ("tokens", (1,)), ("tokens", [True]), ("tokens", [2**64])]
)
def test_an_output_out_of_range_names_the_member(name: str, value: Any) -> None:
    output = {"session": bytes(16), "epoch": 1, "from": 0, "tokens": [], "final": False}
    with pytest.raises(MalformedBody, match=f"'{name}'"):
        Output.parse({**output, name: value})


@pytest.mark.parametrize("kind", [True, -1, 1.0, "1", None])
def test_an_action_is_an_unsigned_integer(kind: Any) -> None:
    with pytest.raises(MalformedBody, match="'kind'"):
        Event.parse({"session": bytes(16), "epoch": 1, "kind": kind, "committed": 0, "digest": HASH})


@pytest.mark.parametrize("verifier", [b"v", 1, None, ["v"]])
def test_a_text_is_a_text_string(verifier: Any) -> None:
    location = {"session": bytes(16), "epoch": 1, "verifier": verifier}
    with pytest.raises(MalformedBody, match="'verifier'"):
        Location.parse(location)


def test_a_prompt_may_be_a_reference() -> None:
    drafts = {
        "session": bytes(16), "epoch": 1, "contract": CONTRACT_MAP, "verifier": "v", "drafter": "d",
        "prompt": "https://cache/objects/x", "round": 0, "committed": 0, "digest": HASH, "m_init": 4,
    }  # fmt: skip
    assert Assignment.parse(drafts).prompt == "https://cache/objects/x"


def test_a_proposal_without_tokens_is_refused() -> None:
    status = {"instance": "d", "role": 1, "load": 0, "queue": 0, "ttl_ms": 1}
    proposal = {
        "session": bytes(16), "epoch": 1, "round": 1, "drafter": "d", "base": 0, "base_digest": HASH, "tokens": [],
        "status": status,
    }  # fmt: skip
    with pytest.raises(MalformedBody, match="tokens"):
        Proposal.parse(proposal)


@pytest.mark.requirement("S5.2-proposal")
def test_a_proposal_has_at_least_one_token() -> None:
    plain = {"session": bytes(16), "epoch": 1, "round": 1, "drafter": "d", "base": 0, "base_digest": HASH, "tokens": []}
    with pytest.raises(MalformedBody, match="'tokens' must be an array of at least one"):
        Proposal.parse(plain | {"status": {}})


@pytest.mark.parametrize("word", ["", "PUT", "copy", 1, b"put", None, [], {}])
def test_only_words_of_ours_ask_for_segments(word: object) -> None:
    with pytest.raises(MalformedBody, match="'do' must be one of put, get, lease, release, delete"):
        SegmentRequest.parse({"id": 1, "do": word, "name": "o1"})
    assert SegmentRequest.parse({"id": 1, "do": "put", "name": "o1"}).do == "put"
