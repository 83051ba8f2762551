"""Vectors of digests, random values, distributions and acceptance.

The inputs are edges chosen by hand, and more from a stream (`vectors_stream`); expectations come from `vectors_rules`.
A drawn case that rounding could decide is drawn anew.
"""

from __future__ import annotations

import struct
from typing import Any

import vectors_rules as rules
from vectors_cbor import diagnostic, encode
from vectors_stream import Case, Stream, clear

SESSION = bytes(range(16)).hex()


# -- digests -----------------------------------------------------------------------------------------------------------

CONTRACT: Case = {
    "target": bytes([0x11]) * 32,
    "tokenizer": bytes([0x22]) * 32,
    "rule": 1,
    "m_max": 8,
    "max_new": 64,
    "stop": [2],
    "low_rounds": 2,
    "fallback": [1, 2],
}
FULL: Case = CONTRACT | {
    "drafters": [bytes([0x33]) * 32, bytes([0x44]) * 32],
    "rule": 2,
    "sampling": {"temperature_milli": 700, "top_k": 40, "top_p_milli": 900, "seed": 2**64 - 1},
    "m_max": 64,
    "max_new": 2**32,
    "stop": [],
    "low_ratio": 100,
    "fallback": [1, 2, 3, 5],
    "self_load": 100,
    "self_max": 24,
    "scope": bytes(range(16)),
}


def chains() -> list[Case]:
    """Contract and prefix digests."""
    largest = 2**32 - 1
    return [
        _chain("a small contract, a prompt of three tokens", CONTRACT, [1, 2, 3], [7, 0, 2]),
        _chain("every member, the largest tokens", FULL, [0, largest], [largest, 0]),
        _chain("an empty prompt and no output", CONTRACT, [], []),
        _chain("an empty sampling map is a member like any other", CONTRACT | {"sampling": {}}, [5], [5]),
        _chain("stop tokens keep their order and repeats", CONTRACT | {"stop": [9, 2, 9]}, [23, 24, 255, 256], [65536]),
        _chain("the same tokens, the last of them prompt", CONTRACT, [1, 2, 3, 7], [0, 2]),
    ]


def _chain(name: str, contract: Case, prompt: list[int], output: list[int]) -> Case:
    encoded = encode(contract)
    digest = rules.contract_digest(encoded)
    return {
        "name": name,
        "contract": {key: _plain(value) for key, value in contract.items()},
        "contract_cbor": encoded.hex(),
        "contract_diagnostic": diagnostic(contract),
        "contract_digest": digest.hex(),
        "prompt": prompt,
        "output": output,
        "chain": [link.hex() for link in rules.chain(digest, prompt, output)],
    }


def _plain(value: Any) -> Any:
    """JSON: a byte string as {"hex": …}."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


# -- random values and distributions -----------------------------------------------------------------------------------


def uniforms() -> list[Case]:
    """Values derived from a seed."""
    edges = [(seed, round_, i, 0) for seed in (0, 1, 2**64 - 1) for round_, i in ((1, 1), (2**32 - 1, 65))]
    edges += [(0, 1, 1, 1), (0, 1, 2, 0), (0, 1, 2, 1), (0, 2, 1, 1)]
    return [_uniform(*edge) for edge in edges]


def _uniform(seed: int, round_: int, i: int, purpose: int) -> Case:
    session = bytes.fromhex(SESSION)
    return {
        "name": f"seed {seed}, round {round_}, i {i}, purpose {purpose}",
        "seed": seed,
        "session": SESSION,
        "round": round_,
        "i": i,
        "purpose": purpose,
        "key": seed.to_bytes(8, "big").hex(),
        "message": rules.message_of(session, round_, i, purpose).hex(),
        "value": rules.uniform(seed, session, round_, i, purpose),
    }


def distributions() -> list[Case]:
    """p for one position."""
    logits, level = [1.0, 3.0, 2.0, -1.0], [2.0, 2.0, 1.0, 2.0]
    edges: list[tuple[str, list[float], Case]] = [
        ("an empty profile is temperature 1", logits, {}),
        ("temperature 0 takes the most probable token", logits, {"temperature_milli": 0, "top_p_milli": 0}),
        ("temperature 0, of equals the smallest token", level, {"temperature_milli": 0}),
        ("temperature 2", logits, {"temperature_milli": 2000}),
        ("temperature 0.001", logits, {"temperature_milli": 1}),
        ("top_k 0 is off", logits, {"top_k": 0}),
        ("top_k keeps exactly two of three equals, the smaller tokens", level, {"top_k": 2}),
        ("top_k above V is off", logits, {"top_k": 2**64 - 1}),
        ("top_p 1000 is off", logits, {"top_p_milli": 1000}),
        ("top_p 0 keeps one token", logits, {"top_p_milli": 0}),
        ("top_p keeps the token that reaches it", logits, {"top_p_milli": 700}),
        ("top_p after top_k counts what top_k kept", logits, {"top_k": 2, "top_p_milli": 720}),
        ("top_p counts what a high temperature made", [0.0, 1.0, 2.0], {"temperature_milli": 2000, "top_p_milli": 600}),
        ("top_p counts what a low temperature made", [0.0, 1.0, 2.0], {"temperature_milli": 500, "top_p_milli": 800}),
        ("of equals top_p keeps the smaller tokens", level, {"top_p_milli": 500}),
        ("all three", logits, {"temperature_milli": 1500, "top_k": 3, "top_p_milli": 800}),
        ("a vocabulary of one", [0.5], {"top_k": 1, "top_p_milli": 1}),
        ("large logits do not overflow", [1000.0, 999.0, -1000.0], {}),
    ]
    named = [
        {"name": name, "logits": row, "sampling": profile, "p": rules.distribution(row, profile)}
        for name, row, profile in edges
    ]
    return named + clear(12, _distribution, "distribution")


def _distribution(stream: Stream) -> Case:
    logits, sampling = stream.logits(2 + stream.below(8)), stream.sampling()
    return {"logits": logits, "sampling": sampling, "p": rules.distribution(logits, sampling)}


# -- acceptance --------------------------------------------------------------------------------------------------------


def greedies() -> list[Case]:
    """Rule 1, V = 4: at each position the logits favour one token."""
    favours = [[4.0 * (token == best) for token in range(4)] for best in (1, 2, 3, 0)]
    level = [[1.0, 1.0, 0.0, 1.0]] * 2
    edges = [
        ("all are accepted", favours, [1, 2, 3]),
        ("the second is rejected", favours[:3], [1, 0]),
        ("nothing after a rejection counts", favours, [0, 2, 3]),
        ("of equals the smallest token is the argmax", level, [0]),
        ("an equal but greater token is rejected", level, [1]),
    ]
    return [_greedy(*edge) for edge in edges] + clear(8, _some_greedy, "greedy")


def _greedy(name: str, logits: list[list[float]], tokens: list[int]) -> Case:
    accepted, emitted = rules.greedy(logits, tokens)
    return {"name": name, "logits": logits, "tokens": tokens, "accepted": accepted, "emitted": emitted}


def _some_greedy(stream: Stream) -> Case:
    logits = [stream.logits(5) for _ in range(2 + stream.below(4))]
    tokens = [rules.argmax(row) if stream.below(4) else stream.below(5) for row in logits[:-1]]
    case = _greedy("", logits, tokens)
    del case["name"]
    return case


def speculatives() -> list[Case]:
    """Rule 2, V = 4, with the values that decide."""
    flat, sure = [0.25] * 4, [0.0, 1.0, 0.0, 0.0]
    p, q = [[0.0] * 4] * 2, [[0.5, 0.5, 0.0, 0.0]]
    seed = {"seed": 1}
    edges = [
        ("p equal to q: always accepted", p, [flat], [3], seed),
        ("p below q: accepted with p/q", p, q, [0], seed),
        ("p above q: always accepted", p, [[0.0625, 0.3125, 0.3125, 0.3125]], [0], seed),
        ("p zero: rejected", p, [flat], [2], {"seed": 1, "top_k": 2}),
        (
            "temperature 0, the argmax proposed",
            [[0.0, 5.0, 0.0, 0.0]] * 2,
            [sure],
            [1],
            {"seed": 1, "temperature_milli": 0},
        ),
        (
            "temperature 0, another proposed",
            [[0.0, 5.0, 0.0, 0.0]] * 2,
            [flat],
            [0],
            {"seed": 1, "temperature_milli": 0},
        ),
        ("q certain of a token that is not the target's", p, [sure], [1], {"seed": 3}),
    ]
    return [_speculative(*edge) for edge in edges] + clear(24, _some_speculative, "speculative")


def _speculative(name: str, logits: list[list[float]], q: list[list[float]], tokens: list[int], sampling: Case) -> Case:
    case: Case = {"name": name, "logits": logits, "q": q, "tokens": tokens, "sampling": sampling}
    case |= {"session": SESSION, "round": 1}
    return case | _judged(case)


def _some_speculative(stream: Stream) -> Case:
    m, width = 1 + stream.below(4), 3 + stream.below(4)
    sampling = stream.seeded()
    logits = [stream.logits(width) for _ in range(m + 1)]
    q = [[binary32(value) for value in rules.distribution(stream.logits(width), {})] for _ in range(m)]
    tokens = [max(range(width), key=row.__getitem__) if stream.below(2) else stream.below(width) for row in q]
    case: Case = {"logits": logits, "q": q, "tokens": tokens, "sampling": sampling}
    case |= {"session": stream.octets()[:16].hex(), "round": 1 + stream.below(2**32 - 1)}
    return case | _judged(case)


def _judged(case: Case) -> Case:
    """The values drawn (r of 1..M; those of the additional token after 0..M accepted), a, and what is emitted."""
    seed, session, m = case["sampling"]["seed"], bytes.fromhex(case["session"]), len(case["tokens"])
    accepted, emitted = rules.speculative(case)
    return {
        "r": [rules.uniform(seed, session, case["round"], i, 0) for i in range(1, m + 1)],
        "additional": [rules.uniform(seed, session, case["round"], i, 1) for i in range(1, m + 2)],
        "accepted": accepted,
        "emitted": emitted,
    }


def binary32(value: float) -> float:
    """The value as binary32 holds it."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def self_decodings() -> list[Case]:
    """Rounds without a proposal."""
    return clear(12, _self_decoding, "self-decode")


def _self_decoding(stream: Stream) -> Case:
    case: Case = {"logits": stream.logits(6), "rule": 1 + stream.below(2), "sampling": stream.seeded()}
    case |= {"session": stream.octets()[:16].hex(), "round": 1 + stream.below(1000)}
    return case | {"token": rules.self_decode(case)}
