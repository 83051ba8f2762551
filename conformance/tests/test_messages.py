"""Messages against the CDDL, refusals against RFC 9457, and the watch that looks at both."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sdcp_conformance import messages, problems
from sdcp_conformance.encoding import encode
from sdcp_conformance.watch import SDCP_CBOR, Watch
from sdcp_conformance.worlds.session import SessionFacts, contract_of
from sdcp_conformance.worlds.world import MISSING

FACTS = SessionFacts(contract_of(fallback=[5, 3, 2, 1], drafters=[bytes(32)], sampling={"seed": 2**64 - 1}))
FACTS.log_ref = "https://cache.test/logs/x"
ASSIGNMENT = FACTS.assignment_message("https://verifier.test")
PROPOSAL = FACTS.proposal_message([1, 2])
VERDICT = {**FACTS.state(), "accepted": 2, "emitted": [1], "action": 5, "m_cap": 1, "low": 0, "load": 100}
OUTPUT = {"session": FACTS.id, "epoch": 1, "from": 0, "tokens": [], "final": True, "finish": 4}
STATUS = PROPOSAL["status"]
RESUME = {"round": 1, "committed": 1, "digest": bytes(32), "committed_tokens": "https://cache.test/objects/x"}
SOUND: list[tuple[str, dict[str, Any]]] = [
    ("contract", FACTS.contract),
    ("session-open", FACTS.open_message()),
    ("session-open", FACTS.open_message(prompt="https://cache.test/objects/x", resume=RESUME)),
    ("session-state", FACTS.state(state=4)),
    ("assignment", ASSIGNMENT),
    ("proposal", PROPOSAL),
    ("verdict", VERDICT),
    ("output", OUTPUT),
    ("status", STATUS),
    ("event", {"session": FACTS.id, "epoch": 1, "kind": 2, "committed": 0, "digest": bytes(32)}),
    ("policy", {"session": FACTS.id, "from_round": 1, "sampling": {}}),
    ("commit-record", FACTS.commit([1])),
    ("fence-record", {"epoch": 2}),
]


def test_the_rules_are_those_of_the_draft() -> None:
    here = Path(messages.__file__).parent / "data/sdcp.cddl"
    assert here.read_text() == (Path(__file__).parents[2] / "spec/sdcp.cddl").read_text()


@pytest.mark.parametrize(("rule", "message"), SOUND, ids=lambda value: value if isinstance(value, str) else "")
def test_sound_messages_pass(rule: str, message: dict[str, Any]) -> None:
    assert messages.faults(rule, encode(message)) == []


@pytest.mark.parametrize(("rule", "message"), SOUND, ids=lambda value: value if isinstance(value, str) else "")
def test_every_member_counts(rule: str, message: dict[str, Any]) -> None:
    for key in message:
        assert messages.faults(rule, encode({**message, key: 1.5})), key
        assert messages.faults(rule, encode({**message, key: -1})), key
        assert messages.faults(rule, encode({**message, key: [b"\x01"]})), key
        if isinstance(message[key], bytes):
            assert messages.faults(rule, encode({**message, key: "x" * len(message[key])})), key


@pytest.mark.parametrize(
    "key", ["m_max", "low_ratio", "self_load", "self_max", "low_rounds", "rule", "scope", "target"]
)
@pytest.mark.parametrize("value", [-1, -100, "x" * 16, b"\x01", "1", None, True, [1]])
def test_a_member_of_a_contract_is_of_its_type(key: str, value: Any) -> None:
    assert messages.value_faults("contract", contract_of(**{key: value}))


@pytest.mark.parametrize("rule", ["verdict", "proposal", "session-open", "assignment", "status"])
def test_maps_are_open_but_not_the_contract(rule: str) -> None:
    message = next(message for name, message in SOUND if name == rule)
    assert messages.faults(rule, encode({**message, "extra": [{}], "x-9": 1})) == []
    if rule == "proposal":
        assert messages.faults(rule, encode({**message, "status": {**STATUS, "base": "x"}})) == []
    if "contract" in message:
        assert messages.faults(rule, encode({**message, "contract": {**FACTS.contract, "extra": 1}}))


@pytest.mark.parametrize(
    ("rule", "member", "value"),
    [
        ("verdict", "load", 101),
        ("verdict", "action", 6),
        ("verdict", "digest", bytes(31)),
        ("proposal", "tokens", []),
        ("proposal", "tokens", [-1]),
        ("contract", "fallback", [4]),
        ("contract", "fallback", []),
        ("contract", "m_max", 65),
        ("contract", "low_rounds", 0),
        ("contract", "sampling", {"top_p_milli": 1001}),
        ("status", "role", 3),
        ("output", "final", 1),
    ],
)
def test_values_out_of_range_fail(rule: str, member: str, value: Any) -> None:
    message = next(message for name, message in SOUND if name == rule)
    assert messages.faults(rule, encode({**message, member: value}))


BEYOND_CDDL = re.compile(r"(action|kind) \d+ is fail|m_max 0")
"""A receiver takes an unknown action, which no sender may send; m_max 0 is D6."""


def vectors() -> Iterator[tuple[str, str, bytes, bool]]:
    """Name, rule, octets, and whether they are sound, of every message in the kit's vectors."""
    for path in sorted((Path(__file__).parents[1] / "vectors").glob("message-*.json")):
        for case in json.loads(path.read_text())["cases"]:
            if not BEYOND_CDDL.search(case["name"]):
                yield case["name"], case["message"], bytes.fromhex(case["hex"]), "refusal" not in case


def test_the_vectors_of_messages() -> None:
    wrong = [name for name, rule, octets, sound in vectors() if (messages.faults(rule, octets) == []) is not sound]
    assert wrong == []


def test_what_is_no_map_fails() -> None:
    assert "no CBOR map" in messages.faults("verdict", b"\x01")[0]
    assert "not sound CBOR" in messages.faults("verdict", b"\xff")[0]


def test_a_missing_member_is_left_out() -> None:
    assert "low_rounds" not in contract_of(low_rounds=MISSING)


def problem(**members: Any) -> bytes:
    return json.dumps({"type": f"{problems.TYPE_PREFIX}sdcp-limit", "status": 422, **members}).encode()


@pytest.mark.parametrize(
    ("status", "media", "body"),
    [
        (422, "text/plain", problem()),
        (422, problems.MEDIA_TYPE, b"no"),
        (422, problems.MEDIA_TYPE, b"[]"),
        (422, problems.MEDIA_TYPE, problem(status=409)),
        (422, problems.MEDIA_TYPE, problem(title=1)),
        (409, problems.MEDIA_TYPE, problem(status=409)),
    ],
)
def test_faulty_problems_are_noted(status: int, media: str, body: bytes) -> None:
    assert problems.faults(status, media, body)


def test_sound_problems_pass() -> None:
    assert problems.faults(422, f"{problems.MEDIA_TYPE}; charset=utf-8", problem(detail="x", extra={})) == []
    assert problems.faults(404, problems.MEDIA_TYPE, b'{"title": "Not Found"}') == []


def test_the_watch_takes_answers_by_their_resource() -> None:
    watch = Watch()
    media = {"content-type": SDCP_CBOR}
    watch.answer("POST", "/sdcp/proposals", 200, media, encode(VERDICT))
    watch.answer("POST", "/sdcp/assignments", 204, {}, b"")
    watch.answer("PUT", "/sdcp/objects/x", 201, {}, b"")
    watch.request("POST", "/sdcp/proposals", media, encode(PROPOSAL))
    watch.record(FACTS.commit([2]))
    assert watch.faults == []
    watch.answer("POST", "/sdcp/assignments", 200, {}, b"")
    watch.answer("POST", "/sdcp/proposals", 200, {}, encode(VERDICT))
    watch.answer("POST", "/sdcp/proposals", 302, {}, b"")
    watch.answer("POST", "/sdcp/proposals", 422, {}, b"")
    watch.request("POST", "/sdcp/events", media, b"\x01")
    watch.record({"epoch": 1, "round": 2})
    assert len(watch.faults) == 6


def test_the_watch_tells_encodings_apart() -> None:
    watch = Watch()
    indefinite = b"\xbf" + encode(OUTPUT)[1:] + b"\xff"
    watch.answer("GET", "/sdcp/sessions/x/output", 200, {"content-type": SDCP_CBOR}, indefinite)
    assert (watch.faults, len(watch.not_deterministic)) == ([], 1)
