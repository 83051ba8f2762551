"""Commit logs as the machines of a verifier and of a router want them: an effect in, its answer out (6.8, D20)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from sdcp.machines.effects import AppendLog, ReadLog
from sdcp.machines.inputs import LogAppended, LogFenced, LogMoved, LogRead, LogUnanswered
from sdcp.ports import (
    Cache,
    LogDamagedError,
    LogFencedError,
    LogMovedError,
    ObjectMissingError,
    StoreFullError,
    StoreUnavailableError,
)

logger = logging.getLogger("sdcp.roles")


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
    except LogDamagedError as damage:
        return _damaged(effect, damage)
    except (StoreUnavailableError, StoreFullError):
        return LogUnanswered()
    return LogAppended(etag, load())


async def read_log(cache: Cache, effect: ReadLog) -> LogRead | LogUnanswered:
    """Read the log from where the effect says to its end."""
    try:
        found = await cache.read_log(effect.ref, effect.start)
    except LogDamagedError as damage:
        return _damaged(effect, damage)
    except (StoreUnavailableError, ObjectMissingError, ValueError):
        return LogUnanswered()
    return LogRead(effect.start, found.data, found.etag)


def _damaged(effect: AppendLog | ReadLog, damage: LogDamagedError) -> LogUnanswered:
    logger.error("%s is damaged, and its session ends: %s", effect.ref, damage)
    return LogUnanswered(str(damage))
