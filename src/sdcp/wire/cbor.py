"""CBOR as this protocol speaks it (RFC 8949, RFC 8742): strict and bounded on the way in, deterministic on the way out.

Plain values are what Python has: int, bytes, str, float, bool, None, list, dict. What Python lacks is kept, never
interpreted: a tag is a `Tag`, another simple value (undefined among them) a `Simple`, and a map key that is not text
a `Key`, which holds the key's deterministic encoding, so that 1, 1.0 and true stay three keys as they are in CBOR.

Receiving (D4): any well-formed encoding, indefinite lengths and longer than shortest ones too; never trailing bytes or
a key twice in one map, at whatever depth, also in values that nobody will look at. An int comes of major types 0 and 1
alone: a bignum stays a tag. We are stricter than RFC 8949 in three bounds that keep a small body from costing much:
its size, its nesting, and the number of its items that are not unsigned integers (a chunk of a string and a key of
whatever type are such items, too).

Not here: what a message must contain (`sdcp.messages`), and the bodies' media type (`sdcp.http`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from sdcp.errors import BodyTooLarge, MalformedBody

MAX_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 32
MAX_ITEMS = 262_144  # unsigned integers are not counted: a prompt may have as many tokens as the bytes allow


@dataclass(frozen=True, slots=True)
class Tag:
    """A tagged value (major type 6), opaque."""

    number: int
    value: object


@dataclass(frozen=True, slots=True)
class Simple:
    """A simple value other than false, true and null; 23 is undefined."""

    number: int


@dataclass(frozen=True, slots=True)
class Key:
    """A map key that is not text, as its deterministic encoding. All NaNs are one key."""

    encoded: bytes


class Torn(MalformedBody):
    """The data end inside an item. `offset` is where that item begins: what precedes it is whole."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the CBOR item that begins at byte {offset} is cut short")
        self.offset = offset


# -- sending: core deterministic encoding, RFC 8949 section 4.2.1 ------------------------------------------------------


def encode(value: object) -> bytes:
    """Encode a plain value: shortest forms, definite lengths, map keys in bytewise order of their encodings.

    Raises TypeError for a value that is not plain, ValueError for an int outside 64 bits.
    """
    encoder = _ENCODERS.get(type(value))
    return encoder(value) if encoder else _encode_kin(value)


def _head(major: int, argument: int) -> bytes:
    if argument < 24:
        return bytes((major << 5 | argument,))
    for info, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if argument < 1 << 8 * size:
            return bytes((major << 5 | info,)) + argument.to_bytes(size, "big")
    raise ValueError(f"{argument} does not fit in 64 bits, so it is no CBOR integer")


_SMALL = tuple(_head(0, value) for value in range(256))
_UINT_16, _UINT_32 = struct.Struct(">BH"), struct.Struct(">BI")


def _encode_int(value: int) -> bytes:
    if value < 0:
        return _head(1, -1 - value)
    if value < 0x100:
        return _SMALL[value]
    if value < 0x1_0000:
        return _UINT_16.pack(0x19, value)
    return _UINT_32.pack(0x1A, value) if value < 0x1_0000_0000 else _head(0, value)


def _encode_float(value: float) -> bytes:
    if value != value:
        return b"\xf9\x7e\x00"
    for head, form in ((b"\xf9", ">e"), (b"\xfa", ">f")):
        try:
            packed = struct.pack(form, value)
        except OverflowError:
            continue
        if struct.unpack(form, packed)[0] == value:
            return head + packed
    return b"\xfb" + struct.pack(">d", value)


def _encode_bytes(value: bytes | bytearray | memoryview) -> bytes:
    octets = bytes(value)
    return _head(2, len(octets)) + octets


def _encode_text(value: str) -> bytes:
    text = value.encode()
    return _head(3, len(text)) + text


def _encode_array(value: list[object] | tuple[object, ...]) -> bytes:
    return _head(4, len(value)) + b"".join(map(encode, value))


def _encode_map(value: Mapping[object, object]) -> bytes:
    return join_map(sorted((encode(key), encode(member)) for key, member in value.items()))


def join_map(entries: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the map of keys and members that are encoded, and in the order of the encoded keys, already."""
    return _head(5, len(entries)) + b"".join(map(b"".join, entries))


def _encode_simple(value: Simple) -> bytes:
    return _head(7, value.number)


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    int: _encode_int,
    str: _encode_text,
    bytes: _encode_bytes,
    list: _encode_array,
    tuple: _encode_array,
    dict: _encode_map,
    bool: lambda value: b"\xf5" if value else b"\xf4",
    type(None): lambda _: b"\xf6",
    float: _encode_float,
    bytearray: _encode_bytes,
    memoryview: _encode_bytes,
    Tag: lambda tag: _head(6, tag.number) + encode(tag.value),
    Simple: _encode_simple,
    Key: lambda key: key.encoded,
}


def _encode_kin(value: object) -> bytes:
    """A subclass of a plain type, as an enumeration's member or a mapping of another make, goes as that type."""
    if isinstance(value, Mapping):
        return _encode_map(value)
    for kind in (int, str, bytes, list, tuple, float):
        if isinstance(value, kind):
            return _ENCODERS[kind](value)
    raise TypeError(f"a {type(value).__name__} has no CBOR form here")


# -- receiving: RFC 8949 section 3 and appendix C, with D4 -------------------------------------------------------------


def decode(data: bytes | bytearray | memoryview, *, limit: int = MAX_BYTES) -> object:
    """Decode exactly one item of at most `limit` bytes.

    Raises BodyTooLarge over the limit, else MalformedBody whose detail names the byte at which it went wrong.
    """
    if len(data) > limit:
        raise BodyTooLarge(f"the body has {len(data)} bytes, and at most {limit} are read")
    reader = _Reader(bytes(data), 0)
    value = reader.item()
    if reader.at != len(data):
        raise MalformedBody(f"{len(data) - reader.at} bytes follow the CBOR item, which ends at byte {reader.at}")
    return value


def decode_sequence(data: bytes | bytearray | memoryview) -> Iterator[tuple[int, object]]:
    """Decode a CBOR sequence (RFC 8742) lazily: pairs of the offset at which an item ends, and the item.

    Raises Torn, after all whole items, when the data end inside one; MalformedBody for any other fault.
    """
    octets = bytes(data)
    at = 0
    while at < len(octets):
        reader = _Reader(octets, at)
        try:
            value = reader.item()
        except Torn:
            raise Torn(at) from None
        at = reader.at
        yield at, value


_SIMPLE: tuple[object, ...] = (*(Simple(number) for number in range(20)), False, True, None, Simple(23))
_FLOATS = {25: ">e", 26: ">f", 27: ">d"}
_READ_16, _READ_32 = struct.Struct(">H").unpack_from, struct.Struct(">I").unpack_from


class _Reader:
    """One pass over the octets. `at` is the next unread one; `items` how many more are allowed."""

    __slots__ = ("at", "depth", "items", "octets", "start")

    def __init__(self, octets: bytes, start: int) -> None:
        self.octets = octets
        self.start = self.at = start
        self.depth = 0
        self.items = MAX_ITEMS

    def item(self) -> object:
        """The next data item, with all that it contains. Small integers and short texts take the short way."""
        initial = self.octets[self.at] if self.at < len(self.octets) else 0xFF
        if initial < 0x18:
            self.at += 1
            return initial
        if 0x60 <= initial < 0x78:
            self.at += 1
            self._count()
            return self._utf8(self._take(initial - 0x60))
        major, info, argument = self._head()
        if major == 0:
            return argument
        self._count()
        return _CONTENTS[major](self, info, argument)

    def _count(self) -> None:
        """One more item that costs more than its octets."""
        self.items -= 1
        if self.items < 0:
            self._refuse(f"more than {MAX_ITEMS} items that are not integers, or are negative, chunks or keys")

    def _head(self) -> tuple[int, int, int]:
        """Major type, additional information and argument (0 for an indefinite length) of the next item."""
        initial = self._octet()
        major, info = initial >> 5, initial & 31
        if info < 24:
            return major, info, info
        if info < 28:
            return major, info, int.from_bytes(self._take(1 << info - 24), "big")
        if info == 31 and 2 <= major <= 5:
            return major, info, 0
        return self._refuse(f"0x{initial:02x} begins no item")

    def string(self, info: int, length: int) -> bytes:
        """Major type 2, in one piece or in chunks."""
        return self._take(length) if info < 31 else b"".join(self._chunks(2))

    def text(self, info: int, length: int) -> str:
        """Major type 3; each chunk is valid UTF-8 by itself (RFC 8949 section 3.2.3)."""
        return self._utf8(self._take(length)) if info < 31 else "".join(map(self._utf8, self._chunks(3)))

    def array(self, info: int, length: int) -> list[object]:
        """Major type 4. Runs of unsigned integers, which prompts are, take a path of their own."""
        self._enter(length)
        values: list[object] = []
        if info < 31:
            while len(values) < length:
                self._uints(values, length)
                if len(values) < length:
                    values.append(self.item())
        else:
            self._uints(values, len(self.octets))
            while not self._break():
                values.append(self.item())
                self._uints(values, len(self.octets))
        self.depth -= 1
        return values

    def map(self, info: int, length: int) -> dict[object, object]:
        """Major type 5; refuses a key that is there already (RFC 8949 section 5.6, D4)."""
        self._enter(2 * length)
        entries: dict[object, object] = {}
        while not self._break() if info == 31 else len(entries) < length:
            at = self.at
            key = self.item()
            if not isinstance(key, str):
                self._count()
                key = Key(encode(key))
            if key in entries:
                self._refuse("a map has this key twice", at)
            entries[key] = self.item()
        self.depth -= 1
        return entries

    def tag(self, info: int, number: int) -> Tag:
        """Major type 6, never interpreted."""
        self._enter(1)
        value = self.item()
        self.depth -= 1
        return Tag(number, value)

    def simple(self, info: int, argument: int) -> object:
        """Major type 7: simple values and floats."""
        if info in _FLOATS:
            return struct.unpack(_FLOATS[info], self.octets[self.at - (1 << info - 24) : self.at])[0]
        if info < 24:
            return _SIMPLE[argument]
        if argument < 32:
            self._refuse(f"simple value {argument} in two bytes")
        return Simple(argument)

    def _uints(self, values: list[object], length: int) -> None:
        """Append unsigned integers until another kind of item or the end of the array or of the data comes."""
        octets, at, append = self.octets, self.at, values.append
        end = len(octets) - 4  # the longest form read here has 5 octets; the general path takes the last ones
        for _ in range(length - len(values)):
            initial = octets[at] if at < end else 0xFF
            if initial < 0x18:
                append(initial)
                at += 1
            elif initial == 0x18:
                append(octets[at + 1])
                at += 2
            elif initial == 0x19:
                append(_READ_16(octets, at + 1)[0])
                at += 3
            elif initial == 0x1A:
                append(_READ_32(octets, at + 1)[0])
                at += 5
            else:
                break
        self.at = at

    def _chunks(self, major: int) -> Iterator[bytes]:
        while not self._break():
            at = self.at
            self._count()
            chunk_major, info, length = self._head()
            if chunk_major != major or info == 31:
                self._refuse("a chunk of an indefinite string is not a definite string of its kind", at)
            yield self._take(length)

    def _utf8(self, octets: bytes) -> str:
        try:
            return octets.decode()
        except UnicodeDecodeError:
            return self._refuse("a text string is not valid UTF-8")

    def _enter(self, least: int) -> None:
        """Go one level down, to at least so many items, each of one octet or more."""
        if least > len(self.octets) - self.at:
            raise Torn(self.start)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self._refuse(f"more than {MAX_DEPTH} levels of nesting")

    def _break(self) -> bool:
        """Step over a break, if one is next."""
        found = self.octets[self.at : self.at + 1] == b"\xff"
        self.at += found
        return found

    def _octet(self) -> int:
        if self.at >= len(self.octets):
            raise Torn(self.start)
        self.at += 1
        return self.octets[self.at - 1]

    def _take(self, length: int) -> bytes:
        end = self.at + length
        if end > len(self.octets):
            raise Torn(self.start)
        taken = self.octets[self.at : end]
        self.at = end
        return taken

    def _refuse(self, what: str, at: int | None = None) -> NoReturn:
        raise MalformedBody(f"the CBOR is refused before byte {self.at if at is None else at}: {what}")


_CONTENTS: tuple[Callable[[_Reader, int, int], object], ...] = (
    lambda reader, info, argument: argument,
    lambda reader, info, argument: -1 - argument,
    _Reader.string,
    _Reader.text,
    _Reader.array,
    _Reader.map,
    _Reader.tag,
    _Reader.simple,
)
