"""The CBOR of `sdcp.wire` beside two twins: cbor2, and the plain well-formedness check of RFC 8949 appendix C."""

from __future__ import annotations

import contextlib
from typing import Any

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sdcp.errors import MalformedBody
from sdcp.wire.cbor import Key, Simple, Tag, Torn, decode, decode_sequence, encode

INTEGERS = st.integers(-(2**64), 2**64 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
SCALARS = INTEGERS | TEXTS | st.binary(max_size=30) | st.booleans() | st.none() | st.floats(allow_nan=False)
SHARED = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXTS, inner, max_size=6), max_leaves=20
)
"""Values that cbor2 and we hold in the same way."""


def _not_text(key: Key) -> bool:
    return key.encoded[0] >> 5 != 3


SIMPLES = st.integers(0, 19).map(Simple) | st.integers(32, 255).map(Simple) | st.just(Simple(23))
VALUES = st.recursive(
    SCALARS | SIMPLES,
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(TEXTS | inner.map(lambda key: Key(encode(key))).filter(_not_text), inner, max_size=5)
        | st.builds(Tag, st.integers(0, 2**64 - 1), inner)
    ),
    max_leaves=20,
)
"""Every value that a body can hold."""


# -- cbor2 -------------------------------------------------------------------------------------------------------------


@given(SHARED)
def test_cbor2_reads_what_we_write(value: object) -> None:
    assert cbor2.loads(encode(value)) == value


@given(SHARED)
def test_we_read_what_cbor2_writes(value: object) -> None:
    assert decode(cbor2.dumps(value)) == value
    assert encode(decode(cbor2.dumps(value))) == encode(value)


@given(st.lists(SHARED, max_size=5))
def test_a_sequence_is_its_items(values: list[object]) -> None:
    items = list(decode_sequence(b"".join(map(cbor2.dumps, values))))
    assert [item for _, item in items] == values


# -- itself ------------------------------------------------------------------------------------------------------------


@given(VALUES)
def test_a_value_comes_back(value: object) -> None:
    assert decode(encode(value)) == value


@given(VALUES, st.randoms(use_true_random=False))
def test_order_and_length_of_the_encoding_do_not_matter_to_the_reader(value: object, luck: Any) -> None:
    assert encode(decode(_loosely(value, luck))) == encode(value)


def _loosely(value: object, luck: Any) -> bytes:
    """Encode with members in any order and lengths of any form."""
    match value:
        case bool() | None | float() | Simple():
            return encode(value)
        case int():
            return _loose_head(0, value, luck) if value >= 0 else _loose_head(1, -1 - value, luck)
        case bytes() | str():
            return _loose_string(value, luck)
        case Tag():
            return _loose_head(6, value.number, luck) + _loosely(value.value, luck)
        case list():
            return _loose_container(4, len(value), b"".join(_loosely(item, luck) for item in value), luck)
        case dict():
            members = [(_loose_key(key, luck) + _loosely(member, luck)) for key, member in value.items()]
            luck.shuffle(members)
            return _loose_container(5, len(members), b"".join(members), luck)
    raise AssertionError(value)


def _loose_key(key: object, luck: Any) -> bytes:
    return _loosely(decode(key.encoded), luck) if isinstance(key, Key) else _loosely(key, luck)


def _loose_head(major: int, argument: int, luck: Any) -> bytes:
    shortest = next(size for size in (1, 2, 4, 8) if argument < 1 << 8 * size)
    size = luck.choice([size for size in (1, 2, 4, 8) if size >= shortest])
    return bytes((major << 5 | {1: 24, 2: 25, 4: 26, 8: 27}[size],)) + argument.to_bytes(size, "big")


def _loose_string(value: bytes | str, luck: Any) -> bytes:
    major = 3 if isinstance(value, str) else 2
    cut = luck.randint(0, len(value))
    pieces = [piece.encode() if isinstance(piece, str) else piece for piece in (value[:cut], value[cut:])]
    if luck.random() < 0.5:
        return _loose_head(major, len(b"".join(pieces)), luck) + b"".join(pieces)
    chunks = b"".join(_loose_head(major, len(piece), luck) + piece for piece in pieces)
    return bytes((major << 5 | 31,)) + chunks + b"\xff"


def _loose_container(major: int, count: int, content: bytes, luck: Any) -> bytes:
    if luck.random() < 0.5:
        return _loose_head(major, count, luck) + content
    return bytes((major << 5 | 31,)) + content + b"\xff"


# -- RFC 8949 appendix C -----------------------------------------------------------------------------------------------


class _IllFormedError(Exception):
    pass


def well_formed(octets: bytes, at: int = 0) -> int:
    """Return where the well-formed item that begins at `at` ends. Plain, slow, and knows nothing of values."""
    major, info, argument, at = _head_at(octets, at)
    if major in (2, 3):
        return _string_end(octets, major, info, argument, at)
    if major in (4, 5, 6):
        return _content_end(octets, {4: 1, 5: 2, 6: 0}[major], info, argument, at)
    if major == 7 and (info == 31 or (info == 24 and argument < 32)):
        raise _IllFormedError
    return at


def _head_at(octets: bytes, at: int) -> tuple[int, int, int, int]:
    if at >= len(octets):
        raise _IllFormedError
    major, info = divmod(octets[at], 32)
    size = {24: 1, 25: 2, 26: 4, 27: 8}.get(info, 0)
    if info in (28, 29, 30) or (info == 31 and major in (0, 1, 6)) or at + 1 + size > len(octets):
        raise _IllFormedError
    return major, info, int.from_bytes(octets[at + 1 : at + 1 + size], "big") if size else info, at + 1 + size


def _string_end(octets: bytes, major: int, info: int, length: int, at: int) -> int:
    if info != 31:
        if at + length > len(octets):
            raise _IllFormedError
        return at + length
    while octets[at : at + 1] != b"\xff":
        chunk_major, chunk_info, length, at = _head_at(octets, at)
        if chunk_major != major or chunk_info == 31:
            raise _IllFormedError
        at = _string_end(octets, major, chunk_info, length, at)
    return at + 1


def _content_end(octets: bytes, items_each: int, info: int, argument: int, at: int) -> int:
    if items_each == 0:
        return well_formed(octets, at)
    if info != 31:
        for _ in range(min(argument * items_each, len(octets) + 1)):
            at = well_formed(octets, at)
        return at
    while octets[at : at + 1] != b"\xff":
        for _ in range(items_each):
            at = well_formed(octets, at)
    return at + 1


VALIDITY = ("key twice", "UTF-8", "nesting", "items that are not integers")
"""What we refuse although it is well-formed."""


def check_against_the_twin(octets: bytes) -> None:
    try:
        end = well_formed(octets)
    except (_IllFormedError, RecursionError):
        with pytest.raises(MalformedBody):
            decode(octets)
        return
    if end != len(octets):
        with pytest.raises(MalformedBody):
            decode(octets)
        return
    refusal = _refusal(octets)
    assert not isinstance(refusal, Torn)
    assert refusal is None or any(reason in refusal.detail for reason in VALIDITY)


def _refusal(octets: bytes) -> MalformedBody | None:
    try:
        decode(octets)
    except MalformedBody as refusal:
        return refusal
    return None


@given(st.binary(max_size=60))
@example(b"\x9f" * 2000)
def test_any_bytes_are_a_value_or_the_documented_error(octets: bytes) -> None:
    check_against_the_twin(octets)


@given(VALUES, st.data())
def test_damage_gives_a_value_or_the_documented_error(value: object, data: st.DataObject) -> None:
    octets = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(octets) - 1))
        octets[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
        if not octets:
            break
    check_against_the_twin(bytes(octets))


@given(VALUES, st.data())
def test_every_cut_is_torn_and_never_a_shorter_value(value: object, data: st.DataObject) -> None:
    octets = encode(value)
    with pytest.raises(Torn) as torn:
        decode(octets[: data.draw(st.integers(0, len(octets) - 1))])
    assert torn.value.offset == 0


@given(st.binary(max_size=60))
def test_a_sequence_of_any_bytes_never_fails_in_another_way(octets: bytes) -> None:
    start = 0
    with contextlib.suppress(MalformedBody):
        for end, _ in decode_sequence(octets):
            assert well_formed(octets, start) == end
            start = end
