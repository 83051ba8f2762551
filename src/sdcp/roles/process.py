"""The life of a role's process: listen, say `ready`, serve until told to stop, drain (5.1).

A role module gives a factory `async def make(context) -> Role`. `run` reads nothing but the settings, prints
`ready <base URI>` on standard output once the role serves, and on SIGTERM or SIGINT lets it finish what is under way.
A second signal ends the process at once. Everything else is logged on standard error.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import ssl
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar
from urllib.parse import urlsplit

from sdcp.errors import ConfigurationError, Forbidden
from sdcp.http.client import Client
from sdcp.http.exchange import Handler, Request, Response
from sdcp.http.identity import TrustPolicy
from sdcp.http.limits import ServerLimits
from sdcp.http.server import Server
from sdcp.http.tls import TlsFiles, client_context, server_context
from sdcp.roles.certificate import check_certificate
from sdcp.roles.config import RoleSettings
from sdcp.roles.telemetry import CONTENT_TYPE, Metrics

try:
    from uvloop import new_event_loop
except ImportError:  # not built for every platform; asyncio's own loop does the same, slower
    from asyncio import new_event_loop

S = TypeVar("S", bound=RoleSettings)

logger = logging.getLogger("sdcp.roles")


class Role(Protocol):
    """What a role module gives: it answers requests from the moment `start` returns until `drain` does."""

    async def start(self, base_uri: str) -> None:
        """The socket is bound and peers know us as `base_uri`: begin to report status, sweep, connect."""
        ...

    async def handle(self, request: Request) -> Response:
        """Answer one request, or raise a ProblemError."""
        ...

    async def drain(self) -> None:
        """Take nothing new, finish what is under way (D27), release what we hold."""
        ...


@dataclass(frozen=True, slots=True)
class Context(Generic[S]):
    """What a role is made from. `report` takes faults of ours: what was being done, and the exception."""

    settings: S
    files: TlsFiles
    report: Callable[[str, BaseException], None]
    metrics: Metrics

    def client(self) -> Client:
        """A client of peers, under the same trust as our server."""
        return Client(client_context(self.files), trust=TrustPolicy(self.settings.tls.roles))


Make = Callable[[Context[S]], Awaitable[Role]]


def run(settings: S, make: Make[S], *, log_level: str = "info", until_stdin_ends: bool = False) -> None:
    """Serve one role until a signal says stop. Raises ConfigurationError for what the operator has to mend.

    `until_stdin_ends`: stop also when standard input ends, as a pipe does when whoever started us is gone.
    """
    logging.basicConfig(
        level=log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(settings, make, until_stdin_ends))


def tls_files(settings: RoleSettings) -> TlsFiles:
    """The files of `[tls]`."""
    return TlsFiles(settings.tls.certificate, settings.tls.key, settings.tls.ca)


async def _serve(settings: S, make: Make[S], until_stdin_ends: bool) -> None:
    stop = _stop_on_signals()
    if until_stdin_ends:
        _stop_at_end_of(sys.stdin.fileno(), stop)
    files = tls_files(settings)
    tls = server_context(files)
    check_certificate(settings)  # before a model is loaded, which may take minutes
    metrics = Metrics()
    role = await make(Context(settings, files, _report, metrics))
    base_path = urlsplit(settings.server.base_uri or "").path
    server = await _listen(settings, tls, with_metrics(role.handle, metrics, base_path))
    base_uri = settings.server.base_uri or f"https://{server.host}:{server.port}"
    await role.start(base_uri)
    collect_seldom()
    print(f"ready {base_uri}", flush=True)
    await stop.wait()
    logger.info("draining")
    await asyncio.gather(role.drain(), server.drain(settings.limits.drain_s))


def collect_seldom() -> None:
    """Let the collector of cycles look seldom, and never at what is here by now: else it takes a fifth of our time.

    A request leaves hundreds of objects and few cycles; all but the cycles go by themselves.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def with_metrics(handler: Handler, metrics: Metrics, base_path: str) -> Handler:
    """Serve `GET metrics` beside the role's own resources. `base_path`: with or without a slash at its end."""
    path = f"{base_path.rstrip('/')}/metrics"

    def handle(request: Request) -> Awaitable[Response]:  # no coroutine of its own: each costs time at every step
        if request.path == path and request.method in ("GET", "HEAD"):
            return render(request)
        return handler(request)

    async def render(request: Request) -> Response:
        if not request.peer.roles:
            raise Forbidden("Metrics are for peers whose certificate has a role; this one has none.")
        return Response(200, (("content-type", CONTENT_TYPE),), metrics.render())

    return handle


async def _listen(settings: RoleSettings, tls: ssl.SSLContext, handler: Handler) -> Server:
    host, _, port = settings.server.listen.rpartition(":")
    limits = ServerLimits(max_connections=settings.limits.connections)
    trust = TrustPolicy(settings.tls.roles)
    server = Server(handler, tls, host=host, port=int(port), trust=trust, limits=limits, report=_report)
    try:
        await server.start()
    except OSError as fault:
        raise ConfigurationError(f"[server] listen = {settings.server.listen}: {fault.strerror or fault}") from None
    return server


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():  # the second one: somebody is in a hurry
            sys.exit(1)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return stop


def _report(what: str, fault: BaseException) -> None:
    logger.error("%s", what, exc_info=fault)


def _stop_at_end_of(descriptor: int, stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def on_input() -> None:
        if not os.read(descriptor, 4096):
            loop.remove_reader(descriptor)
            stop.set()

    loop.add_reader(descriptor, on_input)
