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
from cbor2 import CBORTag

from sdcp_conformance.encoding import decode, encode

_SAME_MEANING = (
    (r"^ladder = (.*)$", r"ladder = (\1)"),  # else only the first choice counts as the item of an array
    (r": action\b", ": uint .and (0..5)"),  # else the octet 01 passes for 1
    (r"role: 1 / 2", "role: uint .and (1..2)"),
    (r"uint (\.[lg]e \d+)", r"uint .and (uint \1)"),  # else negative numbers pass
    (r"bstr (\.size \d+)", r"bstr .and (bstr \1)"),  # else text of that length passes
    (r"prompt: (\[\* uint\]) / cache-ref", r"(prompt: \1 // prompt: cache-ref)"),  # else any array passes
)
"""What the library takes otherwise than CDDL means it, and words of the same meaning that it takes rightly."""


@lru_cache
def cddl() -> str:
    """All rules, in words that the library understands as CDDL means them."""
    folder = files("sdcp_conformance") / "data"
    text = "\n".join((folder / name).read_text() for name in ("sdcp.cddl", "decisions.cddl"))
    for words, same in _SAME_MEANING:
        text = re.sub(words, same, text, flags=re.MULTILINE)
    return text


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
    known = value if rule == "contract" else _opened(value, known_keys(rule))
    if _foreign(known):  # no rule has such things, and the library takes some for what is in them
        return [f"a {rule} has a tag, or an array in an array"]
    if _extended(known if rule == "contract" else known.get("contract")):
        return [f"a {rule} has an unknown key in the sampling of its contract"]
    try:
        _schema(rule).validate_cbor(encode(known))
    except pycddl.ValidationError as fault:
        return [f"a {rule} does not match its CDDL: {' '.join(str(fault).split())[:300]}"]
    except (TypeError, ValueError) as fault:
        return [f"a {rule} cannot be validated: {fault}"]
    return []


def _foreign(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_foreign, value)) or any(map(_foreign, value.values()))
    if isinstance(value, list):
        return any(isinstance(each, list) or _foreign(each) for each in value)
    return isinstance(value, CBORTag)


def _extended(contract: Any) -> bool:
    """Whether its profile has unknown keys: the library lets them pass in a map whose keys are all optional."""
    sampling = contract.get("sampling") if isinstance(contract, dict) else None
    return isinstance(sampling, dict) and bool(sampling.keys() - known_keys("sampling"))


def _opened(value: dict[Any, Any], known: frozenset[str]) -> dict[Any, Any]:
    return {key: _inner(key, each) for key, each in value.items() if key in known}


def _inner(key: str, value: Any) -> Any:
    if key in ("status", "sampling") and isinstance(value, dict):
        return _opened(value, known_keys(key))
    if key == "resume" and isinstance(value, dict):
        return _opened(value, frozenset({"round", "committed", "digest", "committed_tokens", "target_kv"}))
    return value
