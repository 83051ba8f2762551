"""Real role processes on loopback: each with its own settings file and certificate, ended by its process id.

A process is known by the name under which its certificate, settings and log are written. Every base URI has a path, so
that resources are looked for below it. The reference model is a table: after token t the target wants `follow(t)`.
"""

from __future__ import annotations

import select
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from sdcp.engines.bigram import write_bigram
from sdcp.http.authority import issue
from sdcp.http.tls import TlsFiles

V = 16
CONTEXT = 65_536
BODY_BYTES = 65_536
READY_S = 60.0
STOP_S = 30.0


def follow(token: int) -> int:
    """The token that the target finds most probable after `token`, by far."""
    return (5 * token + 3) % V


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that are free now, all different."""
    with ExitStack() as held:
        holders = [held.enter_context(socket.socket()) for _ in range(count)]
        for holder in holders:
            holder.bind(("127.0.0.1", 0))
        return [holder.getsockname()[1] for holder in holders]


class Processes:
    """The role processes of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        logits = np.zeros((V, V), np.float32)
        logits[np.arange(V), [follow(token) for token in range(V)]] = 8.0
        write_bigram(folder / "target.safetensors", logits, context=CONTEXT)
        write_bigram(folder / "draft.safetensors", logits / 2, context=CONTEXT)

    def launch(self, name: str, role: str, base: str, settings: Mapping[str, Mapping[str, object]]) -> TlsFiles:
        """Begin a process that will be known as `base`; `settings` are the sections below `[server]` and `[tls]`."""
        files = issue(self.folder, name, role, [base])
        sections: dict[str, Mapping[str, object]] = {
            "server": {"listen": base.removeprefix("https://").partition("/")[0], "base_uri": base},
            "tls": {"certificate": f"{name}.pem", "key": f"{name}.key", "ca": "ca.pem"},
            **settings,
        }
        path = self.folder / f"{name}.toml"
        path.write_text("\n".join(_section(title, keys) for title, keys in sections.items()))
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", "sdcp.cli", role, "--config", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        return files

    def ready(self, *names: str) -> None:
        """Return when each of them has said `ready`."""
        for name in names:
            stdout = self._running[name].stdout
            assert stdout is not None
            assert select.select([stdout], [], [], READY_S)[0], f"{name} was not ready in {READY_S:g} s"
            line = stdout.readline()
            assert line.startswith(b"ready "), (self.folder / f"{name}.log").read_text()

    def terminate(self, name: str) -> None:
        """Ask a process to drain (SIGTERM)."""
        self._running[name].terminate()

    def wait(self, name: str) -> int:
        """Return the exit code of a process that was asked to end."""
        return self._running[name].wait(STOP_S)

    def stop(self) -> None:
        """End all that runs; what does not drain in time is killed."""
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()


def _section(title: str, keys: Mapping[str, object]) -> str:
    lines = [f"{key} = {_toml(value)}" for key, value in keys.items()]
    return "\n".join([f"[{title}]", *lines, ""])


def _toml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)
