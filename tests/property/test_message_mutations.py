"""Every message through its bytes, and every way in which bytes can be wrong (4.1, 5.2, D3, D4, D6).

The CDDL of the draft (`spec/sdcp.cddl`, read by a CDDL library) is the twin: what we send it allows, and what a member
may hold we accept exactly where it does, but for what the decisions say of unknown keys, unknown actions and m_max 0.
"""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pycddl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdcp.errors import BadContract, MalformedBody
from sdcp.messages.contract import Contract, ContractSampling, Sampling
from sdcp.messages.output import Event, Output
from sdcp.messages.record import CommitRecord, FenceRecord, parse_record
from sdcp.messages.round import Assignment, Proposal, Verdict
from sdcp.messages.session import Policy, SessionOpen, SessionState
from sdcp.messages.status import Status
from sdcp.wire import cbor
from tests.unit.messages.samples import MESSAGES, required, sampling

CDDL = (Path(__file__).parents[2] / "spec" / "sdcp.cddl").read_text(encoding="utf-8")
SAME_MEANING = (
    (r"^ladder = (.*)$", r"ladder = (\1)"),  # else only the first choice counts as the item of an array
    (r": action\b", ": uint .and (0..5)"),  # else the octet 01 passes for 1
    (r"role: 1 / 2", "role: uint .and (1..2)"),
    (r"uint (\.[lg]e \d+)", r"uint .and (uint \1)"),  # else negative numbers pass
    (r"bstr (\.size \d+)", r"bstr .and (bstr \1)"),  # else text of that length passes
    (r"prompt: (\[\* uint\]) / cache-ref", r"(prompt: \1 // prompt: cache-ref)"),  # else any array passes
)
"""What pycddl takes otherwise than CDDL means it (RFC 8610), and words of the same meaning that it takes rightly."""
RULES: dict[type, str] = {
    Contract: "contract",
    Sampling: "sampling",
    SessionOpen: "session-open",
    SessionState: "session-state",
    Assignment: "assignment",
    Proposal: "proposal",
    Verdict: "verdict",
    Output: "output",
    Status: "status",
    Event: "event",
    Policy: "policy",
}
OURS = {"base", "model", "passes", "accepted", "proposed"}
"""Members that we add to Status and Output (D7, D35); the CDDL is closed, the wire is open."""
EVERY = {**MESSAGES, ContractSampling: sampling(ContractSampling)}
MESSAGE = st.sampled_from(sorted(EVERY, key=lambda cls: cls.__name__)).flatmap(EVERY.__getitem__)
DRAFTED = st.sampled_from(sorted(RULES, key=lambda cls: cls.__name__)).flatmap(MESSAGES.__getitem__)


@cache
def schema(rule: str) -> pycddl.Schema:
    text = CDDL
    for words, same in SAME_MEANING:
        text = re.sub(words, same, text, flags=re.MULTILINE)
    return pycddl.Schema(f"start = {rule}\n{text}")


def allows(cls: type, plain: object) -> bool:
    """Whether the CDDL allows a plain value as such a message."""
    try:
        schema(RULES[cls]).validate_cbor(cbor.encode(plain))
    except pycddl.ValidationError:
        return False
    return True


def without_ours(message: Any) -> Any:
    """The message with the draft's members alone."""
    kept = message
    if isinstance(message, Status):
        kept = dataclasses.replace(message, base=None, model=None, tokenizer=None)
    elif isinstance(message, Output):
        kept = dataclasses.replace(message, passes=None, accepted=None, proposed=None)
    elif isinstance(message, Proposal):
        kept = dataclasses.replace(message, status=without_ours(message.status))
    return kept


def is_read(cls: Any, body: bytes) -> Any:
    """The message, or None when it is refused as documented; anything else that is raised is a fault."""
    try:
        return cls.decode(body)
    except (MalformedBody, BadContract):
        return None


# ---- beside the CDDL -------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S4.1-contract", "S5.2-proposal", "S5.2-verdict", "S5.2-session-open", "S5.2-assignment")
@given(DRAFTED)
def test_what_we_send_is_what_the_cddl_says(message: Any) -> None:
    message = without_ours(message)
    assert allows(type(message), message.to_plain())
    assert type(message).decode(message.encode()) == message


WRONG = (
    st.none() | st.booleans() | st.sampled_from([-1, 0, 1, 2, 3, 5, 64, 65, 100, 101, 1000, 1001, 2**32, 2**64 - 1])
    | st.sampled_from([b"", bytes(15), bytes(16), bytes(31), bytes(32)])
    | st.floats(allow_nan=False) | st.text(max_size=3)
    | st.lists(st.sampled_from([-1, 0, 1, 2, 4, 2**64 - 1, True, None, "x", b"", bytes(32), 1.0]), max_size=3)
    | st.sampled_from([{}, {"a": 1}, cbor.Tag(2, b"\x01"), cbor.Simple(23)])
)  # fmt: skip
"""Values of all types and at all bounds; many of them are right for some member."""


@pytest.mark.decision("D3-400", "D4-uint", "D4-unknown-action", "D6-range")
@given(DRAFTED, st.data())
@settings(max_examples=200)
def test_a_member_may_hold_what_the_cddl_says_and_nothing_else(message: Any, data: st.DataObject) -> None:
    message = without_ours(message)
    plain = message.to_plain()
    names = sorted(field.name.removesuffix("_") for field in dataclasses.fields(message))
    name = data.draw(st.sampled_from([each for each in names if each not in OURS or each in plain]))
    if isinstance(message, Status) and name == "tokenizer":
        return
    value = data.draw(WRONG)
    wrong = {**plain, name: value}
    refused = isinstance(value, cbor.Tag) or (name == "m_max" and value == 0)  # a bignum is no uint; D6
    allowed = not refused and allows(type(message), wrong)
    taken = is_read(type(message), cbor.encode(wrong))
    if name in ("action", "kind", "finish") and type(value) is int and value > 5:
        assert taken is not None  # an unknown action means fail (D4)
    else:
        assert (taken is not None) == allowed


@pytest.mark.requirement("S5.2-unknown-keys", "S4.1-unknown-contract-key")
@given(MESSAGE, st.sampled_from([1, b"x", "note", None, 1.5, cbor.Tag(1, 2)]), WRONG)
def test_unknown_keys_are_skipped_whatever_they_hold_and_refused_in_a_contract(
    message: Any, key: Any, value: Any
) -> None:
    pair = cbor.encode(key) + cbor.encode(value)
    taken = is_read(type(message), longer(message.encode(), pair))
    assert taken == (None if type(message).closed else message)


def longer(body: bytes, pair: bytes) -> bytes:
    """A map with one more pair at its end."""
    members = cbor.decode(body)
    assert isinstance(members, dict)
    pairs = b"".join(cbor.encode(name) + cbor.encode(value) for name, value in members.items())
    return b"\xbf" + pairs + pair + b"\xff"


# ---- bytes that are wrong --------------------------------------------------------------------------------------------


@pytest.mark.decision("D3-400", "D4-receivers")
@given(MESSAGE, st.data())
def test_a_key_twice_trailing_bytes_and_a_missing_end_are_refused(message: Any, data: st.DataObject) -> None:
    cls, body = type(message), message.encode()
    extra = data.draw(st.binary(min_size=1, max_size=4))
    with pytest.raises(MalformedBody):
        cls.decode(body + extra)
    with pytest.raises(MalformedBody):
        cls.decode(body[: data.draw(st.integers(0, len(body) - 1))])
    members = message.to_plain()
    if members:
        name = data.draw(st.sampled_from(sorted(members)))
        with pytest.raises(MalformedBody, match="twice"):
            cls.decode(longer(body, cbor.encode(name) + cbor.encode(members[name])))


@pytest.mark.decision("D3-400", "D6-range")
@given(MESSAGE, st.data())
def test_a_member_left_out_is_refused_unless_it_is_optional(message: Any, data: st.DataObject) -> None:
    plain = message.to_plain()
    if not plain:
        return
    name = data.draw(st.sampled_from(sorted(plain)))
    taken = is_read(type(message), cbor.encode({key: value for key, value in plain.items() if key != name}))
    assert (taken is None) == (name in required(message))


@pytest.mark.decision("D3-400", "D6-range")
@given(MESSAGE, st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_changed_bytes_are_refused_as_documented_or_are_a_message(message: Any, luck: Random) -> None:
    cls, body = type(message), message.encode()
    for _ in range(5):
        taken = is_read(cls, changed(body, luck))
        assert taken is None or cls.decode(taken.encode()) == taken


HEADS = (0x00, 0x1B, 0x5F, 0x9F, 0xBF, 0xC2, 0xF6, 0xFB, 0xFF)
"""First octets of items of all kinds, indefinite ones and the break among them."""


def changed(body: bytes, luck: Random) -> bytes:
    """A few octets flipped, put in, taken out, or moved."""
    octets = bytearray(body)
    for _ in range(luck.randint(1, 3)):
        at = luck.randrange(len(octets) + 1)
        match luck.randrange(4):
            case 0:
                octets[at : at + 1] = bytes([octets[at] ^ 1 << luck.randrange(8)]) if at < len(octets) else b"\x00"
            case 1:
                octets.insert(at, luck.choice((*HEADS, luck.randrange(256))))
            case 2:
                del octets[at : at + luck.randint(1, 4)]
            case 3:
                piece = octets[at : at + luck.randint(1, 40)]
                octets[at:at] = piece
    return bytes(octets)


@pytest.mark.decision("D20-log")
@given(st.sampled_from([CommitRecord, FenceRecord]).flatmap(MESSAGES.__getitem__), st.randoms(use_true_random=False))
def test_changed_records_are_refused_as_documented_or_are_records(record: Any, luck: Random) -> None:
    try:
        taken = parse_record(cbor.decode(changed(record.encode(), luck)))
    except MalformedBody:
        return
    assert parse_record(cbor.decode(taken.encode())) == taken
