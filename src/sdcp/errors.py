"""What can go wrong, as classes: each knows its HTTP status and its problem type (Table 2, D1, D3).

    SdcpError
    ├── ConfigurationError           a setting, file or argument is wrong: one line, exit code 2
    └── ProblemError                 anything a peer is told (RFC 9457)
        ├── about:blank (D3)         MalformedBody Forbidden UnknownResource MethodNotAllowed NotAcceptable Conflict
        │                            PreconditionFailed BodyTooLarge UnsupportedMediaType InvalidContent
        │                            InternalFault LogDamaged Overloaded StoreFull
        └── Table 2                  StaleEpoch StaleBase QUnavailable BadContract Limit SessionClosed
                                     BadProposal NotAssigned

`detail` is always a sentence that tells the reader what is wrong and what to do. This module formats nothing
for the wire; `sdcp.wire.problem` does.
"""

from __future__ import annotations

from typing import ClassVar


class SdcpError(Exception):
    """Everything this package raises on purpose."""


class ConfigurationError(SdcpError):
    """A setting, file or argument that the person at the keyboard has to mend."""


class ProblemError(SdcpError):
    """A refusal that travels as Problem Details. `suffix` is the type of Table 2, or None for about:blank."""

    status: int = 500
    suffix: ClassVar[str | None] = None
    title: ClassVar[str] = "Internal Server Error"

    def __init__(self, detail: str, *, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.headers = headers


class MalformedBody(ProblemError):
    """Not well-formed CBOR, duplicate keys, trailing bytes, or a member that does not match its CDDL (D3)."""

    status, title = 400, "Bad Request"


class Forbidden(ProblemError):
    """The certificate has no role that the resource needs (D3, D10)."""

    status, title = 403, "Forbidden"


class UnknownResource(ProblemError):
    """No such session, object, log or path."""

    status, title = 404, "Not Found"


class MethodNotAllowed(ProblemError):
    """The path exists, the method does not; `headers` carries Allow."""

    status, title = 405, "Method Not Allowed"


class NotAcceptable(ProblemError):
    """The client accepts no media type that we can send."""

    status, title = 406, "Not Acceptable"


class Conflict(ProblemError):
    """A request that contradicts what is already so (D3, D19, D21)."""

    status, title = 409, "Conflict"


class PreconditionFailed(ProblemError):
    """If-Match or If-None-Match did not hold: the log or object has moved."""

    status, title = 412, "Precondition Failed"


class BodyTooLarge(ProblemError):
    """The body is over the limit of the resource."""

    status, title = 413, "Content Too Large"


class UnsupportedMediaType(ProblemError):
    """The body is of another media type than the resource takes."""

    status, title = 415, "Unsupported Media Type"


class InvalidContent(ProblemError):
    """Well-formed, but not possible here: a prompt token not below V, an object that does not match (D5, D20)."""

    status, title = 422, "Unprocessable Content"


class InternalFault(ProblemError):
    """A fault of ours; the detail says nothing of its inside."""

    status, title = 500, "Internal Server Error"


class LogDamaged(InternalFault):
    """Acknowledged octets of a log cannot be read any more; its first `intact` octets are served by Range (D47)."""

    def __init__(self, detail: str, *, intact: int) -> None:
        super().__init__(detail)
        self.intact = intact


class Overloaded(ProblemError):
    """Overloaded, draining, or an object cannot be fetched now (D3); tell the client when to come back."""

    status, title = 503, "Service Unavailable"

    def __init__(self, detail: str, *, retry_after_s: int = 1) -> None:
        super().__init__(detail, headers=(("retry-after", str(retry_after_s)),))


class StoreFull(ProblemError):
    """Nothing more can be stored: the disk is full, or all that is left is leased (mlc)."""

    status, title = 507, "Insufficient Storage"


class StaleEpoch(ProblemError):
    """Epoch is not current (Table 2)."""

    status, suffix, title = 409, "sdcp-stale-epoch", "Epoch is not current"


class StaleBase(ProblemError):
    """Proposal does not extend the committed prefix (Table 2); travels with the current session-state (D2)."""

    status, suffix, title = 409, "sdcp-stale-base", "Proposal does not extend the committed prefix"


class QUnavailable(ProblemError):
    """Draft probabilities required by the rule are unavailable (Table 2)."""

    status, suffix, title = 409, "sdcp-q-unavailable", "Draft probabilities required by the rule are unavailable"


class BadContract(ProblemError):
    """Contract invalid or not supported (Table 2, D6); the detail names the member."""

    status, suffix, title = 422, "sdcp-bad-contract", "Contract invalid or not supported"


class Limit(ProblemError):
    """Proposal violates m_cap or m_max (Table 2)."""

    status, suffix, title = 422, "sdcp-limit", "Proposal violates m_cap or m_max"


class SessionClosed(ProblemError):
    """Session has finished or failed (Table 2)."""

    status, suffix, title = 410, "sdcp-session-closed", "Session has finished or failed"


class BadProposal(ProblemError):
    """Proposal inconsistent with its draft distributions (Table 2, D5, D25)."""

    status, suffix, title = 422, "sdcp-bad-proposal", "Proposal inconsistent with its draft distributions"


class NotAssigned(ProblemError):
    """Drafter is not assigned to the session (Table 2)."""

    status, suffix, title = 403, "sdcp-not-assigned", "Drafter is not assigned to the session"


TABLE_2: tuple[type[ProblemError], ...] = (
    StaleEpoch,
    StaleBase,
    QUnavailable,
    BadContract,
    Limit,
    SessionClosed,
    BadProposal,
    NotAssigned,
)
