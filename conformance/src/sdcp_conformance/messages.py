"""Every message against its CDDL rule (5.2, D20, D33), with a CDDL library.

The rules are closed; on the wire every map but the contract is open. So unknown keys are taken out first, of every map
that is no contract.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files
from typing import Any

import pycddl

from sdcp_conformance.encoding import decode, encode


@lru_cache
def cddl() -> str:
    """All rules, in words that the library understands as CDDL means them.

    It takes a choice as the item of an array only in parentheses, and lets negative numbers pass for `uint .le n`.
    """
    folder = files("sdcp_conformance") / "data"
    text = "\n".join((folder / name).read_text() for name in ("sdcp.cddl", "decisions.cddl"))
    text = re.sub(r"^ladder = (.*)$", r"ladder = (\1)", text, flags=re.MULTILINE)
    return re.sub(r"uint \.le (\d+)", r"uint .and (0..\1)", text)


@lru_cache
def _schema(rule: str) -> pycddl.Schema:
    return pycddl.Schema(f"start = {rule}\n{cddl()}")


@lru_cache
def known_keys(rule: str) -> frozenset[str]:
    """The keys that a rule names for its own map, not those of maps inside it."""
    text = re.sub(r";.*", "", cddl())
    begin = re.search(rf"^{re.escape(rule)} = {{", text, flags=re.MULTILINE)
    if begin is None:
        raise KeyError(rule)
    depth, own = 1, ""
    for character in text[begin.end() :]:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            break
        own += character if depth == 1 else ""
    return frozenset(re.findall(r"([a-z_]+):", own))


def faults(rule: str, body: bytes) -> list[str]:
    """What is wrong with the octets of a message, each in a sentence; empty when it is sound."""
    try:
        value = decode(body)
    except ValueError as fault:
        return [f"a {rule} is not sound CBOR: {fault}"]
    if not isinstance(value, dict):
        return [f"a {rule} is no CBOR map but {value!r:.60}"]
    return value_faults(rule, value)


def value_faults(rule: str, value: dict[Any, Any]) -> list[str]:
    """The same for a map that is decoded already."""
    try:
        _schema(rule).validate_cbor(encode(_opened(value, known_keys(rule))))
    except pycddl.ValidationError as fault:
        return [f"a {rule} does not match its CDDL: {' '.join(str(fault).split())[:300]}"]
    except (TypeError, ValueError) as fault:
        return [f"a {rule} cannot be validated: {fault}"]
    return []


def _opened(value: dict[Any, Any], known: frozenset[str]) -> dict[Any, Any]:
    return {key: _inner(key, each) for key, each in value.items() if key in known}


def _inner(key: str, value: Any) -> Any:
    if key == "status" and isinstance(value, dict):
        return _opened(value, known_keys("status"))
    if key == "resume" and isinstance(value, dict):
        return _opened(value, frozenset({"round", "committed", "digest", "committed_tokens", "target_kv"}))
    return value
