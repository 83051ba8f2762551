"""Problem Details: what a peer is told when a request is refused (5.1, RFC 9457, Table 2, D1 to D3).

A type of Table 2 is its suffix after the registry's URI, and receivers match by the suffix alone; all else is
about:blank with the fault said in `detail`. A response of another form than this still becomes the error of its status
code, since a proxy between the peers may speak for itself (RFC 9110 section 15: unlisted codes by class).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from sdcp import errors
from sdcp.errors import TABLE_2, ProblemError

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "https://iana.org/assignments/http-problem-types#"
MAX_DETAIL = 2000  # characters, sent and read

_BY_STATUS: dict[int, type[ProblemError]] = {
    kind.status: kind
    for kind in (
        errors.MalformedBody,
        errors.Forbidden,
        errors.UnknownResource,
        errors.MethodNotAllowed,
        errors.NotAcceptable,
        errors.Conflict,
        errors.PreconditionFailed,
        errors.BodyTooLarge,
        errors.UnsupportedMediaType,
        errors.InvalidContent,
        errors.InternalFault,
        errors.Overloaded,
        errors.StoreFull,
    )
}


def encode_problem(
    error: ProblemError, session_state: Mapping[str, object] | None = None
) -> tuple[int, tuple[tuple[str, str], ...], bytes]:
    """Return status, headers and body of a refusal; `session_state` is the plain map that 6.3 wants in a 409 (D2)."""
    problem: dict[str, object] = {
        "type": TYPE_PREFIX + error.suffix if error.suffix else "about:blank",
        "title": error.title,
        "status": error.status,
        "detail": error.detail[:MAX_DETAIL],  # it may quote what the peer sent
    }
    if isinstance(error, errors.LogDamaged):
        problem["intact"] = error.intact
    if session_state is not None:
        problem["session-state"] = to_json(session_state)
    body = json.dumps(problem, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return error.status, (("content-type", MEDIA_TYPE), *error.headers), body


def to_json(value: object) -> object:
    """Map a plain CBOR value to a JSON value (RFC 8949 section 6.1): byte strings as base64url without padding."""
    match value:
        case bytes():
            return base64.urlsafe_b64encode(value).rstrip(b"=").decode("ascii")
        case Mapping():
            return {str(key): to_json(member) for key, member in value.items()}
        case list() | tuple():
            return [to_json(member) for member in value]
        case str() | int() | None:
            return value
        case float() if abs(value) < float("inf"):
            return value
    return None


def decode_problem(status: int, content_type: str | None, body: bytes) -> ProblemError:
    """Return, not raise, the error that a response of status 400 or above carries; never fails, whatever the body."""
    problem = _members(content_type, body)
    detail = problem.get("detail")
    if not isinstance(detail, str) or not detail:
        detail = f"The peer answered with status {status} and no details."
    error = _kind(status, problem.get("type"))(detail[:MAX_DETAIL])
    error.status = status
    return error


def decode_session_state(content_type: str | None, body: bytes) -> Mapping[str, object]:
    """Return the member `session-state` of a problem (D2), in its JSON form; empty when there is none."""
    state = _members(content_type, body).get("session-state")
    return state if isinstance(state, dict) else {}


def decode_intact(content_type: str | None, body: bytes) -> int | None:
    """Return the member `intact` of a problem (D47): how many octets precede the damage of a log; None: no such."""
    intact = _members(content_type, body).get("intact")
    return intact if type(intact) is int and intact >= 0 else None


def _members(content_type: str | None, body: bytes) -> Mapping[str, object]:
    if (content_type or "").partition(";")[0].strip().lower() != MEDIA_TYPE:
        return {}
    try:
        problem = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return problem if isinstance(problem, dict) else {}


def _kind(status: int, problem_type: object) -> type[ProblemError]:
    if isinstance(problem_type, str):
        for kind in TABLE_2:
            if kind.suffix and problem_type.endswith(kind.suffix):
                return kind
    return _BY_STATUS.get(status) or (errors.InternalFault if status >= 500 else errors.MalformedBody)
