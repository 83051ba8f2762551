"""The folder of a fleet: one fleet at a time, and faults of the folder told to the operator."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from sdcp.errors import ConfigurationError
from sdcp.fleet import Fleet, Plan
from sdcp.roles.config import VerifierSettings, load


def fleet(directory: Path, api: str = "127.0.0.1:0", targets: tuple[Path, ...] = ()) -> Fleet:
    target = directory.parent / "target.safetensors"
    plan = Plan(
        targets=targets or (target,),
        drafts=(str(target),),
        directory=directory,
        prompt=None,
        max_tokens=0,
        once=False,
        check=False,
        api=api,
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


@pytest.mark.parametrize("api", ["8000", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:99999", "..:80"])
async def test_an_address_of_the_api_that_cannot_be_is_refused(tmp_path: Path, api: str) -> None:
    other = fleet(tmp_path / "fleet", api)
    with pytest.raises(ConfigurationError, match=f"^--api {re.escape(api)}: "):
        other.prepare()
    await other.stop()


async def test_a_port_in_use_is_told_before_anything_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        api = f"127.0.0.1:{holder.getsockname()[1]}"
        other = fleet(tmp_path / "fleet", api)
        with pytest.raises(ConfigurationError, match=f"^{api} is in use; give another --api"):
            other.prepare()
        await other.stop()
    again = fleet(tmp_path / "fleet", api)
    again.prepare()
    await again.stop()


async def test_a_store_that_is_still_open_comes_with_what_to_do(tmp_path: Path) -> None:
    own = fleet(tmp_path / "fleet")
    own.prepare()
    log = tmp_path / "fleet" / "logs" / "cache.log"
    log.write_text("sdcp: store: another process has this store open\n")
    assert own._last_words("cache").startswith("store: another process has this store open; an earlier `sdcp up`")
    await own.stop()


async def test_verifiers_that_are_several_share_a_secret_of_their_own_and_publish_kv(tmp_path: Path) -> None:
    targets = tmp_path / "one", tmp_path / "two"
    for each in targets:
        each.mkdir()
    own = fleet(tmp_path / "fleet", targets=targets)
    own.prepare()
    secret = tmp_path / "fleet" / "verifiers.secret"
    kept = secret.read_bytes()
    assert (len(kept), secret.stat().st_mode & 0o777) == (32, 0o600)
    for name in ("verifier-1", "verifier-2"):
        settings = load(tmp_path / "fleet" / f"{name}.toml", VerifierSettings)
        assert (settings.kv.group_key, settings.kv.interval) == (secret, 64)
    await own.stop()
    again = fleet(tmp_path / "fleet", targets=targets)
    again.prepare()
    assert secret.read_bytes() == kept, "what the cache still holds is of use"
    await again.stop()


@pytest.mark.parametrize("targets", [("folder",), ("file.safetensors", "file.safetensors")], ids=len)
async def test_a_verifier_alone_and_the_reference_model_publish_no_kv(tmp_path: Path, targets: tuple[str, ...]) -> None:
    (tmp_path / "folder").mkdir()
    own = fleet(tmp_path / "fleet", targets=tuple(tmp_path / each for each in targets))
    own.prepare()
    assert load(tmp_path / "fleet" / "verifier-1.toml", VerifierSettings).kv.group_key is None
    await own.stop()
