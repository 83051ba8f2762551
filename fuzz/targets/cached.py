"""What a cache hands back and a role believes or not: KV objects, bodies in zstd, manifests (D44, D45, D46).

The first octet of an input says what the rest is: a KV object after an octet of options (bit 0: its tag is mended, as a
member of the group could do), the text of a layout, a body after an octet that names its content coding, or a manifest.

What must hold. KV: ValueError in a short sentence, or the octets that these facts and this key give, as views; never
anything with another key. A body: one of the three documented refusals, or octets within the limit that say the same
when they are coded again. A manifest: MalformedBody, BadContract or InvalidContent, after the records before it; the
same state whether it is read at once or record by record; and a session can be taken up from whatever it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from random import Random

from fuzz.attempts import attempt
from fuzz.cbor_mutator import Octets, mutate_sequence
from fuzz.seeds import manifest_bodies
from sdcp.errors import BadContract, BodyTooLarge, InvalidContent, MalformedBody, UnsupportedMediaType
from sdcp.http.codings import code, decoded
from sdcp.machines.effects import AppendManifest, ReadManifest
from sdcp.machines.inputs import LogAppended, LogMoved, LogRead, ManifestAnswered, TakenUp
from sdcp.machines.manifest import Manifest
from sdcp.machines.manifest_log import ManifestLog
from sdcp.machines.router import Patience, RouterSession
from sdcp.machines.router_kept import KeptSession
from sdcp.messages.manifest import TakenRecord
from sdcp.wire import cbor
from sdcp.wire.kv_object import TAG, KvBlock, KvLayout, _tag, decode_kv, encode_kv, facts_of, kv_size, parse_layout

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
LAYOUT = KvLayout("llama:lean:float32:cpu", "F32", ((1, 2, 2),) * 9)
FACTS = facts_of(b"m" * 32, str(LAYOUT), (1, 2, 3), 3)
LONGEST_REFUSAL = 300
LIMIT = 1 << 16
CODINGS = ("zstd", "identity", "", "gzip", " ZSTD ", "zstd, zstd")
TAKEN = TakenRecord(router="https://router/", life=b"n" * 16)
MANIFEST = "https://cache/logs/m"


def one(data: bytes) -> None:
    """Try one of the four."""
    kind = data[0] % len(_KINDS) if data else 0
    _KINDS[kind](data[1:])


# -- KV ----------------------------------------------------------------------------------------------------------------


def _kv(data: bytes) -> None:
    options, octets = data[:1], data[1:]
    if options and options[0] & 1 and len(octets) >= TAG:
        octets = octets[:-TAG] + _tag(KEY, memoryview(octets)[:-TAG])
    block, refusal = attempt(lambda: decode_kv(octets, FACTS, KEY), ValueError)
    if block is None:
        assert len(str(refusal)) <= LONGEST_REFUSAL, "a refusal that is no sentence"
        assert "altered" not in str(refusal) or octets[-TAG:] != _tag(KEY, memoryview(octets)[:-TAG]), "it was not"
    else:
        assert encode_kv(block, FACTS, KEY) == octets, "accepted, and it is not what these tensors give"
        assert all(view.obj is octets for view in block.tensors.values() if isinstance(view, memoryview)), "a copy"
    _, refusal = attempt(lambda: decode_kv(octets, FACTS, OTHER_KEY), ValueError)
    assert refusal is not None, "believed without the right key"
    _, refusal = attempt(lambda: decode_kv(octets, replace(FACTS, tokens=bytes(32)), KEY), ValueError)
    assert refusal is not None, "believed of another prefix"


def _layout(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    layout, refusal = attempt(lambda: parse_layout(text), ValueError)
    if layout is None:
        assert len(str(refusal)) <= LONGEST_REFUSAL, "a refusal that is no sentence"
        return
    assert str(layout) == text, "a layout of two texts"
    size = kv_size(replace(FACTS, layout=text))
    assert size > layout.octets(FACTS.length) + TAG, "an object without a header"


# -- bodies ------------------------------------------------------------------------------------------------------------


def _body(data: bytes) -> None:
    named = CODINGS[data[0] % len(CODINGS)] if data else ""
    body = data[1:]
    headers = {"content-encoding": named} if named else {}
    plain, _ = attempt(lambda: decoded(headers, body, LIMIT), BodyTooLarge, MalformedBody, UnsupportedMediaType)
    if plain is None:
        assert named not in ("identity", ""), "refused, and it is not coded"
        return
    assert len(plain) <= LIMIT, "longer than the limit"
    assert decoded({"content-encoding": "zstd"}, code(plain), LIMIT) == plain if plain else not body, "another body"


# -- manifests ---------------------------------------------------------------------------------------------------------


def _manifest(data: bytes) -> None:
    told, refusal = _read([data])
    assert (refusal is None) == (told.size == len(data)), "octets passed over, or refused though all were read"
    again, refusal = _read([data[start:end] for start, end in _records(data[: told.size])])
    assert refusal is None, f"records that were read are refused one by one: {refusal}"
    assert _state(again) == _state(told), "read one by one, it says something else"
    first, _ = attempt(lambda: told.first, InvalidContent)
    assert (first is not None) == told.whole, "a first record without its prompt, or none with it"
    if first is not None:
        assert len(first.request.prompt) == first.prompt_length, "a prompt of another length"
        _take_up(told)


def _read(parts: Iterable[bytes]) -> tuple[Manifest, Exception | None]:
    manifest = Manifest()

    def take() -> None:
        for part in parts:
            manifest.take(part)

    return manifest, attempt(take, MalformedBody, BadContract, InvalidContent).refusal


def _records(data: bytes) -> Iterator[tuple[int, int]]:
    start = 0
    for end, _ in cbor.decode_sequence(data):
        yield start, end
        start = end


def _state(manifest: Manifest) -> dict[str, object]:
    return {**vars(manifest), "objects": manifest.objects}


def _take_up(told: Manifest) -> None:
    """As a router does; its own record is appended, once after the log was found to have moved."""
    first = told.first
    parts = first.session, first.contract, first.request.prompt, first.commit_log, Patience()
    machine, _ = attempt(lambda: RouterSession(*parts), ValueError)
    if machine is None:
        return
    if told.end is not None:
        machine.take_up(told)
        return
    last = told.last
    kept = KeptSession(machine, ManifestLog(MANIFEST, told, '"1"'), [TAKEN], told)
    (append,) = kept.handle(TakenUp())
    assert isinstance(append, AppendManifest), "something is done before the session is known to be ours"
    assert cbor.decode(append.data)["epoch"] == last + 1, "a record of another number"
    (read,) = kept.handle(ManifestAnswered(LogMoved(), append))
    assert isinstance(read, ReadManifest), "not read again, and it has moved"
    (append,) = kept.handle(ManifestAnswered(LogRead(told.size, b"", '"2"'), read))
    for effect in kept.handle(ManifestAnswered(LogAppended('"3"', 0), append)):
        message = getattr(effect, "message", None)
        if message is not None:
            message.encode()


_KINDS: tuple[Callable[[bytes], None], ...] = (_kv, _layout, _body, _manifest)


# -- to begin with, and to change --------------------------------------------------------------------------------------


def mutate(data: bytes, luck: Random, octets: Octets) -> bytes:
    """Change records as CBOR, KV mostly in its place and with a tag that fits; now and then octets."""
    if len(data) < 2 or luck.random() < 0.2:
        return octets(data, len(data) + 16)
    kind = data[0] % len(_KINDS)
    if kind == 3:
        return data[:1] + mutate_sequence(data[1:], luck, octets)
    if kind == 0:
        at = luck.randrange(2, len(data) + 1)
        piece = octets(data[at : at + 8], 8) if luck.random() < 0.5 else luck.choice(_PIECES)
        return data[:1] + bytes([luck.random() < 0.8]) + data[2:at] + piece + data[at + len(piece) :]
    return data[:2] + octets(data[2:], len(data) + 16)


_PIECES = (b"[" * 1200, b"{", b'"', b"null", b"\xff" * 8, b"9" * 40, b"__metadata__", b'"length":"4"', bytes(8))


def seeds() -> Iterable[bytes]:
    """Sound ones, and bombs."""
    block = KvBlock(str(LAYOUT), 3, {name: _values(shape) for name, shape in LAYOUT.tensors(3)})
    sound = bytes(encode_kv(block, FACTS, KEY))
    yield b"\0\0" + sound
    yield b"\0\1" + sound[:100] + b"x" + sound[101:]
    yield b"\0\1" + sound[:8] + b"[" * 1200 + sound[1208:]
    yield b"\1" + str(LAYOUT).encode()
    yield b"\1kv1/a/BF16/4096x8x128x128"
    for octets in (bytes(100), b"abc", bytes(range(256)) * 8, bytes(LIMIT + 1)):
        yield b"\2\0" + code(octets)
    yield b"\2\1abc"
    for body in manifest_bodies():
        yield b"\3" + body


def _values(shape: tuple[int, int, int]) -> bytes:
    return bytes(range(4)) * (shape[0] * shape[1] * shape[2])
