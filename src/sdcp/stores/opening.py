"""Which cache a URI means, and several of them as one (docs/decisions.md, D42).

    https://host:port/base          a cache behind `sdcp cache`             (`sdcp.stores.remote`)
    file:///folder                  a folder, open in this process alone    (`sdcp.stores.files`)
    memory:/name                    memory of this process, shared by name  (`sdcp.stores.memory`)
    s3://bucket/folder?endpoint=…   a store that speaks S3                  (`sdcp.stores.s3`)
    valkey://host:port/db?prefix=…  a Valkey or Redis server                (`sdcp.stores.valkey`)

What a backend needs beyond this package is imported when it is chosen. A server that must be checked before it is
trusted is checked here, so that whoever got a cache may use it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from sdcp.errors import ConfigurationError
from sdcp.http.client import Client
from sdcp.http.identity import CACHE
from sdcp.ports import Cache
from sdcp.stores.composite import CompositeCache
from sdcp.stores.files import FileCache
from sdcp.stores.memory import MemoryCache, MemoryStore
from sdcp.stores.remote import RemoteCache
from sdcp.stores.store import NAME

_FOLDER = re.compile(r"file://(/(?!\.\.?(?:/|$))[A-Za-z0-9._~-]+)+")
_in_memory: WeakValueDictionary[str, MemoryStore] = WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class _Means:
    """What those who open a cache may need: see `open_cache`."""

    client: Client | None
    owner: str
    deadline_s: float
    expect_role: str | None
    host_memory: bool


async def open_cache(
    prefixes: Sequence[str],
    *,
    client: Client | None = None,
    logs: str | None = None,
    owner: str = "local",
    deadline_s: float = 5.0,
    expect_role: str | None = CACHE,
    host_memory: bool = True,
) -> Cache:
    """Open the caches of these URIs as one; new objects go to the first, new logs to `logs` (None: the first, too).

    `client` speaks to https caches, whose servers must bear `expect_role`, and is closed by who made it; `owner` is
    whose leases ours are where no certificate says it; `deadline_s` covers each call with all its tries; `host_memory`
    as in `RemoteCache`. Raises ConfigurationError for a URI that cannot be used, what must be installed first, and a
    server that does not answer or does not do what is asked of it.
    """
    means = _Means(client, owner, deadline_s, expect_role, host_memory)
    uris = list(dict.fromkeys(uri.rstrip("/") for uri in (*prefixes, *([logs] if logs else []))))
    opened: dict[str, Cache] = {}
    try:
        for uri in uris:
            opened[uri] = await _open(uri, means)
        _check_apart(opened)
    except BaseException:
        for cache in opened.values():
            await cache.close()
        raise
    if len(uris) == 1:
        return opened[uris[0]]
    return CompositeCache([*opened.values()], logs=opened[(logs or uris[0]).rstrip("/")])


async def _open(uri: str, means: _Means) -> Cache:
    scheme = uri.partition(":")[0]
    opener = _OPENERS.get(scheme)
    if opener is None:
        known = ", ".join(f"{name}:" for name in _OPENERS)
        raise ConfigurationError(f"cache prefix {uri!r}: the scheme must be one of {known}")
    return await opener(uri, means)


def _check_apart(opened: Mapping[str, Cache]) -> None:
    """Refuse two URIs of one place: a name must mean one thing, and one connection is enough."""
    uris = list(opened)
    for number, uri in enumerate(uris):
        name = opened[uri].ref_of("objects", "x")
        for other in uris[:number]:
            if opened[other].allows(name):
                raise ConfigurationError(f"cache prefixes {other!r} and {uri!r} are the same place; name it once")


async def _https(uri: str, means: _Means) -> Cache:
    if means.client is None:
        raise ConfigurationError(f"cache prefix {uri!r}: an https cache is reached with a certificate; give one, [tls]")
    return RemoteCache(
        means.client,
        uri,
        deadline_s=means.deadline_s,
        expect_role=means.expect_role,
        host_memory=means.host_memory,
    )


async def _file(uri: str, means: _Means) -> Cache:
    if _FOLDER.fullmatch(uri) is None:
        raise ConfigurationError(
            f"cache prefix {uri!r}: must be file:/// and the full path of a folder, of letters, digits, '-', '_', '.' "
            "and '~', for example file:///var/lib/sdcp"
        )
    return FileCache(Path(uri.removeprefix("file://")), owner=means.owner, prefix=f"{uri}/")


async def _memory(uri: str, means: _Means) -> Cache:
    name = uri.removeprefix("memory:/")
    if name == uri or NAME.fullmatch(name) is None:
        raise ConfigurationError(f"cache prefix {uri!r}: must be memory:/ and a name, for example memory:/cache")
    store = _in_memory.setdefault(name, MemoryStore())
    return MemoryCache(store, owner=means.owner, prefix=f"{uri}/")


async def _s3(uri: str, means: _Means) -> Cache:
    try:
        from sdcp.stores.s3 import S3Cache
    except ModuleNotFoundError as missing:
        raise _lacking(uri, "s3", missing) from None
    return await S3Cache.open(uri, owner=means.owner, deadline_s=means.deadline_s)


async def _valkey(uri: str, means: _Means) -> Cache:
    try:
        from sdcp.stores.valkey import ValkeyCache
    except ModuleNotFoundError as missing:
        raise _lacking(uri, "valkey", missing) from None
    return await ValkeyCache.open(uri, owner=means.owner, deadline_s=means.deadline_s)


def _lacking(uri: str, extra: str, missing: ModuleNotFoundError) -> ConfigurationError:
    return ConfigurationError(f"cache prefix {uri!r} needs {missing.name}: run pip install 'sdcp[{extra}]'")


_OPENERS: Mapping[str, Callable[[str, _Means], Awaitable[Cache]]] = {
    "https": _https,
    "file": _file,
    "memory": _memory,
    "s3": _s3,
    "valkey": _valkey,
    "valkeys": _valkey,
    "redis": _valkey,
    "rediss": _valkey,
    "unix": _valkey,
}
SCHEMES = tuple(_OPENERS)
"""Of the URIs that `open_cache` takes."""
