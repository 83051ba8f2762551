"""The kit's CBOR decoder sees what libraries overlook."""

from __future__ import annotations

from typing import Any

import pytest
from cbor2 import CBORTag

from sdcp_conformance.encoding import decode, decode_sequence, encode, encode_loosely, is_deterministic


@pytest.mark.parametrize(
    "value",
    [0, 23, 24, 255, 2**64 - 1, -1, -(2**40), b"", b"x" * 300, "ä", [], [[1], {}], {"b": 1, "a": [True, None]}, 1.5],
)
def test_what_is_encoded_is_decoded(value: Any) -> None:
    assert decode(encode(value)) == value
    assert is_deterministic(encode(value))


@pytest.mark.parametrize(
    ("hexadecimal", "value"),
    [
        ("1801", 1),
        ("9f0102ff", [1, 2]),
        ("bf616101ff", {"a": 1}),
        ("5f4101420203ff", b"\x01\x02\x03"),
        ("7f61616162ff", "ab"),
        ("a2616201616102", {"b": 1, "a": 2}),
        ("c100", CBORTag(1, 0)),
        ("f93c00", 1.0),
        ("a101616b", {1: "k"}),
        ("a20001f402", {0: 1, ("bool", "False"): 2}),
        ("a1820102616b", {("list", "[1, 2]"): "k"}),
    ],
)
def test_other_encodings_are_understood(hexadecimal: str, value: Any) -> None:
    assert decode(bytes.fromhex(hexadecimal)) == value


@pytest.mark.parametrize("hexadecimal", ["1801", "9f01ff", "a2616201616102", "fb3ff0000000000000"])
def test_which_are_not_deterministic(hexadecimal: str) -> None:
    assert not is_deterministic(bytes.fromhex(hexadecimal))


@pytest.mark.parametrize(
    "hexadecimal",
    [
        *("", "0000", "18", "ff", "82 01", "8101ff", "a2616101616102", "a1", "1c", "1f", "5f6161ff", "f801", "61ff"),
        *("81" * 100 + "00", "a101", "bf6161ff", "82ff00"),
    ],
)
def test_what_is_no_single_sound_item_is_refused(hexadecimal: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the text is for people
        decode(bytes.fromhex(hexadecimal))


def test_a_sequence() -> None:
    assert decode_sequence(encode({"epoch": 1}) + encode({"epoch": 2})) == [{"epoch": 1}, {"epoch": 2}]
    assert decode_sequence(b"") == []


@pytest.mark.parametrize(
    "value", [{"a": [1, -2, 2**63], "bcde": {"x": b"12345", "y": None}, "t": True, "f": 1.5}, [], ""]
)
def test_loose_encoding_is_the_same_value(value: object) -> None:
    data = encode_loosely(value)
    assert decode(data) == value
    assert not is_deterministic(data)
