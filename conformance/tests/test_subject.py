"""Subjects that do not keep the command contract get a clear error, whatever they do."""

from __future__ import annotations

import signal
import sys
import tomllib
from pathlib import Path

import pytest

from sdcp_conformance.subject import NotOffered, Subject, SubjectError, toml


def subject(folder: Path, code: str) -> Subject:
    script = folder / "subject.py"
    script.write_text(f"import signal, sys, time\n{code}\n")
    return Subject(f"{sys.executable} -u {script}", "verifier", folder, "v", "https://127.0.0.1:1/x")


async def fault(folder: Path, code: str, ready_s: float = 20.0) -> str:
    each = subject(folder, code)
    with pytest.raises(SubjectError) as caught:
        await each.start({}, ready_s)
    assert each.exit_code is not None
    return str(caught.value)


async def test_one_that_dies(tmp_path: Path) -> None:
    text = await fault(tmp_path, "print('about to', file=sys.stderr)\nsys.exit(3)")
    assert "exit code 3 before it was ready" in text
    assert "about to" in text


async def test_one_that_never_gets_ready(tmp_path: Path) -> None:
    text = await fault(tmp_path, "print('hello, ready')\ntime.sleep(60)", 1.0)
    assert "no line beginning `ready` in 1 s" in text
    assert "hello, ready" in text


async def test_one_that_prints_octets_of_any_kind(tmp_path: Path) -> None:
    code = "sys.stdout.buffer.write(b'\\xff' * 100_000 + b'\\n')\nprint('x')\nsys.exit(1)"
    assert "exit code 1" in await fault(tmp_path, code)


async def test_one_that_prints_more_than_ready(tmp_path: Path) -> None:
    each = subject(
        tmp_path, "print('loading')\nprint('ready https://x')\nfor _ in range(9999): print('x' * 99)\ntime.sleep(60)"
    )
    await each.start({})
    await each.stop()
    assert each.exit_code == -signal.SIGTERM


async def test_one_that_does_not_offer_the_role(tmp_path: Path) -> None:
    with pytest.raises(NotOffered, match="verifier"):
        await subject(tmp_path, "sys.exit(127)").start({})


@pytest.mark.parametrize("command", ["/nowhere/at/all", "", "'"])
async def test_one_that_cannot_be_started(tmp_path: Path, command: str) -> None:
    with pytest.raises(SubjectError, match="cannot be started"):
        await Subject(command, "verifier", tmp_path, "v", "https://127.0.0.1:1/x").start({})


async def test_one_that_does_not_end(tmp_path: Path) -> None:
    each = subject(tmp_path, "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready')\ntime.sleep(60)")
    await each.start({})
    await each.stop(0.5)
    assert each.exit_code == -signal.SIGKILL


def test_settings_are_toml() -> None:
    settings = {"a": {"x": 1, "y": [1, "b"], "z": True, "w": 1.5}, "t": [{"u": 'q"\\'}, {"u": "v"}]}
    assert tomllib.loads(toml(settings)) == settings
