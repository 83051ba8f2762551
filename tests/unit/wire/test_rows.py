"""The q_rows object: 5.2, 6.3 step 5, D5, D25."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from sdcp.errors import BadProposal
from sdcp.wire.rows import check_rows, check_tokens, decode_rows, encode_rows, size

ROWS = np.array([[0.5, 0.25, 0.25, 0.0], [0.0, 0.0, 0.125, 0.875]], dtype=np.float32)


@pytest.mark.requirement("S5.2-q-rows-format", "S5.2-q-rows-order")
def test_rows_are_little_endian_binary32_in_position_order() -> None:
    assert encode_rows(ROWS) == struct.pack("<8f", 0.5, 0.25, 0.25, 0, 0, 0, 0.125, 0.875)
    assert (decode_rows(encode_rows(ROWS), 2, 4) == ROWS).all()


def test_rows_of_another_layout_are_sent_in_this_one() -> None:
    assert encode_rows(np.asfortranarray(ROWS)) == encode_rows(ROWS)
    assert encode_rows(ROWS.astype(">f4")) == encode_rows(ROWS)


@pytest.mark.decision("D25-verifier")
def test_decoded_rows_are_a_view_of_the_bytes_and_cannot_be_written() -> None:
    """The bytes checked are the bytes used (D25)."""
    data = bytearray(encode_rows(ROWS))
    rows = decode_rows(memoryview(data), 2, 4)
    assert np.shares_memory(rows, np.frombuffer(data, dtype=np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        rows[0, 0] = 1


@pytest.mark.decision("D11-size", "D25-rows")
@pytest.mark.parametrize("change", [-4, -1, 1, 4])
def test_a_length_that_is_not_exact_is_a_bad_proposal(change: int) -> None:
    data = (encode_rows(ROWS) + bytes(4))[: size(2, 4) + change]
    with pytest.raises(BadProposal, match="32"):
        decode_rows(data, 2, 4)


def test_good_rows_pass() -> None:
    check_rows(ROWS, [0, 3])


@pytest.mark.decision("D25-rows")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1e-9, -0.5])
@pytest.mark.parametrize("token", range(4))
def test_a_value_not_finite_or_negative_is_refused_wherever_it_is(value: float, token: int) -> None:
    rows = ROWS.copy()
    rows[1, token] = value
    with pytest.raises(BadProposal, match="position 2"):
        check_rows(rows, [0, 3])


@pytest.mark.decision("D25-rows")
def test_the_sum_may_be_off_by_one_ten_thousandth() -> None:
    for off, good in ((9e-5, True), (-9e-5, True), (1.1e-4, False), (-1.1e-4, False)):
        rows = np.array([[0.5 + off, 0.5]], dtype=np.float32)
        if good:
            check_rows(rows, [1])
        else:
            with pytest.raises(BadProposal, match="position 1 sums to"):
                check_rows(rows, [1])


def test_a_wide_row_is_summed_in_float64() -> None:
    """150,000 equal values: a float32 sum in sequence would drift."""
    check_rows(np.full((1, 150_000), 1 / 150_000, dtype=np.float32), [149_999])


@pytest.mark.requirement("S6.3-rows-before-random", "S6.4-zero-q-rejected")
def test_a_token_of_probability_zero_is_refused_and_its_position_named() -> None:
    with pytest.raises(BadProposal, match="position 2 gives its own token 1 probability zero"):
        check_rows(ROWS, [0, 1])
    with pytest.raises(BadProposal, match="position 1 gives its own token 3"):
        check_rows(ROWS, [3, 3])


def test_the_smallest_positive_probability_is_not_zero() -> None:
    rows = np.array([[0x3F800000, 1]], dtype=np.uint32).view(np.float32)  # as bits: arithmetic may flush it to zero
    check_rows(rows, [1])


@pytest.mark.decision("D5-proposed")
def test_a_token_not_below_v_is_refused() -> None:
    check_tokens([0, 3], 4)
    with pytest.raises(BadProposal, match="token 4 at position 2 is not below V = 4"):
        check_tokens([0, 4], 4)
    with pytest.raises(BadProposal, match="position 1"):
        check_rows(ROWS, [2**40, 3])


def test_rows_for_another_number_of_tokens_are_refused() -> None:
    with pytest.raises(BadProposal, match="2 rows for 1"):
        check_rows(ROWS, [0])
