"""Time to the first verdict at a takeover, with and without KV, over the real roles: `python bench/kv_takeover.py`.

A cache and two verifiers run as processes of their own, over mutual TLS on loopback; this process is the router and the
drafter. Of each session the first verifier publishes KV; then the log is fenced, read, and the session opened at the
second one, with the KV that the log names or without. The clock runs from before the fence to the first verdict there:
what a reader of the output waits for, less the time in which the router finds out that a verifier is gone. Sessions
with KV and without take turns, each with a prompt of its own. The last columns tell what publishing costs the first
verifier: its rounds before KV is published, and those beside it.

    python bench/kv_takeover.py [model folder] [--lengths 128,512] [--repeats 3] [--precision float32] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from sdcp.engines.digests import model_digest, tokenizer_digest
from sdcp.http.authority import issue
from sdcp.http.client import Client
from sdcp.http.tls import client_context
from sdcp.messages.contract import Action, Contract
from sdcp.stores.remote import RemoteCache
from sdcp.testing.played import Outside, Played

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8128)  # and MAX_NEW: the demonstration model's context
INTERVAL = 12  # committed tokens between two publications
MAX_NEW = 64
M = 3
READY_S = 120.0
DEADLINE_S = 60.0
NAMES = {"cache": "cache", "verifier-1": "verifier", "verifier-2": "verifier", "router": "router", "drafter": "drafter"}
DRAFTER = "https://drafter.example/"


@dataclass(frozen=True, slots=True)
class Row:
    """Of one length of prompt: octets of the KV object, and medians of times in ms."""

    length: int
    octets: int
    computed: float
    loaded: float
    round_alone: float
    round_publishing: float

    @property
    def ratio(self) -> float:
        return self.computed / self.loaded


class Stage:
    """The processes, and what the bench knows of them."""

    def __init__(self, outside: Outside, bases: dict[str, str], contract: Contract) -> None:
        self.outside, self.bases, self.contract = outside, bases, contract
        self._luck = random.Random(44)

    async def row(self, length: int, repeats: int) -> Row:
        times: dict[bool, list[float]] = {True: [], False: []}
        rounds: dict[bool, list[float]] = {True: [], False: []}
        octets = 0
        for number in range(2 * repeats):
            with_kv = number % 2 == 0
            session = self._session(length)
            await session.open(self.bases["verifier-1"])
            octets = max(octets, await self._until_named(session, rounds))
            begun = time.perf_counter()
            await session.fail_over(self.bases["verifier-2"], with_kv=with_kv)
            await session.play(1)
            times[with_kv].append(1e3 * (time.perf_counter() - begun))
            await session.play()
        return Row(
            length=length,
            octets=octets,
            computed=median(times[False]),
            loaded=median(times[True]),
            round_alone=median(rounds[False]),
            round_publishing=median(rounds[True]),
        )

    def _session(self, length: int) -> Played:
        luck, width = self._luck, self.outside.vocabulary
        prompt = tuple(luck.randrange(width) for _ in range(length))
        return Played(
            self.outside,
            self.contract,
            prompt,
            luck.randbytes(16),
            lambda rounds: tuple(random.Random(rounds).randrange(width) for _ in range(M)),
        )

    async def _until_named(self, session: Played, rounds: dict[bool, list[float]]) -> int:
        """Play until a record names KV; return the object's octets."""
        while (await session.read()).kv is None:
            publishing = len(session.output) >= INTERVAL
            begun = time.perf_counter()
            await session.play(1)
            rounds[publishing].append(1e3 * (time.perf_counter() - begun))
            if len(session.output) >= self.contract.max_new - M - 1:
                raise SystemExit("no KV was published before the session ended; see the verifier's log")
        assert session.recorded.kv is not None
        return len(await self.outside.router_cache.fetch(session.recorded.kv, at_most=1 << 40))


@asynccontextmanager
async def stage(model: Path, precision: str, threads: int) -> AsyncIterator[Stage]:
    """Start everything; stop it in the end."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sdcp-bench-")))
        files = {
            name: issue(folder, name, role, [DRAFTER] if name == "drafter" else [], ips=["127.0.0.1"])
            for name, role in NAMES.items()
        }
        (folder / "secret").write_bytes(bytes(range(32)))
        store = '[store]\ndirectory = "store"\nmemory_bytes = 2147483648\n\n[limits]\nbody_bytes = 1073741824\n'
        bases = {"cache": await _started(stack, folder, "cache", "cache", store)}
        settings = f"""[cache]
prefixes = ["{bases["cache"]}"]

[model]
engine = "transformers"
path = "{model}"
precision = "{precision}"
threads = {threads}

[kv]
group_key = "secret"
interval = {INTERVAL}
prompt_min = 0
object_ms = {int(1000 * DEADLINE_S)}
object_bytes = 536870912
"""
        for name in ("verifier-1", "verifier-2"):
            bases[name] = await _started(stack, folder, name, "verifier", settings)
        clients = {name: Client(client_context(files[name])) for name in ("router", "drafter")}
        for client in clients.values():
            stack.push_async_callback(client.close)
        caches = {name: RemoteCache(client, bases["cache"], deadline_s=DEADLINE_S) for name, client in clients.items()}
        for cache in caches.values():
            stack.push_async_callback(cache.close)
        outside = Outside(
            router=clients["router"],
            drafter=clients["drafter"],
            router_cache=caches["router"],
            drafter_cache=caches["drafter"],
            drafter_uri=DRAFTER,
            vocabulary=int(json.loads((model / "config.json").read_text())["vocab_size"]),
        )
        contract = Contract(
            target=model_digest(model),
            tokenizer=tokenizer_digest(model),
            rule=1,
            m_max=M,
            max_new=MAX_NEW,
            stop=(),
            low_rounds=1000,
            fallback=(Action.SWITCH,),
        )
        yield Stage(outside, bases, contract)


async def _started(stack: AsyncExitStack, folder: Path, name: str, role: str, settings: str) -> str:
    """Start a role; return its base URI."""
    path = folder / f"{name}.toml"
    tls = f'[tls]\ncertificate = "{name}.pem"\nkey = "{name}.key"\nca = "ca.pem"\nmatch_host = true\n\n'
    path.write_text(f'[server]\nlisten = "127.0.0.1:0"\n\n{tls}{settings}')
    log = stack.enter_context((folder / f"{name}.log").open("wb"))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sdcp.cli",
        role,
        "--config",
        str(path),
        "--until-stdin-ends",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=log,
    )

    async def end() -> None:
        if process.returncode is None:
            process.terminate()
        await process.wait()

    stack.push_async_callback(end)
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), READY_S)
    if not line.startswith(b"ready "):
        raise SystemExit(f"{name} did not start: {(folder / f'{name}.log').read_text()}")
    return line.split()[-1].decode()


def table(rows: list[Row]) -> Iterator[str]:
    yield f"{'tokens':>6} {'MiB':>7} | {'compute':>9} {'load':>9} {'ratio':>6} | {'round':>7} {'publishing':>10}"
    for row in rows:
        yield (
            f"{row.length:6} {row.octets / 2**20:7.1f} | {row.computed:9.1f} {row.loaded:9.1f} {row.ratio:6.1f} | "
            f"{row.round_alone:7.1f} {row.round_publishing:10.1f}"
        )


async def _run(given: Any) -> list[Row]:
    rows: list[Row] = []
    async with stage(given.model, given.precision, given.threads) as made:
        await made.row(min(given.lengths), 1)  # a first time for everything
        for length in given.lengths:
            rows.append(await made.row(length, given.repeats))
            print(*table(rows[-1:]), sep="\n", file=sys.stderr)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=Path("models/SmolLM2-135M-Instruct"))
    parser.add_argument("--lengths", type=lambda text: tuple(map(int, text.split(","))), default=LENGTHS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--threads", type=int, default=1, help="of each verifier")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    given = parser.parse_args()
    given.model = given.model.resolve()
    rows = asyncio.run(_run(given))
    print("time to the first verdict at a takeover, in ms")
    print(*table(rows), sep="\n")
    if given.json:
        given.json.write_text(json.dumps([{**asdict(row), "ratio": row.ratio} for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
