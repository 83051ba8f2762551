"""What `sdcp cache` keeps when it is killed amid appends, and when its disk is full (6.8, docs/mlc.md)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sdcp.http.authority import issue
from sdcp.http.client import Client
from sdcp.http.tls import TlsFiles, client_context
from sdcp.messages.record import CommitRecord
from sdcp.ports import LogDamagedError, StoreFullError, StoreUnavailableError
from sdcp.stores.remote import RemoteCache
from tests.shells.cache_process import Process, running

LOGS = 1000  # each has one append under way at any time
CLIENTS = 5  # a connection takes 256 requests at once


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TlsFiles]:
    folder = tmp_path_factory.mktemp("certificates")
    return {name: issue(folder, name, name, [f"https://{name}.test/"]) for name in ("cache", "verifier")}


@dataclass(slots=True)
class Log:
    """A log as its writer knows it: what was acknowledged, and the tag that came with the last of it."""

    name: str
    acknowledged: list[bytes] = field(default_factory=list)
    tag: str | None = None
    sent: bytes = b""  # the record whose answer is awaited, or never came

    @property
    def version(self) -> int:
        return _version(self.tag)


def _version(tag: str | None) -> int:
    return int((tag or '"0"').strip('"'))


class Writers:
    """A writer for each log, which appends again as soon as it has been answered, until it is refused."""

    def __init__(self, logs: list[Log], remotes: list[RemoteCache], acknowledged: Callable[[], None]) -> None:
        self._logs, self._remotes, self._acknowledged = logs, remotes, acknowledged

    async def run(self) -> list[Exception]:
        """Return with what each writer was refused at last."""
        return await asyncio.gather(
            *(self._write(log, self._remotes[number % len(self._remotes)]) for number, log in enumerate(self._logs))
        )

    async def _write(self, log: Log, remote: RemoteCache) -> Exception:
        while True:
            try:
                await _append(log, remote)
            except (StoreUnavailableError, StoreFullError) as refusal:
                return refusal
            self._acknowledged()


async def _append(log: Log, remote: RemoteCache) -> None:
    """Append the next record."""
    round_ = len(log.acknowledged) + 1
    record = CommitRecord(epoch=1, round=round_, tokens=(1, 2), committed=2 * round_, digest=os.urandom(32))
    log.sent = record.encode()
    log.tag = await remote.append(remote.ref_of("logs", log.name), log.sent, log.tag)
    log.acknowledged.append(log.sent)


@contextlib.asynccontextmanager
async def reaching(process: Process, files: TlsFiles) -> AsyncIterator[list[RemoteCache]]:
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(client_context(files))) for _ in range(CLIENTS)]
        yield [RemoteCache(client, process.base, deadline_s=60.0) for client in clients]


async def _all_there(logs: list[Log], remotes: list[RemoteCache]) -> None:
    """Nothing acknowledged is lost, nothing is torn; take over the tags, and what was done without an answer."""
    for number, log in enumerate(logs):
        remote = remotes[number % len(remotes)]
        found = await remote.read_log(remote.ref_of("logs", log.name))
        whole = b"".join(log.acknowledged)
        assert found.data in (whole, whole + log.sent), log.name
        if found.data == whole:
            assert found.etag == log.tag, log.name
        else:
            assert _version(found.etag) > log.version, log.name
            log.acknowledged.append(log.sent)
            log.tag = found.etag


async def _tags_go_on(logs: list[Log], remotes: list[RemoteCache]) -> None:
    """New tags are above every one that was ever given."""
    highest = max(log.version for log in logs)
    for log in logs[:100]:
        await _append(log, remotes[0])
        assert log.version > highest


async def test_kill_9_amid_a_thousand_appends_loses_none_that_was_acknowledged(certificates, tmp_path):
    """The kill comes with the n-th acknowledgement, while about a thousand appends are under way; several rounds."""
    logs = [Log(f"log{number}") for number in range(LOGS)]
    async with running(tmp_path, certificates["cache"]) as process:
        for last in (1, 700, 2500, 257):
            left = last

            def acknowledged() -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    process.kill()

            async with reaching(process, certificates["verifier"]) as remotes:
                refusals = await Writers(logs, remotes, acknowledged).run()
            assert left <= 0
            assert {type(refusal) for refusal in refusals} == {StoreUnavailableError}
            await process.process.wait()
            await process.start()
            async with reaching(process, certificates["verifier"]) as remotes:
                await _all_there(logs, remotes)
                await _tags_go_on(logs, remotes)
        assert await process.stop(signal.SIGTERM) == 0
    assert "damaged" not in process.log.read_text()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a small disk is made with mount, which only root may do here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


async def test_a_full_disk_is_507_and_loses_nothing_and_service_resumes_with_space(certificates, tmp_path, small_disk):
    logs = [Log(f"log{number}") for number in range(64)]
    ballast = small_disk / "ballast"
    async with running(tmp_path, certificates["cache"], small_disk / "store") as process:
        for round_ in range(3):
            room = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
            ballast.write_bytes(bytes(max(0, room - (round_ << 17))))
            async with reaching(process, certificates["verifier"]) as remotes:
                refusals = await Writers(logs, remotes, lambda: None).run()
                assert {type(refusal) for refusal in refusals} == {StoreFullError}
                await _all_there(logs, remotes)
                ballast.unlink()
                for log in logs:
                    await _append(log, remotes[0])
                await _all_there(logs, remotes)
        process.kill()
        await process.process.wait()
        await process.start()
        async with reaching(process, certificates["verifier"]) as remotes:
            await _all_there(logs, remotes)
            await _tags_go_on(logs, remotes)
        assert await process.stop(signal.SIGTERM) == 0
    assert "damaged" not in process.log.read_text()


@pytest.mark.decision("D47-named")
async def test_a_start_names_the_log_that_is_damaged_and_serves_what_precedes_the_damage(certificates, tmp_path):
    bad, good = Log("bad"), Log("good")
    async with running(tmp_path, certificates["cache"]) as process:
        async with reaching(process, certificates["verifier"]) as remotes:
            for _ in range(8):
                await _append(bad, remotes[0])
                await _append(good, remotes[1])
        assert await process.stop(signal.SIGTERM) == 0
        path = next((tmp_path / "store" / "journal").glob("*.journal"))
        octets = bytearray(path.read_bytes())
        at = octets.index(bad.acknowledged[5])
        octets[at] ^= 0x10
        path.write_bytes(octets)
        await process.start()
        intact = b"".join(bad.acknowledged[:5])
        said = [line for line in process.log.read_text().splitlines() if "ERROR" in line]
        assert len(said) == 1
        assert f"'bad' is intact up to octet {len(intact)}" in said[0]
        assert f"at octet {at} of {path}" in said[0]
        async with reaching(process, certificates["verifier"]) as remotes:
            with pytest.raises(LogDamagedError, match="'bad'") as caught:
                await remotes[0].read_log(remotes[0].ref_of("logs", "bad"))
            assert caught.value.data == intact
            await _all_there([good], remotes)
            await _append(good, remotes[0])
