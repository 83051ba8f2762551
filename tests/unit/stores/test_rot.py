"""Whatever octet of the journal changes or goes, no acknowledged append vanishes in silence (docs/mlc.md)."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp.errors import ConfigurationError
from sdcp.stores.journal import Journal
from sdcp.stores.segments import Sizes
from sdcp.stores.store import LogDamagedError
from tests.unit.stores.samples import commit

SMALL = Sizes(segment=700, ahead=256)


async def _filled(folder: Path) -> tuple[Path, dict[str, bytes]]:
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


def _opened_or_refused(folder: Path, logs: dict[str, bytes]) -> None:
    """Every log is as it was, or is refused by name, or the start is refused."""
    try:
        journal = Journal(folder, sizes=SMALL)
    except ConfigurationError:
        return
    for name, whole in logs.items():
        if name in journal.damaged:
            with pytest.raises(LogDamagedError, match=repr(name)):
                journal.read(name, 0, None)
        else:
            assert journal.read(name, 0, None)[0] == whole
    journal.close()


@given(data=st.data())
def test_a_changed_octet(filled, tmp_path_factory, data):
    killed, logs = filled
    folder = Path(shutil.copytree(killed, tmp_path_factory.mktemp("case") / "a"))
    path = data.draw(st.sampled_from(sorted(folder.glob("*.journal"))))
    octets = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(octets) - 1))
    octets[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(octets)
    _opened_or_refused(folder, logs)


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
    _opened_or_refused(folder, logs)


@given(junk=st.binary(min_size=1, max_size=300))
def test_what_was_being_written_when_the_process_was_killed_never_counts(filled, tmp_path_factory, junk):
    killed, logs = filled
    folder = Path(shutil.copytree(killed, tmp_path_factory.mktemp("case") / "a"))
    path = sorted(folder.glob("*.journal"))[-1]
    octets = bytearray(path.read_bytes())
    end = len(octets.rstrip(b"\0"))
    octets[end : end + len(junk)] = junk
    path.write_bytes(octets)
    journal = Journal(folder, sizes=SMALL)
    assert {name: journal.read(name, 0, None)[0] for name in logs} == logs
    journal.close()
