"""How a CDDL member becomes a dataclass field, and back (5.2, D4).

A *kind* parses one plain CBOR value into the value that the dataclass holds, and turns it back. A message class lists
its members with `member(kind)`; `parse` and `to_plain` walk that list. Unknown keys are ignored, except where a class
says `closed` (the contract and the sampling map inside it, 4.1). This module knows no message and reads no bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from sdcp.errors import MalformedBody, ProblemError
from sdcp.wire import cbor

Plain = Any
"""A plain CBOR value: int, bytes, str, bool, list, dict, None, float."""

U64_MAX = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Kind:
    """`parse(plain)` raises ValueError with a phrase that completes "must be …"; `plain(value)` cannot fail."""

    parse: Callable[[Plain], Any]
    plain: Callable[[Any], Plain] = lambda value: value


def member(kind: Kind, *, optional: bool = False) -> Any:
    """Declare one member of a message; an optional one is None when absent."""
    if optional:
        return dataclasses.field(default=None, metadata={"kind": kind})
    return dataclasses.field(metadata={"kind": kind})


def uint(low: int = 0, high: int = U64_MAX) -> Kind:
    """A CBOR unsigned integer (major type 0: never a bool, tag or float) within `low`..`high`."""
    wanted = "an unsigned integer" if (low, high) == (0, U64_MAX) else f"an unsigned integer from {low} to {high}"

    def parse(value: Plain) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(wanted)
        return value

    return Kind(parse)


def octets(size: int) -> Kind:
    """A byte string of exactly `size` octets."""

    def parse(value: Plain) -> bytes:
        if type(value) is not bytes or len(value) != size:
            raise ValueError(f"a byte string of {size} octets")
        return value

    return Kind(parse)


def _text(value: Plain) -> str:
    if type(value) is not str:
        raise ValueError("a text string")
    return value


def _boolean(value: Plain) -> bool:
    if type(value) is not bool:
        raise ValueError("true or false")
    return value


TEXT = Kind(_text)
BOOLEAN = Kind(_boolean)


def array(item: Kind, *, least: int = 0) -> Kind:
    """An array of at least `least` items; held as a tuple."""

    def parse(value: Plain) -> tuple[Any, ...]:
        if type(value) is not list or len(value) < least:
            raise ValueError("an array" if least == 0 else f"an array of at least {least} item(s)")
        return tuple(item.parse(each) for each in value)

    return Kind(parse, lambda value: [item.plain(each) for each in value])


def _tokens(value: Plain) -> tuple[int, ...]:
    """An array of uint, checked in one pass: prompts are long."""
    if type(value) is not list or set(map(type, value)) - {int} or (value and (min(value) < 0 or max(value) > U64_MAX)):
        raise ValueError("an array of unsigned integers")
    return tuple(value)


TOKENS = Kind(_tokens, list)


def _some_tokens(value: Plain) -> tuple[int, ...]:
    tokens = _tokens(value)
    if not tokens:
        raise ValueError("an array of at least one unsigned integer")
    return tokens


SOME_TOKENS = Kind(_some_tokens, list)


def _tokens_or_ref(value: Plain) -> tuple[int, ...] | str:
    return value if type(value) is str else _tokens(value)


TOKENS_OR_REF = Kind(_tokens_or_ref, lambda value: value if isinstance(value, str) else list(value))


@dataclass(frozen=True, slots=True)
class _Member:
    """One member of a message class. `key` is its CDDL key: the field's name, less the underscore of `from_`."""

    name: str
    key: str
    encoded_key: bytes
    optional: bool
    kind: Kind


_DECLARED: dict[type, tuple[_Member, ...]] = {}
_ORDERED: dict[type, tuple[_Member, ...]] = {}


def _members(message: type) -> tuple[_Member, ...]:
    """The members of a class as they are declared, found once."""
    found = _DECLARED.get(message)
    if found is None:
        found = _DECLARED[message] = tuple(map(_member_of, dataclasses.fields(message)))
    return found


def _in_order(message: type) -> tuple[_Member, ...]:
    """The members of a class as they stand in its encoding (D4), found once."""
    found = _ORDERED.get(message)
    if found is None:
        found = _ORDERED[message] = tuple(sorted(_members(message), key=lambda member: member.encoded_key))
    return found


def _member_of(field: dataclasses.Field[Any]) -> _Member:
    key = field.name.removesuffix("_")
    optional = field.default is not dataclasses.MISSING
    return _Member(field.name, key, cbor.encode(key), optional, field.metadata["kind"])


class Message:
    """What every message class inherits: conversion from and to plain CBOR values and bytes."""

    __slots__ = ()

    closed: ClassVar[bool] = False
    fault: ClassVar[type[ProblemError]] = MalformedBody
    spoken: ClassVar[str] = ""
    """How details name the message, where the name of its class would tell a peer nothing."""

    @classmethod
    def _called(cls) -> str:
        return cls.spoken or cls.__name__

    @classmethod
    def as_member(cls) -> Kind:
        """Return the kind of a member that holds this message."""
        return Kind(cls.parse, lambda value: value.to_plain())

    @classmethod
    def parse(cls: type[M], value: Plain) -> M:
        """Build the message from a plain map.

        Raises the class's `fault` (MalformedBody; BadContract for a contract), naming the member.
        """
        if not isinstance(value, Mapping):
            raise cls.fault(f"{cls._called()} must be a map.")
        given: dict[str, Any] = {}
        for member in _members(cls):
            if member.key in value:
                try:
                    given[member.name] = member.kind.parse(value[member.key])
                except ValueError as wanted:
                    raise cls.fault(f"{cls._called()} member {member.key!r} must be {wanted}.") from None
            elif not member.optional:
                raise cls.fault(f"{cls._called()} lacks the member {member.key!r}.")
        if cls.closed and len(given) != len(value):
            unknown = next(key for key in value if key not in given)
            raise cls.fault(f"{cls._called()} has the unknown member {unknown!r}; remove it.")
        return cls(**given)

    def to_plain(self) -> dict[str, Plain]:
        """Return the message as a plain map, absent members left out."""
        plain: dict[str, Plain] = {}
        for member in _members(type(self)):
            value = getattr(self, member.name)
            if value is not None:
                plain[member.key] = member.kind.plain(value)
        return plain

    @classmethod
    def decode(cls: type[M], body: bytes) -> M:
        """Read the message from the bytes of a body; MalformedBody if they are not one CBOR map that fits."""
        return cls.parse(cbor.decode(body))

    def encode(self) -> bytes:
        """Return the message in core deterministic encoding (D4)."""
        entries: list[tuple[bytes, bytes]] = []
        for member in _in_order(type(self)):
            value = getattr(self, member.name)
            if value is not None:
                entries.append((member.encoded_key, cbor.encode(member.kind.plain(value))))
        return cbor.join_map(entries)


M = TypeVar("M", bound=Message)
