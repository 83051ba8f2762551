"""`sdcp cache` as a process of its own, for tests that end it as they please."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from sdcp.http.tls import TlsFiles


class Process:
    """`sdcp cache` on `store`, a folder that is relative to `folder` or absolute; its log goes to `folder`."""

    def __init__(self, folder: Path, files: TlsFiles, store: Path | str = "store") -> None:
        self.settings = folder / "cache.toml"
        self.settings.write_text(
            f'[tls]\ncertificate = "{files.certificate}"\nkey = "{files.key}"\nca = "{files.ca}"\n'
            f'[store]\ndirectory = "{store}"\n'
        )
        self.log = folder / "cache.log"
        self.base = ""

    async def start(self) -> None:
        """Start it, and return when it serves."""
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", "from sdcp.cli import main; main()", "cache", "--config", str(self.settings)),
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdout is not None
        ready = (await self.process.stdout.readline()).decode().split()
        assert ready[:1] == ["ready"], self.log.read_text()
        self.base = ready[1]

    def kill(self) -> None:
        """Send SIGKILL now."""
        self.process.send_signal(signal.SIGKILL)

    async def stop(self, number: signal.Signals) -> int:
        """Send a signal, unless it has ended; return how it ended."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await self.process.wait()


@contextlib.asynccontextmanager
async def running(folder: Path, files: TlsFiles, store: Path | str = "store") -> AsyncIterator[Process]:
    """A process that is gone when the block ends."""
    process = Process(folder, files, store)
    await process.start()
    try:
        yield process
    finally:
        await process.stop(signal.SIGKILL)
