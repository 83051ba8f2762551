"""Sealed segments: what is received is all that was promised, and nobody can change it (D40)."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import mmap
import os
from collections.abc import Iterator

import numpy as np
import pytest

from sdcp.stores.sealed import AVAILABLE, Sealed, SpareSegments, fill, new_segment
from sdcp.wire.rows import check_rows, decode_rows

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="memfds with seals are Linux's: run this on Linux")

DATA = os.urandom(100_003)
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE if AVAILABLE else 0


@pytest.fixture
def fd() -> Iterator[int]:
    """An unsealed segment with DATA in it."""
    fd = new_segment()
    os.write(fd, DATA)
    yield fd
    os.close(fd)


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("data", [b"", b"a", DATA, memoryview(DATA)[7:5000]], ids=["none", "one", "many", "part"])
def test_what_is_sealed_is_what_was_given(data: bytes | memoryview) -> None:
    with Sealed.of(data) as segment:
        assert segment.size == len(data)
        assert segment.view() == data
        assert Sealed.received(os.dup(segment.fd), len(data)).view() == data


def test_a_prepared_segment_is_cut_at_the_end_of_what_is_written() -> None:
    fd = new_segment()
    os.posix_fallocate(fd, 0, 1 << 20)
    with fill(fd, DATA) as segment:
        assert Sealed.received(os.dup(segment.fd), len(DATA)).view() == DATA


@pytest.mark.decision("D40-seal")
def test_nobody_can_change_a_sealed_segment() -> None:
    with Sealed.of(DATA) as segment:
        for change in (
            lambda: os.pwrite(segment.fd, b"x", 0),
            lambda: os.ftruncate(segment.fd, 1),
            lambda: os.ftruncate(segment.fd, len(DATA) + 1),
            lambda: mmap.mmap(segment.fd, len(DATA), mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
            lambda: fcntl.fcntl(segment.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
        ):
            with pytest.raises(PermissionError):
                change()
        with pytest.raises(TypeError):
            segment.view()[0] = 0
        assert segment.view() == DATA


@pytest.mark.parametrize("missing", [1, 2, 4, 8, 15])
@pytest.mark.decision("D40-seal")
def test_a_segment_that_lacks_a_seal_is_refused(fd: int, missing: int) -> None:
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS & ~missing)
    with pytest.raises(ValueError, match="not sealed"):
        Sealed.received(fd, len(DATA))


@pytest.mark.parametrize("size", [0, len(DATA) - 1, len(DATA) + 1])
@pytest.mark.decision("D40-seal")
def test_a_segment_of_another_size_is_refused(fd: int, size: int) -> None:
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    with pytest.raises(ValueError, match=f"not {size}"):
        Sealed.received(fd, size)


@pytest.mark.decision("D40-seal")
def test_a_segment_with_holes_is_refused_before_it_takes_memory() -> None:
    fd = new_segment()
    os.ftruncate(fd, 1 << 40)
    os.pwrite(fd, b"x", 0)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    with pytest.raises(ValueError, match="holes"):
        Sealed.received(fd, 1 << 40)
    os.close(fd)


@pytest.mark.decision("D40-seal")
def test_what_is_no_memfd_is_refused() -> None:
    reading, writing = os.pipe()
    with open(__file__, "rb") as file:
        for fd in (reading, file.fileno()):
            with pytest.raises(ValueError, match="no memfd"):
                Sealed.received(fd, 1)
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("access", [os.O_PATH, os.O_WRONLY])
def test_a_segment_that_nobody_could_read_is_refused(access: int) -> None:
    with Sealed.of(DATA) as segment:
        fd = os.open(f"/proc/self/fd/{segment.fd}", access)
        with pytest.raises(ValueError, match="cannot be read"):
            Sealed.received(fd, len(DATA))
        os.close(fd)


@pytest.mark.decision("D40-seal")
def test_a_writer_that_keeps_a_writable_mapping_cannot_seal(fd: int) -> None:
    kept = mmap.mmap(fd, len(DATA), mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(OSError, match="busy"):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    with pytest.raises(ValueError, match="not sealed"):
        Sealed.received(fd, len(DATA))
    kept.close()


@pytest.mark.decision("D40-view")
def test_a_view_outlives_the_segment_and_then_no_descriptor_is_left() -> None:
    Sealed.of(b"x").close()  # what is opened once and kept
    before = descriptors()
    segment = Sealed.of(DATA)
    view = segment.view()
    segment.close()
    segment.close()
    del segment
    assert view == DATA
    del view
    assert descriptors() == before


async def test_a_spare_segment_is_ready_and_used_once() -> None:
    spares = SpareSegments(1)
    before = descriptors()
    for _ in range(3):
        spares.prepare(len(DATA))
    while not spares._ready:
        await asyncio.sleep(0)
    assert descriptors() == before + 1
    with fill(spares.take(), DATA[:50_000]) as first, fill(spares.take(), DATA) as second:
        assert (first.view(), second.view()) == (DATA[:50_000], DATA)
    spares.prepare(len(DATA))
    while not spares._ready:
        await asyncio.sleep(0)
    spares.close()
    spares.prepare(1)
    while spares._coming:
        await asyncio.sleep(0)
    assert descriptors() == before


async def test_no_spare_is_kept_of_what_is_too_large() -> None:
    spares = SpareSegments(1, largest=1000)
    spares.prepare(1001)
    assert not spares._coming


@pytest.mark.decision("D40-seal", "D40-view")
def test_rows_are_read_where_they_lie_and_nobody_can_write_them() -> None:
    rows = np.full((2, 50_000), 1 / 50_000, np.float32)
    segment = Sealed.of(rows.data.cast("B"))
    read = decode_rows(segment.view(), 2, 50_000)
    assert np.shares_memory(read, np.frombuffer(segment.view(), np.float32)), "no copy"
    segment.close()
    del segment
    check_rows(read, [0, 49_999])
    with pytest.raises(ValueError, match="read-only"):
        read[0, 0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        read.flags.writeable = True
