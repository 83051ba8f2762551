"""KV that is taken over from another engine or an earlier session, against a twin that computes from nothing (D44)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sdcp.engines.linears import chosen_precision
from sdcp.engines.prefixes import PAGE, PrefixStore
from sdcp.engines.ragged import Piece, SessionKV
from sdcp.engines.transformers import TransformersTarget
from sdcp.errors import ConfigurationError, Overloaded
from sdcp.messages.contract import Sampling
from sdcp.ports import PrefillJob, VerifyJob
from sdcp.wire.kv_object import decode_kv, encode_kv, facts_of
from tests.engines.conftest import V

Folder = Callable[[str], Path]

A, B = b"a", b"b"
PACKED = chosen_precision("auto", torch.device("cpu")) == "packed-float16"
needs_packed = pytest.mark.skipif(not PACKED, reason="needs an x86 CPU and a PyTorch with fbgemm")
EXACT = ["float32", pytest.param("packed-float16", marks=needs_packed)]
PRECISIONS = [*EXACT, "bfloat16"]
KEY = bytes(32)


def target(path: Path, precision: str = "float32", **options: Any) -> TransformersTarget:
    return TransformersTarget(path, bytes(32), **{"precision": precision, "threads": 2, **options})


def tokens_of(seed: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, V, count)]


def prefilled(
    engine: TransformersTarget, session: bytes, prefix: list[int], budget: int = 50, empty: bool = False
) -> None:
    while not engine.prefill([PrefillJob(session, prefix, len(prefix), empty)], budget)[0]:
        pass


class Counted:
    """How many tokens an engine computes."""

    def __init__(self, engine: TransformersTarget) -> None:
        self._engine, self._run = engine, engine._causal.run
        self.tokens = 0

    def __enter__(self) -> Counted:
        self._engine._causal.run = self._counting  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self._engine._causal.run = self._run  # type: ignore[method-assign]

    def _counting(self, pieces: list[Piece]) -> Any:
        self.tokens += sum(len(piece.tokens) for piece in pieces)
        return self._run(pieces)


# -- a tile's rows -----------------------------------------------------------------------------------------------------


@pytest.mark.decision("D44-same")
@pytest.mark.parametrize("precision", EXACT)
@pytest.mark.parametrize("name", ["llama-gqa-tied", "llama-biased", "llama-wide"])
def test_kv_is_the_same_bits_however_its_tokens_were_cut_into_passes(folder: Folder, name: str, precision: str):
    """Also beyond the lengths at which a library sums in another order."""
    engine = target(folder(name), precision)
    tokens, random = tokens_of(1, 250), np.random.default_rng(2)
    whole = SessionKV()
    logits = engine._causal.run([Piece(whole, tokens, 250)])
    assert logits is not None
    for cuts in ([100], [186], [191, 192, 193], sorted(random.choice(np.arange(1, 250), 60, replace=False).tolist())):
        kv, rows = SessionKV(), []
        for low, high in zip([0, *cuts], [*cuts, 250], strict=True):
            rows.append(engine._causal.run([Piece(kv, tokens[low:high], high - low)]))
        assert torch.equal(torch.cat(rows), logits)
        for (keys, values), (other_keys, other_values) in zip(
            kv.copied(0, 250).values(), whole.copied(0, 250).values(), strict=True
        ):
            assert torch.equal(keys, other_keys)
            assert torch.equal(values, other_values)


# -- out of one engine, into another -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(folder: Folder) -> Callable[[str, str], tuple[TransformersTarget, TransformersTarget]]:
    """Two engines of one model that share nothing, made once; tests close their sessions."""
    made: dict[tuple[str, str], tuple[TransformersTarget, TransformersTarget]] = {}

    def make(name: str, precision: str) -> tuple[TransformersTarget, TransformersTarget]:
        if (name, precision) not in made:
            one, other = (target(folder(name), precision, kv_cache_bytes=0) for _ in range(2))
            made[name, precision] = one, other
        return made[name, precision]

    return make


Pair = Callable[[str, str], tuple[TransformersTarget, TransformersTarget]]


@pytest.mark.decision("D44-same")
@pytest.mark.parametrize("length", [149, 130, 64, 1])
@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["llama-gqa-tied", "llama-wide", "mistral-window", "gpt2"])
def test_an_engine_goes_on_from_the_kv_of_another_as_that_one_does(
    pair: Pair, name: str, precision: str, empty: bool, length: int
):
    """Through the file, at full and partial lengths, with a prompt and without: the same logits, bit for bit."""
    giver, taker = pair(name, precision)
    prefix = tokens_of(3, 150)
    prefilled(giver, A, prefix[: length + 1], empty=empty)
    block = giver.export_kv(A, prefix, length)
    assert block is not None
    facts = facts_of(giver.model, giver.kv_layout, prefix, length, empty_prompt=empty)
    read = decode_kv(bytes(encode_kv(block, facts, KEY)), facts, KEY)
    assert taker.import_kv(B, prefix, length, read, empty_prompt=empty) == length + empty
    with Counted(taker) as counted:
        logits = taker.next_logits(B, prefix, 150)
    assert counted.tokens == 150 - length
    assert np.array_equal(logits, giver.next_logits(A, prefix, 150))
    if precision != "bfloat16" and name.startswith("llama"):  # others run forwards that promise less
        giver.close(A)
        prefilled(giver, A, prefix, budget=33, empty=empty)
        assert np.array_equal(logits, giver.next_logits(A, prefix, 150))
    giver.close(A)
    taker.close(B)


def test_kv_that_is_given_away_is_a_copy(pair: Pair):
    giver, taker = pair("llama-wide", "float32")
    prefix = tokens_of(4, 64)
    prefilled(giver, A, prefix)
    block = giver.export_kv(A, prefix, 63)
    assert block is not None
    before = {name: bytes(octets) for name, octets in block.tensors.items()}
    logits = giver.next_logits(A, prefix, 64)
    giver.verify([verify(A, tokens_of(5, 64))])  # the session goes back and computes other tokens
    assert {name: bytes(octets) for name, octets in block.tensors.items()} == before
    taker.import_kv(B, prefix, 63, block)
    taker.next_logits(B, prefix, 64)
    assert {name: bytes(octets) for name, octets in block.tensors.items()} == before
    assert np.array_equal(taker.next_logits(B, prefix, 64), logits)
    giver.close(A)
    taker.close(B)


def test_what_is_not_held_is_not_given(pair: Pair):
    giver, _ = pair("llama-wide", "float32")
    prefix = tokens_of(4, 20)
    assert giver.export_kv(A, prefix, 5) is None
    prefilled(giver, A, prefix[:11])
    assert giver.export_kv(A, prefix, 11) is None
    assert giver.export_kv(A, prefix, 10) is not None
    assert giver.export_kv(A, [*prefix[:4], prefix[4] ^ 1, *prefix[5:]], 10) is None
    assert giver.export_kv(A, prefix, 0) is None
    giver.close(A)
    assert giver.export_kv(A, prefix, 5) is None


def test_a_session_takes_up_only_what_it_lacks(pair: Pair):
    giver, taker = pair("llama-wide", "float32")
    prefix = tokens_of(6, 80)
    prefilled(giver, A, prefix)
    short, long = giver.export_kv(A, prefix, 30), giver.export_kv(A, prefix, 70)
    assert short is not None
    assert long is not None
    prefilled(taker, B, prefix[:41])
    assert taker.import_kv(B, prefix, 30, short) == 0
    assert taker.import_kv(B, prefix, 70, long) == 30
    with Counted(taker) as counted:
        prefilled(taker, B, prefix)
    assert counted.tokens == 9
    giver.close(A)
    taker.close(B)


@pytest.mark.decision("D44-match")
def test_a_block_that_does_not_fit_is_refused(pair: Pair, folder: Folder):
    giver, taker = pair("llama-wide", "float32")
    prefix = tokens_of(6, 40)
    prefilled(giver, A, prefix)
    block = giver.export_kv(A, prefix, 30)
    assert block is not None
    cut = {**block.tensors, "layer.0001.values": b""}
    for wrong, reason in (
        (dataclasses.replace(block, tensors=cut), r"tensor layer\.0001\.values"),
        (dataclasses.replace(block, layout=block.layout.replace("kv1", "kv9")), "of the layout"),
        (dataclasses.replace(block, length=29), "not of this prefix"),
        (dataclasses.replace(block, head=1), "not of this prefix"),
    ):
        with pytest.raises(ValueError, match=reason):
            taker.import_kv(B, prefix, 30, wrong)
    with pytest.raises(ValueError, match="of the layout"):
        pair("llama-gqa-tied", "float32")[0].import_kv(B, prefix, 30, block)
    with Counted(taker) as counted:
        prefilled(taker, B, prefix)
    assert counted.tokens == 39  # nothing of it was taken
    full = target(folder("llama-wide"), capacity=1)
    prefilled(full, A, prefix)
    with pytest.raises(Overloaded):
        full.import_kv(B, prefix, 30, block)
    giver.close(A)
    taker.close(B)


@pytest.mark.decision("D44-layout")
def test_a_layout_names_what_decides_over_the_bits(folder: Folder):
    engines = [
        target(folder("llama-gqa-tied")),
        target(folder("llama-gqa-tied"), lean=False),
        target(folder("llama-gqa-tied"), "bfloat16"),
        target(folder("llama-wide")),
        target(folder("gpt2")),
    ]
    layouts = [engine.kv_layout for engine in engines]
    assert len(set(layouts)) == len(layouts)
    assert all(torch.__version__ in layout and ":cpu:" in layout for layout in layouts)
    assert layouts[0].endswith("/F32/2x2x8x8")
    assert layouts[2].endswith("/BF16/2x2x8x8")
    assert target(folder("llama-gqa-tied")).kv_layout == layouts[0]


# -- from an earlier session -------------------------------------------------------------------------------------------


@pytest.mark.decision("D44-reuse")
@pytest.mark.parametrize("common", [1, 63, 64, 65, 127, 128, 129, 140, 148, 149])
def test_exactly_what_is_common_is_not_computed_again(folder: Folder, common: int):
    engine = target(folder("llama-wide"))
    first, second = tokens_of(7, 150), tokens_of(7, 150)
    second[common:] = [token ^ 1 for token in second[common:]]
    prefilled(engine, A, first)
    with Counted(engine) as counted:
        prefilled(engine, B, second)
    assert counted.tokens == 149 - min(common, 149)
    engine.close(A)
    engine.close(B)


@pytest.mark.decision("D44-reuse")
def test_prompts_that_differ_in_their_last_token_alone(folder: Folder):
    """The last token's KV is neither taken over nor needed; what comes after it differs."""
    engine, twin = target(folder("llama-wide")), target(folder("llama-wide"), kv_cache_bytes=0)
    prompt = tokens_of(8, 129)
    prefilled(engine, A, prompt, budget=512)
    engine.close(A)  # which computed the last token, too, had it been asked to
    engine.next_logits(A, prompt, 129)
    engine.close(A)
    for last in (prompt[-1], prompt[-1] ^ 1, prompt[-1] ^ 2):
        other = [*prompt[:-1], last]
        with Counted(engine) as counted:
            logits = engine.next_logits(B, other, 129)
        assert counted.tokens == 1
        prefilled(twin, B, other, budget=512)
        assert np.array_equal(logits, twin.next_logits(B, other, 129))
        engine.close(B)
        twin.close(B)


@pytest.mark.decision("D44-reuse")
def test_prompts_that_are_computed_at_the_same_time_are_computed_once(folder: Folder):
    engine = target(folder("llama-wide"))
    prompts = [[*tokens_of(9, 192), number] for number in range(4)]
    waiting = [PrefillJob(bytes([n]), prompt, len(prompt)) for n, prompt in enumerate(prompts)]
    with Counted(engine) as counted:
        while waiting:
            done = engine.prefill(waiting, 64)
            waiting = [job for job, complete in zip(waiting, done, strict=True) if not complete]
            waiting = waiting[1:] + waiting[:1]
    assert counted.tokens == 192


@pytest.mark.decision("D44-reuse")
def test_a_session_that_lost_its_kv_finds_it_again(folder: Folder):
    """Also with output, and when nobody prefills."""
    engine = target(folder("llama-wide"))
    prefix = tokens_of(10, 100)
    prefilled(engine, A, prefix[:90])
    engine.next_logits(A, prefix, 100)
    engine.close(A)
    with Counted(engine) as counted:
        engine.verify([verify(A, prefix)])
    assert counted.tokens == 1


@pytest.mark.decision("D44-reuse")
def test_sessions_with_and_without_a_prompt(folder: Folder):
    """BOS before an empty prompt is a token like any other; without it, the same tokens are another prefix (D26)."""
    engine = target(folder("llama-wide"))
    output = tokens_of(11, 70)
    prefilled(engine, A, output, empty=True)
    engine.close(A)
    with Counted(engine) as counted:
        prefilled(engine, B, output)
    assert counted.tokens == 69
    engine.close(B)
    with Counted(engine) as counted:
        prefilled(engine, B, output, empty=True)
        prefilled(engine, A, [1, *output])
    assert counted.tokens == 0


def test_what_need_not_be_computed_is_told(folder: Folder):
    engine = target(folder("llama-wide"))
    prefix = tokens_of(12, 100)
    assert engine.held_kv(A, prefix, 100) == 0
    prefilled(engine, A, prefix)
    assert engine.held_kv(A, prefix, 100) == 99
    assert engine.held_kv(A, prefix, 40) == 40
    assert engine.held_kv(A, prefix, 100) == 99  # asking changed nothing
    assert engine.held_kv(B, [*prefix[:70], 0, 1], 72) == 70
    assert engine.held_kv(b"c", [1, *prefix], 101, empty_prompt=True) == 0
    engine.close(A)
    engine.close(B)
    assert engine.held_kv(b"d", prefix, 99) == 99
    with Counted(engine) as counted:
        engine.next_logits(b"d", prefix, 100)
    assert counted.tokens == 1


def test_what_is_kept_takes_no_place_of_a_session_and_no_more_than_it_may(folder: Folder):
    most = 300 * 2 * 2 * 3 * 64 * 4  # 300 tokens of 2 layers, keys and values, 3 heads of 64 float32
    engine = target(folder("llama-wide"), capacity=1, kv_cache_bytes=most)
    for seed in range(8):
        prefilled(engine, A, tokens_of(seed, 129))
        with pytest.raises(Overloaded):
            engine.prefill([PrefillJob(B, [1, 2], 2)], 9)
        engine.close(A)
        assert 0 < engine._prefixes.octets <= most
    with Counted(engine) as counted:
        prefilled(engine, A, tokens_of(7, 129))
        engine.close(A)
        prefilled(engine, A, tokens_of(0, 129))
    assert counted.tokens == 128  # the latest is there, the first is not


def test_keeping_can_be_turned_off(folder: Folder):
    engine = target(folder("llama-wide"), kv_cache_bytes=0)
    prefilled(engine, A, tokens_of(1, 70))
    engine.close(A)
    with Counted(engine) as counted:
        prefilled(engine, A, tokens_of(1, 70))
    assert counted.tokens == 69
    with pytest.raises(ConfigurationError, match="kv_cache_bytes"):
        target(folder("llama-wide"), kv_cache_bytes=-1)


@pytest.mark.decision("D44-reuse", "D44-same")
@given(st.data())
@settings(deadline=None, max_examples=60)
def test_reuse_never_shows_in_any_logits(exact: tuple[TransformersTarget, TransformersTarget], data: st.DataObject):
    """Sessions come, grow and go, with prefixes that branch off each other anywhere; the store is small."""
    engine, twin = exact
    engine._prefixes = PrefixStore(400 * OCTETS)
    prefixes: list[list[int]] = [[0]]
    sessions: dict[bytes, list[int]] = {}
    for _ in range(data.draw(st.integers(1, 8))):
        session = data.draw(st.sampled_from([b"1", b"2", b"3"]))
        begun = sessions.get(session) if data.draw(st.booleans()) else None
        if begun is None:
            engine.close(session)
            base = data.draw(st.sampled_from(prefixes))
            begun = base[: data.draw(st.integers(0, len(base)))]
        prefix = [*begun, *data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=80))]
        prefixes.append(prefix)
        sessions[session] = prefix
        if data.draw(st.booleans()):
            prefilled(engine, session, prefix, budget=data.draw(st.integers(1, 200)))
        logits = engine.next_logits(session, prefix, len(prefix))
        assert np.array_equal(logits, twin.next_logits(A, prefix, len(prefix)))
        twin.close(A)
    for session in sessions:
        engine.close(session)


OCTETS = 2 * 2 * 2 * 8 * 4
"""Of a token's KV: 2 layers, keys and values, 2 heads of 8 float32."""


@pytest.fixture(scope="module", params=EXACT)
def exact(folder: Folder, request: pytest.FixtureRequest) -> tuple[TransformersTarget, TransformersTarget]:
    """Two engines, of which the second keeps nothing."""
    path = folder("llama-gqa-tied")
    return target(path, request.param), target(path, request.param, kv_cache_bytes=0)


# -- the store itself --------------------------------------------------------------------------------------------------


def held(tokens: list[int]) -> SessionKV:
    """A session of one layer whose keys are its tokens."""
    kv = SessionKV()
    keys = torch.tensor(tokens, dtype=torch.float32).view(1, -1, 1)
    kv.extend(tokens, [{0: (keys, -keys)}])
    return kv


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3 * PAGE), min_size=1, max_size=8), st.integers(0, 900)
)
@settings(deadline=None)
def test_the_store_gives_the_longest_common_prefix_of_what_is_in_it(sequences: list[list[int]], octets: int):
    """With room for all: of all put in. With less: never anything else, and never more octets than allowed."""
    roomy, tight = PrefixStore(1 << 20), PrefixStore(octets)
    for number, sequence in enumerate(sequences):
        for store in (roomy, tight):
            kv = SessionKV()
            taken = store.take(kv, sequence)
            assert kv.tokens == sequence[:taken]
            if taken:
                keys, values = kv.copied(0, taken)[0]
                assert keys.flatten().tolist() == sequence[:taken]
                assert torch.equal(values, -keys)
            longest = max((common(sequence, earlier) for earlier in sequences[:number]), default=0)
            assert taken == longest if store is roomy else taken <= longest
            store.put(held(sequence), len(sequence))
        assert tight.octets <= octets
    assert roomy.octets <= sum(8 * len(sequence) for sequence in sequences)
    assert tight.octets == sum(page.octets for page in tight._pages)


def common(one: list[int], other: list[int]) -> int:
    return next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )


def test_the_branch_used_longest_ago_goes_first_and_from_its_end():
    store = PrefixStore(8 * 5 * PAGE)
    stem = [0] * (2 * PAGE)
    one, other, third = ([*stem, *[n] * PAGE] for n in (1, 2, 3))
    for each in (one, other, third):
        store.put(held(each), len(each))  # 5 pages: the stem once, and three ends
    assert store.octets == 8 * 5 * PAGE
    assert store.take(SessionKV(), one) == 3 * PAGE  # used again
    store.put(held([9] * PAGE), PAGE)
    assert [store.take(SessionKV(), each) for each in (one, other, third)] == [3 * PAGE, 2 * PAGE, 3 * PAGE]


def test_a_session_that_went_on_replaces_what_was_kept_of_it():
    store = PrefixStore(1 << 20)
    for count in (10, 30, 30, 20, PAGE, PAGE + 5):
        store.put(held([7] * count), count)
    assert store.octets == 8 * (PAGE + 5)


def verify(session: bytes, prefix: list[int]) -> VerifyJob:
    return VerifyJob(session, prefix, len(prefix), (), 1, Sampling(), (), None, 99)
