"""Digests of models and tokenizers (docs/reference-model.md)."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from sdcp.engines import digests
from sdcp.engines.bigram import write_bigram
from sdcp.errors import ConfigurationError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sdcp" / "digests.json"


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


@pytest.mark.requirement("S4.1-target-digest")
def test_one_file_is_its_own_digest(tmp_path: Path):
    (tmp_path / "model.gguf").write_bytes(b"w")
    assert digests.model_digest(tmp_path / "model.gguf") == sha(b"w")


def test_a_folder_with_one_weight_file_is_that_files_digest(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(b"w")
    (tmp_path / "config.json").write_bytes(b"{}")
    assert digests.model_digest(tmp_path) == sha(b"w")


def test_a_folder_with_several_is_the_digest_of_names_and_digests_in_name_order(tmp_path: Path):
    (tmp_path / "b.safetensors").write_bytes(b"2")
    (tmp_path / "a.safetensors").write_bytes(b"1")
    (tmp_path / "old.bin").write_bytes(b"not the weights that are loaded")
    expected = sha(b"a.safetensors\x00" + sha(b"1") + b"b.safetensors\x00" + sha(b"2"))
    assert digests.model_digest(tmp_path) == expected


def test_no_weights(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="No model weights"):
        digests.model_digest(tmp_path)
    with pytest.raises(ConfigurationError, match="does not exist"):
        digests.model_digest(tmp_path / "none")


@pytest.mark.requirement("S4.1-tokenizer-digest")
def test_tokenizer_is_found_in_beside_or_by_name(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_bytes(b"t")
    (tmp_path / "model.gguf").write_bytes(b"w")
    for path in (tmp_path, tmp_path / "model.gguf", tmp_path / "tokenizer.json"):
        assert digests.tokenizer_digest(path) == sha(b"t")
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json"):
        digests.tokenizer_digest(tmp_path / "elsewhere" / "x")


def test_a_reference_models_tokens_stand_for_themselves_whatever_lies_beside_it(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_bytes(b"t")
    logits = np.zeros((3, 3), np.float32)
    for start in (None, logits[0]):
        write_bigram(tmp_path / "m.safetensors", logits, start)
        assert digests.tokenizer_digest(tmp_path / "m.safetensors") == digests.IDENTITY_TOKENIZER
    (tmp_path / "empty.safetensors").write_bytes(b"")
    assert digests.tokenizer_digest(tmp_path / "empty.safetensors") == sha(b"t")
    save_file({"logits": logits, "lm_head.weight": logits}, tmp_path / "other.safetensors")
    assert digests.tokenizer_digest(tmp_path / "other.safetensors") == sha(b"t")


def test_a_large_file_is_remembered_until_it_changes(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    large = tmp_path / "large.bin"
    large.write_bytes(b"x" * digests.LARGE)
    first = digests.file_digest(large)
    assert first == sha(b"x" * digests.LARGE)
    assert cache.is_file()
    monkeypatch.setattr(digests, "_hash", lambda path: pytest.fail("hashed again"))
    assert digests.file_digest(large) == first
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent.parent))
    large.write_bytes(b"y" * digests.LARGE)
    os.utime(large, ns=(1, 1))
    assert digests.file_digest(large) == sha(b"y" * digests.LARGE)


@pytest.mark.parametrize("content", ["", "[1]", "{", '{"x": 3}'])
def test_a_spoilt_memory_is_only_slow(tmp_path: Path, cache: Path, content: str):
    cache.parent.mkdir(parents=True)
    cache.write_text(content)
    large = tmp_path / "large.bin"
    large.write_bytes(b"x" * digests.LARGE)
    assert digests.file_digest(large) == sha(b"x" * digests.LARGE)


def test_a_memory_that_cannot_be_written_is_only_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    large = tmp_path / "large.bin"
    large.write_bytes(b"x" * digests.LARGE)
    assert digests.file_digest(large) == sha(b"x" * digests.LARGE)
