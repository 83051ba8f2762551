"""Reads diagnostic notation (RFC 8949 section 8) and encodes what it says: what the vectors use of it, and no more.

Numbers, h'…', texts, arrays, maps, tags, simple values, encoding indicators, indefinite lengths. It shares nothing with
the generator of the vectors, so that their two forms can be held against each other.
"""

from __future__ import annotations

import json
import re
import struct

TOKEN = re.compile(r"""\s*(?:
    (?P<octets>h'[0-9a-f]*') | (?P<text>"(?:[^"\\]|\\.)*") | (?P<simple>simple\(\d+\)) |
    (?P<number>-?\d+(?:\.\d+)?(?:e[+-]?\d+)?) | (?P<word>true|false|null) |
    (?P<indicator>_\d?) | (?P<sign>[\[\]{}(),:])
)""", re.VERBOSE)  # fmt: skip
WORDS = {"false": b"\xf4", "true": b"\xf5", "null": b"\xf6"}


def encode_notation(text: str) -> bytes:
    """The octets of a sequence of items."""
    reader = _Reader(text)
    items = bytearray()
    while reader.kind:
        items += reader.item()
        if reader.kind:
            reader.skip(",")
    return bytes(items)


def head(major: int, argument: int, width: int | None) -> bytes:
    if width is None and argument < 24:
        return bytes([major * 32 + argument])
    for candidate, size in enumerate((1, 2, 4, 8)):
        if width == candidate or (width is None and argument < 1 << 8 * size):
            return bytes([major * 32 + 24 + candidate]) + argument.to_bytes(size, "big")
    raise AssertionError(argument)


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens = TOKEN.finditer(text)
        self._text, self._at = text, 0
        self._next()

    def _next(self) -> None:
        found = next(self._tokens, None)
        if found is None:
            assert not self._text[self._at :].strip(), self._text[self._at :]
            self.kind, self.value = "", ""
            return
        assert found.start() == self._at, self._text[self._at : found.start()]
        self._at = found.end()
        self.kind = found.lastgroup or ""
        self.value = found[self.kind]

    def take(self) -> str:
        value = self.value
        self._next()
        return value

    def skip(self, sign: str) -> None:
        assert self.value == sign, (self.value, sign)
        self._next()

    def item(self) -> bytes:
        kind, value = self.kind, self.take()
        if kind == "octets":
            data = bytes.fromhex(value[2:-1])
            return head(2, len(data), self._width()) + data
        if kind == "text":
            data = json.loads(value).encode()
            return head(3, len(data), self._width()) + data
        if kind == "word":
            return WORDS[value]
        if kind == "simple":
            number = int(value[7:-1])
            return bytes([0xE0 + number]) if number < 24 else bytes([0xF8, number])
        if kind == "number":
            return self._number(value)
        return self._chunks() if value == "(" else self._container(value)

    def _number(self, value: str) -> bytes:
        if self.value == "(":
            self.skip("(")
            tagged = head(6, int(value), None) + self.item()
            self.skip(")")
            return tagged
        if "." in value or "e" in value:
            return shortest(float(value))
        number = int(value)
        return head(0, number, self._width()) if number >= 0 else head(1, -1 - number, self._width())

    def _width(self) -> int | None:
        """The indicator behind an item, or behind an opening bracket."""
        return int(self.take()[1:]) if self.kind == "indicator" else None

    def _chunks(self) -> bytes:
        assert self.take() == "_"
        first = 0x5F if self.kind == "octets" else 0x7F
        return bytes([first]) + b"".join(self._items(")")) + b"\xff"

    def _container(self, bracket: str) -> bytes:
        major, closing = {"[": (4, "]"), "{": (5, "}")}[bracket]
        if self.value == "_":
            self.take()
            return bytes([major * 32 + 31]) + b"".join(self._items(closing)) + b"\xff"
        width = self._width()
        items = self._items(closing)
        return head(major, len(items), width) + b"".join(items)

    def _items(self, closing: str) -> list[bytes]:
        found = []
        while self.value != closing:
            item = self.item()
            if closing == "}":
                self.skip(":")
                item += self.item()
            found.append(item)
            if self.value != closing:
                self.skip(",")
        self.skip(closing)
        return found


def shortest(value: float) -> bytes:
    for first, form in ((b"\xf9", ">e"), (b"\xfa", ">f"), (b"\xfb", ">d")):
        try:
            packed = struct.pack(form, value)
        except OverflowError:
            continue
        if struct.unpack(form, packed)[0] == value:
            return first + packed
    raise AssertionError(value)
