"""HTTP/2 frames (RFC 9113 section 4.1) to write, to take apart and to change.

Not here: what either end does with them (`fuzz.targets.http`), and plain octet mutation, which is libFuzzer's.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from fuzz.cbor_mutator import Octets, mutate_sequence

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
KINDS = (*range(10), 10, 12, 16)  # ALTSVC, ORIGIN and PRIORITY_UPDATE too
END_STREAM, END_HEADERS, PADDED = 1, 4, 8
STREAMS = (0, 1, 2, 3, 5, 7, 9, 2**31 - 1)


class Frame(NamedTuple):
    """One frame; `size` is what its head claims."""

    kind: int
    flags: int
    stream: int
    payload: bytes
    size: int

    def octets(self) -> bytes:
        """As it goes over the wire."""
        head = self.size.to_bytes(3, "big") + bytes([self.kind, self.flags]) + self.stream.to_bytes(4, "big")
        return head + self.payload


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """The octets of a frame that tells its true size."""
    return Frame(kind, flags, stream, payload, len(payload)).octets()


def fields(*pairs: tuple[str, str]) -> bytes:
    """A header block of literals that enter no table (RFC 7541 section 6.2.2)."""
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in pairs)


def _text(text: str) -> bytes:
    octets = text.encode("latin-1")
    return (bytes([len(octets)]) if len(octets) < 127 else b"\x7f" + bytes([len(octets) - 127])) + octets


def taken_apart(octets: bytes) -> list[Frame]:
    """The frames of what goes over the wire; the last may be cut short."""
    frames, at = [], 0
    while at + 9 <= len(octets):
        size = int.from_bytes(octets[at : at + 3], "big")
        stream = int.from_bytes(octets[at + 5 : at + 9], "big")
        frames.append(Frame(octets[at + 3], octets[at + 4], stream, octets[at + 9 : at + 9 + size], size))
        at += 9 + size
    return frames


def mutate(octets: bytes, luck: Random, blindly: Octets, spare: list[bytes]) -> bytes:
    """One to four changes of frames; `spare` are frames that may be put in."""
    frames = taken_apart(octets)
    for _ in range(luck.choice((1, 1, 2, 4))):
        at = luck.randrange(len(frames) + 1)
        if at == len(frames) or luck.random() < 0.25:
            frames[at:at] = taken_apart(luck.choice(spare)) if luck.random() < 0.7 else [_any(luck)]
        else:
            _change(frames, at, luck, blindly)
    return b"".join(each.octets() for each in frames)


def _any(luck: Random) -> Frame:
    payload = luck.randbytes(luck.choice((0, 1, 4, 5, 6, 8, 12, 40)))
    return Frame(luck.choice(KINDS), luck.choice((0, 1, 4, 5, 8, 0x2D)), luck.choice(STREAMS), payload, len(payload))


def _change(frames: list[Frame], at: int, luck: Random, blindly: Octets) -> None:
    one = frames[at]
    match luck.randrange(10):
        case 0:
            del frames[at]
        case 1:
            frames[at:at] = [one] * luck.choice((1, 1, 2, 30))
        case 2:
            frames.append(frames.pop(at))
        case 3:
            frames[at] = one._replace(stream=luck.choice(STREAMS))
        case 4:
            frames[at] = one._replace(flags=one.flags ^ luck.choice((1, 4, 8, 0x20)))
        case 5:
            frames[at] = one._replace(
                size=luck.choice((0, min(one.size + 1, 2**24 - 1), max(0, one.size - 1), 16384, 16385, 2**24 - 1))
            )
        case 6:
            frames[at] = one._replace(kind=luck.choice(KINDS))
        case 7:
            cut = luck.randrange(len(one.payload) + 1)
            parts = (one.payload[:cut], one.payload[cut:])
            kinds = (one.kind, CONTINUATION if one.kind == HEADERS else one.kind)
            flags = (one.flags & ~END_HEADERS, one.flags | END_HEADERS)
            frames[at : at + 1] = [
                Frame(kind, flag, one.stream, part, len(part))
                for kind, flag, part in zip(kinds, flags, parts, strict=True)
            ]
        case 8 if one.kind == DATA:
            payload = mutate_sequence(one.payload, luck, blindly)[:16000]
            frames[at] = one._replace(payload=payload, size=len(payload))
        case _:
            payload = blindly(one.payload, len(one.payload) + 16)
            frames[at] = one._replace(payload=payload, size=len(payload))
