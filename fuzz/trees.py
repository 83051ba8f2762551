"""CBOR items as trees (RFC 8949 section 3): to mutate them, and as a second reader to compare the product's with.

Shares nothing with `sdcp.wire.cbor`. A tree keeps the form of its encoding (how wide each head is, which strings come
in chunks), so that what is parsed and written again is the same octets. Not here: what to change (`fuzz.cbor_mutator`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

INDEFINITE = -1
WIDTHS = {24: 1, 25: 2, 26: 4, 27: 8}
DEEPEST = 120  # levels that a tree may have; what is nested deeper is mutated as octets
BREAK = 0xFF


class NotWellFormed(ValueError):
    """The octets are no CBOR item."""


@dataclass(slots=True)
class Node:
    """One item. `argument`: value, tag number, or a float's bits; `width`: octets of it after the initial one.

    `children`: items of an array, keys and values of a map in turn, what a tag holds, chunks of a string.
    """

    major: int
    argument: int = 0
    width: int = 0
    octets: bytes = b""
    children: list[Node] = field(default_factory=list)

    def walk(self) -> Iterator[Node]:
        """This node and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


def read(data: bytes, at: int = 0, depth: int = 0) -> tuple[Node, int]:
    """Return the item that begins at `at`, and where it ends. Raises NotWellFormed."""
    if at >= len(data) or depth > DEEPEST:
        raise NotWellFormed
    major, info = data[at] >> 5, data[at] & 31
    at += 1
    if info == 31 and 2 <= major <= 5:
        return _indefinite(major, data, at, depth)
    if info > 27:
        raise NotWellFormed
    width = WIDTHS.get(info, 0)
    if at + width > len(data):
        raise NotWellFormed
    node = Node(major, int.from_bytes(data[at : at + width], "big") if width else info, width)
    return node, _contents(node, data, at + width, depth)


def _contents(node: Node, data: bytes, at: int, depth: int) -> int:
    """Fill a definite node; return where it ends."""
    if node.major in (2, 3):
        node.octets = data[at : at + node.argument]
        if len(node.octets) < node.argument:
            raise NotWellFormed
        if node.major == 3:
            _check_text(node.octets)
        return at + node.argument
    if node.major == 7 and node.width == 1 and node.argument < 32:
        raise NotWellFormed
    for _ in range({4: node.argument, 5: 2 * node.argument, 6: 1}.get(node.major, 0)):
        child, at = read(data, at, depth + 1)
        node.children.append(child)
    return at


def _indefinite(major: int, data: bytes, at: int, depth: int) -> tuple[Node, int]:
    node = Node(major, 0, INDEFINITE)
    while data[at : at + 1] != b"\xff":
        child, at = read(data, at, depth + 1)
        if major < 4 and (child.major != major or child.width == INDEFINITE):
            raise NotWellFormed
        node.children.append(child)
    if major == 5 and len(node.children) % 2:
        raise NotWellFormed
    return node, at + 1


def _check_text(octets: bytes) -> None:
    try:
        octets.decode()
    except UnicodeDecodeError:
        raise NotWellFormed from None


def read_all(data: bytes) -> tuple[list[Node], bytes]:
    """The items of a CBOR sequence (RFC 8742), and the octets after the last whole one."""
    nodes, at = [], 0
    while at < len(data):
        try:
            node, at = read(data, at)
        except NotWellFormed:
            break
        nodes.append(node)
    return nodes, data[at:]


def write(node: Node) -> bytes:
    """The octets of a tree; counts and lengths are those of what is there, heads at least as wide as they were."""
    body = node.octets + b"".join(map(write, node.children))
    if node.width == INDEFINITE:
        return bytes([node.major << 5 | 31]) + body + bytes([BREAK])
    counts = {2: len(node.octets), 3: len(node.octets), 4: len(node.children), 5: len(node.children) // 2}
    if node.major == 5 and len(node.children) % 2:
        body = node.octets + b"".join(map(write, node.children[:-1]))
    return head(node.major, counts.get(node.major, node.argument), node.width) + body


def head(major: int, argument: int, width: int = 0) -> bytes:
    """Initial octet and argument, in at least `width` octets."""
    if width == 0 and argument < 24:
        return bytes([major << 5 | argument])
    for info, size in WIDTHS.items():
        if size >= width and argument < 1 << 8 * size:
            return bytes([major << 5 | info]) + argument.to_bytes(size, "big")
    return bytes([major << 5 | 27]) + (argument % 2**64).to_bytes(8, "big")


def canonical(node: Node) -> bytes:
    """The item in core deterministic encoding (RFC 8949 section 4.2.1), written without the product."""
    if node.major in (2, 3):
        whole = node.octets + b"".join(child.octets for child in node.children)
        return head(node.major, len(whole)) + whole
    if node.major == 5:
        pairs = sorted(map(canonical_pair, node.children[::2], node.children[1::2]))
        return head(5, len(pairs)) + b"".join(pairs)
    if node.major == 7 and node.width > 1:
        return _float(node)
    count = len(node.children) if node.major == 4 else node.argument
    return head(node.major, count) + b"".join(map(canonical, node.children))


def canonical_pair(key: Node, value: Node) -> bytes:
    """One entry of a map. A key's encoding is no other key's prefix, so that entries sort as their keys do."""
    return canonical(key) + canonical(value)


def _float(node: Node) -> bytes:
    value = struct.unpack({2: ">e", 4: ">f", 8: ">d"}[node.width], node.argument.to_bytes(node.width, "big"))[0]
    if value != value:
        return b"\xf9\x7e\x00"
    for initial, form in ((0xF9, ">e"), (0xFA, ">f"), (0xFB, ">d")):
        try:
            packed = struct.pack(form, value)
        except OverflowError:
            continue
        if struct.unpack(form, packed)[0] == value:
            return bytes([initial]) + packed
    raise AssertionError("a double holds every float")


def levels(node: Node) -> int:
    """How deep arrays, maps and tags are nested in it."""
    own = node.major in (4, 5, 6)
    return own + max(map(levels, node.children), default=0)


def has_repeated_keys(node: Node) -> bool:
    """Whether any map in it, at whatever depth, has a key twice; all NaNs are one key."""
    for each in node.walk():
        if each.major == 5:
            keys = [canonical(key) for key in each.children[::2]]
            if len(set(keys)) < len(keys):
                return True
    return False
