"""One cache, verifier, drafter and router for all tests of this folder, each its own process over mutual TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sdcp.http.authority import init_authority
from tests.shells.refusals.processes import BODY_BYTES, Processes
from tests.shells.refusals.town import Town


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    folder: Path = tmp_path_factory.mktemp("refusals")
    init_authority(folder)
    processes = Processes(folder)
    try:
        yield processes
    finally:
        processes.stop()


def target_settings(bases: dict[str, str], **limits: Any) -> dict[str, dict[str, object]]:
    """The sections of a verifier."""
    return {
        "model": {"engine": "bigram", "path": "target.safetensors"},
        "cache": {"prefixes": [bases["cache"], bases["elsewhere"]]},
        "limits": {"body_bytes": BODY_BYTES, "fetch_ms": 2000, "drain_s": 10, **limits},
    }


def draft_settings(bases: dict[str, str], **limits: Any) -> dict[str, dict[str, object]]:
    """The sections of a drafter."""
    return {
        "model": {"engine": "bigram", "path": "draft.safetensors"},
        "cache": {"prefixes": [bases["cache"], bases["elsewhere"]]},
        "limits": {"body_bytes": BODY_BYTES, "drain_s": 10, **limits},
    }


def router_settings(bases: dict[str, str], **limits: Any) -> dict[str, dict[str, object]]:
    """The sections of a router."""
    return {
        "cache": {"prefixes": [bases["cache"]]},
        "limits": {"body_bytes": BODY_BYTES, "drain_s": 10, **limits},
    }


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def town(processes: Processes) -> AsyncIterator[Town]:
    names = ("cache", "verifier", "drafter-process", "router-process", "elsewhere")
    bases = processes.new_bases(*names, path="/v1")
    cache = {"store": {"directory": "store", "disk_bytes": 4 << 20}, "limits": {"body_bytes": 1 << 20}}
    files = {
        "cache": processes.launch("cache", "cache", bases["cache"], cache),
        "verifier": processes.launch(
            "verifier", "verifier", bases["verifier"], target_settings(bases, sessions=100_000)
        ),
        "drafter-process": processes.launch(
            "drafter-process", "drafter", bases["drafter-process"], draft_settings(bases)
        ),
        "router-process": processes.launch("router-process", "router", bases["router-process"], router_settings(bases)),
    }
    processes.ready(*files)
    town = Town(processes, bases, files)
    try:
        yield town
    finally:
        await town.close()
