"""CBOR (RFC 8949) as the kit needs it: deterministic when it encodes, suspicious when it decodes.

The decoder is the kit's own, because it has to see what libraries overlook: duplicate keys and octets after the item.
Not here: which maps are messages (`sdcp_conformance.messages`).
"""

from __future__ import annotations

import struct
from typing import Any

import cbor2

_BREAK = object()
_SIMPLE = {20: False, 21: True, 22: None, 23: None}
_FLOATS = {25: ">e", 26: ">f", 27: ">d"}
_DEPTH = 64


def encode(value: Any) -> bytes:
    """Return the core deterministic encoding (RFC 8949 section 4.2.1) of maps whose keys are short texts."""
    return bytes(cbor2.dumps(value, canonical=True))


def encode_loosely(value: Any) -> bytes:
    """Return a well-formed encoding of the same value that is as far from deterministic as can be.

    Maps and arrays of indefinite length, members backwards, strings in chunks, numbers in eight octets.
    """
    if isinstance(value, dict):
        members = [encode_loosely(key) + encode_loosely(member) for key, member in value.items()]
        return b"\xbf" + b"".join(reversed(members)) + b"\xff"
    if isinstance(value, list):
        return b"\x9f" + b"".join(map(encode_loosely, value)) + b"\xff"
    if isinstance(value, bytes | str):
        chunks = b"".join(encode(part) for part in (value[:3], value[3:]))
        return (b"\x5f" if isinstance(value, bytes) else b"\x7f") + chunks + b"\xff"
    if isinstance(value, int) and not isinstance(value, bool):
        return bytes([0x1B if value >= 0 else 0x3B]) + (value if value >= 0 else -1 - value).to_bytes(8, "big")
    return encode(value)


def decode(data: bytes) -> Any:
    """Return the one item that `data` is. ValueError: not well-formed, a duplicate key, or octets after it."""
    value, end = _Reader(data).item(0, 0)
    if end != len(data):
        raise ValueError(f"{len(data) - end} octets follow the CBOR item")
    return value


def decode_sequence(data: bytes) -> list[Any]:
    """Return the items of a CBOR sequence (RFC 8742). ValueError as `decode`."""
    items, at, reader = [], 0, _Reader(data)
    while at < len(data):
        value, at = reader.item(at, 0)
        items.append(value)
    return items


def is_deterministic(data: bytes) -> bool:
    """Whether `data` is what `encode` makes of its own content."""
    return encode(decode(data)) == data


class _Reader:
    """Reads items of `data`; each method returns a value and the offset after it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def item(self, at: int, depth: int) -> tuple[Any, int]:
        """One item, which must not be a break."""
        value, end = self._any(at, depth)
        if value is _BREAK:
            raise ValueError(f"a break at octet {at} that ends nothing")
        return value, end

    def _any(self, at: int, depth: int) -> tuple[Any, int]:
        if depth > _DEPTH:
            raise ValueError("nested too deeply")
        (head,) = self._take(at, 1)
        major, info = head >> 5, head & 31
        if major == 7:
            return self._simple(info, at + 1)
        argument, at = self._argument(info, at + 1, indefinite=2 <= major <= 5)
        if major <= 1:
            return (argument if major == 0 else -1 - (argument or 0)), at
        if major <= 3:
            return self._string(major, argument, at)
        if major == 4:
            return self._array(argument, at, depth)
        if major == 5:
            return self._map(argument, at, depth)
        value, end = self.item(at, depth + 1)
        return cbor2.CBORTag(argument or 0, value), end

    def _take(self, at: int, size: int) -> bytes:
        if at + size > len(self._data):
            raise ValueError("the CBOR item is cut short")
        return self._data[at : at + size]

    def _argument(self, info: int, at: int, *, indefinite: bool) -> tuple[int | None, int]:
        if info < 24:
            return info, at
        if info <= 27:
            size = 1 << (info - 24)
            return int.from_bytes(self._take(at, size), "big"), at + size
        if info == 31 and indefinite:
            return None, at
        raise ValueError(f"additional information {info} at octet {at - 1} means nothing")

    def _simple(self, info: int, at: int) -> tuple[Any, int]:
        if info in _FLOATS:
            size = struct.calcsize(_FLOATS[info])
            return struct.unpack(_FLOATS[info], self._take(at, size))[0], at + size
        if info == 31:
            return _BREAK, at
        if info in _SIMPLE:
            return _SIMPLE[info], at
        if info < 20:
            return f"simple({info})", at
        if info == 24 and self._take(at, 1)[0] >= 32:
            return f"simple({self._take(at, 1)[0]})", at + 1
        raise ValueError(f"a simple value at octet {at - 1} that means nothing")

    def _string(self, major: int, length: int | None, at: int) -> tuple[Any, int]:
        parts = bytearray()
        if length is not None:
            parts += self._take(at, length)
            at += length
        while length is None:
            (head,) = self._take(at, 1)
            at += 1
            if head == 0xFF:
                break
            if head >> 5 != major or head & 31 == 31:
                raise ValueError(f"a chunk at octet {at - 1} of another kind than its string")
            size, at = self._argument(head & 31, at, indefinite=False)
            parts += self._take(at, size or 0)
            at += size or 0
        return (bytes(parts) if major == 2 else parts.decode()), at

    def _array(self, length: int | None, at: int, depth: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        while length is None or len(values) < length:
            value, at = self._any(at, depth + 1)
            if value is _BREAK:
                if length is not None:
                    raise ValueError("a break inside an array of known length")
                break
            values.append(value)
        return values, at

    def _map(self, length: int | None, at: int, depth: int) -> tuple[dict[Any, Any], int]:
        values: dict[Any, Any] = {}
        while length is None or len(values) < length:
            key, at = self._any(at, depth + 1)
            if key is _BREAK:
                if length is not None:
                    raise ValueError("a break inside a map of known length")
                break
            if not isinstance(key, int | str | bytes) or isinstance(key, bool):
                key = (type(key).__name__, repr(key))  # what Python would take for equal, or not take at all
            if key in values:
                raise ValueError(f"the key {key!r} stands twice in a map")
            values[key], at = self.item(at, depth + 1)
        return values, at
