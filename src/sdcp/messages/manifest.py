"""Records of a session's manifest: what a router that lost its memory must know to take the session up again (D45).

A manifest is a log beside the commit log, a CBOR sequence of these records: the request record first, with a long
prompt's further tokens behind it, then in order what became of the session, and at last an end record. Only routers
write and read it. Every record is a map with an `epoch` one above that of the record before and without `round`, so a
cache that knows commit logs alone takes it for a fence, and keeps the order (6.8); `kind` tells the records apart, and
readers skip those of a kind that they do not know.

Not here: what the records say together (`sdcp.machines.manifest`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from sdcp.errors import MalformedBody
from sdcp.messages.contract import ACTION, HASH32, SESSION_ID, Action, Contract, Sampling
from sdcp.messages.fields import TEXT, TOKENS, Kind, Message, Plain, member, octets, uint
from sdcp.messages.request import GenerationRequest
from sdcp.messages.session import Resume

LIFE = octets(16)
SENT: Final = "sent"
ACCEPTED: Final = "accepted"
DROPPED: Final = "dropped"


def _one_of(*names: str) -> Kind:
    def parse(value: Plain) -> str:
        if type(value) is not str or value not in names:
            raise ValueError(" or ".join(map(repr, names)))
        return value

    return Kind(parse)


def _kind(name: str) -> Any:
    """Declare the member that tells a record's kind."""
    return dataclasses.field(default=name, metadata={"kind": _one_of(name)})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record(Message):
    """What every record has: `epoch` is its number, from 1, and is given to it when it is written."""

    epoch: int = dataclasses.field(default=0, metadata={"kind": uint()})


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord(_Record):
    """The first record: a request was admitted (D33). Durable before anything of the session is sent to anybody.

    `router` is the name of the router, `life` 128 random bits of its process; `owner` the front end's certificate name.
    `request` has the first tokens of the prompt alone where `prompt_length` is more; prompt records bring the others.
    """

    kind: str = _kind("request")
    router: str = member(TEXT)
    life: bytes = member(LIFE)
    owner: str = member(TEXT)
    session: bytes = member(SESSION_ID)
    contract: Contract = member(Contract.as_member())
    commit_log: str = member(TEXT)
    request: GenerationRequest = member(GenerationRequest.as_member())
    prompt_length: int = member(uint())


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRecord(_Record):
    """Further tokens of the prompt: a cache need not take an append of any size."""

    kind: str = _kind("prompt")
    tokens: tuple[int, ...] = member(TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenRecord(_Record):
    """A life of a router has taken the session up: another one that finds this has lost it."""

    kind: str = _kind("taken")
    router: str = member(TEXT)
    life: bytes = member(LIFE)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRecord(_Record):
    """A verifier has opened the session in the epoch `serving`. `prompt`: the object that it was given, if any."""

    kind: str = _kind("opened")
    serving: int = member(uint())
    verifier: str = member(TEXT)
    prompt: str | None = member(TEXT, optional=True)
    resume: Resume | None = member(Resume.as_member(), optional=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedRecord(_Record):
    """A drafter has taken its assignment. The members are those of PUT drafter, which is repeated as it was (D37).

    `serving` is its epoch, `after` its round.
    """

    kind: str = _kind("assigned")
    serving: int = member(uint())
    after: int = member(uint())
    verifier: str = member(TEXT)
    drafter: str = member(TEXT)
    prompt: str | None = member(TEXT, optional=True)
    sampling: Sampling | None = member(Sampling.as_member(), optional=True)
    committed: int = member(uint())
    digest: bytes = member(HASH32)
    committed_tokens: str | None = member(TEXT, optional=True)
    m_init: int = member(uint())


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRecord(_Record):
    """A change of the profile for `from_round` (6.6). `sent`: it is about to be; the others say what became of it.

    `accepted`: the verifier has it, and has committed the round `after`. `dropped`: it never takes effect.
    """

    kind: str = _kind("policy")
    stage: str = member(_one_of(SENT, ACCEPTED, DROPPED))
    after: int = member(uint())
    from_round: int = member(uint())
    sampling: Sampling = member(Sampling.as_member())


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawnRecord(_Record):
    """The front end does not want the session any more (D34). Durable before it is told so."""

    kind: str = _kind("withdrawn")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecord(_Record):
    """The session has ended: `ended` is 4 or 5, with at least `committed` tokens."""

    kind: str = _kind("end")
    ended: Action = member(ACTION)
    committed: int = member(uint())


ManifestRecord = (
    RequestRecord
    | PromptRecord
    | TakenRecord
    | OpenedRecord
    | AssignedRecord
    | PolicyRecord
    | WithdrawnRecord
    | EndRecord
)

_KINDS: Final[Mapping[str, type[ManifestRecord]]] = MappingProxyType(
    {
        "request": RequestRecord,
        "prompt": PromptRecord,
        "taken": TakenRecord,
        "opened": OpenedRecord,
        "assigned": AssignedRecord,
        "policy": PolicyRecord,
        "withdrawn": WithdrawnRecord,
        "end": EndRecord,
    }
)


def parse_manifest_record(value: Plain) -> ManifestRecord | None:
    """Read one record; None for one of a kind that is not known. Raises MalformedBody, BadContract."""
    kind, number = (value.get("kind"), value.get("epoch")) if isinstance(value, dict) else (None, None)
    if type(kind) is not str or type(number) is not int or number < 0:
        raise MalformedBody(
            "A record of a manifest must be a map whose `kind` is a text string, with a number `epoch`."
        )
    known = _KINDS.get(kind)
    return None if known is None else known.parse(value)
