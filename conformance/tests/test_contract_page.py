"""docs/conformance-cli.md names every setting that the kit writes, and no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sdcp_conformance.registry import all_checks
from sdcp_conformance.town import Town
from sdcp_conformance.worlds.router import Seat

PAGE = (Path(__file__).parents[2] / "docs/conformance-cli.md").read_text()


def documented() -> dict[str, set[str]]:
    """Keys by section, from the table of settings."""
    keys: dict[str, set[str]] = {}
    section = ""
    for first, second in re.findall(r"^\|([^|]*)\|([^|]*)\|[^|]*\|$", PAGE, flags=re.MULTILINE):
        section = first.strip("`[] ") or section
        keys.setdefault(section, set()).update(re.findall(r"`([a-z_]+)`", second))
    return {section: found for section, found in keys.items() if found}


async def written(role: str, folder: Path) -> dict[str, Any]:
    town = Town("true", role, folder)
    await town.start()
    seat = Seat(town)
    town.instances = seat.instances()
    settings = town._settings("name", "https://127.0.0.1:1/sdcp", {})
    seat.close()
    await town.close()
    return settings


def keys_of(section: Any) -> set[str]:
    return set().union(*(each.keys() for each in section)) if isinstance(section, list) else set(section)


async def test_the_page_and_the_settings_agree(tmp_path: Path) -> None:
    found: dict[str, set[str]] = {}
    for role in ("verifier", "drafter", "router"):
        for section, keys in (await written(role, tmp_path)).items():
            found.setdefault(section, set()).update(keys_of(keys))
    found["limits"] |= {key for each in all_checks() for key in each.limits}
    page = documented()
    assert {section: sorted(keys) for section, keys in found.items() if keys - page.get(section, set())} == {}
    assert page.keys() == found.keys()
    for section in page.keys() - {"limits"}:
        assert page[section] == found[section], section


@pytest.mark.parametrize(
    ("role", "sections"),
    [
        ("verifier", {"server", "tls", "limits", "model", "cache", "routers"}),
        ("drafter", {"server", "tls", "limits", "model", "cache", "routers"}),
        ("router", {"server", "tls", "limits", "cache", "contract", "instances"}),
    ],
)
async def test_sections_of_each_role(role: str, sections: set[str], tmp_path: Path) -> None:
    assert (await written(role, tmp_path)).keys() == sections
