"""Who a peer is (D9): the subject alternative names of its certificate, read once per connection, and its roles.

Words: a *SAN* is a subject alternative name (URI, DNS name or IP address). An instance owns a base URI when its
certificate has that URI as a SAN. A *role* is one of `ROLES`; a `TrustPolicy` says which SANs carry which role.

Not here: which role may call what (`sdcp.http.resources`, D10), and checking the chain of signatures (`ssl` does).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from ipaddress import ip_address, ip_network
from typing import Any, Final

from sdcp.errors import ConfigurationError

ROUTER: Final = "router"
VERIFIER: Final = "verifier"
DRAFTER: Final = "drafter"
CACHE: Final = "cache"
FRONT_END: Final = "front-end"
ROLES: Final = frozenset({ROUTER, VERIFIER, DRAFTER, CACHE, FRONT_END})
ROLE_URN: Final = "urn:sdcp:role:"

_PORTS = {"https": "443", "http": "80"}
# RFC 3986 appendix B, with the scheme required and no character that a URI cannot hold.
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/?#]*))?([^?#]*)(\?[^#]*)?(#.*)?")
_FORBIDDEN = re.compile(r"""[^!#-;=?-\[\]_a-z~%]|%(?![0-9A-Fa-f]{2})""")
_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection. `uris` are normalized, `dns` lower case, `ips` in their canonical text.

    `fingerprint` is the SHA-256 of the certificate, in hex; it changes when the certificate is renewed.
    """

    uris: frozenset[str]
    dns: frozenset[str]
    ips: frozenset[str]
    roles: frozenset[str] = frozenset()
    fingerprint: str = ""

    @classmethod
    def of(cls, certificate: Mapping[str, Any], trust: TrustPolicy, der: bytes = b"") -> Peer:
        """Read what `SSLSocket.getpeercert()` returns; `der` is the same certificate in binary form."""
        names: dict[str, set[str]] = {"URI": set(), "DNS": set(), "IP Address": set()}
        for kind, value in certificate.get("subjectAltName", ()):
            if kind in names and (normal := _NORMAL[kind](value)) is not None:
                names[kind].add(normal)
        peer = cls(frozenset(names["URI"]), frozenset(names["DNS"]), frozenset(names["IP Address"]))
        return cls(peer.uris, peer.dns, peer.ips, trust.roles_of(peer), sha256(der).hexdigest() if der else "")

    def owns(self, base_uri: str, allow_host: bool = False) -> bool:
        """Whether this is the instance at `base_uri` (D9). With `allow_host` a SAN equal to its host is enough."""
        try:
            normal = normalize_uri(base_uri)
        except ValueError:
            return False
        if normal in self.uris:
            return True
        return allow_host and bool((host := _host(normal)) in self.dns or _canonical_ip(host) in self.ips)

    @property
    def name(self) -> str:
        """One name for logs and for what belongs to this peer: its first SAN that is no role; survives renewal."""
        uris = sorted(uri for uri in self.uris if not uri.startswith(ROLE_URN))
        return next(iter([*uris, *sorted(self.dns), *sorted(self.ips), self.fingerprint]))


class TrustPolicy:
    """Which SANs carry which role. A SAN that matches several patterns carries all their roles.

    A pattern is a URI (`spiffe://cluster/ns/*/verifier`), `dns:` and a name, or `ip:` and an address or network. `*`
    stands for anything within one segment of a path or one label of a name, `**` for anything at all. Whoever gives
    a policy replaces the default, in which `urn:sdcp:role:<role>` carries its role.
    """

    def __init__(self, patterns: Mapping[str, str | Iterable[str]] | None = None) -> None:
        """`patterns` maps each pattern to its role or roles. Raises ConfigurationError for one that cannot match."""
        given = {f"{ROLE_URN}{role}": role for role in ROLES} if patterns is None else patterns
        self._rules = [(_matcher(pattern), _roles(pattern, roles)) for pattern, roles in given.items()]

    def roles_of(self, peer: Peer) -> frozenset[str]:
        """The union of the roles of every pattern that one of the peer's names matches."""
        return frozenset().union(*(roles for matcher, roles in self._rules if matcher(peer)))


@lru_cache(maxsize=4096)  # every proposal names its drafter's base URI
def normalize_uri(uri: str) -> str:
    """RFC 3986 sections 6.2.2 and 6.2.3: case, percent-encoding, dot segments, default port, empty path.

    Raises ValueError for a string that is no URI with a scheme.
    """
    match = _URI.fullmatch(uri)
    if match is None or _FORBIDDEN.search(uri):
        raise ValueError(f"{uri!r} is not a URI")
    scheme, authority, path, query, fragment = match.groups()
    scheme = scheme.lower()
    path = _escapes(path)
    if authority is None:
        return f"{scheme}:{path}{_escapes(query or '')}{_escapes(fragment or '')}"
    rest = f"{_without_dots(path) or '/'}{_escapes(query or '')}{_escapes(fragment or '')}"
    return f"{scheme}://{_authority(scheme, authority)}{rest}"


def _authority(scheme: str, authority: str) -> str:
    user, at, host_port = authority.rpartition("@")
    host, colon, port = host_port, "", ""
    if not host_port.endswith("]") and ":" in host_port:
        host, colon, port = host_port.rpartition(":")
    if port == _PORTS.get(scheme) or not port:
        colon = port = ""
    # Escapes first: lowering would spoil the capitals that 6.2.2.1 wants in them.
    host = _ESCAPE.sub(lambda found: found[0].upper(), _escapes(host).lower())
    return f"{_escapes(user)}{at}{host}{colon}{port}"


def _escapes(text: str) -> str:
    return _ESCAPE.sub(_escape, text) if "%" in text else text


def _escape(found: re.Match[str]) -> str:
    character = chr(int(found[1], 16))
    return character if character in _UNRESERVED else found[0].upper()


def _without_dots(path: str) -> str:
    """RFC 3986 section 5.2.4, for a path that is empty or begins with a slash."""
    kept: list[str] = []
    segments = path.split("/")
    for segment in segments[1:]:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in (".", ".."):
        kept.append("")
    return "".join(f"/{segment}" for segment in kept)


def _host(normal: str) -> str:
    match = _URI.fullmatch(normal)
    authority = (match[2] or "") if match else ""
    host = authority.rpartition("@")[2]
    return host[1 : host.index("]")] if host.startswith("[") and "]" in host else host.rpartition(":")[0] or host


def _normal_san_uri(value: str) -> str | None:
    try:
        return normalize_uri(value)
    except ValueError:
        return None


def _canonical_ip(text: str) -> str | None:
    try:
        return str(ip_address(text.strip()))
    except ValueError:
        return None


_NORMAL = {"URI": _normal_san_uri, "DNS": str.lower, "IP Address": _canonical_ip}


def _roles(pattern: str, roles: str | Iterable[str]) -> frozenset[str]:
    named = frozenset([roles] if isinstance(roles, str) else roles)
    if unknown := named - ROLES:
        raise ConfigurationError(
            f"trust pattern {pattern!r} gives the unknown role {min(unknown)!r}; roles are {', '.join(sorted(ROLES))}"
        )
    return named


def _matcher(pattern: str) -> Any:
    kind, _, rest = pattern.partition(":")
    if kind == "ip":
        return _network_matcher(pattern, rest)
    if kind == "dns":
        name = _glob(rest.lower(), ".")
        return lambda peer: any(name.fullmatch(dns) for dns in peer.dns)
    try:
        uri = _glob(normalize_uri(pattern), "/")
    except ValueError:
        raise ConfigurationError(f"trust pattern {pattern!r} is not a URI, dns:NAME or ip:ADDRESS") from None
    return lambda peer: any(uri.fullmatch(san) for san in peer.uris)


def _network_matcher(pattern: str, text: str) -> Any:
    try:
        network = ip_network(text)
    except ValueError:
        raise ConfigurationError(f"trust pattern {pattern!r} names no IP address or network") from None
    return lambda peer: any(ip_address(ip) in network for ip in peer.ips)


def _glob(pattern: str, separator: str) -> re.Pattern[str]:
    pieces = re.split(r"(\*\*?)", pattern)
    wild = {"*": f"[^{re.escape(separator)}]+", "**": ".+"}
    return re.compile("".join(wild.get(piece) or re.escape(piece) for piece in pieces))
