"""CBOR on the wire: RFC 8949, RFC 8742 and D4."""

from __future__ import annotations

import math
import tracemalloc
from enum import IntEnum
from types import MappingProxyType

import pytest

from sdcp.errors import BodyTooLarge, MalformedBody
from sdcp.wire.cbor import MAX_DEPTH, MAX_ITEMS, Key, Simple, Tag, Torn, decode, decode_sequence, encode

# RFC 8949 appendix A: value and its preferred, hence deterministic, encoding.
EXAMPLES = [
    (0, "00"),
    (23, "17"),
    (24, "1818"),
    (100, "1864"),
    (255, "18ff"),
    (256, "190100"),
    (1000, "1903e8"),
    (65536, "1a00010000"),
    (1000000000000, "1b000000e8d4a51000"),
    (18446744073709551615, "1bffffffffffffffff"),
    (-18446744073709551616, "3bffffffffffffffff"),
    (-1, "20"),
    (-1000, "3903e7"),
    (0.0, "f90000"),
    (-0.0, "f98000"),
    (1.1, "fb3ff199999999999a"),
    (1.5, "f93e00"),
    (65504.0, "f97bff"),
    (100000.0, "fa47c35000"),
    (3.4028234663852886e38, "fa7f7fffff"),
    (1.0e300, "fb7e37e43c8800759c"),
    (5.960464477539063e-8, "f90001"),
    (math.inf, "f97c00"),
    (-math.inf, "f9fc00"),
    (False, "f4"),
    (True, "f5"),
    (None, "f6"),
    (Simple(23), "f7"),
    (Simple(16), "f0"),
    (Simple(255), "f8ff"),
    (Tag(1, 1363896240), "c11a514b67b0"),
    (Tag(2, bytes.fromhex("010000000000000000")), "c249010000000000000000"),
    (b"", "40"),
    (b"\x01\x02\x03\x04", "4401020304"),
    ("", "60"),
    ('"\\', "62225c"),
    ("\u6c34", "63e6b0b4"),
    ("\U00010151", "64f0908591"),
    ([], "80"),
    ([1, [2, 3], [4, 5]], "8301820203820405"),
    (list(range(1, 26)), "98190102030405060708090a0b0c0d0e0f101112131415161718181819"),
    ({}, "a0"),
    ({"a": 1, "b": [2, 3]}, "a26161016162820203"),
    (["a", {"b": "c"}], "826161a161626163"),
]


@pytest.mark.parametrize(("value", "encoded"), EXAMPLES, ids=[encoded for _, encoded in EXAMPLES])
def test_examples_of_rfc_8949_both_ways(value: object, encoded: str) -> None:
    assert encode(value).hex() == encoded
    decoded = decode(bytes.fromhex(encoded))
    assert decoded == value
    assert type(decoded) is type(value)
    assert math.copysign(1, decoded) == math.copysign(1, value) if isinstance(value, float) else True


def test_not_a_number_is_encoded_in_one_way() -> None:
    for octets in ("f97e00", "fa7fc00000", "fb7ff8000000000000"):
        assert encode(decode(bytes.fromhex(octets))).hex() == "f97e00"


@pytest.mark.parametrize(
    ("octets", "value"),
    [
        ("1800", 0),
        ("1b0000000000000001", 1),
        ("3800", -1),
        ("5801aa", b"\xaa"),
        ("7a0000000161", "a"),
        ("980101", [1]),
        ("b80161610a", {"a": 10}),
        ("fb3ff8000000000000", 1.5),
        ("5f42010243030405ff", b"\x01\x02\x03\x04\x05"),
        ("7f657374726561646d696e67ff", "streaming"),
        ("5fff", b""),
        ("7fff", ""),
        ("9fff", []),
        ("9f018202039f0405ffff", [1, [2, 3], [4, 5]]),
        ("bf61610161629f0203ffff", {"a": 1, "b": [2, 3]}),
        ("826161bf61626163ff", ["a", {"b": "c"}]),
    ],
)
@pytest.mark.decision("D4-receivers")
def test_other_than_deterministic_encodings_are_taken(octets: str, value: object) -> None:
    assert decode(bytes.fromhex(octets)) == value


# RFC 8949 appendix F, and its section 3.
ILL_FORMED = [
    *("18", "19", "1a", "1b", "1901", "1a0102", "1b01020304050607", "38", "58", "78", "98", "9a01ff00", "b8", "d8"),
    *("f8", "f900", "fa0000", "fb000000", "41", "61", "5affffffff00", "5bffffffffffffffff010203", "7affffffff00"),
    *("7b7fffffffffffffff010203", "81", "818181818181818181", "8200", "a1", "a20102", "a100", "a2000000", "5f4100"),
    *("7f6100", "9f", "9f0102", "bf", "bf01020102", "819f", "9f8000", "9f9f9f9f9fffffffff", "9f819f819f9fffffff"),
    *("1c", "1d", "1e", "3c", "3d", "3e", "5c", "5d", "5e", "7c", "7d", "7e", "9c", "9d", "9e", "bc", "bd", "be"),
    *("dc", "dd", "de", "fc", "fd", "fe", "f800", "f801", "f818", "f81f", "5f00ff", "5f21ff", "5f6100ff", "5f80ff"),
    *("5fa0ff", "5fc000ff", "5fe0ff", "7f4100ff", "5f5f4100ffff", "7f7f6100ffff", "ff", "81ff", "8200ff", "a1ff"),
    *("a1ff00", "a100ff", "a20000ff", "9f81ff", "9f829f819f9fffffffff", "bf00ff", "bf000000ff", "1f", "3f", "df"),
    *("", "c0", "c1ff"),
]


@pytest.mark.parametrize("octets", ILL_FORMED)
@pytest.mark.decision("D3-400", "D4")
def test_what_is_not_well_formed_is_400(octets: str) -> None:
    with pytest.raises(MalformedBody) as refusal:
        decode(bytes.fromhex(octets))
    assert refusal.value.status == 400


@pytest.mark.decision("D3-400")
def test_bytes_after_the_item_are_refused_and_counted() -> None:
    with pytest.raises(MalformedBody, match="2 bytes follow the CBOR item, which ends at byte 1"):
        decode(b"\x01\x02\x03")


@pytest.mark.parametrize("octets", ["61ff", "62c328", "63eda080", "7f61c361a9ff", "a161ff00", "64f4908080"])
def test_text_that_is_not_utf_8_is_refused_in_every_chunk(octets: str) -> None:
    with pytest.raises(MalformedBody, match="UTF-8"):
        decode(bytes.fromhex(octets))


@pytest.mark.parametrize(
    "octets",
    [
        "a2616101616102",
        "bf616101616102ff",
        "a261610178016102",  # the same text, longer than shortest
        "a2616101" + "7f6161ff02",  # the same text in chunks
        "a161789f" + "a2616101616102" + "ff",  # inside the value of a key that nobody knows
        "a1" + "a2616101616102" + "00",  # inside a key
        "c1a2616101616102",  # inside a tag
        "a201000100",
        "a20100180100",  # 1 twice, once longer than shortest
        "a2f90000" + "00" + "fa00000000" + "00",  # 0.0 as half and as single
        "a2820102" + "00" + "9f0102ff" + "00",  # the array [1, 2] twice as a key
        "a2a2616101616202" + "00" + "a2616202616101" + "00",  # one map as a key twice, in other order
        "a2c101" + "00" + "c101" + "00",
        "a2f7" + "00" + "f7" + "00",
        "a24161" + "00" + "4161" + "00",
    ],
)
@pytest.mark.decision("D4-receivers")
def test_a_key_twice_is_refused_at_every_depth_and_of_every_kind(octets: str) -> None:
    with pytest.raises(MalformedBody, match="key twice"):
        decode(bytes.fromhex(octets))


@pytest.mark.decision("D4-receivers")
def test_keys_that_python_takes_for_one_are_several() -> None:
    """1, 1.0, true, -0.0, 0.0, h'61', "a" and tagged keys are different keys in CBOR."""
    keys = ["01", "f93c00", "f5", "f98000", "f90000", "4161", "6161", "c101", "20"]
    decoded = decode(bytes.fromhex("a9" + "00".join(keys) + "00"))
    assert isinstance(decoded, dict)
    assert list(decoded) == ["a" if key == "6161" else Key(bytes.fromhex(key)) for key in keys]


@pytest.mark.requirement("S5.2-unknown-keys")
@pytest.mark.decision("D4-unknown-keys")
def test_unknown_keys_and_values_of_any_kind_are_kept_apart_from_the_known_ones() -> None:
    body = bytes.fromhex("a4616101a0f7820102fb3ff199999999999af6d9d9f7c24101")
    decoded = decode(body)
    assert isinstance(decoded, dict)
    assert decoded["a"] == 1
    assert {key for key in decoded if isinstance(key, str)} == {"a"}


@pytest.mark.decision("D4-uint")
def test_a_bignum_is_no_integer_and_a_tag_is_never_interpreted() -> None:
    assert decode(bytes.fromhex("c24101")) == Tag(2, b"\x01")
    assert decode(bytes.fromhex("c06161")) == Tag(0, "a")  # no date, and none asked for


def test_nesting_is_bounded() -> None:
    deepest = b"\x81" * (MAX_DEPTH - 1) + b"\x80"
    assert decode(deepest)
    for opening in (b"\x81", b"\x9f", b"\xc1", b"\xa1\x00", b"\xbf\x00"):
        with pytest.raises(MalformedBody, match="nesting"):
            decode(opening * MAX_DEPTH + b"\x80" + b"\xff" * MAX_DEPTH)
    with pytest.raises(MalformedBody, match="nesting"):
        decode(b"\xa1" * 100_000 + b"\x00" * 100_000)


def test_depth_is_that_of_nesting_not_of_what_came_before() -> None:
    assert decode(b"\x98\x64" + b"\x80" * 100) == [[]] * 100


def test_the_size_is_bounded() -> None:
    with pytest.raises(BodyTooLarge) as refusal:
        decode(b"\x43abc", limit=3)
    assert refusal.value.status == 413
    assert decode(b"\x43abc", limit=4) == b"abc"


def test_items_other_than_integers_are_bounded() -> None:
    count = MAX_ITEMS - 1  # and the array itself
    assert len(decode(b"\x9a" + count.to_bytes(4, "big") + b"\x60" * count)) == count  # type: ignore[arg-type]
    with pytest.raises(MalformedBody, match="items"):
        decode(b"\x9a" + (count + 1).to_bytes(4, "big") + b"\x60" * (count + 1))
    assert len(decode(b"\x9a" + (count + 9).to_bytes(4, "big") + b"\x01" * (count + 9))) == count + 9  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "one", ["5f" + "40" * (MAX_ITEMS + 1) + "ff", "7f" + "60" * (MAX_ITEMS + 1) + "ff", "9f" + "20" * MAX_ITEMS + "ff"]
)
def test_what_costs_more_than_its_octets_counts_as_an_item(one: str) -> None:
    with pytest.raises(MalformedBody, match="items"):
        decode(bytes.fromhex(one))


def test_keys_that_are_integers_count_as_items() -> None:
    entries = b"".join(b"\x1a" + (2**20 + key).to_bytes(4, "big") + b"\0" for key in range(MAX_ITEMS))
    assert len(decode(b"\xbf" + entries[:-6] + b"\xff")) == MAX_ITEMS - 1  # type: ignore[arg-type]
    with pytest.raises(MalformedBody, match="items"):
        decode(b"\xbf" + entries + b"\xff")


@pytest.mark.parametrize("octets", ["9bffffffffffffffff", "9a7fffffff", "bb7fffffffffffffff", "5bffffffffffffffff"])
def test_a_length_that_the_bytes_cannot_hold_costs_nothing(octets: str) -> None:
    body = bytes.fromhex(octets) + b"\x00" * 1000
    tracemalloc.start()
    with pytest.raises(Torn):
        decode(body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_memory_stays_within_a_small_multiple_of_the_limit_on_items() -> None:
    body = b"\x9a" + (2**20).to_bytes(4, "big") + b"\xa0" * 2**20  # 1 MiB of empty maps
    tracemalloc.start()
    with pytest.raises(MalformedBody, match="items"):
        decode(body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * MAX_ITEMS


def test_integers_at_the_very_end_of_an_array_are_read_whole() -> None:
    """The fast path for tokens leaves the last octets to the general one."""
    for last in (0, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**64 - 1, -1):
        tokens = [*range(300), last]
        body = encode(tokens)
        assert decode(body) == tokens
        with pytest.raises(Torn):
            decode(body[:-1])


def test_views_and_mutable_buffers_are_read_too() -> None:
    body = encode({"a": [1, 2]})
    assert decode(memoryview(body)) == decode(bytearray(body)) == {"a": [1, 2]}
    assert encode([bytearray(b"a"), memoryview(b"b")]) == encode([b"a", b"b"])


# -- sending -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S4.1-contract-digest")
@pytest.mark.decision("D4-senders")
def test_map_keys_go_in_bytewise_order_of_their_encodings() -> None:
    """RFC 8949 section 4.2.1, its own example: 10, 100, -1, "z", "aa", [100], [-1], false."""
    value = dict.fromkeys((False, -1, "aa", 10, "z", 100), 0) | {Key(encode([100])): 0, Key(encode([-1])): 0}
    keys = ["0a", "1864", "20", "617a", "626161", "811864", "8120", "f4"]
    assert encode(value).hex() == "a8" + "00".join(keys) + "00"


def test_members_of_enumerations_and_tuples_go_as_what_they_are() -> None:
    class Colour(IntEnum):
        RED = 300

    assert encode((Colour.RED, True)) == bytes.fromhex("8219012cf5")
    assert encode(MappingProxyType({"a": 1})) == encode({"a": 1})


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j, [set()]])
def test_a_value_without_a_form_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError, match="no CBOR form"):
        encode(value)


@pytest.mark.parametrize("value", [2**64, -(2**64) - 1])
def test_an_integer_beyond_64_bits_is_a_value_error(value: int) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        encode(value)


# -- sequences (RFC 8742) ----------------------------------------------------------------------------------------------


def test_a_sequence_yields_each_item_and_where_it_ends() -> None:
    assert list(decode_sequence(bytes.fromhex("018202036161"))) == [(1, 1), (4, [2, 3]), (6, "a")]
    assert list(decode_sequence(b"")) == []


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_torn_tail_is_told_after_all_whole_items_with_the_offset_where_it_begins(cut: int) -> None:
    """What a crash in the middle of an append leaves behind (6.8): the log can be cut at `offset`."""
    whole, last = encode({"epoch": 1}), encode({"epoch": 200})
    items = decode_sequence(whole + last[:-cut])
    assert next(items) == (len(whole), {"epoch": 1})
    with pytest.raises(Torn, match=f"begins at byte {len(whole)} is cut short") as torn:
        next(items)
    assert torn.value.offset == len(whole)


def test_a_damaged_sequence_is_not_taken_for_a_torn_one() -> None:
    items = decode_sequence(bytes.fromhex("01ff01"))
    next(items)
    with pytest.raises(MalformedBody) as fault:
        next(items)
    assert not isinstance(fault.value, Torn)


def test_bounds_hold_for_each_item_of_a_sequence_by_itself() -> None:
    count = MAX_ITEMS // 2
    one = b"\x9a" + count.to_bytes(4, "big") + b"\x60" * count
    assert [end for end, _ in decode_sequence(one * 3)] == [len(one), 2 * len(one), 3 * len(one)]
