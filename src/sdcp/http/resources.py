"""Table 1 as data, and what our own roles add to it: the multi-level cache (docs/mlc.md) and requests (D33).

A resource is named by its method and its path as the draft writes them, such as `PUT sessions/{id}/drafter`. `{id}` is
16 octets in base64url without padding (5.1); `{instance}`, `{name}` and `{lease}` are one percent-encoded segment (D7).
`roles` says who may call (D10); what depends on the very session or instance, its handler checks.

Not here: calling handlers (`sdcp.http.dispatch`).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from sdcp.errors import Forbidden, MethodNotAllowed, NotAssigned, ProblemError, UnknownResource
from sdcp.http.identity import CACHE, DRAFTER, FRONT_END, ROLES, ROUTER, VERIFIER
from sdcp.messages.fields import Message
from sdcp.messages.lease import Lease
from sdcp.messages.output import Event, Output
from sdcp.messages.request import GenerationRequest, Location, ProfileChange
from sdcp.messages.round import Assignment, Proposal, Verdict
from sdcp.messages.session import Policy, SessionOpen, SessionState
from sdcp.messages.status import Status

SDCP_CBOR = "application/sdcp+cbor"
CBOR = "application/cbor"
CBOR_SEQ = "application/cbor-seq"
OCTETS = "application/octet-stream"
ANY = "*/*"

Parameters = dict[str, bytes | str]


@dataclass(frozen=True, slots=True)
class Resource:
    """One row: what may be done, by whom, with which body, and how it is answered."""

    name: str
    roles: frozenset[str]
    body: type[Message] | None = None
    answer: type[Message] | None = None
    takes: tuple[str, ...] = (SDCP_CBOR,)
    gives: str | None = None  # given by `answer`, unless the answer is no message
    refusal: type[ProblemError] = Forbidden
    method: str = field(init=False)
    segments: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        method, _, path = self.name.partition(" ")
        object.__setattr__(self, "method", method)
        object.__setattr__(self, "segments", tuple(path.split("/")))
        if self.answer is not None:
            object.__setattr__(self, "gives", SDCP_CBOR)


def _allowed(*roles: str) -> frozenset[str]:
    return frozenset(roles)


VERIFIER_RESOURCES = (
    Resource("POST sessions", _allowed(ROUTER), SessionOpen, SessionState),
    Resource("PUT sessions/{id}/drafter", _allowed(ROUTER), Assignment, SessionState),
    # At POST proposals every refusal of authorization is sdcp-not-assigned (D3).
    Resource("POST proposals", _allowed(DRAFTER), Proposal, Verdict, refusal=NotAssigned),
    # The drafter of the latest assignment may read too, to resynchronize (D9a); which one that is, the handler knows.
    Resource("GET sessions/{id}/output", _allowed(ROUTER, FRONT_END, DRAFTER), None, Output),
    Resource("POST sessions/{id}/policy", _allowed(ROUTER), Policy, SessionState),
)
DRAFTER_RESOURCES = (Resource("POST assignments", _allowed(ROUTER), Assignment),)
ROUTER_RESOURCES = (
    Resource("PUT instances/{instance}/status", _allowed(DRAFTER, VERIFIER), Status),
    Resource("POST events", _allowed(VERIFIER), Event),
    Resource("POST requests", _allowed(FRONT_END), GenerationRequest, Location),
    Resource("GET requests/{id}", _allowed(FRONT_END), None, Location),
    Resource("DELETE requests/{id}", _allowed(FRONT_END)),
    Resource("POST requests/{id}/policy", _allowed(FRONT_END), ProfileChange, Policy),
)
_EVERYBODY = ROLES - {CACHE}
CACHE_RESOURCES = (
    Resource("PUT objects/{name}", ROLES, takes=(ANY,)),
    Resource("GET objects/{name}", ROLES, gives=OCTETS),
    Resource("DELETE objects/{name}", ROLES),  # its creator or a router: the handler knows who made it
    Resource("PATCH logs/{name}", _allowed(ROUTER, VERIFIER), takes=(CBOR_SEQ,)),
    Resource("GET logs/{name}", _allowed(ROUTER, VERIFIER), gives=CBOR_SEQ),
    Resource("PUT leases/{lease}", _EVERYBODY, Lease, takes=(CBOR, SDCP_CBOR)),
    Resource("DELETE leases/{lease}", _EVERYBODY),
    Resource("POST host-memory", _EVERYBODY, takes=(ANY,), gives=CBOR),  # a ticket for a process of the same host (D40)
    # Names that a router does not know yet: after a restart (D45), or for an operator; a cache above lists its own.
    Resource("GET objects", _allowed(ROUTER, CACHE), gives=CBOR),
    Resource("GET logs", _allowed(ROUTER), gives=CBOR),
    Resource("GET leases", _allowed(ROUTER), gives=CBOR),
)


def encode_id(identifier: bytes) -> str:
    """A session identifier as it stands in a path: base64url without padding (5.1)."""
    return base64.urlsafe_b64encode(identifier).rstrip(b"=").decode("ascii")


def decode_id(segment: str) -> bytes:
    """The 16 octets of `{id}`. Raises ValueError for anything else, a second spelling of the same octets included."""
    try:
        identifier = base64.b64decode(f"{segment}==".encode("ascii"), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        identifier = b""
    if len(identifier) != 16 or encode_id(identifier) != segment:
        raise ValueError("not base64url, without padding, of 16 octets")
    return identifier


def url(base_uri: str, path: str, *parameters: bytes | str) -> str:
    """The URL of a path of a table below a role's base URI: its `{...}` filled, in order, with octets or text."""
    values = iter(parameters)
    filled = [_fill(next(values)) if segment.startswith("{") else segment for segment in path.split("/")]
    return f"{base_uri.rstrip('/')}/{'/'.join(filled)}"


class Table:
    """The resources of one role, below one base path."""

    def __init__(self, resources: Iterable[Resource], base_path: str = "/") -> None:
        """`base_path` is the path of the role's base URI, with or without a slash at its end."""
        self.resources = tuple(resources)
        self._prefix = f"{base_path.rstrip('/')}/"
        self._by_start: dict[tuple[str, int], list[Resource]] = {}
        for resource in self.resources:
            self._by_start.setdefault((resource.segments[0], len(resource.segments)), []).append(resource)

    def match(self, method: str, path: str) -> tuple[Resource, Parameters]:
        """The resource for a request, and its parameters. Raises UnknownResource (404) or MethodNotAllowed (405).

        HEAD finds what GET finds.
        """
        wanted = "GET" if method == "HEAD" else method
        segments = path[len(self._prefix) :].split("/") if path.startswith(self._prefix) else [""]
        alike = self._by_start.get((segments[0], len(segments)), ())
        for resource in alike:
            if resource.method == wanted and (parameters := _parameters(resource.segments, segments)) is not None:
                return resource, parameters
        found = [resource.method for resource in alike if _parameters(resource.segments, segments) is not None]
        allowed = [*found, "HEAD"] if "GET" in found else found
        if not allowed:
            raise UnknownResource(f"there is no resource {path} here")
        allow = ", ".join(sorted(allowed))
        raise MethodNotAllowed(f"{path} can be asked with {allow}, not with {method}", headers=(("allow", allow),))


def _parameters(pattern: tuple[str, ...], segments: list[str]) -> Parameters | None:
    """What stands in the places of `pattern`, which has as many segments; None when they do not fit."""
    parameters: Parameters = {}
    for expected, segment in zip(pattern, segments, strict=True):
        if not expected.startswith("{"):
            if expected != segment:
                return None
            continue
        try:
            parameters[expected[1:-1]] = decode_id(segment) if expected == "{id}" else _text(segment)
        except ValueError:
            return None
    return parameters


def _text(segment: str) -> str:
    text = unquote(segment, errors="strict") if "%" in segment else segment
    if not text:
        raise ValueError("empty")
    return text


def _fill(parameter: bytes | str) -> str:
    return encode_id(parameter) if isinstance(parameter, bytes) else quote(parameter, safe="")
