"""What a role says when commit logs cannot be had: once for each cache, and again when they can."""

from __future__ import annotations

import logging

import pytest

from sdcp.machines.effects import AppendLog, ReadLog
from sdcp.machines.inputs import LogAppended, LogRead, LogUnanswered
from sdcp.ports import StoreFullError, StoreUnavailableError
from sdcp.roles.logs import append_log, read_log
from sdcp.stores.memory import MemoryCache
from tests.unit.stores.samples import commit


async def test_a_cache_that_does_not_answer_is_spoken_of_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "sdcp.roles")
    cache = MemoryCache(prefix="memory:/away/")
    ref = cache.ref_of("logs", "c1")
    works = cache.append

    async def full(*_: object) -> str:
        raise StoreFullError("its disk is full")

    async def away(*_: object) -> None:
        raise StoreUnavailableError("nobody answers")

    monkeypatch.setattr(cache, "append", full)
    monkeypatch.setattr(cache, "read_log", away)
    for _ in range(3):
        assert await append_log(cache, AppendLog(ref, commit(1, 1), None)) == LogUnanswered()
        assert await read_log(cache, ReadLog(ref, 0)) == LogUnanswered()
    [said] = caplog.messages
    assert said == "commit logs in memory:/away cannot be appended to; their sessions wait: its disk is full"
    monkeypatch.undo()
    assert works == cache.append
    assert isinstance(await append_log(cache, AppendLog(ref, commit(1, 1), None)), LogAppended)
    assert caplog.messages[1:] == ["commit logs in memory:/away take appends again"]
    assert isinstance(await read_log(cache, ReadLog(ref, 0)), LogRead)
    assert len(caplog.messages) == 2
