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


class Processes:
    """The role processes of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held: list[socket.socket] = []
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        logits = np.zeros((V, V), np.float32)
        logits[np.arange(V), [follow(token) for token in range(V)]] = 8.0
        write_bigram(folder / "target.safetensors", logits, context=CONTEXT)
        write_bigram(folder / "draft.safetensors", logits / 2, context=CONTEXT)

    def new_bases(self, *names: str, path: str = "") -> dict[str, str]:
        """A base URI for each name, of a port of 127.0.0.1 that nobody has.

        The port stays bound, so that no outgoing connection is given it meanwhile. Linux lets another socket listen on
        a port that is bound with SO_REUSEADDR and not listened on; elsewhere the port is let go, and could be taken.
        """
        holders = [socket.socket() for _ in names]
        for holder in holders:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
        ports = [holder.getsockname()[1] for holder in holders]
        self._held += holders
        if sys.platform != "linux":
            self._let_go()
        return {name: f"https://127.0.0.1:{port}{path}" for name, port in zip(names, ports, strict=True)}

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
        self._let_go()

    def _let_go(self) -> None:
        while self._held:
            self._held.pop().close()


def _section(title: str, keys: Mapping[str, object]) -> str:
    lines = [f"{key} = {_toml(value)}" for key, value in keys.items()]
    return "\n".join([f"[{title}]", *lines, ""])


def _toml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)
