"""The process under test: started by the command contract (docs/conformance-cli.md), ended by its process id."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

NOT_OFFERED = 127
READY_S = 60.0
STOP_S = 25.0


class SubjectError(Exception):
    """The subject did not keep the command contract; the text says how, and shows what it printed."""


class NotOffered(Exception):
    """Exit code 127: the subject does not offer the role."""


class Subject:
    """One role of the subject. `base` is its base URI; its files begin with `name`, in `folder`.

    `sessions` counts those that checks have begun there.
    """

    def __init__(self, command: str, role: str, folder: Path, name: str, base: str) -> None:
        self.role = role
        self.base = base
        self.sessions = 0
        self._command = command
        self._config = folder / f"{name}.toml"
        self._log = folder / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None
        self._printed: deque[str] = deque(maxlen=5)
        self._reading: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    async def start(self, settings: Mapping[str, Any], ready_s: float = READY_S) -> None:
        """Write the settings, start, and return when it has said `ready`. Raises SubjectError or NotOffered."""
        self._config.write_text(toml(settings))
        try:
            with self._log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *shlex.split(self._command),
                    self.role,
                    "--config",
                    str(self._config),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
        except (OSError, ValueError) as fault:
            raise SubjectError(f"--subject {self._command!r} cannot be started: {fault}") from None
        self._reading = asyncio.create_task(self._read())
        await self._until_ready(ready_s)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return None if self._process is None else self._process.returncode

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._signal(signal.SIGKILL)

    async def wait(self, limit_s: float = STOP_S) -> int | None:
        """The exit code, or None when it does not end in time."""
        assert self._process is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                return await self._process.wait()
        return None

    async def stop(self, limit_s: float = STOP_S) -> None:
        """End it; what does not end in time is killed with all that it started."""
        if self._process is None:
            return
        self.terminate()
        if await self.wait(limit_s) is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        if self._reading is not None:
            self._reading.cancel()

    def words(self) -> str:
        """What it printed last, for error messages."""
        lines = list(self._printed)
        with suppress(OSError):
            lines += self._log.read_text(errors="replace").splitlines()[-5:]
        return "; it printed nothing" if not lines else "; it printed last:\n" + "\n".join(f"    {x}" for x in lines)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with suppress(ValueError):  # a line longer than anybody reads
            async for line in self._process.stdout:
                text = line.decode(errors="replace").rstrip()
                if text.startswith("ready"):
                    self._ready.set()
                else:
                    self._printed.append(text[:200])

    async def _until_ready(self, limit_s: float) -> None:
        assert self._process is not None
        ready = asyncio.create_task(self._ready.wait())
        ended = asyncio.create_task(self._process.wait())
        await asyncio.wait([ready, ended], timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        for task in (ready, ended):
            task.cancel()
        code = self._process.returncode
        if code == NOT_OFFERED:
            raise NotOffered(f"the subject does not offer the role {self.role}")
        if code is not None:
            raise SubjectError(f"the {self.role} ended with exit code {code} before it was ready{self.words()}")
        if not self._ready.is_set():
            await self.stop()
            raise SubjectError(f"the {self.role} printed no line beginning `ready` in {limit_s:g} s{self.words()}")


def toml(settings: Mapping[str, Any]) -> str:
    """Sections of plain values as TOML; a list of maps becomes an array of tables."""
    parts = []
    for title, keys in settings.items():
        tables = keys if isinstance(keys, list) else [keys]
        head = f"[[{title}]]" if isinstance(keys, list) else f"[{title}]"
        parts += [
            "\n".join([head, *(f"{key} = {_toml(value)}" for key, value in table.items()), ""]) for table in tables
        ]
    return "\n".join(parts)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, int | float):
        return str(value)
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
