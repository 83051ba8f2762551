"""Looks at every message that the subject sends, whatever the check is about, and notes what breaks the draft.

A fault fails the check in which it was noted; what belongs to no check fails the role's own `X-messages`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sdcp_conformance import messages, problems
from sdcp_conformance.encoding import decode, is_deterministic

SDCP_CBOR = "application/sdcp+cbor"
NO_CONTENT = "none"
"""In place of a rule: Table 1 has no body, and status 204."""

_ANSWERS = [
    ("POST", re.compile(r".*/sessions"), "session-state"),
    ("PUT", re.compile(r".*/sessions/[^/]+/drafter"), "session-state"),
    ("POST", re.compile(r".*/sessions/[^/]+/policy"), "session-state"),
    ("POST", re.compile(r".*/proposals"), "verdict"),
    ("GET", re.compile(r".*/sessions/[^/]+/output"), "output"),
    ("POST", re.compile(r".*/assignments"), NO_CONTENT),
    ("PUT", re.compile(r".*/instances/[^/]+/status"), NO_CONTENT),
    ("POST", re.compile(r".*/events"), NO_CONTENT),
    ("POST", re.compile(r".*/requests"), "location"),
    ("GET", re.compile(r".*/requests/[^/]+"), "location"),
    ("POST", re.compile(r".*/requests/[^/]+/policy"), "policy"),
]
REQUESTS = [
    ("POST", re.compile(r".*/sessions"), "session-open"),
    ("PUT", re.compile(r".*/sessions/[^/]+/drafter"), "assignment"),
    ("POST", re.compile(r".*/sessions/[^/]+/policy"), "policy"),
    ("POST", re.compile(r".*/proposals"), "proposal"),
    ("POST", re.compile(r".*/assignments"), "assignment"),
    ("PUT", re.compile(r".*/instances/[^/]+/status"), "status"),
    ("POST", re.compile(r".*/events"), "event"),
]


def rule_of(table: list[tuple[str, re.Pattern[str], str]], method: str, path: str) -> str | None:
    """The row of a table for a request, if it has one."""
    return next((rule for verb, pattern, rule in table if verb == method and pattern.fullmatch(path)), None)


class Watch:
    """Notes faults; `not_deterministic` those that only D4 forbids."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.not_deterministic: list[str] = []

    def answer(self, method: str, path: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """See an answer of the subject."""
        asked = f"{method} {path}"
        if status >= 400:
            found = [] if method == "HEAD" else problems.faults(status, headers.get("content-type", ""), body)
            self._note(asked, found)
        elif not 200 <= status < 300 and status != 304:
            self._note(asked, [f"the status {status} is neither a success nor a refusal"])
        elif (rule := rule_of(_ANSWERS, method, path)) is not None:
            self._note(asked, self._content(rule, status, headers, body))

    def request(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> None:
        """See a request of the subject."""
        rule = rule_of(REQUESTS, method, path)
        if rule is not None:
            self._note(f"the subject's {method} {path}", self._message(rule, headers, body))

    def record(self, record: object) -> None:
        """See a record that the subject appended to a commit log."""
        if not isinstance(record, dict):
            self._note("commit log", [f"a record is no map but {record!r:.60}"])
            return
        rule = "commit-record" if "round" in record else "fence-record"
        self._note("commit log", messages.value_faults(rule, record))

    def _content(self, rule: str, status: int, headers: Mapping[str, str], body: bytes) -> list[str]:
        if rule == NO_CONTENT:
            return [] if (status, body) == (204, b"") else [f"expected 204 without content, came {status}"]
        return self._message(rule, headers, body)

    def _message(self, rule: str, headers: Mapping[str, str], body: bytes) -> list[str]:
        media = headers.get("content-type", "none")
        wrong = [] if media.partition(";")[0].strip().lower() == SDCP_CBOR else [f"a {rule} has the media type {media}"]
        found = wrong + messages.faults(rule, body)
        if not found and not is_deterministic(body):
            self.not_deterministic.append(f"a {rule} is not in core deterministic encoding: {decode(body)!r:.80}")
        return found

    def _note(self, where: str, faults: list[str]) -> None:
        self.faults += [f"{where}: {fault}" for fault in faults]
