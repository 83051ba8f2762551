"""Vectors of what is no message: commit logs, q rows, problem bodies, identifiers in paths (5.1, 5.2, 6.8, D1, D20).

Not here: how logs are appended to, which takes a cache.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import vectors_rules as rules
from vectors_cbor import Loose, diagnostic, encode
from vectors_samples import CONTRACT, HASH, SESSION
from vectors_stream import Case

PROMPT = [1, 2, 3]
DIGEST = rules.contract_digest(encode(CONTRACT))


# -- commit logs (6.8, D20) --------------------------------------------------------------------------------------------


def commit(epoch: int, round_: int, before: Sequence[int], tokens: list[int], **members: Any) -> Case:
    """The record of a round that commits `tokens` after the output `before`."""
    output = [*before, *tokens]
    record = {"epoch": epoch, "round": round_, "tokens": tokens, "committed": len(output)}
    return record | {"digest": rules.chain(DIGEST, PROMPT, output)[-1]} | members


def logs() -> list[Case]:
    """What a reader finds in the octets of a log; `void` are the records that count for nothing."""
    first, second = commit(1, 1, [], [5, 6]), commit(1, 2, [5, 6], [7])
    late, resumed = commit(1, 3, [5, 6, 7], [8, 8]), commit(2, 3, [5, 6, 7], [8])
    ours = {"accepted": 1, "action": 0, "m_cap": 4, "low": 0, "load": 10, "g": 1, "j": 0, "proposed": 2}
    return [
        _log("nothing", []),
        _log("one round", [first]),
        _log("rounds follow each other", [first, second]),
        _log("a fence alone", [{"epoch": 2}]),
        _log("a fence after rounds", [first, second, {"epoch": 2}]),
        _log("the next epoch goes on", [first, second, {"epoch": 2}, resumed]),
        _log("a record of the old epoch after the fence is void", [first, second, {"epoch": 2}, late], void=[3]),
        _log("and the next epoch goes on past it", [first, second, {"epoch": 2}, late, resumed], void=[3]),
        _log("void even if no other follows", [{"epoch": 2}, first], void=[1]),
        _log("a record of the fence's own epoch counts", [{"epoch": 1}, first]),
        _log("of several fences the highest counts", [{"epoch": 3}, {"epoch": 2}, commit(2, 1, [], [5])], void=[2]),
        _log("epochs may be left out", [first, {"epoch": 7}, commit(7, 2, [5, 6], [9])]),
        _log("a round that committed nothing new", [first, commit(1, 2, [5, 6], [])]),
        _log("unknown members are ignored", [first | {"note": [1]}, {"epoch": 2, "by": "router"}]),
        _log("members of other writers are no matter", [first | ours]),
        _log("other encodings than the deterministic one", [Loose(first), {"epoch": 2}]),
        _broken("a round is missing", [first, commit(1, 3, [5, 6], [7])]),
        _broken("a round twice", [first, first]),
        _broken("the chain is cut", [first, second | {"digest": HASH}]),
        _broken("the length does not fit", [first, second | {"committed": 4}]),
        _broken("a record without its digest", [{k: v for k, v in first.items() if k != "digest"}]),
        _broken("a record that is no map", [[1, 2]]),
        _broken("cut short", [first], octets=encode(first)[:-1]),
    ]


def _log(name: str, records: list[Any], void: Sequence[int] = ()) -> Case:
    plain = [record.value if isinstance(record, Loose) else record for record in records]
    valid = [record for at, record in enumerate(plain) if "round" in record and at not in void]
    return _octets(name, records) | {
        "starts": [len(b"".join(map(encode, records[:at]))) for at in range(len(records))],
        "void": list(void),
        "fence": max((record["epoch"] for record in plain if "round" not in record), default=0),
        "round": valid[-1]["round"] if valid else 0,
        "committed": [token for record in valid for token in record["tokens"]],
        "digest": (valid[-1]["digest"] if valid else rules.chain(DIGEST, PROMPT, [])[0]).hex(),
    }


def _broken(name: str, records: list[Any], octets: bytes | None = None) -> Case:
    case = _octets(name, records) | {"broken": True}
    return case if octets is None else case | {"hex": octets.hex(), "diagnostic": None}


def _octets(name: str, records: list[Any]) -> Case:
    return {
        "name": name,
        "start": rules.chain(DIGEST, PROMPT, [])[0].hex(),
        "hex": b"".join(map(encode, records)).hex(),
        "diagnostic": ", ".join(map(diagnostic, records)),
    }


# -- q rows (5.2, 6.3 step 5, D25) -------------------------------------------------------------------------------------


def q_rows() -> list[Case]:
    """The object of M rows, little-endian binary32, and whether the tokens can have been sampled from it."""
    half, sure = [0.5, 0.25, 0.25, 0.0], [0.0, 0.0, 1.0, 0.0]
    tiny = [1.0, 2.0**-149, 0.0, 0.0]
    return [
        _rows("one row", [half], [0]),
        _rows("two rows, in position order", [half, sure], [2, 2]),
        _rows("a sum within 1e-4 of 1", [[0.50009, 0.25, 0.25, 0.0]], [0]),
        _rows("the smallest positive value", [tiny], [1]),
        _bad_rows("the token has probability zero", [half], [3]),
        _bad_rows("minus zero is zero", [[0.5, 0.5, -0.0, 0.0]], [2]),
        _bad_rows("a sum more than 1e-4 off", [[0.50011, 0.25, 0.25, 0.0]], [0]),
        _bad_rows("a negative value", [[1.25, -0.25, 0.0, 0.0]], [0]),
        _bad_rows("not a number", [[float("nan"), 1.0, 0.0, 0.0]], [1]),
        _bad_rows("an infinity", [[float("inf"), 1.0, 0.0, 0.0]], [1]),
        _bad_rows("a token not below V", [half], [4]),
        _bad_rows("a row too few", [half], [0, 0]),
        _bad_rows("a row too many", [half, half], [0]),
        _bad_rows("an octet short", [half], [0], cut=1),
    ]


def _rows(name: str, rows: list[list[float]], tokens: list[int]) -> Case:
    data = b"".join(struct.pack("<4f", *row) for row in rows)
    values = [list(struct.unpack("<4f", struct.pack("<4f", *row))) for row in rows]
    return {"name": name, "vocabulary": 4, "tokens": tokens, "hex": data.hex(), "rows": values}


def _bad_rows(name: str, rows: list[list[float]], tokens: list[int], cut: int = 0) -> Case:
    case = _rows(name, rows, tokens)
    del case["rows"]
    case["hex"] = case["hex"][: len(case["hex"]) - 2 * cut]
    return case | {"refusal": {"status": 422, "type": "sdcp-bad-proposal"}}


# -- problem bodies (5.1, Table 2, D1, D2) -----------------------------------------------------------------------------

TABLE_2 = {
    "sdcp-stale-epoch": 409,
    "sdcp-stale-base": 409,
    "sdcp-q-unavailable": 409,
    "sdcp-bad-contract": 422,
    "sdcp-limit": 422,
    "sdcp-session-closed": 410,
    "sdcp-bad-proposal": 422,
    "sdcp-not-assigned": 403,
}
REGISTRY = "https://iana.org/assignments/http-problem-types#"


def problems() -> list[Case]:
    """What a receiver has to make of a response of status 400 or above."""
    state: Case = {"session": base64.urlsafe_b64encode(SESSION).decode().rstrip("="), "epoch": 1, "round": 4}
    state |= {"committed": 9, "digest": base64.urlsafe_b64encode(HASH).decode().rstrip("="), "state": 0}
    members = {"type": REGISTRY + "sdcp-stale-base", "title": "Stale base", "status": 409, "detail": "behind"}
    found = [_problem(name, status, {"type": REGISTRY + name, "status": status}) for name, status in TABLE_2.items()]
    return [
        *found,
        _problem("with every member", 409, members, suffix="sdcp-stale-base"),
        _problem(
            "with the session-state", 409, members | {"session-state": state}, suffix="sdcp-stale-base", state=state
        ),
        _problem("another base URI of the type", 409, {"type": "urn:x:sdcp-stale-base"}, suffix="sdcp-stale-base"),
        _problem(
            "outside Table 2", 404, {"type": "about:blank", "status": 404, "detail": "no such session"}, suffix=None
        ),
        _problem("a type of somebody else", 409, {"type": "https://example.com/out-of-credit"}, suffix=None),
        _problem("no type", 503, {"title": "Service Unavailable"}, suffix=None),
        _problem("an unlisted status", 418, {}, suffix=None),
        _problem("no JSON", 502, None, suffix=None),
        _problem("a session-state that is none", 409, members | {"session-state": 4}, suffix="sdcp-stale-base"),
    ]


def _problem(name: str, status: int, body: Case | None, *, suffix: str | None = "", state: Case | None = None) -> Case:
    """`suffix` "" is the name itself."""
    return {
        "name": name,
        "status": status,
        "content_type": "application/problem+json" if body is not None else "text/html",
        "body": json.dumps(body) if body is not None else "<h1>Bad Gateway</h1>",
        "type": name if suffix == "" else suffix,
        "session_state": state,
    }


# -- identifiers in paths (5.1, D7) ------------------------------------------------------------------------------------


def paths() -> list[Case]:
    """`{id}` of a session, and of an instance."""
    sessions = [bytes(16), bytes([0xFF]) * 16, SESSION, bytes.fromhex("fbf0") * 8]
    instances = ["drafter-1", "a/b", "https://d.example:8443/", "with space", "100%", "naïve", "~-._", "?#[]"]
    found: list[Case] = [
        {"name": f"session {octets.hex()}", "octets": octets.hex(), "segment": _base64url(octets)}
        for octets in sessions
    ]
    found += [{"name": f"instance {name}", "instance": name, "segment": quote(name, safe="")} for name in instances]
    whole = _base64url(SESSION)
    spoilt = {
        "padded": whole + "==",
        "with the letters of base64": _base64url(bytes([0xFF]) * 16).replace("_", "/"),
        "an octet short": _base64url(SESSION[1:]),
        "an octet long": _base64url(SESSION + b"\x00"),
        "with bits left over": whole[:-1] + "x",
        "with a space": f" {whole}",
        "empty": "",
    }
    return found + [{"name": name, "octets": None, "segment": segment} for name, segment in spoilt.items()]


def _base64url(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).decode().rstrip("=")
