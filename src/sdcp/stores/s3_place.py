"""Where a cache in a store that speaks S3 is: what its URI and the environment say (docs/decisions.md, D42).

s3://bucket/folder?endpoint=https://host:port&region=eu-central-1

Credentials come from the environment alone, by the names that every tool of AWS knows: AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, a role of the machine, and so on. So do endpoint (AWS_ENDPOINT_URL) and region
(AWS_REGION) where the URI does not say them.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from obstore.store import S3Store

from sdcp.errors import ConfigurationError
from sdcp.stores.store import NAME

if TYPE_CHECKING:
    from obstore.store import S3Config

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_OPTIONS = ("endpoint", "region", "allow-http")


@dataclass(frozen=True, slots=True)
class Place:
    """A folder (empty: all) of a bucket. endpoint, region: None as AWS has them. allow_http: without TLS."""

    bucket: str
    folder: str
    endpoint: str | None = None
    region: str | None = None
    allow_http: bool = False

    @property
    def base(self) -> str:
        """What our refs begin with."""
        return f"s3://{self.bucket}/{self.folder}".rstrip("/")

    def connect(self, deadline_s: float, *, retries: int) -> S3Store:
        """Make a client that gives a request up after `deadline_s`, with all its tries."""
        limit = timedelta(seconds=deadline_s)
        config: S3Config = {"virtual_hosted_style_request": False}
        if self.endpoint:
            config["endpoint"] = self.endpoint
        if self.region:
            config["region"] = self.region
        return S3Store(
            self.bucket,
            prefix=self.folder or None,
            config=config,
            client_options={"allow_http": self.allow_http, "timeout": limit, "connect_timeout": limit},
            retry_config={"max_retries": retries, "retry_timeout": limit},
        )


def parse_place(uri: str) -> Place:
    """Read `s3://bucket/folder?endpoint=…`. Raises ConfigurationError."""
    parts = urlsplit(uri)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    shown = f"cache s3://{parts.netloc.rpartition('@')[2]}{parts.path}"
    if "@" in parts.netloc:
        raise ConfigurationError(f"{shown}: credentials belong in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    if unknown := [name for name in options if name not in _OPTIONS]:
        raise ConfigurationError(f"{shown}: unknown option {', '.join(unknown)}; there are {', '.join(_OPTIONS)}")
    if parts.fragment or not _BUCKET.fullmatch(parts.netloc):
        raise ConfigurationError(f"{shown}: say a bucket and a folder of it, for example s3://bucket/sdcp")
    folder = parts.path.strip("/")
    if folder and not all(NAME.fullmatch(segment) for segment in folder.split("/")):
        raise ConfigurationError(f"{shown}: a folder's name has letters, digits, '-', '_', '~' and '.', none in front")
    endpoint = options.get("endpoint") or next(filter(None, map(os.environ.get, _ENDPOINTS)), None)
    allow_http = endpoint is not None and endpoint.startswith("http:")
    if allow_http and options.get("allow-http") != "1" and not _is_loopback(endpoint or ""):
        raise ConfigurationError(
            f"{shown}: {endpoint} has no TLS, so everybody on the way could read and change what is kept; use https, "
            "or say allow-http=1 in the URI"
        )
    return Place(parts.netloc, folder, endpoint, options.get("region"), allow_http)


def _is_loopback(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
