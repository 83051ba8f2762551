"""Keys and octets of one folder of a bucket, asked for on threads and answered within a deadline.

Of two clients one tries again by itself, and one never does: through it go appends, whose writers must learn that an
answer was lost (docs/mlc.md). The library's own coroutines are not used: an answer that arrives while the interpreter
ends aborts the process.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import MemoryStore, S3Store

from sdcp.ports import StoreFullError, StoreUnavailableError

THREADS = 32
"""Requests at once; further ones wait."""

_ROLE_OF_THE_MACHINE = "169.254.169.254"  # asked for credentials when the environment has none

_CODE = re.compile(r"<Code>(\w+)</Code>")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Key:
    """A key, its octets, and when it was written by the store's clock (which may tell whole seconds only)."""

    path: str
    size: int
    at: datetime


class Bucket:
    """A folder of a bucket. Whatever does not answer, or answers in error, is a StoreUnavailableError."""

    def __init__(self, store: S3Store | MemoryStore, once: S3Store | MemoryStore, *, deadline_s: float) -> None:
        """`once` is the same place through a client that sends each request once."""
        self._store = store
        self._once = once
        self._deadline_s = deadline_s
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="s3")

    def close(self) -> None:
        """Begin nothing more; what was begun ends within the deadline."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def create(
        self, path: str, data: bytes | memoryview, *, owner: str | None = None, once: bool = False
    ) -> bool:
        """Write a key that is not there; tell whether it was not. `owner` is noted beside it. StoreFullError."""
        store = self._once if once else self._store
        attributes = None if owner is None else {"owner": owner}

        def put() -> bool:
            try:
                obstore.put(store, path, data, mode="create", attributes=attributes)
            except AlreadyExistsError:
                return False
            return True

        return await self._ask(put)

    async def put(self, path: str, data: bytes) -> None:
        """Write a key, whatever was there. StoreFullError."""
        await self._ask(lambda: obstore.put(self._store, path, data))

    async def get(self, path: str, *, at_most: int) -> tuple[Key, memoryview] | None:
        """A key and its octets: all of them; None when it is not there. ValueError when there are more."""

        def get() -> tuple[Key, memoryview] | None:
            try:
                found = obstore.get(self._store, path)
            except FileNotFoundError as fault:
                _check_bucket(fault)
                return None
            key = Key(path, found.meta["size"], found.meta["last_modified"])
            if key.size > at_most:
                raise ValueError(f"{path} has {key.size} octets, and at most {at_most} are read")
            octets = memoryview(found.bytes())
            if octets.nbytes != key.size:
                raise StoreUnavailableError(f"{path}: {octets.nbytes} octets came of {key.size}")
            return key, octets

        return await self._ask(get)

    async def head(self, path: str) -> Key | None:
        """A key, without its octets; None when it is not there."""

        def head() -> Key | None:
            try:
                meta = obstore.head(self._store, path)
            except FileNotFoundError as fault:
                _check_bucket(fault)
                return None
            return Key(path, meta["size"], meta["last_modified"])

        return await self._ask(head)

    async def delete(self, paths: Iterable[str]) -> None:
        """Delete keys, which need not be there."""
        wanted = list(paths)

        def delete() -> None:
            try:
                obstore.delete(self._store, wanted)
            except FileNotFoundError as fault:
                _check_bucket(fault)

        if wanted:
            await self._ask(delete)

    async def keys(
        self, folder: str, *, after: str = "", wanted: Callable[[Sequence[Key]], bool] = lambda _: True
    ) -> list[Key]:
        """The keys under `folder`, of those after the key `folder/after`, in order.

        It is asked for page after page while `wanted` tells of all that were found that more are.
        """

        def keys() -> list[Key]:
            found: list[Key] = []
            pages = obstore.list(self._store, folder, offset=f"{folder}/{after}" if after else None, chunk_size=1000)
            for page in pages:
                found += [Key(meta["path"], meta["size"], meta["last_modified"]) for meta in page]
                if not wanted(found):
                    break
            return sorted(found, key=lambda key: key.path)

        return await self._ask(keys)

    async def folders(self, folder: str) -> list[str]:
        """The names of the folders in `folder`, in order."""

        def folders() -> list[str]:
            found = obstore.list_with_delimiter(self._store, folder)
            return sorted(path.rpartition("/")[2] for path in found["common_prefixes"])

        return await self._ask(folders)

    async def _ask(self, request: Callable[[], T]) -> T:
        try:
            async with asyncio.timeout(self._deadline_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, request)
        except TimeoutError:
            raise StoreUnavailableError(f"no answer within {self._deadline_s} s") from None
        except (BaseError, OSError) as fault:
            told = _told(fault)
            if "507 Insufficient Storage" in told:
                raise StoreFullError(told) from None
            if _ROLE_OF_THE_MACHINE in told:
                told = f"no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY ({told})"
            raise StoreUnavailableError(told) from None


def _told(fault: Exception) -> str:
    """What the library and the server say, in one line: their first, without XML, and the server's word for it."""
    whole = str(fault)
    code = _CODE.search(whole)
    line = whole.partition("\n")[0].partition(": <")[0]
    return f"{line} ({code[1]})" if code else line


def _check_bucket(fault: FileNotFoundError) -> None:
    """What is not there is absent; but a bucket that is not there says nothing about what it held."""
    if "NoSuchBucket" in str(fault):
        raise StoreUnavailableError("there is no such bucket") from None
