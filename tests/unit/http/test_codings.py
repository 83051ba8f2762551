"""The coding zstd: when it pays, and that what is coded badly or too well takes nothing (D46)."""

from __future__ import annotations

import contextlib
import tracemalloc

import numpy as np
import pytest
import zstandard

from sdcp.errors import BodyTooLarge, MalformedBody, ProblemError, UnsupportedMediaType
from sdcp.http.codings import CODED_FROM, accepts_zstd, code, decode, decoded, pays

V = 49_152


def rows(kept: int) -> memoryview:
    """Eight rows of V values, `kept` of each not zero."""
    luck = np.random.default_rng(kept)
    made = np.zeros((8, V), np.float32)
    for row in made:
        row[luck.choice(V, kept, replace=False)] = luck.exponential(size=kept)
    return made.data.cast("B")


@pytest.mark.parametrize(("kept", "worth"), [(0, True), (50, True), (V // 100, True), (V // 10, False), (V, False)])
@pytest.mark.decision("D46-pays")
def test_it_pays_for_rows_of_few_values(kept: int, worth: bool) -> None:
    assert pays(rows(kept)) is worth


@pytest.mark.decision("D46-pays")
def test_it_does_not_pay_for_little() -> None:
    assert pays(bytes(CODED_FROM))
    assert not pays(bytes(CODED_FROM - 1))
    assert pays(bytes(CODED_FROM + 3))


def test_a_row_that_is_dense_is_seen_wherever_it_is() -> None:
    for dense in range(8):
        made = np.zeros((8, V), np.float32)
        made[dense] = 1 / V
        assert not pays(made.data.cast("B"))


@pytest.mark.parametrize("data", [rows(50), rows(V)[:100_003], b"x"])
def test_what_is_coded_is_read_again(data: bytes | memoryview) -> None:
    assert decode(code(data), len(data)) == data


def test_rows_cut_by_top_k_take_less_than_a_hundredth() -> None:
    assert len(code(rows(50))) < len(rows(50)) // 100


@pytest.mark.decision("D46-bounds")
def test_a_bomb_is_refused_before_it_takes_memory() -> None:
    bomb = code(bytes(64 << 20))
    tracemalloc.start()
    with pytest.raises(BodyTooLarge, match=str(64 << 20)):
        decode(bomb, (64 << 20) - 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def of_another_size(stated: int) -> bytes:
    """A frame whose header states another size than it holds: the size field of 4 octets, overwritten."""
    frame = bytearray(code(bytes(100_000)))
    at = frame.index((100_000).to_bytes(4, "little"))
    frame[at : at + 4] = stated.to_bytes(4, "little")
    return bytes(frame)


FRAME = code(rows(50))
SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"


@pytest.mark.parametrize(
    ("frame", "refusal"),
    [
        (b"", MalformedBody),
        (b"no frame", MalformedBody),
        (FRAME[:-1], MalformedBody),
        (FRAME[:7], MalformedBody),
        (FRAME + b"x", MalformedBody),
        (FRAME + FRAME, MalformedBody),
        (of_another_size(99_999), MalformedBody),
        (of_another_size(100_001), MalformedBody),
        (of_another_size(1 << 31), BodyTooLarge),
        (SKIPPABLE, UnsupportedMediaType),
        (SKIPPABLE + FRAME, UnsupportedMediaType),
        (code(b""), UnsupportedMediaType),
        (zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000)), UnsupportedMediaType),
    ],
)
@pytest.mark.decision("D46-bounds")
def test_what_is_not_one_frame_of_a_stated_size_is_refused(frame: bytes, refusal: type[ProblemError]) -> None:
    with pytest.raises(refusal):
        decode(frame, len(rows(50)))


@pytest.mark.parametrize("position", range(4, len(FRAME), 97))
def test_a_changed_octet_gives_a_refusal_or_as_many_octets(position: int) -> None:
    """The frame has no checksum: TLS is what keeps octets as they were. But nothing else may come of it."""
    changed = bytearray(FRAME)
    changed[position] ^= 0x55
    with contextlib.suppress(ProblemError):
        assert len(decode(bytes(changed), len(rows(50)))) <= len(rows(50))


@pytest.mark.decision("D46-bounds")
def test_codings_by_name() -> None:
    assert decoded({}, b"x", 1) == b"x"
    assert decoded({"content-encoding": "identity"}, b"x", 1) == b"x"
    assert decoded({"content-encoding": " ZSTD "}, code(b"x"), 1) == b"x"
    for other in ("gzip", "zstd, zstd", "zstd, gzip", ""):
        with pytest.raises(UnsupportedMediaType) as refusal:
            decoded({"content-encoding": other}, b"x", 1)
        assert refusal.value.headers == (("accept-encoding", "zstd"),)


@pytest.mark.parametrize(
    ("field", "taken"),
    [
        ("zstd", True),
        ("gzip, zstd;q=0.5", True),
        ("zstd;q=0", False),
        ("gzip", False),
        ("", False),
        ("identity", False),
    ],
)
@pytest.mark.decision("D46-pays")
def test_who_takes_it(field: str, taken: bool) -> None:
    assert accepts_zstd({"accept-encoding": field}) is taken
