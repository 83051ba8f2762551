"""The journal's files: arbitrary ones, and sound ones with damage (D47; part of the target `logs`).

What must hold of files: the start is refused with ConfigurationError that names the folder, or each log is served,
whole or as damaged with its intact octets; no other exception; what was served once is served after a second start.
Of a segment alone: frames and holes that follow each other without a gap, at least as far as it was acknowledged.

`damage` is up to four changes of one octet, one hole, one end or one file, so that no checksum can be forged: it never
stops a start. Then no log is changed, shortened or gone without its name, or any unknown one, being answered as
damaged, and what of it is served precedes the damage; a damaged log takes no append, and all others go on.
"""

from __future__ import annotations

import asyncio
import os
import struct
import tempfile
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from random import Random
from zlib import crc32

from fuzz.attempts import attempt
from fuzz.cbor_mutator import Octets
from fuzz.seeds import commit_records
from sdcp.errors import ConfigurationError
from sdcp.messages.record import FenceRecord
from sdcp.ports import LogDamagedError, LogMovedError
from sdcp.stores.frames import HEAD_SIZE, MAGIC, Frame, Head, Hole, Scan, encode_frame, encode_head
from sdcp.stores.journal import Journal
from sdcp.stores.segments import Sizes
from sdcp.stores.store import LogState

SMALL = Sizes(segment=700, ahead=256)
CHANGES = 4
NEVER = "never"
MORE = FenceRecord(epoch=9).encode()
_CHANGE = struct.Struct(">BHHB")  # which file, offset, length, what
_NAMES = ("mark", "first", *(f"{number:08d}.journal" for number in range(1, 6)))
_SIZE = struct.Struct(">H")


Served = dict[str, tuple[bytes, bool]]
"""Of each log what is served of it, and whether it is damaged; under the name NEVER that of a log that never was."""


def segment(data: bytes) -> None:
    """A segment's octets after its head; two octets of mark and one of flags come first: bit 0, all is acknowledged."""
    octets = encode_head(Head(1, 0, 0)) + data[3:]
    mark = len(octets) if data[2:3] and data[2] & 1 else int.from_bytes(data[:2], "big")
    scan = Scan(memoryview(octets), mark)
    at = HEAD_SIZE
    for found in scan.frames():
        if isinstance(found, Hole):
            assert found.start == at < found.stop, "a hole that is elsewhere, or none"
            at = found.stop
            continue
        assert found.payload == at + _HEADER.size + len(found.frame.name), "a gap before a frame, or one in another"
        at = found.payload + found.frame.state.size - found.frame.start
        assert at <= len(octets), "a frame beyond the end"
        assert (crc32(octets[found.payload : at]) == found.crc) == found.intact, "called intact, and is not; or is"
    assert scan.end == at, "ends elsewhere than after the last frame"
    assert scan.end >= mark, "acknowledged octets were cut"
    scan.torn()


def files(data: bytes) -> None:
    """All files of a journal: for each its length in two octets (65535: there is none), then its octets."""
    with tempfile.TemporaryDirectory(dir=_memory()) as place:
        folder = Path(place)
        for name, octets in _unpacked(data).items():
            (folder / name).write_bytes(octets)
        served = _served(folder)
        if served is not None:
            assert _served(folder) == served, "a second start serves something else"


def damage(data: bytes) -> None:
    """A sound journal, changed as the input says; see above."""
    sound, logs = _sound()
    with tempfile.TemporaryDirectory(dir=_memory()) as place:
        folder = Path(place)
        for name, octets in _damaged(sound, data).items():
            (folder / name).write_bytes(octets)
        served = _served(folder, MORE)
        assert served is not None, "damage stops the start"
        for name, whole in logs.items():
            octets, damaged = served.get(name, served[NEVER])
            assert whole.startswith(octets) if damaged else octets == whole, f"log {name!r} was changed in silence"
            if name in served and not damaged:
                served[name] = (whole + MORE, False)
        assert _served(folder) == served, "a second start serves something else"


def _damaged(sound: dict[str, bytes], data: bytes) -> dict[str, bytes]:
    names = [name for name in sorted(sound) if name.endswith(".journal")]
    changed, gone = dict(sound), set[str]()
    for at in range(0, min(len(data), CHANGES * _CHANGE.size), _CHANGE.size):
        which, offset, length, what = _CHANGE.unpack(data[at : at + _CHANGE.size].ljust(_CHANGE.size, b"\0"))
        name = names[which % len(names)]
        octets = changed[name]
        offset %= len(octets) + 1
        if what == 0:
            changed[name] = octets[:offset]
        elif what == 2:
            gone.add(name)
        elif what == 1:
            changed[name] = octets[:offset] + bytes(min(length, len(octets) - offset)) + octets[offset + length :]
        elif offset < len(octets):
            changed[name] = octets[:offset] + bytes([octets[offset] ^ what]) + octets[offset + 1 :]
    return {name: octets for name, octets in changed.items() if name not in gone}


def _served(folder: Path, more: bytes = b"") -> Served | None:
    """What a start serves; None when it is refused. `more` is appended to each log, if there is any."""
    journal, refusal = attempt(lambda: Journal(folder, sizes=SMALL), ConfigurationError)
    if journal is None:
        assert str(folder) in str(refusal), "a refusal that does not say where"
        return None
    try:
        served = {name: _served_log(journal, name) for name in (*journal.names(), NEVER)}
        assert all(served[name][1] for name in journal.damaged), "called damaged, and served as whole"
        if more:
            asyncio.run(_append_to_each(journal, served, more))
        return served
    finally:
        journal.close()


def _served_log(journal: Journal, name: str) -> tuple[bytes, bool]:
    read, damage = attempt(lambda: journal.read(name, 0, None), LogDamagedError)
    octets = read[0] if read is not None else damage.data if damage is not None else b""
    _, refusal = attempt(lambda: journal.state(name), LogDamagedError)
    assert (refusal is None) == (damage is None), "damaged for those who read it alone"
    assert damage is None or damage.intact == len(octets), "other octets than those that are intact"
    part, _ = attempt(lambda: journal.read(name, len(octets) // 3, len(octets) // 2)[0], LogDamagedError)
    assert part in (None, octets[len(octets) // 3 : len(octets) // 2]), "a range that is not that of the whole"
    assert part is None or damage is None, "a range of a damaged log as if nothing were wrong"
    return octets, damage is not None


async def _append_to_each(journal: Journal, served: Served, more: bytes) -> None:
    """Damaged logs refuse, the others, and beside a hole no unknown one that goes on, take it."""
    for name, (_, damaged) in served.items():
        state, _ = attempt(partial(journal.state, name), LogDamagedError)
        try:
            await journal.append(name, more, state.version if state else None)
        except (LogDamagedError, LogMovedError):
            assert damaged, "a sound log refuses"
        else:
            assert not damaged, "a damaged log goes on"
    if not served[NEVER][1]:
        served[NEVER] = (more, False)


@cache
def _sound() -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Files of a journal as a kill leaves them, and what its logs hold; `early` is not in the last segments."""
    return asyncio.run(_filled())


async def _filled() -> tuple[dict[str, bytes], dict[str, bytes]]:
    logs = dict.fromkeys(("early", "s", "t"), b"")
    with tempfile.TemporaryDirectory(dir=_memory()) as place:
        journal = Journal(Path(place), sizes=SMALL)
        for number, record in enumerate(commit_records() * 2):
            for name in ("s", "t", "early") if number < 2 else ("s", "t"):
                state = journal.state(name)
                await journal.append(name, record.encode(), state.version if state else None)
                logs[name] += record.encode()
        found = {name: (Path(place) / name).read_bytes() for name in os.listdir(place)}
        journal.close()
    return found, logs


@cache
def _memory() -> str | None:
    """A folder in memory, where there is one: syncs cost nothing there."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


# -- to begin with, and to change --------------------------------------------------------------------------------------


def seeds() -> Iterator[tuple[int, bytes]]:
    """The kind, 0 to 2, and an input of it."""
    sound, _ = _sound()
    for name in sorted(sound):
        if name.endswith(".journal"):
            frames = sound[name][HEAD_SIZE:].rstrip(b"\0")
            yield 0, b"\0\0\0" + frames
            yield 0, (HEAD_SIZE + len(frames)).to_bytes(2, "big") + b"\1" + frames
    yield 0, b"\0\0\0" + encode_frame(Frame("a", 0, LogState(1, 3, None, 1)), b"abc", HEAD_SIZE)[0]
    yield 1, _packed(sound)
    yield 1, _packed({"mark": sound["mark"]})
    yield 1, _packed({name: octets for name, octets in sound.items() if name != "00000002.journal"})
    yield 2, b""
    for what in (0, 1, 2):
        yield 2, _CHANGE.pack(0, 150, 40, what) + _CHANGE.pack(1, 80, 4, 255)


def _packed(contents: dict[str, bytes]) -> bytes:
    return b"".join(
        _SIZE.pack(len(contents[name])) + contents[name] if name in contents else b"\xff\xff" for name in _NAMES
    )


def _unpacked(data: bytes) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    for name in _NAMES:
        size = int.from_bytes(data[:2], "big")
        if size != 0xFFFF:
            contents[name] = data[2 : 2 + size]
        data = data[2:] if size == 0xFFFF else data[2 + size :]
    return contents


def mutate(kind: int, data: bytes, luck: Random, octets: Octets) -> bytes:
    """Change frames with their checksums mended, files as wholes, or the list of damages."""
    if kind == 0:
        return data[:3] + _mutate_frames(data[3:], luck, octets)
    if kind == 1:
        return _mutate_files(data, luck, octets)
    at = luck.randrange(CHANGES) * _CHANGE.size
    change = _CHANGE.pack(
        luck.randrange(8), luck.randrange(900), luck.randrange(900), luck.choice((0, 1, 2, 255, 1 << 4))
    )
    return data[:at].ljust(at, b"\0") + change + data[at + _CHANGE.size :]


def _mutate_files(data: bytes, luck: Random, octets: Octets) -> bytes:
    contents = _unpacked(data)
    name = luck.choice(_NAMES)
    content = contents.get(name, b"")
    match luck.randrange(5):
        case 0:
            contents.pop(name, None)
        case 1:
            contents[name] = contents.get(luck.choice(_NAMES), b"")
        case 2 if name.endswith(".journal"):
            head = encode_head(Head(int(name[:8]), luck.randrange(4), luck.choice((0, 36, len(content)))))
            contents[name] = head + content[HEAD_SIZE:]
        case 2:
            form = (luck.randrange(7), luck.randrange(900)) if name == "mark" else (luck.randrange(4),)
            fields = struct.pack(f">{len(form)}Q", *form)
            contents[name] = fields + crc32(fields).to_bytes(4, "big")
        case 3 if len(content) > HEAD_SIZE:
            contents[name] = content[:HEAD_SIZE] + _mutate_frames(content[HEAD_SIZE:], luck, octets)
        case _:
            contents[name] = octets(content, len(content) + 16)
    return _packed(contents)


_HEADER = struct.Struct(">4sHBIQQQQQII")  # written out again: what is on disk must stay readable
_LARGEST = {1: 1 << 16, 2: 1 << 8, 3: 1 << 32}


def _mutate_frames(data: bytes, luck: Random, octets: Octets) -> bytes:
    """Change one frame, its place, or one of its fields."""
    frames = [MAGIC + part for part in data.split(MAGIC)[1:]]
    if not frames:
        return octets(data, len(data) + 16)
    at = luck.randrange(len(frames))
    match luck.randrange(6):
        case 0:
            frames.insert(at, luck.choice(frames))
        case 1:
            del frames[at]
        case 2:
            frames.append(frames.pop(at))
        case 3:
            frames[at] = octets(frames[at], len(frames[at]) + 16)
        case _:
            frames[at] = _mended(frames[at], luck, octets)
    return b"".join(frames)


def _mended(frame: bytes, luck: Random, octets: Octets) -> bytes:
    """A frame with one field or its payload changed, and checksums that fit again."""
    if len(frame) < _HEADER.size:
        return octets(frame, len(frame) + 16)
    fields = list(_HEADER.unpack_from(frame))
    body = frame[_HEADER.size :]
    field = luck.randrange(1, 10)
    if field == 9:
        body = octets(body, len(body) + 8)
    elif field < 4:
        fields[field] = luck.choice((0, 1, 2, 255, max(0, len(body) - 1), len(body), len(body) + 1)) % _LARGEST[field]
    else:
        near = (max(0, fields[field] - 1), (fields[field] + 1) % 2**64)
        fields[field] = luck.choice((0, 1, 100, 2**63, 2**64 - 1, *near))
    name, payload = body[: fields[1]], body[fields[1] : fields[1] + fields[3]]
    fields[9] = crc32(payload)
    head = _HEADER.pack(*fields[:10], 0)[:-4]
    return head + crc32(name, crc32(head)).to_bytes(4, "big") + body
