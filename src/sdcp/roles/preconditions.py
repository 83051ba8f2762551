"""Entity tags and ranges as the cache's resources use them (RFC 9110 sections 8.8.3, 13 and 14).

A version of the store is written as a strong tag, `"<decimal>"`, and `"<decimal>-zstd"` where it is sent in that
coding, since a strong tag is of the octets that are sent (section 8.8.3.3, D46). Ranges are of octets, one at a time:
a request for several, or in another unit, or malformed, is answered whole, as section 14.2 allows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sdcp.errors import MalformedBody, PreconditionFailed, ProblemError

_TAG = re.compile(r'\s*(W/)?"([\x21\x23-\x7e\x80-\xff]*)"\s*(?:,|$)')
_RANGE = re.compile(r"bytes\s*=\s*(?:(\d{1,19})-(\d{1,19})?|-(\d{1,19}))\s*")
ANY = "*"


class PreconditionRequired(ProblemError):
    """The request must say which state it means to change (RFC 6585 section 3)."""

    status, title = 428, "Precondition Required"


class RangeNotSatisfiable(ProblemError):
    """No octet of the range exists; `headers` say how many there are."""

    status, title = 416, "Range Not Satisfiable"


@dataclass(frozen=True, slots=True)
class Part:
    """Octets `start` to `stop` of `size`."""

    start: int
    stop: int
    size: int

    @property
    def content_range(self) -> str:
        """The Content-Range field of an answer 206."""
        return f"bytes {self.start}-{self.stop - 1}/{self.size}"


def tag(version: int) -> str:
    """The strong entity tag of a version."""
    return f'"{version}"'


def coded_tag(version: int) -> str:
    """The strong entity tag of a version in the coding zstd."""
    return f'"{version}-zstd"'


def strong(field: str) -> frozenset[str]:
    """The strong tags of an If-Match field, quotes and all; a weak one never matches (section 8.8.3.2).

    Raises MalformedBody.
    """
    return frozenset(f'"{opaque}"' for weak, opaque in _tags(field) if not weak)


def unchanged(field: str | None, version: int) -> str | None:
    """The tag by which If-None-Match says that the client has this version, coded or not (section 13.1.2, weak)."""
    if field is None:
        return None
    if field.strip() == ANY:
        return tag(version)
    known = {f'"{opaque}"' for _, opaque in _tags(field)}
    return next((each for each in (tag(version), coded_tag(version)) if each in known), None)


def expected_version(headers: Mapping[str, str], current: int | None) -> int | None:
    """The version that an append is conditional on: None for If-None-Match: *, else that of If-Match.

    `current` is the log's version. PreconditionFailed, PreconditionRequired, MalformedBody.
    """
    match, none_match = headers.get("if-match"), headers.get("if-none-match")
    if (match is None) == (none_match is None):
        raise PreconditionRequired("say which log you mean: If-Match with its ETag, or If-None-Match: * if it is new")
    if match is None:
        if (none_match or "").strip() != ANY:
            raise MalformedBody("a log is appended to with If-None-Match: * or with If-Match")
        return None
    if current is not None and match == tag(current):  # as nearly every append says it
        return current
    if current is None or (match.strip() != ANY and tag(current) not in strong(match)):
        raise PreconditionFailed("the log has moved; read it again")
    return current


def wanted_part(headers: Mapping[str, str], version: int, size: int) -> Part | None:
    """The part that Range asks for; None: all of it. RangeNotSatisfiable."""
    match = _RANGE.fullmatch(headers.get("range", "").strip())
    if match is None or headers.get("if-range", tag(version)).strip() != tag(version):
        return None
    first, last, suffix = (None if group is None else int(group) for group in match.groups())
    if first is None:
        start, stop = max(0, size - (suffix or 0)), size
    else:
        start, stop = first, size if last is None else min(size, last + 1)
        if last is not None and last < first:
            return None  # malformed (section 14.1.1)
    if start >= stop:
        headers_416 = (("content-range", f"bytes */{size}"), ("etag", tag(version)))
        raise RangeNotSatisfiable(f"the range holds none of the {size} octets", headers=headers_416)
    return Part(start, stop, size)


def _tags(field: str) -> list[tuple[bool, str]]:
    tags, at = [], 0
    while at < len(field):
        match = _TAG.match(field, at)
        if match is None:
            raise MalformedBody(f"{field!r} is not a list of entity tags")
        tags.append((match[1] is not None, match[2]))
        at = match.end()
    return tags
