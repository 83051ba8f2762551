"""The folder of a fleet: one fleet at a time, and faults of the folder told to the operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdcp.errors import ConfigurationError
from sdcp.fleet import Fleet, Plan


def fleet(directory: Path) -> Fleet:
    target = directory.parent / "target.safetensors"
    plan = Plan(
        targets=(target,),
        drafts=(str(target),),
        directory=directory,
        prompt=None,
        max_tokens=0,
        once=False,
        check=False,
        api="127.0.0.1:0",
    )
    return Fleet(plan)


async def test_a_folder_in_use_is_left_as_it_is(tmp_path: Path) -> None:
    """A second fleet would put its certificates and ports under the feet of the first."""
    first, second = fleet(tmp_path / "fleet"), fleet(tmp_path / "fleet")
    first.prepare()
    files = {file: file.read_bytes() for file in sorted((tmp_path / "fleet").rglob("*")) if file.is_file()}
    with pytest.raises(ConfigurationError, match="another `sdcp up`"):
        second.prepare()
    await second.stop()
    assert {file: file.read_bytes() for file in sorted((tmp_path / "fleet").rglob("*")) if file.is_file()} == files
    await first.stop()
    third = fleet(tmp_path / "fleet")
    third.prepare()
    await third.stop()


async def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be used: Not a directory"):
        fleet(tmp_path / "file" / "fleet").prepare()
    (tmp_path / "fleet" / "router.toml").mkdir(parents=True)
    other = fleet(tmp_path / "fleet")
    with pytest.raises(ConfigurationError, match="cannot be used: Is a directory"):
        other.prepare()
    await other.stop()
