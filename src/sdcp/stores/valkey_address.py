"""Where a cache in a Valkey or Redis server is, and how it is to be kept: what its URI says (docs/decisions.md, D43).

valkey://user:password@host:port/db?prefix=sdcp     valkeys:// is TLS; redis:// and rediss:// are the same two
unix:///run/valkey/valkey.sock?db=0&prefix=sdcp
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from sdcp.errors import ConfigurationError
from sdcp.stores.store import NAME

SCHEMES: Mapping[str, Literal["valkey", "valkeys", "unix"]] = {
    "valkey": "valkey",
    "redis": "valkey",
    "valkeys": "valkeys",
    "rediss": "valkeys",
    "unix": "unix",
}
"""Schemes that are taken, each with the one that our own URIs bear."""

DEFAULT_PREFIX = "sdcp"
_PORT = 6379
_OPTIONS = (
    "db",
    "prefix",
    "capacity",
    "object_ttl_s",
    "log_retention_s",
    "replicas",
    "assume-durable",
    "ca",
    "certificate",
    "key",
)


@dataclass(frozen=True, slots=True)
class Address:
    """What a URI says (docs/decisions.md, D43). Times in seconds, sizes in octets.

    capacity: of all objects; 0: what the server's memory holds. replicas: how many must have an append on their disks,
    too, before it counts. assume_durable: settings that the server does not tell are taken to be right.
    """

    scheme: Literal["valkey", "valkeys", "unix"]
    host: str
    port: int
    path: str
    db: int
    prefix: str
    user: str | None
    password: str | None
    capacity: int
    object_ttl_s: float
    log_retention_s: float
    replicas: int
    assume_durable: bool
    ca: str | None
    certificate: str | None
    key: str | None

    @property
    def where(self) -> str:
        """The server, for sentences: no secret in it."""
        return f"unix://{self.path}" if self.scheme == "unix" else f"{self.scheme}://{_host(self.host)}:{self.port}"

    @property
    def base(self) -> str:
        """What the URIs of this cache begin with, without a slash at the end."""
        return f"{self.where}/{self.db}/{self.prefix}"


def parse_address(uri: str) -> Address:
    """Read `valkey://user:password@host:port/db?prefix=…`. Raises ConfigurationError.

    User and password may come from SDCP_VALKEY_USER and SDCP_VALKEY_PASSWORD instead.
    """
    parts = urlsplit(uri)
    shown = f"cache {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    if parts.scheme not in SCHEMES:
        raise ConfigurationError(f"{shown}: the scheme must be one of {', '.join(SCHEMES)}")
    scheme = SCHEMES[parts.scheme]
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = [name for name in options if name not in _OPTIONS or (name == "db" and scheme != "unix")]
    if unknown or parts.fragment:
        raise ConfigurationError(
            f"{shown}: unknown option {', '.join(unknown or ['#'])}; there are {', '.join(_OPTIONS)}"
        )
    try:
        port = parts.port or _PORT
    except ValueError:
        raise ConfigurationError(f"{shown}: the port is not a number below 65536") from None
    if scheme == "unix" and not parts.path.startswith("/"):
        raise ConfigurationError(f"{shown}: say the socket's full path, as unix:///run/valkey/valkey.sock?prefix=sdcp")
    if scheme != "unix" and not parts.hostname:
        raise ConfigurationError(f"{shown}: say the server's name, as {scheme}://cache.example:6379/0")
    if scheme != "valkeys" and {"ca", "certificate", "key"} & options.keys():
        raise ConfigurationError(f"{shown}: ca, certificate and key are for TLS: use valkeys://")
    db = options.get("db", "0") if scheme == "unix" else parts.path.strip("/") or "0"
    prefix = options.get("prefix", DEFAULT_PREFIX)
    if not NAME.fullmatch(prefix):
        raise ConfigurationError(f"{shown}: prefix must be one name of letters, digits, '-', '_', '.' and '~'")
    return Address(
        scheme=scheme,
        host=(parts.hostname or "").lower(),
        port=port,
        path=unquote(parts.path) if scheme == "unix" else "",
        db=_whole(shown, "the database", db),
        prefix=prefix,
        user=unquote(parts.username) if parts.username else os.environ.get("SDCP_VALKEY_USER"),
        password=unquote(parts.password) if parts.password else os.environ.get("SDCP_VALKEY_PASSWORD"),
        capacity=_whole(shown, "capacity", options.get("capacity", "0")),
        object_ttl_s=_number(shown, "object_ttl_s", options.get("object_ttl_s", "3600")),
        log_retention_s=_number(shown, "log_retention_s", options.get("log_retention_s", str(30 * 86_400))),
        replicas=_whole(shown, "replicas", options.get("replicas", "0")),
        assume_durable=_whole(shown, "assume-durable", options.get("assume-durable", "0")) == 1,
        ca=_file(shown, options.get("ca")),
        certificate=_file(shown, options.get("certificate")),
        key=_file(shown, options.get("key")),
    )


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _file(shown: str, path: str | None) -> str | None:
    if path is not None and not os.path.isfile(path):
        raise ConfigurationError(f"{shown}: there is no file {path}")
    return path


def _whole(shown: str, what: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigurationError(f"{shown}: {what} must be a whole number, 0 or above, not {text!r}")
    return int(text)


def _number(shown: str, what: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ConfigurationError(f"{shown}: {what} must be a number, 0 or above, not {text!r}")
    return value
