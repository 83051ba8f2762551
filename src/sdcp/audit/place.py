"""The cache that a command line names, opened with the settings of a role (docs/mlc.md).

A URI may be that of a cache, of a log in it, or nothing: then the settings say which cache. Over https the caller is
who the settings' certificate says: listing and deleting are for routers.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import ValidationError

from sdcp.errors import ConfigurationError, ProblemError
from sdcp.http.client import Client
from sdcp.http.identity import TrustPolicy
from sdcp.http.tls import TlsFiles, client_context
from sdcp.ports import Cache, StoreUnavailableError
from sdcp.roles.config import CachePrefixes, Tls
from sdcp.stores.opening import open_cache
from sdcp.stores.store import NAME
from sdcp.stores.valkey_address import DEFAULT_PREFIX

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Access:
    """Whose certificate and caches: a role's settings, or else the router's in a folder of `sdcp up`."""

    config: Path | None
    directory: Path

    @property
    def settings(self) -> Path:
        """The settings file."""
        return self.config or self.directory / "router.toml"


@asynccontextmanager
async def opened(uri: str | None, access: Access) -> AsyncIterator[tuple[Cache, str]]:
    """Open the cache of `uri`, without one all that the settings name, as one (`open_cache`).

    Give it with the URI, completed if it was a name, or that of the first cache. Raises ConfigurationError.
    """
    prefix, name = _split(uri) if uri is not None else (None, None)
    if prefix is None:
        section = _caches(access)
        prefixes, log_prefix = section.prefixes, section.logs
    else:
        prefixes, log_prefix = (_as_configured(prefix, access),), None
    for each in (*prefixes, *([log_prefix] if log_prefix else [])):
        _check_there(each)
    async with _client(prefixes, log_prefix, access) as client:
        cache = await open_cache(prefixes, client=client, logs=log_prefix)
        try:
            yield cache, cache.ref_of("logs", name) if name else prefixes[0]
        finally:
            await cache.close()


def asked(work: Coroutine[Any, Any, T]) -> T:
    """Run it; what a cache refuses or does not answer is a line for the operator."""
    try:
        return asyncio.run(work)
    except StoreUnavailableError as fault:
        raise ConfigurationError(f"the cache cannot be asked: {fault}") from None
    except ProblemError as refusal:
        raise ConfigurationError(f"the cache refuses: {refusal.detail}") from None


def _split(uri: str) -> tuple[str | None, str | None]:
    """Prefix and name; a name alone has no prefix. Options of the cache may stand at the end, as in any URI."""
    if NAME.fullmatch(uri):
        return None, uri
    if ":" not in uri:
        raise ConfigurationError(f"{uri}: must be a URI such as https://127.0.0.1:7400/logs/NAME, or a name")
    prefix, logs, name = uri.rpartition("/logs/")
    name, mark, options = name.partition("?")
    return (f"{prefix}{mark}{options}", name) if logs else (uri, None)


def _check_there(prefix: str) -> None:
    """Opening a folder as a store would make it."""
    if prefix.startswith("file:") and not Path(prefix.removeprefix("file://")).is_dir():
        raise ConfigurationError(f"{prefix}: there is no such folder")


def _as_configured(prefix: str, access: Access) -> str:
    """The prefix as the settings have it, if they do: with the server and the options that belong to it."""
    if prefix.startswith("https:") or not access.settings.exists():
        return prefix
    section = _caches(access)
    known = [*section.prefixes, *([section.logs] if section.logs else [])]
    return next((each for each in known if prefix.rstrip("/") in _forms(each)), prefix)


def _forms(configured: str) -> tuple[str, ...]:
    """How a configured URI is written: without its options, and as the refs of a Valkey server have it."""
    bare, _, options = configured.partition("?")
    named = dict(parse_qsl(options)).get("prefix", DEFAULT_PREFIX)
    return bare.rstrip("/"), f"{bare.rstrip('/')}/{named}", f"{bare.rstrip('/')}/0/{named}"


def _caches(access: Access) -> CachePrefixes:
    section: CachePrefixes = _section(access.settings, "cache", CachePrefixes)
    return section


@asynccontextmanager
async def _client(prefixes: Sequence[str], logs: str | None, access: Access) -> AsyncIterator[Client | None]:
    if not any(each.startswith("https:") for each in (*prefixes, logs or "")):
        yield None
        return
    tls = _section(access.settings, "tls", Tls)
    context = client_context(TlsFiles(tls.certificate, tls.key, tls.ca))
    async with Client(context, trust=TrustPolicy(tls.roles)) as client:
        yield client


def _section(path: Path, name: str, kind: Any) -> Any:
    """One table of a settings file, whatever role it is of."""
    try:
        table = tomllib.loads(path.read_text()).get(name)
        if table is None:
            raise ConfigurationError(f"{path}: has no table [{name}]; give the settings of a router or verifier")
        return kind.model_validate(table, context={"folder": path.resolve().parent})
    except FileNotFoundError:
        raise ConfigurationError(
            f"{path}: no such settings; give those of a router or verifier with --config, or a folder of `sdcp up`"
        ) from None
    except OSError as fault:
        raise ConfigurationError(f"{path}: cannot be read: {fault.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, ValidationError) as fault:
        raise ConfigurationError(f"{path}: [{name}]: {str(fault).splitlines()[0]}") from None
