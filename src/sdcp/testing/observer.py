"""Who looks on at all machines of a world: what they were given, what they wanted, which states they were in.

The trace is kept as it is and made readable only when somebody asks: `lines` for people, `digest` for machines. Both
say nothing of identities or memory, so the same seed gives the same digest in any process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from sdcp.testing.agenda import Agenda
from sdcp.testing.driven import Driven, Effect, Input
from sdcp.testing.states import bare, state_of

Pair = tuple[type, str, type]
"""A class of machine, one of its states, a class of input: what coverage counts."""

Check = Callable[[Driven, Any, Any], None]
Moment = tuple[float, str, Any, Sequence[Any]]
"""When, in which process, what came in, what was wanted; or a remark: an input that is a text, and nothing."""

LONGEST = 12
"""More tokens than this are not shown one by one."""


class Recorder:
    """`pairs` counts coverage; `checks` are called with machine, input and effect, for each effect of their
    type, before it is carried out.

    `performed_by` is called after each effect with the party that did it.
    """

    def __init__(self, agenda: Agenda, checks: dict[type, Check], performed_by: Callable[[str], None]) -> None:
        self.pairs: dict[Pair, int] = {}
        self.moments: list[Moment] = []
        self._agenda = agenda
        self._checks = checks
        self._performed_by = performed_by

    def handle(self, driven: Driven, given: Input) -> Sequence[Effect]:
        """Hand `given` to the machine and return its effects, unchanged."""
        machine = bare(driven.machine)
        pair = (type(machine), state_of(machine), type(given))
        self.pairs[pair] = self.pairs.get(pair, 0) + 1
        effects = driven.machine.handle(given)
        self.moments.append((self._agenda.now_ms, driven.party, given, effects))
        for effect in effects:
            check = self._checks.get(type(effect))
            if check is not None:
                check(driven, given, effect)
        return effects

    def performed(self, driven: Driven) -> None:
        """An effect has been carried out."""
        self._performed_by(driven.party)

    def remark(self, party: str, text: str) -> None:
        """Note what happened to a party from outside."""
        self.moments.append((self._agenda.now_ms, party, text, ()))

    # ---- the trace ---------------------------------------------------------------------------------------------------

    def digest(self) -> str:
        """Return the SHA-256 of the trace in canonical form."""
        text = "\n".join(
            f"{at!r} {party} {given if type(given) is str else type(given).__name__}"
            f" {' '.join([type(effect).__name__ for effect in effects])}"
            for at, party, given, effects in self.moments
        )
        return hashlib.sha256(text.encode()).hexdigest()

    def lines(self) -> list[str]:
        """Return the trace for people: one line for each input and what came in, one for each effect."""
        shown: list[str] = []
        for at, party, given, effects in self.moments:
            head = f"{at:10.1f} ms  {short(party):<11}"
            if type(given) is str:
                shown.append(f"{head} ** {given}")
                continue
            shown.append(f"{head} {describe(given)}")
            shown += [f"{'':27}-> {describe(effect)}" for effect in effects]
        return shown


def short(party: str) -> str:
    """Name a party without its domain."""
    return party.removeprefix("https://").removesuffix(".test/")


def describe(value: object) -> str:
    """Say what a message, an input or an effect holds, in one line."""
    match value:
        case bytes():
            return value.hex()[:8] + (".." if len(value) > 4 else "")
        case Enum():
            return value.name.lower()
        case str():
            return short(value)
        case Exception():
            return f"{type(value).__name__}: {value}"
        case _ if is_dataclass(value) and not isinstance(value, type):
            members = ((field.name, getattr(value, field.name)) for field in fields(value))
            said = ", ".join(f"{name.rstrip('_')}={describe(each)}" for name, each in members if _worth(name, each))
            return f"{type(value).__name__}({said})"
        case tuple() | list():
            return f"[{' '.join(map(describe, value[:LONGEST]))}{' ..' if len(value) > LONGEST else ''}]"
        case int() | float() | None:
            return str(value)
    return type(value).__name__


def _worth(name: str, value: object) -> bool:
    return value is not None and name not in ("session", "contract", "answers", "status", "prefix", "client")
