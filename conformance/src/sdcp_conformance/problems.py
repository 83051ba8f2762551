"""Problem Details (RFC 9457) and the types of Table 2, read with as little trust as they deserve."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sdcp_conformance.outcome import ensure

MEDIA_TYPE = "application/problem+json"
TABLE_2 = {
    "sdcp-stale-epoch": 409,
    "sdcp-stale-base": 409,
    "sdcp-q-unavailable": 409,
    "sdcp-bad-contract": 422,
    "sdcp-limit": 422,
    "sdcp-session-closed": 410,
    "sdcp-bad-proposal": 422,
    "sdcp-not-assigned": 403,
}
TYPE_PREFIX = "https://iana.org/assignments/http-problem-types#"
"""What D1 puts before a suffix."""


@dataclass(frozen=True)
class Problem:
    """`members` as JSON has them; empty when the body is no JSON object."""

    members: dict[str, Any]

    @classmethod
    def read(cls, body: bytes) -> Problem:
        """Read a body that should be a problem."""
        try:
            value = json.loads(body)
        except ValueError:
            value = None
        return cls(value if isinstance(value, dict) else {})

    @property
    def type(self) -> str:
        """The `type` member; absent means about:blank."""
        return str(self.members.get("type", "about:blank"))

    @property
    def suffix(self) -> str | None:
        """The type of Table 2 that `type` ends in."""
        return next((suffix for suffix in TABLE_2 if self.type.endswith(suffix)), None)

    @property
    def detail(self) -> str:
        """What it says to people."""
        return str(self.members.get("detail", "no detail"))

    def check_type(self, suffix: str, status: int, asked: str, summary: str) -> None:
        """Fail unless this is that type of Table 2, with its status."""
        wanted = f"a refusal with {TABLE_2[suffix]} {suffix}"
        ensure((self.suffix, status) == (suffix, TABLE_2[suffix]), f"{asked}: expected {wanted}, came {summary}")


def faults(status: int, media: str, body: bytes) -> list[str]:
    """What is wrong with a refusal as a problem (5.1, RFC 9457 section 3)."""
    if media.partition(";")[0].strip().lower() != MEDIA_TYPE:
        return [f"a refusal with status {status} has the media type {media or 'none'}, expected {MEDIA_TYPE}"]
    problem = Problem.read(body)
    if not problem.members:
        return [f"a refusal with status {status} is no JSON object"]
    found = [
        f"a problem with status {status} has the {name} {problem.members[name]!r}, expected a string"
        for name in ("type", "title", "detail", "instance")
        if name in problem.members and not isinstance(problem.members[name], str)
    ]
    stated = problem.members.get("status", status)
    if stated != status:
        found.append(f"a problem in an answer with status {status} states {stated!r}")
    if problem.suffix and TABLE_2[problem.suffix] != status:
        found.append(f"{problem.suffix} came with status {status}, Table 2 has {TABLE_2[problem.suffix]}")
    return found


def make(suffix: str, detail: str = "The conformance kit says so.", **members: Any) -> tuple[int, bytes]:
    """Status and body of a refusal that the kit gives."""
    status = TABLE_2[suffix]
    body = {"type": TYPE_PREFIX + suffix, "title": suffix, "status": status, "detail": detail, **members}
    return status, json.dumps(body).encode()
