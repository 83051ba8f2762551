"""Vectors of messages: what a receiver understands by some octets, or with what it refuses them (5.2, D3, D4, D6).

Each of the ten messages comes in its smallest and its fullest form, in other encodings than the deterministic one, with
unknown keys, and spoilt in every way that the CDDL forbids. `means` is the deterministic encoding of what is left once
unknown keys are ignored and an unknown action is `fail`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vectors_cbor import Loose, Pairs, Simple, Tag, Wide, diagnostic, encode
from vectors_samples import BIGGEST, CONTRACT, FULLEST, SMALLEST, Members
from vectors_stream import Case

BAD_CONTRACT = (422, "sdcp-bad-contract")
MALFORMED = (400, "about:blank")


def messages() -> list[Case]:
    """Every case, message by message."""
    found: list[Case] = []
    for message in SMALLEST:
        found += _good(message)
        found += _other_encodings(message)
        if message != "contract":
            found += _with_unknown_keys(message)
        found += _spoilt(message)
    return [*found, *_alike_keys(), *_unknown_actions(), *_unknown_contract_keys(), *_not_well_formed()]


# -- what is taken -----------------------------------------------------------------------------------------------------


def _taken(name: str, message: str, value: Any, means: Members, *rests_on: str) -> Case:
    octets = encode(value)
    return {
        "name": f"{message}: {name}",
        "message": message,
        "hex": octets.hex(),
        "diagnostic": diagnostic(value),
        "means": encode(means).hex(),
        "means_diagnostic": diagnostic(means),
        "rests_on": [_rule_of(message), *rests_on],
    }


def _rule_of(message: str) -> str:
    """The sentence of the draft that has the message's CDDL."""
    return "S4.1-contract" if message == "contract" else f"S5.2-{message}"


def _good(message: str) -> Iterator[Case]:
    small = SMALLEST[message]
    full = small | FULLEST[message]
    yield _taken("no optional member", message, small, small)
    yield _taken("every member", message, full, full)
    least = full | {key: LEAST.get(key, 0) for key, value in full.items() if type(value) is int}
    yield _taken("every number at its least", message, least, least)


def _other_encodings(message: str) -> Iterator[Case]:
    """Well-formed, and not deterministic: a receiver takes them all; a contract's digest is over its own encoding."""
    small = SMALLEST[message]
    backwards = Pairs(sorted(small.items(), reverse=True))
    yield _taken("members in another order", message, backwards, small, "D4-receivers")
    yield _taken(
        "indefinite lengths", message, Loose({key: _loose(it) for key, it in small.items()}), small, "D4-receivers"
    )
    yield _taken(
        "longer heads than needed", message, Wide({k: _wide(v) for k, v in small.items()}, 1), small, "D4-receivers"
    )


def _loose(value: Any) -> Any:
    return Loose(value) if isinstance(value, bytes | str | list | dict) else value


def _wide(value: Any) -> Any:
    return value if isinstance(value, bool) else Wide(value, 3)


UNKNOWN: dict[Any, Any] = {
    "unheard of": [1, {"a": {"b": [None, True, 1.5]}}],
    0: Tag(1, 1700000000),
    -1: 1e300,
    b"\x00": Loose("in chunks"),
    None: Simple(99),
}


def _with_unknown_keys(message: str) -> Iterator[Case]:
    small = SMALLEST[message]
    yield _taken("unknown keys of every kind", message, small | UNKNOWN, small, "S5.2-unknown-keys", "D4-unknown-keys")
    for key, member in small.items():
        if isinstance(member, dict) and key != "contract":
            inner = small | {key: member | UNKNOWN}
            yield _taken(f"unknown keys in {key}", message, inner, small, "S5.2-unknown-keys", "D4-unknown-keys")


def _alike_keys() -> Iterator[Case]:
    """Keys that some languages take for one another are different keys."""
    small = SMALLEST["session-state"]
    several = Pairs([*small.items(), (0, 1), (False, 2), (0.0, 3), ("0", 4), (b"0", 5), (b"epoch", 6)])
    yield _taken("unknown keys 0, false, 0.0", "session-state", several, small, "S5.2-unknown-keys", "D4-unknown-keys")


def _unknown_actions() -> Iterator[Case]:
    """Fail, whatever the number."""
    for message, key in (("verdict", "action"), ("event", "kind"), ("output", "finish")):
        for action in (6, BIGGEST):
            value, means = SMALLEST[message] | {key: action}, SMALLEST[message] | {key: 5}
            yield _taken(f"action {action} is fail", message, value, means, "S5.2-unknown-action", "D4-unknown-action")


# -- what is refused ---------------------------------------------------------------------------------------------------


def _refused(
    name: str, message: str, octets: bytes, notation: str | None, refusal: tuple[int, str], *rests_on: str
) -> Case:
    status, kind = refusal
    return {
        "name": f"{message}: {name}",
        "message": message,
        "hex": octets.hex(),
        "diagnostic": notation,
        "refusal": {"status": status, "type": kind},
        "rests_on": list(rests_on),
    }


def _wrong(name: str, message: str, value: Any) -> Case:
    """A message that its CDDL forbids: 400, and 422 where it is the contract that is wrong (D3, D6)."""
    in_contract = message == "contract"
    refusal = BAD_CONTRACT if in_contract else MALFORMED
    rests_on = ("S6.9-problem-bad-contract", "D6-range") if in_contract else (_rule_of(message), "D3-400")
    return _refused(name, message, encode(value), diagnostic(value), refusal, *rests_on)


def _spoilt(message: str) -> Iterator[Case]:
    small = SMALLEST[message]
    full = small | FULLEST[message]
    for key in small:
        yield _wrong(f"{key} absent", message, {other: small[other] for other in small if other != key})
    for key, member in full.items():
        for what, value in _faults(message, key, member):
            case = _wrong(f"{key} {what}", message, small | {key: value})
            yield _of_contract(case) if key == "contract" else case


def _of_contract(case: Case) -> Case:
    return case | {
        "refusal": {"status": BAD_CONTRACT[0], "type": BAD_CONTRACT[1]},
        "rests_on": ["S6.9-problem-bad-contract", "D6-range"],
    }


HASHES = ("target", "tokenizer", "digest", "base_digest", "scope", "session")
# The least value of a number, where it is not 0.
LEAST = {"role": 1, "m_max": 1, "low_rounds": 1}
# Ranges that the CDDL, or D6, gives a number: the least value and the greatest that are not in it.
RANGES: dict[str, list[int]] = {
    "load": [101],
    "accept_milli": [1001],
    "role": [0, 3],
    "m_max": [0, 65],
    "low_rounds": [0],
    "low_ratio": [101],
    "self_load": [101],
}


def _faults(message: str, key: str, member: Any) -> Iterator[tuple[str, Any]]:
    """Values of another type, size or range than the CDDL of the member."""
    yield "null", None
    if isinstance(member, bool):
        yield "1", 1
    elif isinstance(member, int):
        yield from (("negative", -1), ("a float", 1.0), ("true", True), ("a text", "1"))
        yield from (("tagged", Tag(1, 1)), ("a bignum", Tag(2, b"\x01")))
        yield from ((str(value), value) for value in RANGES.get(key, []))
    elif key in HASHES:
        yield from (("an octet short", member[1:]), ("an octet long", member + b"\x00"), ("a text", "x" * len(member)))
    elif isinstance(member, str):
        yield from (("a byte string", member.encode()), ("a number", 1))
    elif isinstance(member, list):
        yield from _faulty_arrays(key)
    else:
        yield "an array", []


def _faulty_arrays(key: str) -> Iterator[tuple[str, Any]]:
    yield "a map", {}
    if key in ("drafters", "fallback"):
        yield "empty", []
    if key == "drafters":
        yield from (("with a hash an octet short", [bytes(31)]), ("with a text", ["x" * 32]))
    elif key == "fallback":
        yield from ((f"with {entry}", [1, entry]) for entry in (0, 4, 6, -1))
    else:
        yield from (
            ("with a negative number", [1, -1]),
            ("with a float", [1.0]),
            ("with a text", ["1"]),
            ("with null", [None]),
        )


def _unknown_contract_keys() -> Iterator[Case]:
    """The one map that is closed, and the sampling map inside it."""
    rests_on = ("S4.1-unknown-contract-key", "D6-unknown-key")
    for name, value in (
        ("an unknown key", CONTRACT | {"note": "x"}),
        ("an unknown key that is no text", CONTRACT | {1: 1}),
        ("an unknown key in sampling", CONTRACT | {"sampling": {"min_p_milli": 50}}),
    ):
        yield _refused(name, "contract", encode(value), diagnostic(value), BAD_CONTRACT, *rests_on)
        inside = SMALLEST["session-open"] | {"contract": value}
        yield _refused(
            f"{name} of the contract", "session-open", encode(inside), diagnostic(inside), BAD_CONTRACT, *rests_on
        )
    sampling = CONTRACT | {"sampling": {"top_p_milli": 1001}}
    yield _wrong("top_p_milli 1001", "contract", sampling)
    policy = SMALLEST["policy"] | {"sampling": {"top_p_milli": 1001}}
    yield _wrong("top_p_milli 1001", "policy", policy)
    proposal = SMALLEST["proposal"] | {"tokens": []}
    yield _wrong("no token", "proposal", proposal)


def _not_well_formed() -> Iterator[Case]:
    """No CBOR, or more than one item, or a key twice, or no map. A stale epoch in them would not be looked at."""
    state = SMALLEST["session-state"]
    whole = encode(state)
    twice = Pairs([*state.items(), ("epoch", 1)])
    nested = state | {"note": Pairs([(1, 1), (1, 2)])}
    for name, octets, notation in (
        ("no octets", b"", None),
        ("cut short", whole[:-1], None),
        ("an octet after it", whole + b"\x00", f"{diagnostic(state)}, 0"),
        ("twice", whole + whole, f"{diagnostic(state)}, {diagnostic(state)}"),
        ("a key twice", encode(twice), diagnostic(twice)),
        ("a key twice in a value that is ignored", encode(nested), diagnostic(nested)),
        ("a map without its break", b"\xbf" + whole[1:], None),
        ("a break alone", b"\xff", None),
        ("a text that is no UTF-8", encode(state | {"x": "??"}).replace(b"??", b"\xff\xfe"), None),
        ("reserved additional information", b"\xa1\x61\x61\x1c", None),
        ("an array", encode([state]), diagnostic([state])),
        ("a number", b"\x01", "1"),
        ("JSON", b'{"session": 1}', None),
    ):
        yield _refused(name, "session-state", octets, notation, MALFORMED, "D3-400", "D4-receivers")
