"""The transformers engine as target, against transformers' own forward over the whole sequence (6.3)."""

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

from sdcp.engines.causal import CausalModel
from sdcp.engines.linears import chosen_precision
from sdcp.engines.ragged import Piece, SessionKV
from sdcp.engines.registry import load_target
from sdcp.engines.transformers import TransformersTarget, judge_greedy
from sdcp.errors import ConfigurationError, InvalidContent, Overloaded
from sdcp.messages.contract import Sampling
from sdcp.ports import PrefillJob, VerifyJob, VerifyResult
from sdcp.rules.acceptance import accept, accept_greedy
from sdcp.rules.draws import seeded_luck
from tests.engines.conftest import CONFIGS, V

Folder = Callable[[str], Path]
Plain = Callable[[Path, list[int]], Any]

TOKENIZER = bytes(32)
PROMPT = [5, 9, 14, 77, 3, 60, 21, 8, 8, 40, 2, 33]
CLOSE = 1e-4


def target(path: Path, **options: Any) -> TransformersTarget:
    return TransformersTarget(path, TOKENIZER, **{"precision": "float32", **options})


def job(prefix: list[int], tokens: tuple[int, ...] = (), session: int = 0, **other: Any) -> VerifyJob:
    made = VerifyJob(bytes([session]), prefix, len(prefix), tokens, 1, Sampling(), (), None, 99)
    return dataclasses.replace(made, **other)


def best(plain: Plain, path: Path, prefix: list[int]) -> int:
    return int(plain(path, prefix)[-1].argmax())


def greedy(plain: Plain, path: Path, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(best(plain, path, tokens))
    return tokens[len(prompt) :]


# -- logits ------------------------------------------------------------------------------------------------------------


FORWARDS = [(name, lean) for name in CONFIGS for lean in (False, True) if name.startswith("llama") or not lean]


@pytest.mark.parametrize(("name", "lean"), FORWARDS)
def test_logits_equal_transformers(folder: Folder, plain: Plain, name: str, lean: bool):
    """A prompt in chunks, then several sessions of different lengths in one pass."""
    path = folder(name)
    model = CausalModel(path, "cpu", "float32", lean)
    long, short = SessionKV(), SessionKV()
    assert model.run([Piece(long, PROMPT[:5])]) is None
    model.run([Piece(long, PROMPT[5:7]), Piece(short, [7])])
    logits = model.run([Piece(long, PROMPT[7:], 3), Piece(short, [20, 30], 2)])
    assert logits is not None
    expected = np.concatenate((plain(path, PROMPT)[-3:], plain(path, [7, 20, 30])[-2:]))
    assert np.abs(logits.numpy() - expected).max() < CLOSE


@pytest.mark.parametrize("name", ["llama-gqa-tied", "gpt2"])
def test_a_long_sequence_in_one_pass_in_tiles_equals_transformers(folder: Folder, plain: Plain, name: str):
    tokens = [int(token) for token in np.random.default_rng(3).integers(0, V, 150)]
    logits = CausalModel(folder(name), "cpu", "float32", True).run([Piece(SessionKV(), tokens, 150)])
    assert logits is not None
    assert np.abs(logits.numpy() - plain(folder(name), tokens)).max() < CLOSE


@pytest.mark.parametrize("precision", ["packed-float16", "bfloat16"])
@pytest.mark.parametrize("name", ["llama-gqa-tied", "qwen2"])
def test_other_precisions_are_close(folder: Folder, plain: Plain, name: str, precision: str):
    logits = CausalModel(folder(name), "cpu", precision, True).run([Piece(SessionKV(), PROMPT, 4)])
    assert logits is not None
    expected = plain(folder(name), PROMPT)[-4:]
    tolerance = 0.01 if precision == "packed-float16" else 0.1
    assert np.abs(logits.float().numpy() - expected).max() < tolerance * np.abs(expected).max()


@pytest.mark.requirement("S6.3-batching")
@pytest.mark.parametrize("name", ["llama", "llama-gqa-tied", "llama-biased", "llama-wide"])
def test_packed_rows_are_the_same_bits_in_any_pass(folder: Folder, name: str):
    """D32: with pinned numerics plain decoding and verification compute the very same logits."""
    model = CausalModel(folder(name), "cpu", "packed-float16", True)
    alone = SessionKV()
    plain = [model.run([Piece(alone, [token], 1)]) for token in PROMPT]
    together, other = SessionKV(), SessionKV()
    model.run([Piece(other, [4, 5, 6])])
    model.run([Piece(together, PROMPT[:6])])
    logits = model.run([Piece(other, [7, 8], 2), Piece(together, PROMPT[6:], 6)])
    assert logits is not None
    assert torch.equal(logits[2:], torch.cat(plain[6:]))


# -- verification ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.3-scoring", "S6.4-greedy-output")
@pytest.mark.parametrize("name", list(CONFIGS))
def test_greedy_output_equals_plain_decoding_whatever_is_proposed(folder: Folder, plain: Plain, name: str):
    """Interleaved sessions with right, wrong and no proposals, on a prompt that was prefilled or was not."""
    engine, path = target(folder(name)), folder(name)
    prompts = [PROMPT, PROMPT[:3], PROMPT[4:]]
    truth = [greedy(plain, path, prompt, 12) for prompt in prompts]
    prefixes = [list(prompt) for prompt in prompts]
    engine.prefill([PrefillJob(bytes([0]), prefixes[0], len(prefixes[0]))], budget=99)
    random = np.random.default_rng(1)
    while any(len(prefix) - len(prompt) < 6 for prefix, prompt in zip(prefixes, prompts, strict=True)):
        asked = [session for session in range(3) if random.random() < 0.7] or [0]
        jobs = []
        for session in asked:
            done = len(prefixes[session]) - len(prompts[session])
            tokens = truth[session][done : done + int(random.integers(0, 5))]
            if tokens and random.random() < 0.6:
                tokens[int(random.integers(len(tokens)))] = int(random.integers(V))
            jobs.append(job(prefixes[session], tuple(tokens), session))
        for asked_job, result in zip(jobs, engine.verify(jobs), strict=True):
            prefix = prefixes[asked_job.session[0]]
            prefix += [*asked_job.tokens[: result.accepted], result.additional]  # type: ignore[list-item]
    for prefix, prompt, expected in zip(prefixes, prompts, truth, strict=True):
        output = prefix[len(prompt) :]
        assert output[: len(expected)] == expected[: len(output)]


def test_a_round_run_again_gives_the_same(folder: Folder, plain: Plain):
    """D27: an unresolved round is run again with the same values."""
    engine = target(folder("llama"))
    right = greedy(plain, folder("llama"), PROMPT, 3)
    asked = job(PROMPT, (right[0], right[1], (right[2] + 1) % V))
    first = engine.verify([asked])
    assert first == engine.verify([asked]) == [VerifyResult(2, right[2])]


def test_a_session_that_lost_its_kv_is_computed_again(folder: Folder, plain: Plain):
    engine = target(folder("llama"))
    before = engine.verify([job(PROMPT)])
    engine.close(bytes([0]))
    engine.close(b"unknown")
    assert engine.verify([job(PROMPT)]) == before


def test_a_prefix_longer_than_a_chunk_without_prefill(folder: Folder, plain: Plain, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sdcp.engines.transformers.CHUNK", 5)
    result = target(folder("llama")).verify([job(PROMPT), job(PROMPT[:9], session=1)])
    assert [each.additional for each in result] == [best(plain, folder("llama"), p) for p in (PROMPT, PROMPT[:9])]


@pytest.mark.parametrize(("room", "expected"), [(1, (1, None)), (2, (2, None)), (3, (3, None)), (4, (3, "more"))])
def test_positions_beyond_the_room_are_not_evaluated(folder: Folder, plain: Plain, room: int, expected: Any):
    """D14."""
    right = greedy(plain, folder("llama"), PROMPT, 4)
    result = target(folder("llama")).verify([job(PROMPT, tuple(right[:3]), room=room)])[0]
    assert (result.accepted, result.additional and "more") == expected


def test_after_a_full_room_the_session_goes_on(folder: Folder, plain: Plain):
    """The last accepted token was never fed: the next round must feed it."""
    engine = target(folder("llama"))
    right = greedy(plain, folder("llama"), PROMPT, 3)
    engine.verify([job(PROMPT, tuple(right[:2]), room=2)])
    assert engine.verify([job(PROMPT + right[:2])])[0].additional == right[2]


@pytest.mark.requirement("S6.3-scoring", "S6.3-acceptance")
def test_speculative_equals_the_rule_on_plain_logits(folder: Folder, plain: Plain):
    path = folder("llama-gqa-tied")
    engine, profile = target(path), Sampling(temperature_milli=700, top_k=20, top_p_milli=900)
    random = np.random.default_rng(5)
    tokens = tuple(greedy(plain, path, PROMPT, 3))
    scores = plain(path, [*PROMPT, *tokens])[-4:]
    outcomes = set()
    for seed in range(30):
        rows = random.dirichlet(np.full(V, 0.1), 3)
        rows[range(3), tokens] += random.random(3) * 4
        rows = (rows / rows.sum(1, keepdims=True)).astype(np.float32)
        luck = seeded_luck(seed, bytes(16), 1, 3).values
        expected = accept(2, scores, tokens, rows, profile, luck)
        asked = job(PROMPT, tokens, rule=2, profile=profile, rows=rows, luck=luck)
        result = engine.verify([asked])[0]
        assert (result.accepted, result.additional) == (expected.accepted, expected.additional)
        outcomes.add(result.accepted)
    assert len(outcomes) > 1


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.integers(1, 6), st.data())
@settings(deadline=None)
def test_greedy_on_the_device_equals_the_rule_even_at_ties(tokens: list[int], room: int, data: st.DataObject):
    """Argmax over logits, smallest id first (D22)."""
    level = st.lists(st.integers(0, 1), min_size=4, max_size=4)
    scores = np.array([data.draw(level) for _ in range(len(tokens) + 1)], np.float32)
    expected = accept_greedy(scores, tokens, room=room)
    evaluated = torch.from_numpy(scores[: min(len(tokens) + 1, room)])
    result = judge_greedy(job([1], tuple(tokens), room=room), evaluated)
    assert (result.accepted, result.additional) == (expected.accepted, expected.additional)


def test_a_nan_is_an_error_not_a_token():
    with pytest.raises(ValueError, match="NaN"):
        judge_greedy(job([1]), torch.tensor([[0.0, torch.nan]]))


# -- prefill, admission ------------------------------------------------------------------------------------------------


def test_prefill_shares_its_budget_in_order_and_ends(folder: Folder, plain: Plain):
    engine = target(folder("llama"))
    jobs = [PrefillJob(bytes([n]), PROMPT, length) for n, length in enumerate([8, 1, 4])]
    assert engine.prefill(jobs, budget=5) == [False, True, False]  # 7, 0 and 3 tokens to compute
    assert engine.prefill([jobs[0], jobs[2]], budget=4) == [True, False]
    assert engine.prefill([jobs[2]], budget=4) == [True]
    results = engine.verify([job(PROMPT[: each.length], session=n) for n, each in enumerate(jobs)])
    assert [each.additional for each in results] == [
        best(plain, folder("llama"), PROMPT[: each.length]) for each in jobs
    ]


def test_no_room_for_another_session(folder: Folder):
    engine = target(folder("llama"), capacity=1)
    engine.prefill([PrefillJob(b"a", PROMPT, 3)], 9)
    with pytest.raises(Overloaded):
        engine.prefill([PrefillJob(b"b", PROMPT, 3)], 9)
    engine.close(b"a")
    assert engine.prefill([PrefillJob(b"b", PROMPT, 3)], 9) == [True]


def test_an_empty_prompt_is_conditioned_on_bos(folder: Folder, plain: Plain):
    """D26, also in later rounds."""
    engine, path = target(folder("llama")), folder("llama")
    assert engine.takes_empty_prompt
    assert engine.prefill([PrefillJob(bytes([0]), [], 0)], 9) == [True]
    first = engine.verify([job([])])[0].additional
    assert first == best(plain, path, [1])
    assert first is not None
    assert engine.verify([job([first])])[0].additional == best(plain, path, [1, first])


def test_an_empty_prompt_is_known_for_one_at_takeover_too(folder: Folder, plain: Plain):
    """D26: another verifier opens with output committed; what it conditions on must not depend on that."""
    engine, path = target(folder("llama")), folder("llama")
    assert engine.prefill([PrefillJob(bytes([0]), [7, 9], 2, empty_prompt=True)], 9) == [True]
    assert engine.verify([job([7, 9])])[0].additional == best(plain, path, [1, 7, 9])


def test_an_empty_prompt_without_bos_is_refused(folder: Folder, tmp_path: Path):
    engine = target(without_bos(folder("llama"), tmp_path))
    assert not engine.takes_empty_prompt
    with pytest.raises(InvalidContent):
        engine.prefill([PrefillJob(b"a", [], 0)], 9)


def without_bos(source: Path, to: Path) -> Path:
    for file in source.iterdir():
        (to / file.name).write_bytes(file.read_bytes().replace(b'"bos_token_id": 1', b'"bos_token_id": null'))
    return to


# -- loading -----------------------------------------------------------------------------------------------------------


def test_loaded_by_name_with_its_digests(folder: Folder):
    path = folder("llama")
    (path / "tokenizer.json").write_text("{}")
    engine = load_target("transformers", path, capacity=3, precision="packed-float16")
    assert (engine.vocabulary, engine.context, engine.capacity) == (V, 256, 3)
    assert engine.model != engine.tokenizer


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "int3"}, "choose one of auto, float32"),
        ({"precision": "float16"}, "needs a GPU"),
        ({"device": "abacus"}, "choose cpu or cuda"),
        ({"capacity": 0}, "at least 1"),
        ({"threads": 0}, "at least 1"),
    ],
)
def test_settings_that_cannot_be(folder: Folder, options: dict[str, Any], message: str):
    with pytest.raises(ConfigurationError, match=message):
        target(folder("llama"), **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_no_gpu(folder: Folder):
    with pytest.raises(ConfigurationError, match="no GPU"):
        target(folder("llama"), device="cuda")


def test_a_folder_that_is_no_model(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(b"x")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="Cannot load the model"):
        target(tmp_path)


def test_position_embeddings_that_depend_on_the_batch_are_refused(folder: Folder, tmp_path: Path):
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder("llama"))
    config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    config.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((folder("llama") / "model.safetensors").read_bytes())
    with pytest.raises(ConfigurationError, match="dynamic"):
        target(tmp_path)


def test_auto_takes_what_the_machine_has(folder: Folder):
    engine = TransformersTarget(folder("llama"), TOKENIZER)
    packed = TransformersTarget(folder("llama"), TOKENIZER, precision=chosen_precision("auto", torch.device("cpu")))
    assert (engine.next_logits(b"a", PROMPT, 5) == packed.next_logits(b"a", PROMPT, 5)).all()


def test_next_logits_are_those_of_a_plain_run(folder: Folder, plain: Plain, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sdcp.engines.transformers.CHUNK", 3)
    logits = target(folder("llama")).next_logits(b"a", PROMPT, len(PROMPT))
    assert np.abs(logits - plain(folder("llama"), PROMPT)[-1]).max() < CLOSE
