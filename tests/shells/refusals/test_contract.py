"""`sdcp-bad-contract`, line by line of D6: at POST sessions, PUT drafter and a drafter's POST assignments."""

from __future__ import annotations

from typing import Any

import pytest

from sdcp.wire import cbor
from tests.shells.refusals.expected import check_refused
from tests.shells.refusals.processes import CONTEXT
from tests.shells.refusals.session import PROMPT, Session, contract_for
from tests.shells.refusals.town import MISSING, Town

pytestmark = pytest.mark.asyncio(loop_scope="session")

MEMBERS = ("target", "tokenizer", "rule", "m_max", "max_new", "stop", "low_rounds", "fallback")
UINTS = ("rule", "m_max", "max_new", "low_rounds", "low_ratio", "self_load", "self_max")
NO_UINT = {"text": "1", "negative": -1, "true": True, "float": 1.0, "null": None, "bignum": cbor.Tag(2, b"\x01")}
DIGESTS = ("target", "tokenizer")


def cases() -> list[Any]:
    """Each a name, the members changed, and what the detail must name."""
    found: list[tuple[str, dict[Any, Any], str]] = [
        ("unknown key", {"extra": 1}, "'extra'"),
        ("unknown key that is no text", {7: 1}, "unknown member"),
        ("unknown key with nothing in it", {"draft": None}, "'draft'"),
        ("a key in other letters", {"M_max": 4}, "'M_max'"),
        ("unknown key in sampling", {"sampling": {"min_p": 1}}, "'min_p'"),
        ("seed beside sampling", {"seed": 1}, "'seed'"),
    ]
    found += [(f"no {member}", {member: MISSING}, f"'{member}'") for member in MEMBERS]
    found += [(f"{key} {name}", {key: value}, f"'{key}'") for key in UINTS for name, value in NO_UINT.items()]
    for key in DIGESTS:
        found += [(f"{key} of {size} octets", {key: bytes(size)}, f"'{key}'") for size in (0, 31, 33)]
        found += [(f"{key} as text", {key: "0" * 32}, f"'{key}'"), (f"{key} of another", {key: bytes(32)}, f"'{key}'")]
    found += [(f"{key} 101", {key: 101}, f"'{key}'") for key in ("low_ratio", "self_load")]
    found += [(f"m_max {value}", {"m_max": value}, "'m_max'") for value in (0, 65, 2**64 - 1)]
    found += [(f"rule {value}", {"rule": value}, "'rule'") for value in (0, 3, 255)]
    found += [("low_rounds 0", {"low_rounds": 0}, "'low_rounds'")]
    found += [(f"fallback {value}", {"fallback": value}, "'fallback'") for value in LADDERS]
    found += [(f"stop {value}", {"stop": value}, "'stop'") for value in (1, [-1], ["1"], [True], [1.0], None)]
    found += [(f"drafters {len(value)}", {"drafters": value}, "'drafters'") for value in DRAFTERS]
    found += [(f"scope of {size} octets", {"scope": bytes(size)}, "'scope'") for size in (0, 15, 17, 32)]
    found += [(f"sampling {value}", {"sampling": value}, "'sampling'") for value in ([], 1, None)]
    found += [(f"sampling {key} {value}", {"sampling": {key: value}}, f"'{key}'") for key, value in PROFILES]
    found += [
        (f"max_new {value}", {"max_new": value}, "'max_new'")
        for value in (CONTEXT - len(PROMPT) + 1, CONTEXT, CONTEXT + 1, 2**64 - 1)
    ]
    return [pytest.param(changes, says, id=name) for name, changes, says in found]


LADDERS: list[Any] = [[], [0], [4], [1, 0], [2, 4, 5], [6], [-1], ["reduce"], 1, None]
DRAFTERS: list[Any] = [[], [b"short"], [bytes(32), bytes(31)], ["0" * 32]]
PROFILES: list[tuple[str, Any]] = [
    ("temperature_milli", -1),
    ("temperature_milli", 0.5),
    ("top_k", "40"),
    ("top_k", True),
    ("top_p_milli", 1001),
    ("top_p_milli", -1),
    ("seed", -1),
    ("seed", bytes(8)),
]


@pytest.mark.requirement(
    "S6.9-problem-bad-contract",
    "S4.1-contract",
    "S4.1-unknown-contract-key",
    "S4.1-low-rounds-range",
    "S6.1-target-mismatch",
    "S6.1-contract-validated",
    "S6.5.2-fallback-entries",
)
@pytest.mark.decision("D6-detail", "D6-unknown-key", "D6-range", "D6-rule", "D6-digests", "D6-fallback", "D6-context")
@pytest.mark.parametrize(("changes", "says"), cases())
async def test_an_open_with_a_bad_contract(town: Town, changes: dict[Any, Any], says: str) -> None:
    session = Session(town)
    bad = contract_for(town, **{"stop": [1]}) | changes
    bad = {key: value for key, value in bad.items() if value is not MISSING}
    check_refused(await session.open(contract=bad), "sdcp-bad-contract", says)
    check_refused(await session.read(), 404)
    assert await town.read_log(session.log) == (None, b"")
    await session.opened()


@pytest.mark.requirement("S6.9-problem-bad-contract")
@pytest.mark.decision("D6")
@pytest.mark.parametrize("contract", [1, "contract", [], None, b"", True])
async def test_a_contract_that_is_no_map(town: Town, contract: Any) -> None:
    session = Session(town)
    check_refused(await session.open(contract=contract), "sdcp-bad-contract", "must be a map")
    await session.opened()


@pytest.mark.requirement("S6.9-problem-bad-contract", "S4.1-contract-never-modified")
@pytest.mark.decision("D6", "D28-refused")
@pytest.mark.parametrize(
    "changes",
    [{"max_new": 61}, {"rule": 2}, {"stop": [0]}, {"sampling": {}}, {"extra": 1}, {"m_max": 0}, {"fallback": [4]}],
    ids=str,
)
async def test_an_assignment_with_another_contract(town: Town, changes: dict[str, Any]) -> None:
    session = await Session(town).begin()
    before = await session.everything()
    check_refused(await session.assign(contract=session.contract | changes), "sdcp-bad-contract", "[Cc]ontract")
    assert await session.everything() == before
    await session.advance()


@pytest.mark.decision("D5-stop", "D6-range")
@pytest.mark.parametrize(
    "changes",
    [
        {"stop": [2**63]},
        {"max_new": CONTEXT - len(PROMPT)},
        {"m_max": 1},
        {"m_max": 64},
        {"low_ratio": 100, "self_load": 0, "self_max": 0, "scope": bytes(16)},
        {"drafters": [bytes(32)]},
        {"sampling": {"temperature_milli": 2**64 - 1, "top_k": 0, "top_p_milli": 1000, "seed": 2**64 - 1}},
        {"sampling": {}},
        {"fallback": [1, 2, 3, 5, 5, 3, 2, 1]},
    ],
    ids=str,
)
async def test_the_last_good_values_are_taken(town: Town, changes: dict[str, Any]) -> None:
    session = await Session(town, **changes).begin(rounds=0)
    assert (await session.state())["state"] == 0
