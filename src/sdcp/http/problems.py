"""Problem Details as answers (RFC 9457, D1), and the two problems that only HTTP knows."""

from __future__ import annotations

from collections.abc import Mapping

from sdcp.errors import ProblemError
from sdcp.http.exchange import Response
from sdcp.wire.problem import encode_problem


class RequestTimeout(ProblemError):
    """The body did not come in time (RFC 9110 section 15.5.9)."""

    status, title = 408, "Request Timeout"


class HeadersTooLarge(ProblemError):
    """The header list is over our limit (RFC 6585 section 5)."""

    status, title = 431, "Request Header Fields Too Large"


def problem_response(error: ProblemError, session_state: Mapping[str, object] | None = None) -> Response:
    """The answer that tells a peer of `error`; `session_state` is the plain map that 6.3 wants in a 409 (D2)."""
    return Response(*encode_problem(error, session_state))
