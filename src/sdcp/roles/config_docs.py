"""`docs/configuration.md`, from the settings classes: one table per section."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from sdcp.errors import ConfigurationError
from sdcp.roles import config
from sdcp.roles.config import RoleSettings, Section

ROLES: dict[str, type[RoleSettings]] = {
    "verifier": config.VerifierSettings,
    "drafter": config.DrafterSettings,
    "router": config.RouterSettings,
    "cache": config.CacheSettings,
    "gateway": config.GatewaySettings,
}

_HEAD = """\
# Configuration

One TOML file per role. Unknown sections and keys are refused by name; relative paths are taken from the file's folder.
This page is printed by `sdcp config`.
"""


def describe(role: str) -> str:
    """Return the page for one role, or for all. Raises ConfigurationError for an unknown one."""
    if role == "all":
        return _HEAD + "".join(f"\n{_page(name)}" for name in ROLES)
    if role not in ROLES:
        raise ConfigurationError(f"{role}: unknown role; roles are {', '.join(ROLES)}")
    return _page(role)


def _page(role: str) -> str:
    lines = [f"## `sdcp {role}`"]
    for name, field in ROLES[role].model_fields.items():
        lines += ["", *_section(name, field)]
    return "\n".join(lines) + "\n"


def _section(name: str, field: FieldInfo) -> Iterator[str]:
    section, many = _section_class(field.annotation)
    yield f"`[[{name}]]`" if many else f"`[{name}]`"
    yield ""
    yield "| key | default | meaning |"
    yield "| --- | --- | --- |"
    given = field.default if isinstance(field.default, Section) else None
    for key, member in section.model_fields.items():
        default = member.default if given is None else getattr(given, key)
        yield f"| `{key}` | {_default(default)} | {member.description} |"


def _section_class(annotation: Any) -> tuple[type[Section], bool]:
    if get_origin(annotation) is tuple:
        return get_args(annotation)[0], True
    return annotation, False


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return "`[" + ", ".join(f'"{item}"' for item in value) + "]`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"
