"""A real Valkey or Redis server in a temporary folder: started, killed and started again by tests."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from valkey.asyncio import Valkey

PROGRAM = shutil.which("valkey-server") or shutil.which("redis-server")
needs_server = pytest.mark.skipif(
    PROGRAM is None, reason="needs valkey-server or redis-server: `apt-get install redis-server`"
)

DURABLE = {
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "maxmemory-policy": "noeviction",
}


class ValkeyProcess:
    """A server process on a free port, or on a Unix socket, with its files in `folder`."""

    def __init__(self, folder: Path, *, unix: bool = False, **settings: str | None) -> None:
        """`settings` are the configuration file's, with `_` for `-`, over DURABLE; None: leave one out."""
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.socket = folder / "socket" if unix else None
        self.port = 0 if unix else free_port()
        given = {name.replace("_", "-"): value for name, value in settings.items()}
        self.settings: dict[str, str | None] = {**DURABLE, **given}
        self._process: asyncio.subprocess.Process | None = None

    @property
    def uri(self) -> str:
        return f"unix://{self.socket}" if self.socket else f"valkey://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start, and wait until it has loaded what it has."""
        assert PROGRAM is not None
        assert self._process is None
        (self.folder / "server.conf").write_text(_file(self._all_settings()))
        self._process = await asyncio.create_subprocess_exec(
            PROGRAM,
            str(self.folder / "server.conf"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
        )
        while not await self._answers():
            assert self._process.returncode is None, (self.folder / "server.log").read_text()
            await asyncio.sleep(0.02)  # another process: there is only asking

    async def kill(self) -> None:
        """`kill -9`."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """End it in peace."""
        await self._end(signal.SIGTERM)

    def signal(self, number: int) -> None:
        """Send a signal, as SIGSTOP."""
        assert self._process is not None
        os.kill(self._process.pid, number)

    def limit_files(self, octets: int) -> None:
        """Let no file of it grow beyond this."""
        assert self._process is not None
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (octets, octets))

    async def ended(self) -> None:
        """Wait until it has ended by itself."""
        process, self._process = self._process, None
        assert process is not None
        await process.wait()

    def client(self) -> Valkey:
        """A client without any check, to look at the server and to change it."""
        where = {"unix_socket_path": str(self.socket)} if self.socket else {"host": "127.0.0.1", "port": self.port}
        return Valkey(**where, password=self.settings.get("requirepass"))  # type: ignore[arg-type]

    async def command(self, *words: str | bytes) -> object:
        """Carry out one command."""
        async with self.client() as client:
            return await client.execute_command(*words)

    async def info(self, section: str) -> dict[str, Any]:
        """What it says about itself."""
        async with self.client() as client:
            return dict(await client.info(section))

    async def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.send_signal(number)
        if process is not None:
            await process.wait()

    async def _answers(self) -> bool:
        try:
            if self.socket:
                _, writer = await asyncio.open_unix_connection(str(self.socket))
            elif "tls-port" in self.settings:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            else:
                await self.command("PING")
                return True
        except Exception:
            return False
        writer.close()
        return True

    def _all_settings(self) -> Mapping[str, str | None]:
        where = {"unixsocket": str(self.socket), "port": "0"} if self.socket else {"port": str(self.port)}
        if "cluster-enabled" in self.settings:
            where["cluster-port"] = str(free_port())
        return {
            "bind": "127.0.0.1",
            "dir": str(self.folder),
            "logfile": "server.log",
            "save": '""',
            **where,
            **self.settings,
        }


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _file(settings: Mapping[str, str | None]) -> str:
    return "".join(f"{name} {value}\n" for name, value in settings.items() if value is not None)
