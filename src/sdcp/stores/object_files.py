"""Objects and leases as files: one each, whole or not there (docs/mlc.md).

A file is written under a temporary name, synced if wanted, and renamed. An object's file begins with a head that holds
its version, size, owner and the CRC-32 of its octets, so that a file which a power cut left partial is known for what
it is: it counts as absent, never as an object. Its name ends in the version, so that a late removal of an old object
cannot hit a new one of the same name. Leases are not synced: a killed process loses none, a power cut may lose those
taken in its last seconds, and the objects are then merely unleased.

Not here: which objects may go, and what else holds them (`sdcp.stores.levels_objects`).
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from zlib import crc32

from sdcp.errors import MalformedBody
from sdcp.messages.lease import Lease
from sdcp.stores.segment import log, sync_folder
from sdcp.stores.store import ObjectInfo
from sdcp.stores.table import Held
from sdcp.wire import cbor

_HEAD = struct.Struct(">8sQQHII")  # magic, version, size, owner's length, CRC of the octets, CRC of head and owner
_MAGIC = b"SDCPOBJ1"
_TEMPORARY = ".new-"  # no name of an object or lease begins with a dot


class ObjectFiles:
    """The objects in one folder."""

    def __init__(self, folder: Path, *, sync: bool) -> None:
        """`sync`: an object that was answered for survives a power cut, at the price of two syncs each."""
        self._folder = _cleared(folder)
        self._sync = sync
        self._numbers = count()

    def found(self) -> list[ObjectInfo]:
        """All objects of the folder, oldest first. Files that are not whole are removed."""
        newest: dict[str, ObjectInfo] = {}
        for path in self._folder.iterdir():
            info = _read_info(path)
            if info is None:
                log.warning("%s: removed, since it was never written whole", path)
                path.unlink()
                continue
            other = newest.get(info.name)
            if other is not None:
                self.remove(min(info, other, key=lambda each: each.version))
            if other is None or other.version < info.version:
                newest[info.name] = info
        return sorted(newest.values(), key=lambda info: info.version)

    def write(self, info: ObjectInfo, data: bytes | memoryview) -> None:
        """Write an object's file. Raises OSError; then there is none."""
        owner = info.owner.encode()
        fields = _HEAD.pack(_MAGIC, info.version, info.size, len(owner), crc32(data), 0)[:-4]
        head = fields + struct.pack(">I", crc32(owner, crc32(fields))) + owner
        _write(self._folder, next(self._numbers), self._path(info), [head, data], self._sync)

    def read(self, info: ObjectInfo) -> bytes | None:
        """An object's octets, or None when its file is gone or is not what was written. Raises other OSErrors."""
        try:
            with self._path(info).open("rb", buffering=0) as file:
                head = file.read(_HEAD.size + len(info.owner.encode()))
                data = _read_whole(file.fileno(), info.size)
        except FileNotFoundError:
            return None
        if len(data) != info.size or crc32(data) != _HEAD.unpack_from(head)[4]:
            return None
        return data

    def age_s(self, info: ObjectInfo) -> float:
        """Seconds since an object was written."""
        return max(0.0, time.time() - self._path(info).stat().st_mtime)

    def remove(self, info: ObjectInfo) -> None:
        """Remove an object's file, if it is there."""
        self._path(info).unlink(missing_ok=True)

    def _path(self, info: ObjectInfo) -> Path:
        return self._folder / f"{info.name}.{info.version:x}"


class LeaseFiles:
    """The leases in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = _cleared(folder)
        self._numbers = count()

    def found(self) -> Iterator[tuple[str, str, Lease]]:
        """Name, owner and lease, of all in the folder. A file that is no lease is removed."""
        for path in list(self._folder.iterdir()):
            try:
                value = cbor.decode(path.read_bytes())
                lease = Lease.parse(value)
                owner = str(value["owner"])  # type: ignore[index]
            except (MalformedBody, KeyError):
                log.warning("%s: removed, since it was never written whole", path)
                path.unlink()
            else:
                yield path.name, owner, lease

    def write(self, name: str, held: Held) -> None:
        """Write or replace a lease's file. Raises OSError; then the one before it is still there."""
        octets = cbor.encode({"objects": held.names, "ttl_ms": held.ttl_ms, "owner": held.owner})
        _write(self._folder, next(self._numbers), self._folder / name, [octets], sync=False)

    def remove(self, name: str) -> None:
        """Remove a lease's file, if it is there."""
        (self._folder / name).unlink(missing_ok=True)


class GoneFiles:
    """Objects that are no more and of which the network level may still hold a copy: one small file each.

    So a killed process forgets none of them, and none comes back when the network is listed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = _cleared(folder)
        self._numbers = count()

    def found(self) -> list[ObjectInfo]:
        """All of the folder. A file that was never written whole is removed."""
        infos = []
        for path in list(self._folder.iterdir()):
            try:
                value = cbor.decode(path.read_bytes())
                infos.append(ObjectInfo(path.stem, int(path.suffix[1:], 16), value["size"], value["owner"]))  # type: ignore[index]
            except (MalformedBody, ValueError, KeyError, TypeError):
                path.unlink()
        return infos

    def write(self, info: ObjectInfo) -> None:
        """Note an object. Raises OSError."""
        octets = cbor.encode({"size": info.size, "owner": info.owner})
        _write(self._folder, next(self._numbers), self._path(info), [octets], sync=False)

    def remove(self, info: ObjectInfo) -> None:
        """The network has no copy any more."""
        self._path(info).unlink(missing_ok=True)

    def _path(self, info: ObjectInfo) -> Path:
        return self._folder / f"{info.name}.{info.version:x}"


def _cleared(folder: Path) -> Path:
    """The folder, made if need be, without what a killed process was writing."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob(f"{_TEMPORARY}*"):
        path.unlink()
    return folder


def _write(folder: Path, number: int, path: Path, pieces: list[bytes | memoryview], sync: bool) -> None:
    temporary = folder / f"{_TEMPORARY}{number}"
    try:
        with temporary.open("wb", buffering=0) as file:
            for piece in pieces:
                view = memoryview(piece).cast("B")
                while view:
                    view = view[file.write(view) :]
            if sync:
                os.fsync(file.fileno())
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(folder)


def _read_info(path: Path) -> ObjectInfo | None:
    with path.open("rb", buffering=0) as file:
        head = file.read(_HEAD.size + 0xFFFF)
        file_size = os.fstat(file.fileno()).st_size
    if len(head) < _HEAD.size:
        return None
    magic, version, size, owner_size, _, own = _HEAD.unpack_from(head)
    owner = head[_HEAD.size : _HEAD.size + owner_size]
    if magic != _MAGIC or crc32(owner, crc32(head[: _HEAD.size - 4])) != own:
        return None
    if file_size != _HEAD.size + owner_size + size or path.suffix != f".{version:x}":
        return None
    return ObjectInfo(path.stem, version, size, owner.decode())


def _read_whole(fd: int, size: int) -> bytes:
    data = os.read(fd, size)
    while len(data) < size and (more := os.read(fd, size - len(data))):
        data += more
    return data
