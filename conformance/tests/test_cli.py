"""The command line: what is listed, what is refused in one line, what a run reports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

STRANGER = f"{sys.executable} {Path(__file__).with_name('stranger.py')}"


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sdcp_conformance.cli", *arguments], capture_output=True, text=True, timeout=120
    )


def test_list() -> None:
    plain, as_json = command("list"), command("list", "--json")
    checks = json.loads(as_json.stdout)
    assert len(plain.stdout.splitlines()) == 2 * len(checks)
    assert {"id", "role", "title", "profile", "requirements", "decisions"} == set(checks[0])
    only = json.loads(command("list", "--json", "--role", "drafter", "--profile", "draft").stdout)
    assert {(each["role"], each["profile"]) for each in only} == {("drafter", "draft")}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--role", "cache"], "--role cache: must be one of"),
        (["--only", "V-nothing"], "--only V-nothing: there is no such check"),
        (["--profile", "mine"], "--profile mine: must be"),
        (["--baseline", "/nowhere"], "--baseline /nowhere: cannot be read"),
        (["--role", "verifier", "--subject", "/nowhere/at/all"], "cannot be started"),
    ],
)
def test_faults_of_the_command_line(arguments: list[str], says: str) -> None:
    done = command("run", "--subject", "true", *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_subject_that_does_not_start_is_reported_too(tmp_path: Path) -> None:
    done = command("run", "--subject", "false", "--only", "?-messages", "--json", str(tmp_path / "r.json"))
    assert (done.returncode, done.stdout) == (2, "")
    for role in ("verifier", "drafter", "router"):
        assert f"the {role} ended with exit code 1 before it was ready" in done.stderr
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["unexpected_failures"] == ["V-messages", "D-messages", "R-messages"]


def test_help_has_an_example() -> None:
    for name in ("run", "list"):
        assert "Example: sdcp-conformance" in command(name, "--help").stdout


def test_a_baseline_that_names_nothing_known(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("# ours\nV-messages\n\nV-nothing # gone\n")
    done = command("run", "--subject", "true", "--baseline", str(tmp_path / "b"))
    assert (done.returncode, "line 4: there is no check V-nothing" in done.stderr) == (2, True)


def test_a_run_with_reports(tmp_path: Path) -> None:
    files = ["--json", str(tmp_path / "r.json"), "--junit", str(tmp_path / "r.xml")]
    done = command("run", "--subject", STRANGER, "--only", "?-messages", *files)
    assert done.returncode == 0, done.stdout
    assert "1 passed, 2 not offered" in done.stdout
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["as_expected"]
    assert [each["outcome"] for each in document["results"]] == ["passed", "not offered", "not offered"]
    suites = ElementTree.parse(tmp_path / "r.xml").getroot()
    assert next((each.get("name"), each.get("skipped")) for each in suites) == ("verifier.draft", "0")


def test_an_entry_of_the_baseline_that_passes_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("V-messages\n")
    done = command("run", "--subject", STRANGER, "--only", "V-messages", "--baseline", str(tmp_path / "b"))
    assert (done.returncode, "take it out" in done.stdout) == (1, True)
