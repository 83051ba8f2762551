"""How a request can fail without an answer.

    TransportError
    ├── Unreachable          no connection, or it was lost, or the peer reset the stream
    │   └── NotTrusted       a certificate is refused, theirs or ours, or lacks the role: trying again is vain
    ├── DeadlineExceeded     the time was up
    └── ProtocolFault        the peer broke HTTP/2
        └── AnswerTooLarge   the answer is longer than was allowed

`maybe_processed` is False only where it is certain that the peer did not act on the request: then, and only then, may
a request that is not idempotent be sent again.
"""

from __future__ import annotations

from sdcp.errors import SdcpError


class TransportError(SdcpError):
    """A request that got no answer."""

    def __init__(self, detail: str, *, maybe_processed: bool) -> None:
        super().__init__(detail)
        self.maybe_processed = maybe_processed


class Unreachable(TransportError):
    """No connection, or it was lost, or the peer reset the stream."""


class NotTrusted(Unreachable):
    """One side refuses the other's certificate, or the server's bears not the role that was expected."""


class DeadlineExceeded(TransportError):
    """The time was up."""


class ProtocolFault(TransportError):
    """The peer broke HTTP/2."""


class AnswerTooLarge(ProtocolFault):
    """The answer's body is longer than the caller allowed."""
