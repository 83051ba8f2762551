"""The CBOR reader against two others: `fuzz.trees` and, where both define the outcome, cbor2 (D4, RFC 8949).

An input is the octets of a body. What must hold: `MalformedBody` and nothing else is raised; what is accepted is what
`fuzz.trees` finds well-formed, within our bounds and without a repeated key; it is written again as the deterministic
encoding, never longer than it came; a sequence is served up to the item that is torn or wrong, and not beyond.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import cbor2

from fuzz import trees
from fuzz.attempts import attempt
from fuzz.cbor_mutator import Octets, mutate_sequence
from fuzz.seeds import message_bodies, vector_bodies
from sdcp.errors import BodyTooLarge, MalformedBody
from sdcp.wire import cbor


def one(data: bytes) -> None:
    """Try one body."""
    tree = _tree(data)
    value, refusal = attempt(lambda: cbor.decode(data), MalformedBody)
    if refusal is not None:
        assert tree is None or _beyond_bounds(tree), f"refused without a reason: {refusal.detail}"
    else:
        assert tree is not None, "accepted, and it is not well-formed"
        assert not _beyond_bounds(tree), "accepted beyond the bounds"
        _check_accepted(data, tree, value)
    _check_sequence(data)


def _tree(data: bytes) -> trees.Node | None:
    try:
        node, end = trees.read(data)
    except trees.NotWellFormed:
        return None
    return node if end == len(data) else None


def _beyond_bounds(tree: trees.Node) -> bool:
    return trees.levels(tree) > cbor.MAX_DEPTH or trees.has_repeated_keys(tree)


def _check_accepted(data: bytes, tree: trees.Node, value: object) -> None:
    encoded = cbor.encode(value)
    assert encoded == trees.canonical(tree), "not the deterministic encoding"
    assert len(encoded) <= len(data), "our encoding is longer than what came"
    assert cbor.encode(cbor.decode(encoded)) == encoded, "what we write is read as something else"
    assert isinstance(_refusal(data[:-1]), cbor.Torn), "an octet less is not torn"
    more = _refusal(data + b"\0")
    assert more is not None, "an octet more makes no difference"
    assert not isinstance(more, cbor.Torn), f"an octet more is called torn: {more.detail}"
    over = attempt(lambda: cbor.decode(data, limit=len(data) - 1), BodyTooLarge)
    assert over.refusal is not None, "longer than the limit, and accepted"
    if all(node.major != 6 for node in tree.walk()) and _only_text_keys(tree):
        assert cbor.encode(_of_cbor2(cbor2.loads(data))) == encoded, "cbor2 reads something else"


def _only_text_keys(tree: trees.Node) -> bool:
    return all(key.major == 3 for node in tree.walk() if node.major == 5 for key in node.children[::2])


def _of_cbor2(value: object) -> object:
    """A value of cbor2 as ours; both have the same plain types."""
    if isinstance(value, dict):
        return {key: _of_cbor2(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_of_cbor2(member) for member in value]
    if value is cbor2.undefined:
        return cbor.Simple(23)
    return cbor.Simple(value.value) if isinstance(value, cbor2.CBORSimpleValue) else value


def _refusal(data: bytes) -> MalformedBody | None:
    return attempt(lambda: cbor.decode(data), MalformedBody).refusal


def _check_sequence(data: bytes) -> None:
    nodes, rest = trees.read_all(data)
    ends: list[int] = [0]
    _, refusal = attempt(lambda: _read_sequence(data, ends), MalformedBody)
    if refusal is None:
        assert (ends[-1], len(ends) - 1, rest) == (len(data), len(nodes), b""), "a sequence not read to its end"
    elif isinstance(refusal, cbor.Torn):
        assert refusal.offset == ends[-1], "torn elsewhere than where the item begins"
    if len(ends) - 1 < len(nodes):
        assert _beyond_bounds(nodes[len(ends) - 1]), "a sequence that ends before its fault"


def _read_sequence(data: bytes, ends: list[int]) -> None:
    for end, value in cbor.decode_sequence(data):
        assert end > ends[-1], "an item of no octets"
        assert cbor.encode(cbor.decode(data[ends[-1] : end])) == cbor.encode(value), "an item alone is another"
        ends.append(end)


def mutate(data: bytes, luck: Random, octets: Octets) -> bytes:
    """Change it as CBOR, or now and then as octets."""
    return octets(data, len(data) + 16) if luck.random() < 0.3 else mutate_sequence(data, luck, octets)


def seeds() -> Iterable[bytes]:
    """The bodies of all messages, the vectors, and one of each kind of item."""
    yield from message_bodies()
    yield from vector_bodies()
    for octets in ("f6", "f7", "f818", "f97e00", "fa47c35000", "fb7e37e43c8800759c", "5f42010243030405ff", "7f6161ff"):
        yield bytes.fromhex(octets)
    yield bytes.fromhex("bf61610161629f0203ffff")
    yield bytes.fromhex("a3016161f5616220f93c00") + b"\xc1\x1a\x51\x4b\x67\xb0"
    yield b"\x81" * 31 + b"\x80"
