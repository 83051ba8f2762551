"""`sdcp up`: every role as its own process on loopback, over mutual TLS, in one folder.

The folder holds the authority and certificates (`certs/`), one settings file per role, `logs/`, the cache's `store/`,
the secret by which verifiers trust each other's KV, and `fleet.json`, in which `sdcp generate` finds the API. It can be
used again: certificates and settings are written anew, ports are kept while they are free, and secret and cache stay.
A role that dies is started again; what it was doing goes on by the protocol's own means (6.9).

Not here: what the roles do, and deployment on more than one machine.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from sdcp.errors import ConfigurationError
from sdcp.fleet_members import GROUP_KEY, Member, members, models_of
from sdcp.http.authority import init_authority, issue
from sdcp.wire.kv_object import LEAST_KEY

READY_S = 180.0
STOP_S = 25.0
MAX_TOKENS = 96  # of the answer to --prompt
RESTARTS = 5  # of one role; one that dies more often has a fault that a restart does not mend

ROLES = ("cache", "router", "verifier", "drafter", "gateway")
"""From the back to the front."""

console = Console(stderr=True, highlight=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What `sdcp up` was asked for."""

    targets: tuple[Path, ...]
    drafts: tuple[str, ...]
    directory: Path
    prompt: str | None
    max_tokens: int | None
    once: bool
    check: bool
    api: str


def run(plan: Plan) -> int:
    """Start everything, ask the prompt if there is one, stay up until told to stop. Returns the exit code."""
    for given, option in (
        (plan.once, "--once"),
        (plan.check, "--check"),
        (plan.max_tokens is not None, "--max-tokens"),
    ):
        if given and plan.prompt is None:
            raise ConfigurationError(f"{option} needs --prompt: it is about the answer")
    targets, drafts = models_of(plan.targets, plan.drafts)
    return asyncio.run(_run(replace(plan, targets=targets, drafts=drafts)))


async def _run(plan: Plan) -> int:
    fleet = Fleet(plan)
    stop = _stop_on_signals(fleet)
    try:
        fleet.prepare()
        code = await _live(fleet, stop)
    finally:
        await fleet.stop()
    console.print("Everything that was started has stopped.")
    return code


def _stop_on_signals(fleet: Fleet) -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():  # the second one: somebody is in a hurry
            fleet.kill()
            with suppress(OSError):
                console.show_cursor()
            os._exit(130)  # a thread that reads or checks an answer would be waited for
        stop.set()
        with suppress(OSError):  # SIGHUP: the terminal is gone
            console.print("stopping; answers under way are finished first, Ctrl-C again ends at once")

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup means it
            loop.add_signal_handler(number, on_signal)
    return stop


async def _live(fleet: Fleet, stop: asyncio.Event) -> int:
    """Start, answer, stay up. Returns the exit code."""
    plan = fleet.plan
    if not await _unless_stopped(stop, fleet.start()):
        return 130
    code = await _unless_stopped(stop, _ask(fleet)) if plan.prompt is not None else 0
    if code or plan.once:
        return 130 if code is None else code
    if not stop.is_set():
        console.print("Up. Ctrl-C stops everything.")
        await fleet.watch(stop)
    return 0


async def _unless_stopped(stop: asyncio.Event, work: object) -> int | None:
    """Await `work` unless a signal comes first; then None."""
    task = asyncio.ensure_future(work)  # type: ignore[call-overload]
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not task.done():
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return None
    return int(task.result())


async def _ask(fleet: Fleet) -> int:
    """Put the prompt to the gateway, as `sdcp generate` does; with `check`, compare with plain decoding."""
    from sdcp.generate import Ask, answer

    plan = fleet.plan
    assert plan.prompt is not None
    most = MAX_TOKENS if plan.max_tokens is None else plan.max_tokens
    ask = Ask(plan.prompt, most, {"temperature": 0.0}, raw=False)
    result = await asyncio.to_thread(answer, ask, fleet.api_url, False)
    if not plan.check:
        return 0
    from sdcp.check import check_greedy

    return await asyncio.to_thread(check_greedy, plan.targets[0], result)


class Fleet:
    """The processes of one folder."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.directory = plan.directory.resolve()
        self._members = tuple(members(plan.targets, plan.drafts))
        self.bases: dict[str, str] = {}
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._deaths: dict[str, int] = {}
        self._api = plan.api
        self._lock: int | None = None
        self._holders: list[socket.socket] = []

    @property
    def api_url(self) -> str:
        """Where the OpenAI API is."""
        return f"http://{self._api}"

    def prepare(self) -> None:
        """Write certificates and settings.

        Raises ConfigurationError, also when the folder or the address of the API is another's now.
        """
        try:
            (self.directory / "logs").mkdir(parents=True, exist_ok=True)
            self._own()
            _check_free(self.plan.api)
            self._write()
        except OSError as fault:
            raise ConfigurationError(f"{self.directory}: cannot be used: {fault.strerror or fault}") from None

    def _own(self) -> None:
        """A second fleet would write its certificates, ports and settings over those of the first."""
        self._lock = os.open(self.directory / "fleet.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(f"{self.directory}: another `sdcp up` is using this folder") from None

    def _write(self) -> None:
        certs = self.directory / "certs"
        init_authority(certs)
        _make_secret(self.directory / GROUP_KEY)
        ports = self._ports()
        host, _, port = self.plan.api.rpartition(":")
        self._api = f"{host}:{ports.pop('api') if port == '0' else port}"
        self.bases = {member.name: f"https://127.0.0.1:{ports[member.name]}" for member in self._members}
        for member in self._members:
            role = "front-end" if member.role == "gateway" else member.role
            issue(certs, member.name, role, [self.bases[member.name]])
            self._settings_file(member).write_text(self._settings(member))
        self._remember()

    async def start(self) -> int:
        """Start every process and wait until each says `ready`. Returns 1; raises ConfigurationError if one fails."""
        began = time.monotonic()
        waiting = {asyncio.create_task(self._start(member)): member.name for member in self._members}
        try:
            with console.status("starting") as status:
                while waiting:
                    status.update(f"starting {', '.join(sorted(waiting.values()))}")
                    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
                        name = waiting.pop(task)
                        console.print(f"  {name:<12} {self.bases[name]}  {time.monotonic() - began:5.1f} s")
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        console.print(f"{len(self._members)} processes over mutual TLS; OpenAI API at {self.api_url}/v1")
        return 1

    async def watch(self, stop: asyncio.Event) -> None:
        """Until `stop` is set: start again what dies. Raises ConfigurationError when that does not help."""
        stopped = asyncio.ensure_future(stop.wait())
        keeping = {asyncio.create_task(self._keep(member)) for member in self._members}
        try:
            done, _ = await asyncio.wait({stopped, *keeping}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopped}:
                task.result()
        finally:
            for task in (stopped, *keeping):
                task.cancel()
            await asyncio.gather(stopped, *keeping, return_exceptions=True)

    async def _keep(self, member: Member) -> None:
        """Each on its own: a model that takes minutes to load keeps nobody else from being started again."""
        while True:
            await self._processes[member.name].wait()
            await self._revive(member)

    async def stop(self) -> None:
        """SIGTERM to everything that was started, front first, so that each can still tell its peers; then SIGKILL."""
        for role in reversed(ROLES):
            await _end([process for name, process in self._processes.items() if name.partition("-")[0] == role])
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        self._let_go()

    def kill(self) -> None:
        """SIGKILL to everything that was started."""
        _kill(self._processes.values())

    async def _revive(self, member: Member) -> None:
        name = member.name
        self._deaths[name] = self._deaths.get(name, 0) + 1
        if self._deaths[name] > RESTARTS:
            raise ConfigurationError(f"{name} ended {RESTARTS + 1} times; see {self._log(name)}")
        console.print(f"{name} ended; starting it again (its log: {self._log(name)})")
        await self._start(member)

    async def _start(self, member: Member) -> None:
        with self._log(member.name).open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "sdcp.cli",
                member.role,
                "--config",
                str(self._settings_file(member)),
                "--until-stdin-ends",  # nothing outlives us, not even kill -9
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is ours to pass on, in order
            )
        self._processes[member.name] = process
        assert process.stdout is not None
        try:
            line = await asyncio.wait_for(process.stdout.readline(), READY_S)
        except TimeoutError:
            raise ConfigurationError(f"{member.name} was not ready in {READY_S:.0f} s; see its log") from None
        if not line.startswith(b"ready "):
            raise ConfigurationError(f"{member.name} did not start: {self._last_words(member.name)}")

    def _last_words(self, name: str) -> str:
        lines = self._log(name).read_text(errors="replace").strip().splitlines()
        said = lines[-1].removeprefix("sdcp: ") if lines else "it said nothing"
        if "another process has this store open" in said:
            said += "; an earlier `sdcp up` may still be stopping: try again in half a minute"
        return said

    def _log(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"

    def _settings_file(self, member: Member) -> Path:
        return self.directory / f"{member.name}.toml"

    def _settings(self, member: Member) -> str:
        base = self.bases[member.name]
        text = f"""[server]
listen = "{base.removeprefix("https://")}"
base_uri = "{base}"

[tls]
certificate = "certs/{member.name}.pem"
key = "certs/{member.name}.key"
ca = "certs/ca.pem"

{member.settings}"""
        for mark, value in (("@cache", self.bases["cache"]), ("@router", self.bases["router"]), ("@api", self._api)):
            text = text.replace(mark, value)
        return text

    def _ports(self) -> dict[str, int]:
        """A free port each: the one of last time where it is still free.

        It stays bound until the fleet stops, so that no outgoing connection is given it before the member listens, or
        while one that died is started again. Linux lets another socket listen on a port that is bound with SO_REUSEADDR
        and not listened on; elsewhere it is let go, and could be taken.
        """
        last: dict[str, int] = {}
        with suppress(OSError, ValueError):
            last = json.loads((self.directory / "fleet.json").read_text())["ports"]
        try:
            names = ("api", *(member.name for member in self._members))
            return {name: _free_port(last.get(name, 0), self._holders) for name in names}
        finally:
            if sys.platform != "linux":
                self._let_go()

    def _let_go(self) -> None:
        while self._holders:
            self._holders.pop().close()

    def _remember(self) -> None:
        ports = {name: int(base.rpartition(":")[2]) for name, base in self.bases.items()}
        document = {"api": self.api_url, "ports": ports, "certs": str(self.directory / "certs")}
        (self.directory / "fleet.json").write_text(json.dumps(document, indent=2) + "\n")


def _make_secret(path: Path) -> None:
    """32 octets that nobody else reads; those of last time while they are there."""
    if path.is_file() and path.stat().st_size >= LEAST_KEY:
        return
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(secrets.token_bytes(LEAST_KEY))


async def _end(processes: list[asyncio.subprocess.Process]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            process.terminate()
    ends = [asyncio.create_task(process.wait()) for process in processes]
    if not ends:
        return
    _, late = await asyncio.wait(ends, timeout=STOP_S)
    if late:
        _kill(processes)
        await asyncio.wait(ends)


def _kill(processes: Iterable[asyncio.subprocess.Process]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            process.kill()


def _check_free(api: str) -> None:
    """Raise ConfigurationError unless a server can listen at HOST:PORT: its log would say so much later."""
    host, _, port = api.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigurationError(f"--api {api}: must be HOST:PORT")
    try:
        family, kind, *_, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as holder:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(address)
            holder.listen()
    except UnicodeError:
        raise ConfigurationError(f"--api {api}: {host} is no host") from None
    except OSError as fault:
        if fault.errno == errno.EADDRINUSE:
            raise ConfigurationError(f"{api} is in use; give another --api, e.g. 127.0.0.1:0") from None
        raise ConfigurationError(f"--api {api}: {fault.strerror or fault}") from None


def _free_port(wanted: int, taken: list[socket.socket]) -> int:
    """Bind and keep, so that no two members are given the same; whoever holds `taken` closes them."""
    for port in (wanted, 0):
        holder = socket.socket()
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind(("127.0.0.1", port))
        except OSError:
            holder.close()
            continue
        taken.append(holder)
        return int(holder.getsockname()[1])
    raise ConfigurationError("no free port on 127.0.0.1")
