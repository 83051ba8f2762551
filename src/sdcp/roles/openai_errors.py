"""Errors in the shape of the OpenAI API: `{"error": {message, type, param, code}}`.

A fault of the request is 400 and names the parameter; what SDCP refuses is translated here, and only here.
"""

from __future__ import annotations

from typing import Any

from sdcp.errors import BadContract, Overloaded, ProblemError, SdcpError

LONGEST = 500
"""Characters of a message."""


class ApiError(SdcpError):
    """What an API client is told. `param` names the parameter at fault, `code` is the API's own word for it."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = _told(message)
        self.status = status
        self.kind = kind
        self.param = None if param is None else _told(param)
        self.code = code

    def body(self) -> dict[str, Any]:
        """The JSON document."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def _told(text: str) -> str:
    """What a client sent comes back in messages: not megabytes of it, and nothing that UTF-8 cannot write."""
    short = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return short.encode(errors="backslashreplace").decode()


def context_exceeded(detail: str, param: str) -> ApiError:
    """The prompt and what may be generated do not fit into the model's context."""
    return ApiError(detail, param=param, code="context_length_exceeded")


def failed() -> ApiError:
    """A session that ended with `fail` (6.5.2)."""
    detail = "The generation failed; what was delivered before is valid output. Try again."
    return ApiError(detail, status=500, kind="server_error", code="generation_failed")


def translated(error: ProblemError) -> ApiError:
    """What SDCP refused, as the API says it (D33)."""
    if isinstance(error, BadContract) and "context" in error.detail:
        return context_exceeded(error.detail, "max_tokens")
    if error.status in (400, 413, 422):
        return ApiError(error.detail)
    if isinstance(error, Overloaded):
        return ApiError(error.detail, status=503, kind="server_error", code="overloaded")
    return ApiError(error.detail, status=500, kind="server_error", code="internal_error")
