"""KV objects: what is written is read back, and nothing else is (D44)."""

from __future__ import annotations

import dataclasses
import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load

from sdcp.wire.kv_object import (
    TAG,
    KvBlock,
    KvFacts,
    KvLayout,
    decode_kv,
    encode_kv,
    facts_of,
    kv_size,
    parse_layout,
    prefix_names,
    tokens_digest,
)

KEY = bytes(range(32))
MODEL = bytes(31) + b"m"
LAYOUT = KvLayout("llama:lean:float32:cpu", "F32", ((2, 4, 4), (2, 4, 4), (1, 3, 2)))
PROMPT = [7, 1, 9, 4_000_000_000, 5]


def block_of(layout: KvLayout, length: int, head: int = 0, seed: int = 0) -> KvBlock:
    random = np.random.default_rng(seed)
    width = {"F32": 4, "F16": 2, "BF16": 2}[layout.dtype]
    tensors = {name: random.bytes(int(np.prod(shape)) * width) for name, shape in layout.tensors(head + length)}
    return KvBlock(str(layout), length, tensors, head)


FACTS = facts_of(MODEL, str(LAYOUT), PROMPT, 3)
BLOCK = block_of(LAYOUT, 3)
DATA = bytes(encode_kv(BLOCK, FACTS, KEY))


def octets(block: KvBlock) -> dict[str, bytes]:
    return {name: bytes(each) for name, each in block.tensors.items()}


layouts = st.builds(
    KvLayout,
    st.from_regex(r"[A-Za-z0-9._:+-]{1,40}", fullmatch=True),
    st.sampled_from(["F32", "F16", "BF16"]),
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=5).map(tuple),
)


@given(layouts)
def test_a_layout_is_read_as_it_was_written(layout: KvLayout):
    assert parse_layout(str(layout)) == layout


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kv2/a/F32/1x1x1x1",
        "kv1/a/F64/1x1x1x1",
        "kv1/a/F32/1x1x1",
        "kv1/a/F32/1x1x1x1+",
        "kv1/a/F32/1x1x1x1+1x1x1x1",  # 2x1x1x1
        "kv1/a/F32/01x1x1x1",
        "kv1/a/F32/0x1x1x1",
        "kv1/a/F32/999999x1x1x1",
        "kv1/a b/F32/1x1x1x1",
        "kv1/a/F32/1x1x1x1\n",
        "kv1/a/F32/" + "+".join(f"1x1x1x{n % 2}" for n in range(400)),
    ],
)
def test_what_is_no_layout(text: str):
    with pytest.raises(ValueError, match="not a KV layout"):
        parse_layout(text)


@pytest.mark.decision("D44-file")
@given(layouts, st.integers(0, 5), st.integers(0, 1), st.binary(min_size=32, max_size=64))
def test_what_is_written_is_read_back(layout: KvLayout, length: int, head: int, key: bytes):
    block = block_of(layout, length, head)
    facts = KvFacts(MODEL, str(layout), bytes(32), length, head)
    data = encode_kv(block, facts, key)
    assert len(data) == kv_size(facts)
    read = decode_kv(data, facts, key)
    assert (read.layout, read.length, read.head) == (str(layout), length, head)
    assert octets(read) == octets(block)


@pytest.mark.decision("D44-file")
def test_any_reader_of_safetensors_opens_it(tmp_path: Any):
    (tmp_path / "kv.safetensors").write_bytes(DATA)
    with safe_open(tmp_path / "kv.safetensors", framework="numpy") as file:
        assert file.metadata() == {
            "format": "sdcp-kv-1",
            "head": "0",
            "layout": str(LAYOUT),
            "length": "3",
            "model": MODEL.hex(),
            "prefix": tokens_digest(PROMPT[:3]).hex(),
        }
    tensors = load(DATA)
    assert {name: tensor.shape for name, tensor in tensors.items()} == {**dict(LAYOUT.tensors(3)), "tag": (TAG,)}
    assert all(tensors[name].tobytes() == each for name, each in octets(BLOCK).items())


@pytest.mark.decision("D44-tag")
def test_every_octet_altered_is_refused():
    for at in range(len(DATA)):
        altered = bytearray(DATA)
        altered[at] ^= 1 << at % 8
        with pytest.raises(ValueError, match="was altered"):
            decode_kv(bytes(altered), FACTS, KEY)


@pytest.mark.decision("D44-tag")
@given(st.data())
@settings(max_examples=300)
def test_nothing_but_the_object_itself_is_taken(data: st.DataObject):
    """Pieces replaced, cut out, put in, or moved: what is decoded was encoded."""
    start, stop = sorted((data.draw(st.integers(0, len(DATA))), data.draw(st.integers(0, len(DATA)))))
    altered = DATA[:start] + data.draw(st.binary(max_size=40) | st.just(DATA[start:stop][::-1])) + DATA[stop:]
    if altered == DATA:
        assert octets(decode_kv(altered, FACTS, KEY)) == octets(BLOCK)
    else:
        with pytest.raises(ValueError, match="KV object"):
            decode_kv(altered, FACTS, KEY)


@pytest.mark.decision("D44-tag")
@pytest.mark.parametrize("data", [b"", DATA[:-1], DATA + b"\x00", DATA[:100], DATA + DATA, DATA[TAG:]])
def test_truncated_and_extended(data: bytes):
    with pytest.raises(ValueError, match=f"would have {len(DATA)}"):
        decode_kv(data, FACTS, KEY)


@pytest.mark.decision("D44-tag")
def test_of_another_group():
    with pytest.raises(ValueError, match="this group"):
        decode_kv(DATA, FACTS, KEY[::-1])
    untagged = DATA[:-TAG] + bytes(TAG)
    with pytest.raises(ValueError, match="this group"):
        decode_kv(untagged, FACTS, KEY)


@pytest.mark.decision("D44-group")
def test_a_short_secret_is_refused():
    for call in (lambda k: encode_kv(BLOCK, FACTS, k), lambda k: decode_kv(DATA, FACTS, k)):
        with pytest.raises(ValueError, match="at least 32 octets, not 31"):
            call(KEY[:31])
    with pytest.raises(ValueError, match="at least 32 octets"):
        prefix_names(b"", MODEL, str(LAYOUT), PROMPT, 2)


@pytest.mark.decision("D44-match")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": bytes(32)}, "another model"),
        ({"tokens": tokens_digest([*PROMPT[:2], 8])}, "another prefix"),
        ({"layout": str(LAYOUT).replace("float32", "float23")}, "another layout"),
        ({"layout": str(LAYOUT).replace("F32", "F16")}, "octets"),
        ({"layout": str(LAYOUT).replace("2x2x4x4", "2x4x2x4")}, "octets"),
        ({"length": 4}, "octets"),
        ({"length": 2}, "octets"),
        ({"length": 2, "head": 1}, "another head"),
    ],
)
def test_what_does_not_match_exactly_is_refused(change: dict[str, Any], reason: str):
    with pytest.raises(ValueError, match=reason):
        decode_kv(DATA, dataclasses.replace(FACTS, **change), KEY)


@pytest.mark.decision("D44-match")
def test_a_header_written_otherwise_is_refused():
    """By one who has the secret: the same JSON with a space is another form."""
    size = struct.unpack("<Q", DATA[:8])[0]
    header = json.loads(DATA[8 : 8 + size])
    other = json.dumps(header, separators=(",", ": ")).encode()[:size].ljust(size)
    from sdcp.wire.kv_object import _tag

    body = DATA[:8] + other + DATA[8 + size : -TAG]
    with pytest.raises(ValueError, match="another form"):
        decode_kv(body + _tag(KEY, memoryview(body)), FACTS, KEY)


def test_a_header_of_too_many_levels_is_refused():
    """By one who has the secret, too."""
    from sdcp.wire.kv_object import _tag

    layout = KvLayout("a", "F32", ((1, 1, 1),) * 9)
    facts = facts_of(MODEL, str(layout), PROMPT, 3)
    body = bytes(encode_kv(block_of(layout, 3), facts, KEY))[:-TAG]
    body = body[:8] + b"[" * 1200 + body[1208:]
    with pytest.raises(ValueError, match="another form"):
        decode_kv(body + _tag(KEY, memoryview(body)), facts, KEY)


def test_a_block_that_is_not_what_it_says_is_not_written():
    lacking = dict(list(BLOCK.tensors.items())[1:])
    longer = {**BLOCK.tensors, "layer.0001.keys": bytes(5)}
    more = {**BLOCK.tensors, "layer.0009.keys": b""}
    for tensors, name in ((lacking, "layer.0000.keys"), (longer, "layer.0001.keys"), (more, "layer.0009.keys")):
        with pytest.raises(ValueError, match=f"tensor {name}"):
            encode_kv(dataclasses.replace(BLOCK, tensors=tensors), FACTS, KEY)
    with pytest.raises(ValueError, match="layout and length"):
        encode_kv(BLOCK, dataclasses.replace(FACTS, length=4), KEY)


# -- prefixes and names ------------------------------------------------------------------------------------------------


@pytest.mark.decision("D44-prefix")
def test_a_digest_of_tokens_tells_bos_and_lengths_apart():
    digests = [tokens_digest(each, empty) for each in ([], [0], [0, 0], [256], [1], [2]) for empty in (False, True)]
    assert len(set(digests)) == len(digests)
    assert facts_of(MODEL, "l", PROMPT, 2).tokens == tokens_digest(PROMPT[:2])


@pytest.mark.decision("D44-names")
@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(1, 8), st.data())
def test_names_are_those_of_common_prefixes_alone(tokens: list[int], block: int, data: st.DataObject):
    """At each multiple of the block; equal exactly as far as the tokens are."""
    names = prefix_names(KEY, MODEL, str(LAYOUT), tokens, block)
    assert [length for length, _ in names] == list(range(block, len(tokens) + 1, block))
    assert len({name for _, name in names}) == len(names)
    other = list(tokens)
    at = data.draw(st.integers(0, len(tokens)))
    other[at:] = [token ^ 1 for token in other[at:]]
    shared = [each for each in names if each[0] <= at]
    assert prefix_names(KEY, MODEL, str(LAYOUT), other, block)[: len(shared)] == shared
    assert not {name for _, name in names[len(shared) :]} & {
        name for _, name in prefix_names(KEY, MODEL, str(LAYOUT), other, block)
    }


@pytest.mark.decision("D44-names")
def test_names_differ_by_group_model_and_layout():
    from sdcp.stores.store import NAME

    given = [(KEY, MODEL, "a"), (KEY[::-1], MODEL, "a"), (KEY, bytes(32), "a"), (KEY, MODEL, "b")]
    names = [prefix_names(*each, PROMPT, 4)[0][1] for each in given]
    assert len(set(names)) == len(names)
    assert all(NAME.fullmatch(name) and len(name) == 33 for name in names)
