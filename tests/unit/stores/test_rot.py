"""Whatever octet of the journal changes or goes, no acknowledged append vanishes in silence (docs/mlc.md, D47)."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp.errors import ConfigurationError
from sdcp.ports import LogDamagedError
from sdcp.stores.journal import Journal
from sdcp.stores.segments import Sizes
from tests.unit.stores.samples import commit

SMALL = Sizes(segment=700, ahead=256)
Files = dict[str, bytes]


async def _filled(folder: Path) -> tuple[Path, Files]:
    """A journal as a kill leaves it, and what its logs hold."""
    journal = Journal(folder / "living", sizes=SMALL)
    logs = dict.fromkeys("stu", b"")
    for number in range(4):
        for name in logs:
            state = journal.state(name)
            await journal.append(name, commit(1, number), state.version if state else None)
            logs[name] += commit(1, number)
    shutil.copytree(folder / "living", folder / "killed")
    journal.close()
    return folder / "killed", logs


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    return asyncio.run(_filled(tmp_path_factory.mktemp("rot")))


def _whole_or_named(folder: Path, logs: dict[str, bytes], *, spoiled: bool) -> int:
    """Every log is as it was, or an error names it and has a true beginning of it. Return how many octets are read.

    `spoiled`: not all is as it was, so it must have been said, whatever was lost.
    """
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger("sdcp.stores").addHandler(handler)
    try:
        journal = Journal(folder, sizes=SMALL)
    finally:
        logging.getLogger("sdcp.stores").removeHandler(handler)
    read = 0
    for name, whole in logs.items():
        data, damage = _read(journal, name)
        assert data == whole if damage is None else whole.startswith(data)
        if damage is not None:
            assert spoiled
            assert damage.intact == len(data)
            assert repr(name) in str(damage)
            assert not data or name in journal.damaged
        read += len(data)
    if read < sum(map(len, logs.values())):
        assert any(record.levelno >= logging.ERROR and str(folder) in record.getMessage() for record in records)
    journal.close()
    return read


def _read(journal: Journal, name: str) -> tuple[bytes, LogDamagedError | None]:
    try:
        return journal.read(name, 0, None)[0], None
    except LogDamagedError as damage:
        return damage.data, damage


@given(data=st.data())
def test_a_changed_octet(filled, tmp_path_factory, data):
    killed, logs = filled
    folder = Path(shutil.copytree(killed, tmp_path_factory.mktemp("case") / "a"))
    path = data.draw(st.sampled_from(sorted(folder.glob("*.journal"))))
    octets = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(octets) - 1))
    octets[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(octets)
    _whole_or_named(folder, logs, spoiled=True)


@given(data=st.data())
def test_a_hole_or_an_end(filled, tmp_path_factory, data):
    killed, logs = filled
    folder = Path(shutil.copytree(killed, tmp_path_factory.mktemp("case") / "a"))
    path = data.draw(st.sampled_from(sorted(folder.glob("*.journal"))))
    octets = path.read_bytes()
    start = data.draw(st.integers(0, len(octets) - 1))
    stop = data.draw(st.integers(start, len(octets)))
    kept = b"" if data.draw(st.booleans()) else bytes(stop - start) + octets[stop:]
    path.write_bytes(octets[:start] + kept)
    for _ in range(2):  # what one start makes of it is no better the next time
        _whole_or_named(folder, logs, spoiled=True)


@given(junk=st.binary(min_size=1, max_size=300))
def test_what_was_being_written_when_the_process_was_killed_never_counts(filled, tmp_path_factory, junk):
    killed, logs = filled
    folder = Path(shutil.copytree(killed, tmp_path_factory.mktemp("case") / "a"))
    path = sorted(folder.glob("*.journal"))[-1]
    octets = bytearray(path.read_bytes())
    end = len(octets.rstrip(b"\0"))
    octets[end : end + len(junk)] = junk
    path.write_bytes(octets)
    assert _whole_or_named(folder, logs, spoiled=False) == sum(map(len, logs.values()))


# -- each and every one -----------------------------------------------------------------------------------------------


class Case:
    """One small journal of three segments, put back as it was before each trial."""

    def __init__(self, folder: Path, files: Files, logs: dict[str, bytes]) -> None:
        self.folder, self.files, self.logs = folder, files, logs
        self.segments = sorted(name for name in files if name.endswith(".journal"))

    def trial(self, changed: dict[str, bytes | None]) -> int:
        """Open the journal with these files changed, or gone (None)."""
        for path in self.folder.iterdir():
            path.unlink()
        for name, octets in {**self.files, **changed}.items():
            if octets is not None:
                (self.folder / name).write_bytes(octets)
        return _whole_or_named(self.folder, self.logs, spoiled=True)


async def _fill(journal: Journal) -> dict[str, bytes]:
    logs = dict.fromkeys("st", b"")
    for number in range(3):
        for name in logs:
            state = journal.state(name)
            await journal.append(name, commit(1, number, 0), state.version if state else None)
            logs[name] += commit(1, number, 0)
    return logs


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # thousands of starts: what is on the disk is not the question
    journal = Journal(tmp_path / "filled", sizes=Sizes(segment=400, ahead=16))
    logs = asyncio.run(_fill(journal))
    files = {path.name: path.read_bytes() for path in (tmp_path / "filled").iterdir()}  # as a kill leaves them
    journal.close()
    (tmp_path / "case").mkdir()
    made = Case(tmp_path / "case", files, logs)
    assert len(made.segments) == 3
    return made


@pytest.mark.decision("D47-damaged")
def test_every_single_bit(case):
    whole = sum(map(len, case.logs.values()))
    read = []
    for name in case.segments:
        octets = case.files[name]
        for bit in range(8 * len(octets.rstrip(b"\0"))):
            changed = bytearray(octets)
            changed[bit // 8] ^= 1 << bit % 8
            read.append(case.trial({name: bytes(changed)}))
    assert min(read) > 0, "one bit never costs all logs"
    assert max(read) == whole, "the head of a segment holds nothing of a log"


@pytest.mark.decision("D47-damaged")
def test_every_end_of_every_file(case):
    for name in case.segments:
        octets = case.files[name]
        used = len(octets.rstrip(b"\0"))
        reads = [case.trial({name: octets[:end]}) for end in range(used)]
        assert reads == sorted(reads), "what is cut off later costs no more"


@pytest.mark.decision("D47-hole")
def test_every_segment_missing(case):
    whole = sum(map(len, case.logs.values()))
    assert all(0 <= case.trial({name: None}) < whole for name in case.segments)


def test_every_other_order_of_the_files(case):
    for order in permutations(case.segments):
        if list(order) == case.segments:
            continue
        with pytest.raises(ConfigurationError, match="rename it to"):
            case.trial({name: case.files[other] for name, other in zip(case.segments, order, strict=True)})


def test_one_file_in_the_place_of_another(case):
    for name in case.segments:
        for other in set(case.segments) - {name}:
            with pytest.raises(ConfigurationError, match="rename it to"):
                case.trial({name: case.files[other]})


def test_every_bit_of_the_mark_and_no_mark(case):
    """It is of use when something else is damaged; by itself its loss loses nothing."""
    whole = sum(map(len, case.logs.values()))
    mark = case.files["mark"]
    for bit in range(8 * len(mark)):
        changed = bytearray(mark)
        changed[bit // 8] ^= 1 << bit % 8
        assert case.trial({"mark": bytes(changed)}) == whole
    assert case.trial({"mark": None}) == whole
