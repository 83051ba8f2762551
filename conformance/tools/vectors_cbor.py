"""CBOR items as the vectors need them: encoded in any well-formed way, and written in diagnostic notation.

A plain value (int, bytes, str, bool, None, float, list, dict) is encoded deterministically (RFC 8949 section 4.2.1);
the classes below say where an item is encoded otherwise. The notation is that of RFC 8949 section 8, with its encoding
indicators: `1_0` is a 1 in the next octet, `[_ 1]` an array of indefinite length, `(_ h'01', h'02')` one in chunks.

Not here: which items are messages (`vectors_messages`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Wide:
    """A value whose head takes 2**width octets after the first, however small it is: not the shortest form."""

    value: Any
    width: int


@dataclass(frozen=True)
class Loose:
    """An array, a map (in the order given) or a string in chunks, of indefinite length."""

    value: Any


@dataclass(frozen=True)
class Pairs:
    """A map with its keys in the order given, repeated ones too."""

    pairs: Sequence[tuple[Any, Any]]


@dataclass(frozen=True)
class Tag:
    """A tagged item."""

    number: int
    value: Any


@dataclass(frozen=True)
class Simple:
    """A simple value that has no name."""

    number: int


def encode(value: Any) -> bytes:
    """Return the encoding of a value."""
    match value:
        case Wide(inner, width):
            return _widened(inner, width)
        case Loose():
            return _loose(value.value)
        case Pairs(pairs):
            return _head(5, len(pairs)) + b"".join(encode(key) + encode(member) for key, member in pairs)
        case Tag(number, inner):
            return _head(6, number) + encode(inner)
        case Simple(number):
            return bytes([0xE0 | number]) if number < 24 else bytes([0xF8, number])
        case bool() | None:
            return {False: b"\xf4", True: b"\xf5", None: b"\xf6"}[value]
        case int():
            return _head(0, value) if value >= 0 else _head(1, -1 - value)
        case float():
            return _float(value)
        case bytes():
            return _head(2, len(value)) + value
        case str():
            return _head(3, len(value.encode())) + value.encode()
        case list():
            return _head(4, len(value)) + b"".join(encode(item) for item in value)
        case dict():
            members = sorted((encode(key), encode(member)) for key, member in value.items())
            return _head(5, len(members)) + b"".join(key + member for key, member in members)
    raise TypeError(f"no CBOR item: {value!r}")


def _head(major: int, argument: int, width: int | None = None) -> bytes:
    """The first octet and the argument, in the shortest form or in 2**width octets."""
    if width is None:
        if argument < 24:
            return bytes([major << 5 | argument])
        width = next(width for width in range(4) if argument < 256 ** (1 << width))
    return bytes([major << 5 | 24 + width]) + argument.to_bytes(1 << width, "big")


def _widened(value: Any, width: int) -> bytes:
    whole = encode(value)
    major, argument = whole[0] >> 5, whole[0] & 31
    octets = 0 if argument < 24 else 1 << argument - 24
    length = argument if octets == 0 else int.from_bytes(whole[1 : 1 + octets], "big")
    return _head(major, length, width) + whole[1 + octets :]


def _loose(value: Any) -> bytes:
    """Strings in chunks of at most four octets or characters."""
    majors: dict[type, int] = {bytes: 2, str: 3, list: 4, dict: 5}
    major = majors[type(value)]
    if major <= 3:
        inner = b"".join(encode(chunk) for chunk in _chunks(value))
    elif major == 4:
        inner = b"".join(encode(item) for item in value)
    else:
        inner = b"".join(encode(key) + encode(member) for key, member in value.items())
    return bytes([major << 5 | 31]) + inner + b"\xff"


def _chunks(text: Any) -> list[Any]:
    return [text[at : at + 4] for at in range(0, len(text), 4)]


def _float(value: float) -> bytes:
    """The shortest of the three forms that keeps the value."""
    for first, form in ((0xF9, ">e"), (0xFA, ">f")):
        try:
            packed = struct.pack(form, value)
        except OverflowError:
            continue
        if struct.unpack(form, packed)[0] == value:
            return bytes([first]) + packed
    return b"\xfb" + struct.pack(">d", value)


# -- diagnostic notation -----------------------------------------------------------------------------------------------


def diagnostic(value: Any) -> str:
    """Return a value in diagnostic notation; a dict in the order in which `encode` puts it."""
    match value:
        case Wide(inner, width):
            return _indicated(inner, width)
        case Loose():
            return _loosely(value.value)
        case Pairs(pairs):
            return "{" + _members(pairs) + "}"
        case Tag(number, inner):
            return f"{number}({diagnostic(inner)})"
        case Simple(number):
            return f"simple({number})"
        case bool() | None:
            return json.dumps(value)
        case int() | float():
            return repr(value)
        case bytes():
            return f"h'{value.hex()}'"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case list():
            return "[" + ", ".join(map(diagnostic, value)) + "]"
        case dict():
            return "{" + _members(_sorted(value)) + "}"
    raise TypeError(f"no CBOR item: {value!r}")


def _members(pairs: Iterable[tuple[Any, Any]]) -> str:
    return ", ".join(f"{diagnostic(key)}: {diagnostic(member)}" for key, member in pairs)


def _sorted(value: dict[Any, Any]) -> list[tuple[Any, Any]]:
    return sorted(value.items(), key=lambda pair: encode(pair[0]))


def _indicated(value: Any, width: int) -> str:
    """Arrays and maps bear the indicator after their bracket, other items at their end."""
    text = diagnostic(value)
    return f"{text[0]}_{width} {text[1:]}" if isinstance(value, list | dict) else f"{text}_{width}"


def _loosely(value: Any) -> str:
    if isinstance(value, bytes | str):
        return "(_ " + ", ".join(map(diagnostic, _chunks(value))) + ")"
    if isinstance(value, list):
        return "[_ " + ", ".join(map(diagnostic, value)) + "]"
    return "{_ " + _members(value.items()) + "}"
