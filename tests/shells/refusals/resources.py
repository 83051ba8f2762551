"""Table 1, D10, D33 and docs/mlc.md as a table: what there is, who may ask, with which body, answered how."""

from __future__ import annotations

from dataclasses import dataclass

from tests.shells.refusals.town import CBOR_SEQ, SDCP_CBOR

EVERYBODY = frozenset({"router", "verifier", "drafter", "front-end"})


@dataclass(frozen=True)
class Resource:
    """One row; `at` names the process, `id` in the path stands for sixteen octets, `name` for any segment."""

    at: str
    method: str
    path: str
    roles: frozenset[str]
    takes: str | None = None
    gives: str | None = None
    refusal: str | int = 403

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def url(self, base: str) -> str:
        """Somewhere below `base`, where no such session, request or object is."""
        return f"{base}/{self.path}".replace("{id}", "A" * 22).replace("{name}", "nobody")


def _row(at: str, method: str, path: str, *roles: str, **rest: str) -> Resource:
    return Resource(at, method, path, frozenset(roles), **rest)


BODY, ANSWER = {"takes": SDCP_CBOR}, {"gives": SDCP_CBOR}
RESOURCES = (
    _row("verifier", "POST", "sessions", "router", **BODY, **ANSWER),
    _row("verifier", "PUT", "sessions/{id}/drafter", "router", **BODY, **ANSWER),
    _row("verifier", "POST", "proposals", "drafter", **BODY, **ANSWER, refusal="sdcp-not-assigned"),
    _row("verifier", "GET", "sessions/{id}/output", "router", "front-end", "drafter", **ANSWER),
    _row("verifier", "POST", "sessions/{id}/policy", "router", **BODY, **ANSWER),
    _row("drafter-process", "POST", "assignments", "router", **BODY),
    _row("router-process", "PUT", "instances/{name}/status", "drafter", "verifier", **BODY),
    _row("router-process", "POST", "events", "verifier", **BODY),
    _row("router-process", "POST", "requests", "front-end", **BODY, **ANSWER),
    _row("router-process", "GET", "requests/{id}", "front-end", **ANSWER),
    _row("router-process", "DELETE", "requests/{id}", "front-end"),
    _row("router-process", "POST", "requests/{id}/policy", "front-end", **BODY, **ANSWER),
    _row("cache", "PUT", "objects/{name}", *EVERYBODY, "cache"),
    _row("cache", "GET", "objects/{name}", *EVERYBODY, "cache", gives="application/octet-stream"),
    _row("cache", "DELETE", "objects/{name}", *EVERYBODY, "cache"),
    _row("cache", "PATCH", "logs/{name}", "router", "verifier", takes=CBOR_SEQ),
    _row("cache", "GET", "logs/{name}", "router", "verifier", gives=CBOR_SEQ),
    _row("cache", "PUT", "leases/{name}", *EVERYBODY, takes="application/cbor"),
    _row("cache", "DELETE", "leases/{name}", *EVERYBODY),
)
