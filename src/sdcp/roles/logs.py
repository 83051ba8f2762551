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

_silent: set[str] = set()
"""Caches of logs that did not answer the last time: each is spoken of once, until it answers again."""


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
    except (StoreUnavailableError, StoreFullError) as fault:
        return _unanswered(effect, fault)
    _answered(effect)
    return LogAppended(etag, load())


async def read_log(cache: Cache, effect: ReadLog) -> LogRead | LogUnanswered:
    """Read the log from where the effect says to its end."""
    try:
        found = await cache.read_log(effect.ref, effect.start)
    except LogDamagedError as damage:
        return _damaged(effect, damage)
    except (StoreUnavailableError, ObjectMissingError, ValueError) as fault:
        return _unanswered(effect, fault)
    return LogRead(effect.start, found.data, found.etag)


def _unanswered(effect: AppendLog | ReadLog, fault: Exception) -> LogUnanswered:
    """Without a word an operator would see sessions stand still, and not why."""
    cache = effect.ref.rpartition("/logs/")[0]
    if cache not in _silent:
        _silent.add(cache)
        what = "appended to" if isinstance(effect, AppendLog) else "read"
        logger.warning("commit logs in %s cannot be %s; their sessions wait: %s", cache, what, fault)
    return LogUnanswered()


def _answered(effect: AppendLog) -> None:
    cache = effect.ref.rpartition("/logs/")[0]
    if cache in _silent:
        _silent.discard(cache)
        logger.info("commit logs in %s take appends again", cache)


def _damaged(effect: AppendLog | ReadLog, damage: LogDamagedError) -> LogUnanswered:
    logger.error("%s is damaged, and its session ends: %s", effect.ref, damage)
    return LogUnanswered(str(damage))
