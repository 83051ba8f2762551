"""Asking another role: a message out, a message or a problem back (5.1, Table 1).

Words: a peer *refuses* when it answers with a status of 400 or above; what it says is a ProblemError whatever its body
was. It does not *answer* when the transport fails, when time is up, or when its 2xx cannot be read.

Not here: trying again, which is for the machines to decide (6.9).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TypeVar
from urllib.parse import urlsplit

from sdcp.errors import NotAssigned, ProblemError, SdcpError
from sdcp.http.client import Answer, Client
from sdcp.http.faults import TransportError
from sdcp.http.resources import SDCP_CBOR
from sdcp.messages.fields import Message
from sdcp.wire.problem import decode_problem, decode_session_state

M = TypeVar("M", bound=Message)

logger = logging.getLogger("sdcp.roles")


class UnansweredError(SdcpError):
    """No answer that can be read: what was asked may have been done or not."""


class RefusedError(SdcpError):
    """The peer refused. `last_round` is that of the session-state in its problem, if there is one (D2)."""

    def __init__(self, error: ProblemError, last_round: int | None = None) -> None:
        super().__init__(error.detail)
        self.error = error
        self.last_round = last_round


class Peers:
    """Requests to other roles over one client. `deadline_s` of a request: None takes the client's."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._complained: set[str] = set()

    async def ask(
        self,
        method: str,
        url: str,
        kind: type[M],
        message: Message | None = None,
        *,
        role: str,
        headers: Iterable[tuple[str, str]] = (),
        deadline_s: float | None = None,
    ) -> M:
        """Send `message` to a peer with this role; return its answer of class `kind`. RefusedError, UnansweredError."""
        answer = await self._send(method, url, message, role, headers, deadline_s)
        try:
            return kind.decode(answer.body)
        except ProblemError as fault:
            raise UnansweredError(f"{method} {url}: the answer is no {kind.__name__}: {fault.detail}") from fault

    async def tell(
        self, method: str, url: str, message: Message | None = None, *, role: str, deadline_s: float | None = None
    ) -> None:
        """Send `message`, and want no more than that it was taken (204). RefusedError, UnansweredError."""
        await self._send(method, url, message, role, (), deadline_s)

    async def _send(
        self,
        method: str,
        url: str,
        message: Message | None,
        role: str,
        headers: Iterable[tuple[str, str]],
        deadline_s: float | None,
    ) -> Answer:
        fields = [("accept", SDCP_CBOR), *headers]
        if message is not None:
            fields.append(("content-type", SDCP_CBOR))
        body = None if message is None else message.encode()
        try:
            answer = await self._client.request(
                method, url, headers=fields, body=body, deadline_s=deadline_s, expect_role=role
            )
        except (TransportError, ValueError) as fault:
            raise UnansweredError(str(fault)) from fault
        if answer.status >= 400:
            refusal = _refusal(answer)
            self._complain(method, url, answer.status, refusal.error)
            raise refusal
        if not 200 <= answer.status < 300:
            raise UnansweredError(f"{method} {url}: status {answer.status} is no answer to this request")
        return answer

    def _complain(self, method: str, url: str, status: int, error: ProblemError) -> None:
        """A peer that takes us for somebody else will go on doing so: say it, once for each peer.

        `sdcp-not-assigned` is no such case: a drafter gets it whenever a session has moved on (D13).
        """
        peer = urlsplit(url).netloc
        if status in (401, 403) and not isinstance(error, NotAssigned) and peer not in self._complained:
            self._complained.add(peer)
            logger.warning("%s %s: refused with %d: %s", method, url, status, error.detail)


def _refusal(answer: Answer) -> RefusedError:
    content_type = answer.headers.get("content-type")
    state = decode_session_state(content_type, answer.body)
    last_round = state.get("round")
    if not isinstance(last_round, int) or isinstance(last_round, bool) or last_round < 0:
        last_round = None
    return RefusedError(decode_problem(answer.status, content_type, answer.body), last_round)
