"""What a session's manifest says: how the session stood when its router last wrote it down (D45). A pure value.

Not here: the records one by one (`sdcp.messages.manifest`), writing them (`manifest_log`), and going on from what they
say (`router_taking_up`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sdcp.errors import InvalidContent
from sdcp.messages.manifest import (
    ACCEPTED,
    SENT,
    AssignedRecord,
    EndRecord,
    ManifestRecord,
    OpenedRecord,
    PolicyRecord,
    PromptRecord,
    RequestRecord,
    TakenRecord,
    WithdrawnRecord,
    parse_manifest_record,
)
from sdcp.messages.request import GenerationRequest
from sdcp.messages.session import Policy
from sdcp.wire import cbor

MOST_TOKENS = 65_536
"""Of a prompt in one record: at most 576 KiB, and `sdcp cache` takes appends of 1 MiB."""


class Manifest:
    """The records, put together. `size`: octets read; `last`: the number of the last record.

    `life` is the last one that has taken the session up, `assigned` the last assignment of the last `opened`, `sent` a
    change of the profile of which it is not known what became of it, `accepted` the others in order, each with the
    round that was committed then.
    """

    def __init__(self) -> None:
        self.size = 0
        self.last = 0
        self.life = b""
        self.opened: OpenedRecord | None = None
        self.assigned: AssignedRecord | None = None
        self.accepted: list[tuple[Policy, int]] = []
        self.sent: PolicyRecord | None = None
        self.withdrawn = False
        self.end: EndRecord | None = None
        self._first: RequestRecord | None = None
        self._prompt: list[int] = []

    @property
    def whole(self) -> bool:
        """Whether the request is there with all its prompt. If not, nothing was sent to anybody (D45)."""
        return self._first is not None and len(self._prompt) == self._first.prompt_length

    @property
    def first(self) -> RequestRecord:
        """The record of the request; its `request` has the whole prompt. Raises InvalidContent when it is not there."""
        if self._first is None or not self.whole:
            raise InvalidContent("The manifest does not begin with a whole request.")
        return replace(self._first, request=replace(self._first.request, prompt=tuple(self._prompt)))

    @property
    def request(self) -> GenerationRequest:
        """What the front end asked for. Raises InvalidContent when it is not there."""
        return self.first.request

    @property
    def objects(self) -> list[str]:
        """The objects that were stored for the session, as far as they may still be in use."""
        named: list[str | None] = []
        if self.opened is not None:
            resume = self.opened.resume
            named += [self.opened.prompt, resume.committed_tokens if resume is not None else None]
        if self.assigned is not None:
            named += [self.assigned.prompt, self.assigned.committed_tokens]
        return list(dict.fromkeys(ref for ref in named if ref is not None))

    def take(self, data: bytes) -> None:
        """Take in the octets that follow `size`.

        Raises MalformedBody, BadContract or InvalidContent for what is no manifest.
        """
        origin = self.size
        for end, value in cbor.decode_sequence(data):
            record = parse_manifest_record(value)
            assert isinstance(value, dict)  # or it would have been refused
            if value["epoch"] != self.last + 1:
                raise InvalidContent(f"Record {self.last + 1} of the manifest has the number {value['epoch']}.")
            if record is not None:
                self._add(record)
            self.last, self.size = self.last + 1, origin + end

    def _add(self, record: ManifestRecord) -> None:
        match record:
            case RequestRecord():
                if self._first is not None:
                    raise InvalidContent("A manifest has one request.")
                self._first, self.life = record, record.life
                self._prompt.extend(record.request.prompt)
            case PromptRecord(tokens=tokens):
                self._prompt.extend(tokens)
            case TakenRecord(life=life):
                self.life = life
            case OpenedRecord():
                self.opened, self.assigned = record, None
            case AssignedRecord(serving=serving):
                if self.opened is not None and self.opened.serving == serving:
                    self.assigned = record
            case PolicyRecord():
                self._add_policy(record)
            case WithdrawnRecord():
                self.withdrawn = True
            case _:
                self.end = record

    def _add_policy(self, record: PolicyRecord) -> None:
        if record.stage == SENT:
            self.sent = record
            return
        if record.stage == ACCEPTED:
            session = self._first.session if self._first is not None else b""
            policy = Policy(session=session, from_round=record.from_round, sampling=record.sampling)
            self.accepted.append((policy, record.after))
        sent = self.sent
        if sent is not None and (sent.from_round, sent.sampling) == (record.from_round, record.sampling):
            self.sent = None


def request_records(first: RequestRecord) -> Iterator[ManifestRecord]:
    """Yield the records with which a manifest begins, for a record that holds the whole prompt."""
    prompt = first.request.prompt
    yield replace(first, request=replace(first.request, prompt=prompt[:MOST_TOKENS]))
    for start in range(MOST_TOKENS, len(prompt), MOST_TOKENS):
        yield PromptRecord(tokens=prompt[start : start + MOST_TOKENS])
