"""What the journal keeps through kills, power cuts, full disks and rot (6.8, docs/mlc.md)."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import threading
from pathlib import Path
from zlib import crc32

import pytest

from sdcp.errors import ConfigurationError
from sdcp.ports import LogDamagedError, LogFencedError, LogMovedError, StoreFullError, StoreUnavailableError
from sdcp.stores.frames import HEAD_SIZE, MAGIC, Frame, Head, Hole, Scan, encode_frame, encode_head
from sdcp.stores.journal import Journal
from sdcp.stores.segment import Segment
from sdcp.stores.segments import Sizes
from sdcp.stores.store import LogState
from tests.unit.stores.samples import commit, fence

SMALL = Sizes(segment=2048, ahead=512)


async def fill(journal: Journal, log: str, rounds: int) -> bytes:
    whole, version = b"", None
    for number in range(rounds):
        version = (await journal.append(log, commit(1, number), version)).version
        whole += commit(1, number)
    return whole


def crashed(folder: Path, to: Path) -> Path:
    """The folder as a process that is killed now leaves it."""
    shutil.copytree(folder, to)
    return to


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.journal"))


async def test_all_is_there_again_after_a_clean_end_and_after_a_kill(tmp_path):
    journal = Journal(tmp_path / "a", sizes=SMALL)
    logs = {name: await fill(journal, name, 20) for name in ("s", "t")}
    killed = crashed(tmp_path / "a", tmp_path / "b")
    states = {name: journal.state(name) for name in logs}
    journal.close()
    assert len(segments(tmp_path / "a")) > 2, "the test is to cross segments"
    for folder in (tmp_path / "a", killed):
        again = Journal(folder, sizes=SMALL)
        for name, whole in logs.items():
            assert again.read(name, 0, None) == (whole, states[name])
        again.close()


async def test_fences_and_epochs_are_known_again(tmp_path):
    journal = Journal(tmp_path)
    version = (await journal.append("s", commit(1) + fence(2) + commit(7), None)).version
    journal.close()
    journal = Journal(tmp_path)
    for data in (commit(1), fence(7)):
        with pytest.raises(LogFencedError):
            await journal.append("s", data, version)
    await journal.append("s", fence(8), version)
    journal.close()


async def test_versions_rise_over_restarts_whether_or_not_anything_was_appended(tmp_path):
    seen = []
    for run in range(6):
        journal = Journal(tmp_path)
        seen.append(next(journal.versions))
        if run % 2:
            seen.append((await journal.append(f"log{run}", fence(1), None)).version)
        journal.close()
    assert seen == sorted(set(seen))
    assert len(segments(tmp_path)) <= 4, "starts without appends leave no segments behind"


async def test_versions_rise_although_the_newest_file_is_lost(tmp_path):
    """Objects take versions of a run, too, so a number counts as taken before anything is appended."""
    journal = Journal(tmp_path)
    whole = await fill(journal, "s", 2)
    journal.close()
    seen = []
    for _ in range(3):
        journal = Journal(tmp_path)
        seen.append(next(journal.versions))
        assert journal.read("s", 0, None)[0] == whole
        journal.close()
        segments(tmp_path)[-1].unlink()
    assert seen == sorted(set(seen))


async def test_appends_that_wait_share_a_sync(tmp_path, monkeypatch):
    journal = Journal(tmp_path)
    gate, entered = threading.Event(), threading.Event()
    sync = os.fdatasync

    def slow(fd: int) -> None:
        entered.set()
        gate.wait()
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", slow)
    first = asyncio.ensure_future(journal.append("first", fence(1), None))
    await asyncio.to_thread(entered.wait)
    rest = [asyncio.ensure_future(journal.append(f"log{number}", fence(1), None)) for number in range(50)]
    await asyncio.sleep(0)  # they are in the queue now
    assert journal.state("first") is None, "nothing is visible before it is durable"
    gate.set()
    await asyncio.gather(first, *rest)
    assert journal.syncs == 2
    journal.close()


async def test_an_append_is_answered_after_the_sync_and_not_before(tmp_path, monkeypatch):
    order = []
    sync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (sync(fd), order.append("sync"))[0])
    journal = Journal(tmp_path)
    await journal.append("s", fence(1), None)
    order.append("answer")
    assert order == ["sync", "answer"]
    journal.close()


async def test_two_appends_of_one_log_in_one_batch_are_decided_in_turn(tmp_path):
    journal = Journal(tmp_path)
    outcomes = await asyncio.gather(
        *(journal.append("s", commit(1, number), None) for number in range(10)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes[1:]] == [LogMovedError] * 9
    assert journal.read("s", 0, None)[0] == commit(1, 0)
    journal.close()


async def test_a_torn_tail_is_cut_and_said(tmp_path, caplog):
    """Every length of a frame that was being written when the process was killed."""
    journal = Journal(tmp_path / "a")
    whole = await fill(journal, "s", 2)
    before = crashed(tmp_path / "a", tmp_path / "before")
    await journal.append("s", commit(1, 9), journal.state("s").version)
    end = journal._segments.newest.end
    journal.close()
    octets = segments(tmp_path / "a")[0].read_bytes()
    begun = len(whole) + HEAD_SIZE + 2 * ((end - HEAD_SIZE - 3 * len(commit(1))) // 3)
    for cut in range(begun + 1, end, 7):
        folder = crashed(before, tmp_path / f"cut{cut}")
        segments(folder)[0].write_bytes(octets[:cut])
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            again = Journal(folder)
        assert again.read("s", 0, None)[0] == whole
        assert "cut a torn tail" in caplog.text
        await again.append("s", commit(1, 3), again.state("s").version)
        again.close()
        again = Journal(folder)
        assert again.read("s", 0, None)[0] == whole + commit(1, 3)
        again.close()


async def test_a_batch_that_reached_the_disk_out_of_order_is_torn_too(tmp_path, monkeypatch):
    """Sectors of one write may land in any order: whole frames behind a broken one, none of them answered."""
    journal = Journal(tmp_path / "a")
    whole = await fill(journal, "s", 2)
    entered, gate, sync = threading.Event(), threading.Event(), os.fdatasync
    syncs = iter(range(2))

    def observed(fd: int) -> None:
        if next(syncs) == 0:
            entered.set()
            gate.wait()
        else:
            crashed(tmp_path / "a", tmp_path / "b")  # written, not yet synced, the mark behind
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", observed)
    waiting = [asyncio.ensure_future(journal.append("x", fence(1), None))]
    await asyncio.to_thread(entered.wait)
    waiting += [asyncio.ensure_future(journal.append(name, fence(1), None)) for name in ("t", "u", "v")]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*waiting)
    monkeypatch.undo()
    journal.close()
    path = segments(tmp_path / "b")[0]
    octets = bytearray(path.read_bytes())
    octets[octets.index(b"t" + fence(1))] ^= 1
    path.write_bytes(octets)
    again = Journal(tmp_path / "b")
    assert again.read("s", 0, None)[0] == whole
    assert [again.state(name) is None for name in ("x", "t", "u", "v")] == [False, True, True, True]
    again.close()


@pytest.mark.decision("D47-named")
async def test_a_damaged_record_refuses_its_log_by_name_and_no_other(tmp_path, caplog):
    journal = Journal(tmp_path)
    await fill(journal, "bad", 3)
    good = await fill(journal, "good", 3)
    journal.close()
    path = segments(tmp_path)[0]
    octets = bytearray(path.read_bytes())
    octets[octets.index(commit(1, 1)) + 5] ^= 0x40
    path.write_bytes(octets)
    journal = Journal(tmp_path)
    assert journal.damaged == ["bad"]
    with pytest.raises(LogDamagedError, match="'bad'") as caught:
        journal.read("bad", 0, None)
    assert (caught.value.data, caught.value.intact) == (commit(1, 0), len(commit(1, 0)))
    with pytest.raises(LogDamagedError, match="'bad'") as caught:
        journal.read("bad", 3, len(commit(1, 0)) - 3)
    assert caught.value.data == commit(1, 0)[3:-3]
    with pytest.raises(LogDamagedError, match="'bad'"):
        await journal.append("bad", commit(1, 9), 1)
    assert f"'bad' is intact up to octet {len(commit(1, 0))}" in caplog.text
    assert f"of {path}" in caplog.text
    assert journal.read("good", 0, None)[0] == good
    await journal.append("good", commit(1, 9), journal.state("good").version)
    journal.close()


async def test_the_last_record_was_acknowledged_so_it_is_damaged_not_torn(tmp_path):
    """Only the mark beside the segments tells this from a torn tail."""
    journal = Journal(tmp_path / "a")
    await fill(journal, "s", 3)
    folder = crashed(tmp_path / "a", tmp_path / "b")
    journal.close()
    path = segments(folder)[0]
    octets = bytearray(path.read_bytes())
    octets[octets.index(commit(1, 2)) + 5] ^= 0x40
    path.write_bytes(octets)
    journal = Journal(folder)
    assert journal.damaged == ["s"]
    journal.close()


@pytest.mark.parametrize("spoil", ["header", "truncated", "gone", "head", "older gone"])
@pytest.mark.decision("D47-hole")
async def test_after_damage_that_names_no_log_each_is_intact_up_to_where_it_is_known(tmp_path, spoil, caplog):
    """`early` ended before the damage and `late` began after it; `s` runs through it."""
    journal = Journal(tmp_path, sizes=SMALL)
    early = await fill(journal, "early", 2)
    whole = await fill(journal, "s", 60)
    late = await fill(journal, "late", 2)
    journal.close()
    paths = segments(tmp_path)
    path = {"gone": paths[-1], "older gone": paths[1]}.get(spoil, paths[2])
    octets = bytearray(path.read_bytes())
    if "gone" in spoil:
        path.unlink()
    elif spoil == "truncated":
        path.write_bytes(octets[: len(octets) // 2])
    else:
        octets[HEAD_SIZE + 9 if spoil == "header" else 9] ^= 1
        path.write_bytes(octets)
    for _ in range(2):  # what the first start makes of it, the next one finds again
        caplog.clear()
        journal = Journal(tmp_path, sizes=SMALL)
        assert str(path) in caplog.text
        if spoil == "head":  # `s` goes on after it and has lost nothing; of `early` nobody can know
            assert journal.read("s", 0, None)[0] == whole
            assert journal.read("late", 0, None)[0] == late
            with pytest.raises(LogDamagedError, match="may have gone on") as caught:
                journal.read("early", 0, None)
            assert caught.value.data == early
            journal.close()
            continue
        with pytest.raises(LogDamagedError, match="'s'") as caught:
            journal.read("s", 0, None)
        assert whole.startswith(caught.value.data)
        assert 0 < caught.value.intact == len(caught.value.data)
        assert spoil == "gone" or caught.value.intact < len(whole)
        with pytest.raises(LogDamagedError) as caught:
            journal.read("early", 0, None)
        assert caught.value.data == early
        if spoil == "gone":
            with pytest.raises(LogDamagedError, match="'late'") as caught:
                journal.read("late", 0, None)
            assert caught.value.data == late[: len(caught.value.data)]
        else:
            assert journal.read("late", 0, None)[0] == late
            await journal.append("late", commit(1, 2), journal.state("late").version)
            late += commit(1, 2)
        for name in ("early", "s"):
            with pytest.raises(LogDamagedError):
                await journal.append(name, commit(1, 99), journal._logs[name].state.version)
        journal.close()


@pytest.mark.decision("D47-hole")
async def test_beside_a_hole_no_log_begins_that_goes_on(tmp_path):
    """One that is lost whole must not be told from one that never was; a session's first record has epoch 1."""
    journal = Journal(tmp_path, sizes=SMALL)
    await fill(journal, "s", 30)
    journal.close()
    segments(tmp_path)[1].unlink()
    journal = Journal(tmp_path, sizes=SMALL)
    with pytest.raises(LogDamagedError, match="'unknown'"):
        journal.read("unknown", 0, None)
    with pytest.raises(LogDamagedError, match="'unknown'"):
        journal.state("unknown")
    for version in (None, 7):
        with pytest.raises(LogDamagedError, match="'unknown'"):
            await journal.append("unknown", fence(2), version)
    state = await journal.append("new", commit(1), None)
    assert journal.read("new", 0, None) == (commit(1), state)
    journal.close()


async def test_a_hole_goes_with_its_segment(tmp_path):
    journal = Journal(tmp_path, sizes=SMALL)
    await fill(journal, "s", 30)
    journal.close()
    segments(tmp_path)[1].unlink()
    journal = Journal(tmp_path, sizes=SMALL)
    for path in segments(tmp_path):
        os.utime(path, (1000, 1000))
    await forgotten(journal, 2000)
    assert journal.state("unknown") is None
    assert journal.state("s") is None
    journal.close()
    journal = Journal(tmp_path, sizes=SMALL)
    assert journal.state("unknown") is None
    assert not journal.damaged
    journal.close()


@pytest.mark.decision("D47-kept")
async def test_a_damaged_file_is_never_written_again_and_can_be_restored(tmp_path):
    journal = Journal(tmp_path / "a", sizes=SMALL)
    whole = await fill(journal, "s", 3)
    folder = crashed(tmp_path / "a", tmp_path / "b")
    journal.close()
    path = segments(folder)[0]
    octets = path.read_bytes()
    path.write_bytes(octets[: HEAD_SIZE + 20])
    for _ in range(2):
        journal = Journal(folder, sizes=SMALL)
        assert journal.damaged == []
        with pytest.raises(LogDamagedError):
            journal.read("s", 0, None)
        assert path.read_bytes() == octets[: HEAD_SIZE + 20]
        await journal.append(f"new{_}", fence(1), None)
        journal.close()
    path.write_bytes(octets)
    journal = Journal(folder, sizes=SMALL)
    assert journal.read("s", 0, None)[0] == whole
    assert [journal.read(f"new{_}", 0, None)[0] for _ in range(2)] == [fence(1)] * 2
    journal.close()


@pytest.mark.decision("D47-places")
async def test_files_that_changed_places_are_named(tmp_path):
    journal = Journal(tmp_path, sizes=SMALL)
    whole = await fill(journal, "s", 30)
    journal.close()
    first, second, aside = *segments(tmp_path)[:2], tmp_path / "aside"
    for one, other in ((first, aside), (second, first), (aside, second)):
        one.rename(other)
    with pytest.raises(ConfigurationError, match=f"{first.name}: this is segment 2; rename it to {second.name}"):
        Journal(tmp_path, sizes=SMALL)
    for one, other in ((first, aside), (second, first), (aside, second)):
        one.rename(other)
    journal = Journal(tmp_path, sizes=SMALL)
    assert journal.read("s", 0, None)[0] == whole
    journal.close()


async def test_damage_found_by_a_read_refuses_the_log_too(tmp_path):
    journal = Journal(tmp_path)
    whole = await fill(journal, "s", 3)
    path = segments(tmp_path)[0]
    octets = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(octets.index(commit(1, 1)))
        file.write(b"\xff")
    assert journal.read("s", 0, len(commit(1, 0)))[0] == commit(1, 0)
    with pytest.raises(LogDamagedError) as caught:
        journal.read("s", 0, len(whole))
    assert caught.value.data == commit(1, 0)
    with pytest.raises(LogDamagedError):
        await journal.append("s", commit(1, 9), journal._logs["s"].state.version)
    journal.close()


async def test_a_full_disk_refuses_before_anything_is_written_and_service_resumes(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "a", sizes=SMALL)
    whole = await fill(journal, "s", 2)
    version = journal.state("s").version

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    refused = 0
    while not refused:
        try:
            version = (await journal.append("s", commit(1, 5), version)).version
            whole += commit(1, 5)
        except StoreFullError:
            refused += 1
    assert journal.read("s", 0, None)[0] == whole
    monkeypatch.undo()
    await journal.append("s", commit(1, 6), version)
    killed = crashed(tmp_path / "a", tmp_path / "b")
    journal.close()
    again = Journal(killed, sizes=SMALL)
    assert again.read("s", 0, None)[0] == whole + commit(1, 6)
    again.close()


async def test_a_full_disk_at_a_new_segment_leaves_the_old_one_in_use(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "a", sizes=Sizes(segment=600, ahead=64))
    whole = await fill(journal, "s", 3)
    version = journal.state("s").version

    def full(path: Path, octets: bytes) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("sdcp.stores.segments.write_synced", full)
    with pytest.raises(StoreFullError):
        await journal.append("s", commit(1, 3, tokens=200), version)
    monkeypatch.undo()
    killed = crashed(tmp_path / "a", tmp_path / "b")
    await journal.append("s", commit(1, 3, tokens=200), version)
    journal.close()
    for folder, expected in ((killed, whole), (tmp_path / "a", whole + commit(1, 3, tokens=200))):
        again = Journal(folder)
        assert again.read("s", 0, None)[0] == expected
        again.close()


async def test_after_a_failed_sync_no_append_is_taken_until_a_restart(tmp_path, monkeypatch):
    """fsync may report an error once and success afterwards, with the data lost: it must not be believed again."""
    journal = Journal(tmp_path)
    version = (await journal.append("s", commit(1), None)).version
    real = os.fdatasync

    def failing(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(StoreUnavailableError):
        await journal.append("s", commit(1, 2), version)
    monkeypatch.setattr(os, "fdatasync", real)
    with pytest.raises(StoreUnavailableError, match="restart"):
        await journal.append("t", commit(1, 2), None)
    assert journal.read("s", 0, None)[0] == commit(1), "what was acknowledged is still read"
    journal.close()
    again = Journal(tmp_path)
    assert again.read("s", 0, None)[0].startswith(commit(1))
    again.close()


async def test_a_caller_that_goes_away_leaves_the_others_their_answers(tmp_path):
    journal = Journal(tmp_path)
    gone = asyncio.ensure_future(journal.append("s", commit(1), None))
    await asyncio.sleep(0)
    gone.cancel()
    assert (await journal.append("t", commit(1), None)).epoch == 1
    assert journal.read("s", 0, None)[0] in (b"", commit(1))
    journal.close()


async def test_a_batch_larger_than_a_segment_is_taken(tmp_path):
    journal = Journal(tmp_path, sizes=Sizes(segment=100, ahead=10))
    data = commit(1, 1, tokens=500)
    await journal.append("s", data, None)
    await journal.append("t", data, None)
    journal.close()
    journal = Journal(tmp_path)
    assert journal.read("t", 0, None)[0] == journal.read("s", 0, None)[0] == data
    journal.close()


def test_writing_goes_on_after_a_short_write(tmp_path, monkeypatch):
    (tmp_path / "x").touch()
    segment = Segment(tmp_path / "x", 1, 0)
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, octets, at: real(fd, memoryview(octets)[:3], at))
    segment.write(b"0123456789")
    assert segment.read(0, 20) == b"0123456789"
    segment.close()


# -- logs that are old -------------------------------------------------------------------------------------------------


async def forgotten(journal: Journal, before: float) -> None:
    journal.forget(before)
    await journal.append("after", fence(1), None)  # the thread takes its work in order


async def interleaved(journal: Journal, names: str, rounds: int) -> dict[str, bytes]:
    """Logs that begin one after another and overlap, as sessions do: some log crosses every end of a segment."""
    logs: dict[str, bytes] = {}
    for step in range(len(names) + rounds):
        for number in range(max(0, step - rounds), min(step, len(names))):
            name, state = names[number], journal.state(names[number])
            await journal.append(name, commit(1, step), state.version if state else None)
            logs[name] = logs.get(name, b"") + commit(1, step)
    return logs


async def test_old_logs_go_though_logs_cross_the_end_of_every_segment(tmp_path):
    journal = Journal(tmp_path, sizes=SMALL)
    logs = await interleaved(journal, "abcdefghijklmnop", 6)
    old = segments(tmp_path)[:5]
    last = [name for name in logs if journal._logs[name].last_segment <= 5]
    assert 0 < len(last) < len(logs)
    for path in old:
        os.utime(path, (1000, 1000))
    room = journal.room
    await forgotten(journal, 2000)
    assert [name for name in logs if journal.state(name) is None] == last
    assert journal.room < room
    killed = crashed(tmp_path, tmp_path / "killed")
    journal.close()
    for folder in (tmp_path, killed):
        again = Journal(folder, sizes=SMALL)
        assert not again.damaged
        for name in logs.keys() - last:
            assert again.read(name, 0, None)[0] == logs[name]
        for name in last:  # what a restart brings back is whole, or not there
            assert again.read(name, 0, None)[0] in (b"", logs[name])
        again.close()


async def test_a_forgotten_name_can_be_begun_anew(tmp_path):
    journal = Journal(tmp_path, sizes=SMALL)
    logs = await interleaved(journal, "abcdefghijklmnop", 6)
    for path in segments(tmp_path)[:5]:
        os.utime(path, (1000, 1000))
    await forgotten(journal, 2000)
    anew = [name for name in logs if journal.state(name) is None]
    for name in anew:
        await journal.append(name, fence(7), None)
    journal.close()
    again = Journal(tmp_path, sizes=SMALL)
    assert [again.read(name, 0, None)[0] for name in anew] == [fence(7)] * len(anew)
    assert not again.damaged
    again.close()


async def test_a_log_that_goes_on_keeps_all_its_segments(tmp_path):
    journal = Journal(tmp_path, sizes=SMALL)
    state = await journal.append("long", commit(1, 0), None)
    await fill(journal, "old", 40)
    await journal.append("long", commit(1, 1), state.version)
    before = segments(tmp_path)
    for path in before[:-1]:
        os.utime(path, (1000, 1000))
    await forgotten(journal, 2000)
    assert journal.read("long", 0, None)[0] == commit(1, 0) + commit(1, 1)
    assert segments(tmp_path) == before
    journal.close()


async def test_versions_rise_although_all_was_forgotten(tmp_path):
    journal = Journal(tmp_path, sizes=SMALL)
    await fill(journal, "old", 40)
    last = journal.state("old").version
    journal.close()
    journal = Journal(tmp_path, sizes=SMALL)
    for path in segments(tmp_path):
        os.utime(path, (1000, 1000))
    await forgotten(journal, 2000)
    assert journal.state("old") is None
    assert (await journal.append("old", fence(1), None)).version > last
    journal.close()
    journal = Journal(tmp_path, sizes=SMALL)
    assert next(journal.versions) > last
    assert journal.octets == 2 * len(fence(1))
    journal.close()


async def test_a_removal_that_was_cut_short_is_finished_at_the_start(tmp_path, monkeypatch):
    journal = Journal(tmp_path, sizes=SMALL)
    await fill(journal, "old", 40)
    new = await fill(journal, "new", 20)
    for path in segments(tmp_path)[:3]:
        os.utime(path, (1000, 1000))
    before = len(segments(tmp_path))
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.EIO, "failed")))
    await forgotten(journal, 2000)
    monkeypatch.undo()
    killed = crashed(tmp_path, tmp_path / "killed")
    journal.close()
    assert len(segments(killed)) == before
    again = Journal(killed, sizes=SMALL)
    assert again.read("new", 0, None)[0] == new
    again.close()


async def test_a_log_that_is_forgotten_under_a_reader_is_not_read_wrong(tmp_path):
    journal = Journal(tmp_path, sizes=SMALL)
    await fill(journal, "old", 40)
    index = journal._logs["old"]
    await fill(journal, "new", 40)
    for path in segments(tmp_path)[:-1]:
        os.utime(path, (1000, 1000))
    await forgotten(journal, 2000)
    journal._logs.setdefault("old", index)
    with pytest.raises(StoreUnavailableError, match="forgotten"):
        journal.read("old", 0, None)
    journal.close()


def test_a_frame_whose_name_is_no_name_is_damage_like_any_other():
    """Its checksums fit, so somebody else wrote it: no exception of another kind may stop the start."""
    frame = Frame("log", 0, LogState(1, 3, None, 1))
    octets = bytearray(encode_head(Head(1, 0, 0)) + encode_frame(frame, b"abc", HEAD_SIZE)[0])
    name = octets.index(b"log")
    octets[name] = 0xFF
    octets[name - 4 : name] = crc32(octets[name : name + 3], crc32(octets[HEAD_SIZE : name - 4])).to_bytes(4, "big")
    assert list(Scan(memoryview(octets), 0).frames()) == []
    assert list(Scan(memoryview(octets), len(octets)).frames()) == [Hole(HEAD_SIZE, len(octets))]


def test_a_record_that_goes_back_in_its_log_is_damage(tmp_path):
    """We write none; but whatever the files hold, what precedes the damage is served."""
    octets = encode_head(Head(1, 0, 0))
    for start, data in ((0, b"abc"), (3, b"def"), (1, b"x"), (6, b"g")):
        octets += encode_frame(Frame("log", start, LogState(1, start + len(data), None, 1)), data, HEAD_SIZE)[0]
    (tmp_path / "00000001.journal").write_bytes(octets)
    journal = Journal(tmp_path)
    for start, stop in ((0, None), (2, 4), (5, None)):
        with pytest.raises(LogDamagedError) as caught:
            journal.read("log", start, stop)
        assert (caught.value.data, caught.value.intact) == (b"abcdef"[start:stop], 6)
    journal.close()


def test_a_refused_start_leaves_no_file_open(tmp_path):
    folder = tmp_path / "journal"
    Journal(folder, sizes=SMALL).close()
    segments(folder)[0].rename(folder / "00000007.journal")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ConfigurationError):
        Journal(folder, sizes=SMALL)
    assert os.listdir("/proc/self/fd") == before


def test_a_start_on_a_full_disk_is_refused_in_one_line(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = os.listdir("/proc/self/fd")
    for name in ("os.posix_fallocate", "sdcp.stores.segments.write_synced"):
        with monkeypatch.context() as patched:
            patched.setattr(name, full)
            with pytest.raises(ConfigurationError, match=f"{tmp_path}.*No space left"):
                Journal(tmp_path)
    assert os.listdir("/proc/self/fd") == before
    Journal(tmp_path).close()


async def test_files_that_are_no_segments_are_let_be(tmp_path):
    journal = Journal(tmp_path, sizes=SMALL)
    whole = await fill(journal, "s", 3)
    journal.close()
    for name in ("00000001 (copy).journal", "1.journal", ".journal"):
        (tmp_path / name).write_bytes(b"notes")
    again = Journal(tmp_path, sizes=SMALL)
    assert again.read("s", 0, None)[0] == whole
    again.close()
    assert (tmp_path / "1.journal").read_bytes() == b"notes"


async def test_a_sealed_segment_that_was_cut_where_a_frame_ends_is_damaged_too(tmp_path, caplog):
    """Nothing in it tells, when the log goes on nowhere else: the next segment does."""
    journal = Journal(tmp_path / "a", sizes=SMALL)
    await fill(journal, "s", 1)
    cut = journal._segments.newest.end
    await fill(journal, "t", 1)
    journal.close()
    Journal(tmp_path / "a", sizes=SMALL).close()
    first = segments(tmp_path / "a")[0]
    first.write_bytes(first.read_bytes()[:cut])
    journal = Journal(tmp_path / "a", sizes=SMALL)
    assert f"octets {cut} to" in caplog.text
    with pytest.raises(LogDamagedError, match="may be lost"):
        journal.state("t")
    with pytest.raises(LogDamagedError, match="may have gone on"):
        journal.state("s")
    journal.close()


@pytest.mark.parametrize("frames", [True, False], ids=["with frames", "newest, without frames"])
async def test_a_damaged_head_hides_no_segment_that_was_cut_where_a_frame_ends(tmp_path, frames):
    """The head alone told where the segment before it ended."""
    journal = Journal(tmp_path, sizes=SMALL)
    await fill(journal, "s", 1)
    cut = journal._segments.newest.end
    await fill(journal, "t", 1)
    journal.close()
    journal = Journal(tmp_path, sizes=SMALL)
    if frames:
        await fill(journal, "u", 1)
    journal.close()
    first, second = segments(tmp_path)
    first.write_bytes(first.read_bytes()[:cut])
    second.write_bytes(b"\0" + second.read_bytes()[1:])
    for _ in range(2):
        journal = Journal(tmp_path, sizes=SMALL)
        with pytest.raises(LogDamagedError, match="may be lost"):
            journal.state("t")
        with pytest.raises(LogDamagedError, match="may have gone on"):
            journal.state("s")
        journal.close()


async def test_a_damaged_head_hides_no_segment_that_is_gone(tmp_path):
    journal = Journal(tmp_path, sizes=SMALL)
    for name in "stu":
        await fill(journal, name, 16)
    journal.close()
    paths = segments(tmp_path)
    paths[1].unlink()
    paths[2].write_bytes(b"\0" + paths[2].read_bytes()[1:])
    journal = Journal(tmp_path, sizes=SMALL)
    with pytest.raises(LogDamagedError):
        journal.state("s")
    with pytest.raises(LogDamagedError, match="may be lost"):
        journal.state("never")
    journal.close()


@pytest.mark.parametrize("octets", [b"", bytes(12), bytes(8) + crc32(bytes(8)).to_bytes(4, "big")])
def test_a_note_of_the_oldest_segment_that_names_none_stops_the_start(tmp_path, octets):
    (tmp_path / "first").write_bytes(octets)
    with pytest.raises(ConfigurationError, match="first: damaged; restore it"):
        Journal(tmp_path)


async def test_of_a_segment_after_which_one_is_gone_nothing_is_torn(tmp_path):
    """It was sealed when the next one was begun, so all of it was acknowledged."""
    journal = Journal(tmp_path, sizes=SMALL)
    await fill(journal, "s", 1)
    while len(segments(tmp_path)) == 1:
        await fill(journal, f"t{journal.appends}", 1)
    journal.close()
    path, gone = segments(tmp_path)
    gone.unlink()
    octets = path.read_bytes()
    path.write_bytes(octets[:-1] + bytes([octets[-1] ^ 1]))
    last = f"t{octets.count(MAGIC) - 1}"
    for _ in range(2):
        journal = Journal(tmp_path, sizes=SMALL)
        assert last in journal.damaged
        assert path.stat().st_size == len(octets)
        journal.close()


async def test_a_mark_that_is_behind_cuts_no_older_segment(tmp_path):
    """A power cut may lose marks; where the segment ended only the head of the next one told."""
    journal = Journal(tmp_path, sizes=SMALL)
    await fill(journal, "s", 1)
    mark = (tmp_path / "mark").read_bytes()
    whole = await fill(journal, "t", 1)
    await fill(journal, "u", 16)
    journal.close()
    (tmp_path / "mark").write_bytes(mark)
    second = segments(tmp_path)[1]
    second.write_bytes(b"\0" + second.read_bytes()[1:])
    journal = Journal(tmp_path, sizes=SMALL)
    with pytest.raises(LogDamagedError) as caught:
        journal.read("t", 0, None)
    assert caught.value.data == whole
    journal.close()
