"""The command line: help with an example everywhere, one clear line and exit code 2 for a mistake."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509

COMMANDS = (
    ["verifier"], ["drafter"], ["router"], ["cache"], ["gateway"], ["config"], ["vectors"], ["up"], ["generate"],
    ["simulate"],
    ["cache", "ls"], ["cache", "stat"], ["cache", "gc"], ["log", "show"], ["log", "verify"],
    ["ca", "init"], ["ca", "issue"], ["models", "fetch"], ["models", "digest"],
)  # fmt: skip


def sdcp(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sdcp.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120, check=False)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(command: list[str]) -> None:
    done = sdcp(*command, "--help")
    assert done.returncode == 0
    _, example = done.stdout.split("\n\n  Example: ")
    assert example.startswith(" ".join(["sdcp", *command]))
    assert "\n" not in example.partition("\n\n")[0], "cut in two"
    assert not re.search(r"--\S+ +<(?!=)", done.stdout), "a type of Python's where a word of ours belongs"


@pytest.mark.parametrize("group", [[], ["ca"], ["models"], ["cache"], ["log"]], ids=" ".join)
def test_a_list_of_commands_has_whole_sentences_and_an_example(group: list[str]) -> None:
    done = sdcp(*group, "--help")
    assert " ".join(["Example: sdcp", *group]) in done.stdout
    assert "...\n" not in done.stdout.partition("Commands:")[2]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nonsense"], "No such command"),
        (["verifier"], "Missing option '--config'"),
        (["verifier", "--config", "none.toml"], "none.toml: cannot be read"),
        (["ca", "issue", "c", "--name", "x", "--role", "king"], "unknown role 'king'"),
        (["models", "fetch", "gpt"], "unknown model"),
        (["models", "digest", "none"], "none"),
        (["vectors", "none.json"], "none.json: cannot be read"),
        (["up", "--once"], "--once needs --prompt"),
        (["up", "--check"], "--check needs --prompt"),
        (["up", "--max-tokens", "9"], "--max-tokens needs --prompt"),
        (["up"], "run `sdcp models fetch demo` first"),
        (["up", "--target", "none"], "none: no such model"),
        (["ca", "init", "/dev/null"], "/dev/null: cannot be written"),
        (["simulate", "--trace"], "--trace shows one run: say which one with --seed"),
        (["simulate", "--seeds", "0"], "--seeds"),
        (["generate", "x"], "start one with `sdcp up`"),
        (["generate", "x", "--gateway", "http://127.0.0.1:9"], "is `sdcp up` running?"),
        (["generate", "x", "--gateway", "127.0.0.1:9"], "must be a URL such as http://"),
        (["generate", "x", "--rule", "beam"], "must be greedy or sampling"),
        (["generate", "x", "--temperature", "1"], "--temperature goes with --rule sampling"),
        (["generate", "x", "--top-p", "0.5"], "--top-p goes with --rule sampling"),
        (["generate", "x", "--top-k", "0"], "--top-k goes with --rule sampling"),
        (["generate", "x", "--seed", "1"], "--seed goes with --rule sampling"),
        (["generate", "x", "--rule", "sampling", "--temperature", "0"], "--temperature 0 is greedy"),
        (["config", "king"], "unknown role"),
        (["cache"], "Missing option '--config'"),
        (["cache", "ls"], ".sdcp/router.toml: no such settings"),
        (["cache", "ls", "--kind", "cats"], "--kind cats: must be objects, logs, leases or all"),
        (["cache", "stat", "ftp://x/y"], "the scheme must be one of"),
        (["cache", "gc", "file:///nowhere"], "there is no such folder"),
        (["log", "show", "file:///nowhere/logs/c1"], "there is no such folder"),
        (["log", "verify", "c1"], ".sdcp/router.toml: no such settings"),
        (["log", "verify", "a/b"], "must be a URI such as"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], complaint: str, tmp_path: Path) -> None:
    done = sdcp(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert complaint in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.decision("D9-development")
def test_a_certificate_bears_its_role_and_base_uri(tmp_path: Path) -> None:
    assert sdcp("ca", "init", tmp_path).returncode == 0
    done = sdcp("ca", "issue", tmp_path, "--name", "v", "--role", "verifier", "--uri", "https://127.0.0.1:7401")
    assert done.returncode == 0
    certificate = x509.load_pem_x509_certificate((tmp_path / "v.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    assert set(uris) == {"https://127.0.0.1:7401/", "urn:sdcp:role:verifier"}
    assert (tmp_path / "v.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.decision("D9-development")
def test_a_gateway_is_a_front_end(tmp_path: Path) -> None:
    assert sdcp("ca", "issue", tmp_path, "--name", "g", "--role", "gateway").returncode == 0
    certificate = x509.load_pem_x509_certificate((tmp_path / "g.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["urn:sdcp:role:front-end"]


def test_vectors_name_each_failing_case_and_count(tmp_path: Path) -> None:
    case = {"seed": 1, "session": "00" * 16, "round": 1, "i": 1, "purpose": 0, "value": 2.0}
    file = tmp_path / "wrong.json"
    file.write_text(json.dumps({"kind": "uniform", "about": "", "cases": [case]}))
    done = sdcp("vectors", file)
    assert done.returncode == 1
    *failures, total = done.stdout.splitlines()
    assert len(failures) == 1
    assert "case 1" in failures[0]
    assert total == "0 passed, 1 failed"


def test_the_version_is_the_packages() -> None:
    from sdcp import __version__

    assert sdcp("--version").stdout.strip() == __version__
