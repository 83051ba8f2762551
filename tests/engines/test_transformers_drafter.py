"""The transformers engine as drafter: rows, randomness, rollback, cut heads (6.2, D5, D22, D25, D31)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sdcp.engines.registry import load_drafter
from sdcp.engines.transformers import TransformersDrafter, TransformersTarget
from sdcp.errors import ConfigurationError
from sdcp.messages.contract import Sampling
from sdcp.ports import DraftJob, DraftResult
from sdcp.rules.draws import draw
from sdcp.rules.profile import target_distribution
from sdcp.wire.rows import check_rows
from tests.engines.conftest import V

Folder = Callable[[str], Path]
Plain = Callable[[Path, list[int]], Any]

TOKENIZER = bytes(32)
PROMPT = [5, 9, 14, 77, 3, 60]
OUTPUT_IDS = [0, 3, 4, 8, 14, 20, 21, 50, 77, 100]


def drafter(path: Path, seed: int = 0, **options: Any) -> TransformersDrafter:
    generator = np.random.default_rng(seed)
    return TransformersDrafter(path, TOKENIZER, generator=generator, precision="float32", **options)


def job(prefix: list[int], count: int = 4, rule: int = 1, session: int = 0, **other: Any) -> DraftJob:
    made = DraftJob(bytes([session]), prefix, len(prefix), count, rule, Sampling())
    return dataclasses.replace(made, **other)


def greedy(plain: Plain, path: Path, prompt: list[int], count: int) -> tuple[int, ...]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(plain(path, tokens)[-1].argmax()))
    return tuple(tokens[len(prompt) :])


@pytest.fixture(scope="session")
def cut(folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama with a head over ten tokens."""
    to = tmp_path_factory.mktemp("models") / "cut"
    to.mkdir()
    config = json.loads((folder("llama") / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, "output_vocabulary": len(OUTPUT_IDS)}))
    weights = load_file(folder("llama") / "model.safetensors")
    weights["lm_head.weight"] = weights["lm_head.weight"][OUTPUT_IDS].clone()
    weights["output_ids"] = torch.tensor(OUTPUT_IDS, dtype=torch.int32)
    save_file(weights, to / "model.safetensors")
    return to


@pytest.mark.parametrize("name", ["llama", "llama-gqa-tied", "qwen2", "gpt2"])
def test_rule_1_drafts_the_most_probable_tokens(folder: Folder, plain: Plain, name: str):
    """Several sessions of different lengths and counts in one batch, no rows."""
    jobs = [job(PROMPT, 5), job(PROMPT[:2], 2, session=1), job([7], 1, session=2)]
    results = drafter(folder(name)).draft(jobs)
    expected = [greedy(plain, folder(name), list(each.prefix), each.count) for each in jobs]
    assert results == [DraftResult(tokens, None) for tokens in expected]


@pytest.mark.requirement("S6.2-own-kv-cache", "S6.3-draft-state-discarded", "S6.3-accepted-kv-valid")
def test_rounds_follow_the_committed_prefix(folder: Folder, plain: Plain):
    """Its own tokens are kept where they were accepted, and forgotten where something else was committed."""
    engine, path = drafter(folder("llama")), folder("llama")
    prefix = list(PROMPT)
    for accepted, additional in [(4, 9), (0, 11), (2, 13), (1, 14), (3, 15)]:
        tokens = engine.draft([job(prefix)])[0].tokens
        assert tokens == greedy(plain, path, prefix, 4)
        prefix += [*tokens[:accepted], additional]


def test_a_round_drafted_again_is_drafted_from_the_prefix(folder: Folder, plain: Plain):
    engine = drafter(folder("llama"))
    assert engine.draft([job(PROMPT)]) == engine.draft([job(PROMPT)])
    assert engine.draft([job([3, 4], length=1)])[0].tokens == greedy(plain, folder("llama"), [3], 4)


@pytest.mark.requirement("S5.2-sampled-from-row")
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_rows_are_those_sampled_from_under_the_profile(folder: Folder, plain: Plain, name: str):
    """D22, D25: binary32 rows of the profile, and the tokens drawn from these very rows (replayed)."""
    profile = Sampling(temperature_milli=1300, top_k=40, top_p_milli=950)
    results = drafter(folder(name), seed=3).draft(
        [job(PROMPT, 5, 2, profile=profile), job([7, 8], 3, 2, session=1, profile=profile)]
    )
    replay = np.random.default_rng(3)
    drawn = {0: [], 1: []}  # type: ignore[var-annotated]
    for position in range(5):
        for index in (0, 1):
            rows = results[index].rows
            if rows is not None and position < len(rows):
                drawn[index].append(draw(rows[position].astype(np.float64), replay.random()))
    for index, prompt in enumerate((PROMPT, [7, 8])):
        tokens, rows = results[index].tokens, results[index].rows
        assert rows is not None
        assert rows.dtype == np.float32
        check_rows(rows, tokens)
        assert list(tokens) == drawn[index]
        logits = plain(folder(name), [*prompt, *tokens])
        for row, before in zip(rows, logits[len(prompt) - 1 :], strict=False):
            assert np.abs(row - target_distribution(before, profile)).max() < 1e-4


def test_a_cut_head_gives_other_tokens_probability_zero(cut: Path, folder: Folder, plain: Plain):
    result = drafter(cut).draft([job(PROMPT, 6, 2)])[0]
    assert result.rows is not None
    assert result.rows.shape == (6, V)
    check_rows(result.rows, result.tokens)
    logits = plain(folder("llama"), PROMPT)[-1]
    only = np.full(V, -np.inf, np.float32)
    only[OUTPUT_IDS] = logits[OUTPUT_IDS]
    assert np.abs(result.rows[0] - target_distribution(only, Sampling())).max() < 1e-5
    assert drafter(cut).draft([job(PROMPT, 1)])[0].tokens == (int(only.argmax()),)


@pytest.mark.parametrize("width", [50, 300])
@pytest.mark.parametrize("name", ["llama", "cut"])
def test_another_width_than_the_targets(folder: Folder, cut: Path, plain: Plain, width: int, name: str):
    """D5: padded with zeros, or cut and renormalized before sampling; committed tokens it does not know do no harm."""
    engine = drafter(cut if name == "cut" else folder(name), vocabulary=width)
    result = engine.draft([job([width - 1, 7], 4, 2)])[0]
    assert result.rows is not None
    assert result.rows.shape == (4, width)
    check_rows(result.rows, result.tokens)
    assert (result.rows[:, V:] == 0).all()


def test_at_the_end_of_the_context_the_latest_token_is_proposed_for_certain(folder: Folder):
    """256 tokens: what is proposed and the additional token fit. A target's context may be longer."""
    engine = drafter(folder("llama"))
    assert len(engine.draft([job([3] * 253, 9)])[0].tokens) == 2
    result = engine.draft([job([3] * 299 + [4], 9, 2)])[0]
    assert result.tokens == (4,)
    assert result.rows is not None
    check_rows(result.rows, result.tokens)


def test_the_session_used_longest_ago_gives_way(folder: Folder, plain: Plain):
    engine = drafter(folder("llama"), capacity=2)
    for session in (0, 1, 0, 2, 1, 0):
        tokens = engine.draft([job(PROMPT, 2, session=session)])[0].tokens
        assert tokens == greedy(plain, folder("llama"), PROMPT, 2)
    assert len(engine.draft([job(PROMPT, 2, session=session) for session in range(4)])) == 4
    engine.close(bytes([0]))


def test_an_empty_prompt(folder: Folder, plain: Plain):
    """D26."""
    assert drafter(folder("llama")).draft([job([], 2)])[0].tokens == greedy(plain, folder("llama"), [1], 2)


def test_a_cut_head_cannot_be_a_target(cut: Path):
    with pytest.raises(ConfigurationError, match="not be a target"):
        TransformersTarget(cut, TOKENIZER)


def test_output_ids_must_fit(cut: Path, tmp_path: Path):
    (tmp_path / "config.json").write_bytes((cut / "config.json").read_bytes())
    weights = load_file(cut / "model.safetensors")
    weights["output_ids"] = weights["output_ids"].flip(0)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ConfigurationError, match="ascending"):
        drafter(tmp_path)
    weights["lm_head.weight"] = weights["lm_head.weight"][:3].clone()
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ConfigurationError, match="do not fit"):
        drafter(tmp_path)


def test_lookup_before_the_model_by_name(folder: Folder, plain: Plain):
    path = folder("llama")
    (path / "tokenizer.json").write_text("{}")
    engine = load_drafter("ngram+transformers", path, precision="float32")
    repeated = [5, 9, 14, 5, 9]
    results = engine.draft([job(repeated, 2), job(PROMPT, 2, session=1)])
    assert [each.tokens for each in results] == [(14, 5), greedy(plain, path, PROMPT, 2)]
    assert engine.model != load_drafter("transformers", path).model
