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
This page is printed by `sdcp config`. The examples fit together: one of each role on this machine, with certificates
such as `sdcp ca issue certs --name verifier --role verifier --uri https://127.0.0.1:7402` writes for development.

A role prints `ready <base URI>` when it serves, and refuses to start with a certificate that its peers would refuse.
`GET <base URI>/metrics` shows any peer whose certificate has a role what it does, in Prometheus's text format:

```sh
curl --cacert certs/ca.pem --cert certs/router.pem --key certs/router.key https://127.0.0.1:7400/metrics
```
"""

_EXAMPLES = {
    "verifier": """\
[model]
engine = "transformers"
path = "models/target"

[cache]
prefixes = ["https://127.0.0.1:7400"]

[routers]
base_uris = ["https://127.0.0.1:7401"]
""",
    "drafter": """\
[model]
engine = "ngram+transformers"
path = "models/drafter"

[cache]
prefixes = ["https://127.0.0.1:7400"]

[routers]
base_uris = ["https://127.0.0.1:7401"]
""",
    "router": """\
[cache]
prefixes = ["https://127.0.0.1:7400"]
""",
    "cache": """\
[store]
directory = "store"
""",
    "gateway": """\
[model]
path = "models/target"

[routers]
base_uris = ["https://127.0.0.1:7401"]
""",
}
"""The least of each role's file, below `[server]` and `[tls]`."""

_PORTS = {"cache": 7400, "router": 7401, "verifier": 7402, "drafter": 7403, "gateway": 7404}

_NOTES = {
    "gateway": "Its certificate has the role front-end. `GET /healthz` of the API tells that this process answers, no "
    "more (liveness): no router is asked.",
}


def describe(role: str) -> str:
    """Return the page for one role, or for all. Raises ConfigurationError for an unknown one."""
    if role == "all":
        return _HEAD + "".join(f"\n{_page(name)}" for name in ROLES)
    if role not in ROLES:
        raise ConfigurationError(f"{role}: unknown role; roles are {', '.join(ROLES)}")
    return _page(role)


def example(role: str) -> str:
    """Return a settings file with everything that a role needs and nothing else."""
    base = f"127.0.0.1:{_PORTS[role]}"
    return f"""\
[server]
listen = "{base}"
base_uri = "https://{base}"

[tls]
certificate = "certs/{role}.pem"
key = "certs/{role}.key"
ca = "certs/ca.pem"

{_EXAMPLES[role]}"""


def _page(role: str) -> str:
    lines = [f"## `sdcp {role}`", "", "```toml", example(role).rstrip("\n"), "```"]
    lines += ["", _NOTES[role]] if role in _NOTES else []
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
