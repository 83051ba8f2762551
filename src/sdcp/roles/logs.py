"""Commit logs as the machines of a verifier and of a router want them: an effect in, its answer out (6.8, D20)."""

from __future__ import annotations

from collections.abc import Callable

from sdcp.machines.effects import AppendLog, ReadLog
from sdcp.machines.inputs import LogAppended, LogFenced, LogMoved, LogRead, LogUnanswered
from sdcp.ports import (
    Cache,
    LogFencedError,
    LogMovedError,
    ObjectMissingError,
    StoreFullError,
    StoreUnavailableError,
)


async def append_log(
    cache: Cache, effect: AppendLog, load: Callable[[], int] = lambda: 0
) -> LogAppended | LogMoved | LogFenced | LogUnanswered:
    """Append once. `load` is asked in percent when the record is durable; a router has none."""
    try:
        etag = await cache.append(effect.ref, effect.data, effect.etag)
    except LogMovedError:
        return LogMoved()
    except LogFencedError:
        return LogFenced()
    except (StoreUnavailableError, StoreFullError):
        return LogUnanswered()
    return LogAppended(etag, load())


async def read_log(cache: Cache, effect: ReadLog) -> LogRead | LogUnanswered:
    """Read the log from where the effect says to its end."""
    try:
        found = await cache.read_log(effect.ref, effect.start)
    except (StoreUnavailableError, ObjectMissingError, ValueError):
        return LogUnanswered()
    return LogRead(effect.start, found.data, found.etag)
