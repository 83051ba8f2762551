"""Vectors of what travels and of what is kept: messages, commit logs, q rows, problems, paths (5.1, 5.2, 6.8, D20).

One generator a kind: it yields what differs, the first of which is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sdcp.errors import MalformedBody, ProblemError
from sdcp.http.resources import decode_id, encode_id, url
from sdcp.machines.reader import BrokenLog, LogReader
from sdcp.messages.contract import Contract
from sdcp.messages.fields import Message
from sdcp.messages.output import Event, Output
from sdcp.messages.record import CommitRecord
from sdcp.messages.round import Assignment, Proposal, Verdict
from sdcp.messages.session import Policy, SessionOpen, SessionState
from sdcp.messages.status import Status
from sdcp.vectors.case import Case, FormError, differ
from sdcp.wire.problem import decode_problem, decode_session_state
from sdcp.wire.rows import check_rows, decode_rows

MESSAGES: dict[str, type[Message]] = {
    "contract": Contract,
    "session-open": SessionOpen,
    "session-state": SessionState,
    "assignment": Assignment,
    "proposal": Proposal,
    "verdict": Verdict,
    "output": Output,
    "status": Status,
    "event": Event,
    "policy": Policy,
}


def _message(case: Case) -> Iterator[str]:
    name, octets = case.text("message"), case.octets("hex")
    if name not in MESSAGES:
        raise FormError(f'the member "message" is {name!r}; the messages are {", ".join(MESSAGES)}')
    try:
        means = MESSAGES[name].decode(octets).encode()
    except ProblemError as error:
        yield from _refused(case, error)
    else:
        yield from _taken(case, "means", means.hex())


def _refused(case: Case, error: ProblemError) -> Iterator[str]:
    """What is refused must be refused so: `refusal` holds status and type, about:blank outside Table 2."""
    if not case.has("refusal"):
        yield f"is refused: {error.detail}"
        return
    refusal = case.inner("refusal")
    yield from differ("status", error.status, refusal.integer("status"))
    yield from differ("type", error.suffix or "about:blank", refusal.text("type"))


def _taken(case: Case, name: str, got: object) -> Iterator[str]:
    if case.has("refusal"):
        yield f"is taken, expected a refusal with status {case.inner('refusal').integer('status')}"
    else:
        yield from differ(name, got, case.text(name))


def _log(case: Case) -> Iterator[str]:
    reader, octets = LogReader(case.octets("start")), case.octets("hex")
    try:
        entries = list(reader.entries(octets))
    except (BrokenLog, MalformedBody) as fault:
        if not case.has("broken"):
            yield f"is refused: {fault.detail}"
        return
    if case.has("broken"):
        yield "is taken, expected to be broken"
        return
    commits = [entry.record for entry in entries if isinstance(entry.record, CommitRecord) and not entry.void]
    yield from differ("starts", [entry.start for entry in entries], case.tokens("starts"))
    yield from differ("void", [at for at, entry in enumerate(entries) if entry.void], case.tokens("void"))
    yield from differ("fence", reader.fence, case.integer("fence"))
    yield from differ("round", reader.last.round if reader.last else 0, case.integer("round"))
    yield from differ("committed", [token for record in commits for token in record.tokens], case.tokens("committed"))
    yield from differ("digest", reader.last.digest if reader.last else case.octets("start"), case.octets("digest"))


def _rows(case: Case) -> Iterator[str]:
    tokens, octets = case.tokens("tokens"), case.octets("hex")
    try:
        rows = decode_rows(octets, len(tokens), case.integer("vocabulary"))
        check_rows(rows, tokens)
    except ProblemError as error:
        yield from _refused(case, error)
        return
    if case.has("refusal"):
        yield from _taken(case, "rows", None)
    else:
        yield from differ("rows", rows.tolist(), case.array("rows", 2).tolist())


def _problem(case: Case) -> Iterator[str]:
    status, kind, body = case.integer("status"), case.text("content_type"), case.text("body").encode()
    error = decode_problem(status, kind, body)
    yield from differ("status", error.status, status)
    yield from differ("type", error.suffix, case.text("type") if case.has("type") else None)
    state = dict(decode_session_state(kind, body))
    yield from differ("session_state", state, case.plain("session_state") if case.has("session_state") else {})


def _path(case: Case) -> Iterator[str]:
    segment = case.text("segment")
    if case.has("instance"):
        yield from differ("segment", url("", "{instance}", case.text("instance")).removeprefix("/"), segment)
        return
    try:
        octets = decode_id(segment)
    except ValueError:
        if case.has("octets"):
            yield "is refused"
        return
    if not case.has("octets"):
        yield f"is taken for {octets.hex()}"
        return
    yield from differ("octets", octets, case.octets("octets"))
    yield from differ("segment", encode_id(octets), segment)


KINDS: dict[str, Callable[[Case], Iterator[str]]] = {
    "message": _message,
    "log": _log,
    "rows": _rows,
    "problem": _problem,
    "path": _path,
}
