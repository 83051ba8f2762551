"""The list of checks: what each one judges, which sentences of the draft and decisions it rests on.

A check is an async function that takes the world of its role and fails by raising `Failed` (see `outcome`). Its id says
its role: V verifier, D drafter, R router.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

ROLES = {"V": "verifier", "D": "drafter", "R": "router"}
DRAFT, DECISIONS = "draft", "decisions"
_ID = re.compile(r"[VDR]-[a-z0-9]+(-[a-z0-9]+)*")

Run = Callable[[Any], Awaitable[None]]


@dataclass(frozen=True)
class Check:
    """One check. `limits`: the subject's settings; with them, or `own`, it has a process of its own.

    `last`: it looks at what all others have left behind.
    """

    id: str
    title: str
    requirements: tuple[str, ...]
    decisions: tuple[str, ...]
    profile: str
    run: Run
    own: bool = False
    limits: Mapping[str, Any] = field(default_factory=dict)
    last: bool = False

    @property
    def role(self) -> str:
        """verifier, drafter or router."""
        return ROLES[self.id[0]]

    def as_json(self) -> dict[str, Any]:
        """What `list --json` says."""
        return {
            "id": self.id,
            "role": self.role,
            "title": self.title,
            "profile": self.profile,
            "requirements": list(self.requirements),
            "decisions": list(self.decisions),
        }


_checks: dict[str, Check] = {}


def check(
    id_: str,
    *requirements: str,
    title: str,
    profile: str = DRAFT,
    decisions: Sequence[str] = (),
    own: bool = False,
    limits: Mapping[str, Any] = MappingProxyType({}),
    last: bool = False,
) -> Callable[[Run], Run]:
    """Register a check. `profile` is `decisions` for what the draft alone does not require; then say which.

    `last`: it runs when all others are done. `own`: it needs a process of its own (it kills or fills it); `limits` are
    keys of `[limits]` for that process.
    Raises ValueError for an id that is taken or malformed, and for a check that rests on nothing.
    """
    if not _ID.fullmatch(id_) or id_ in _checks:
        raise ValueError(f"{id_}: no such form of an id, or taken")
    if profile not in (DRAFT, DECISIONS) or (profile == DRAFT and not requirements):
        raise ValueError(f"{id_}: a check of the draft names its requirements")
    if profile == DECISIONS and not decisions:
        raise ValueError(f"{id_}: a check of a decision names it")

    def register(run: Run) -> Run:
        alone = own or bool(limits)
        _checks[id_] = Check(id_, title, requirements, tuple(decisions), profile, run, alone, dict(limits), last)
        return run

    return register


def all_checks() -> list[Check]:
    """Every check, by role and id."""
    package = importlib.import_module("sdcp_conformance.checks")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    order = list(ROLES)
    return sorted(_checks.values(), key=lambda each: (order.index(each.id[0]), each.id))
