"""Engines by name, and what is said when something is missing."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdcp.engines.bigram import write_bigram
from sdcp.engines.digests import IDENTITY_TOKENIZER
from sdcp.engines.registry import load_drafter, load_target
from sdcp.errors import ConfigurationError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_bigram(tmp_path / "m.safetensors", np.zeros((3, 3), np.float32))
    return tmp_path / "m.safetensors"


def test_bigram_with_options(path: Path):
    assert load_target("bigram", path, capacity=5).capacity == 5
    assert load_drafter("bigram", path, vocabulary=8).vocabulary == 8


def test_ngram_needs_the_width_of_its_target(tmp_path: Path):
    drafter = load_drafter("ngram", None, vocabulary=9)
    assert (drafter.vocabulary, drafter.tokenizer) == (9, IDENTITY_TOKENIZER)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert load_drafter("ngram", None, tmp_path, vocabulary=9).tokenizer != IDENTITY_TOKENIZER
    with pytest.raises(ConfigurationError, match="vocabulary"):
        load_drafter("ngram", None)


def test_unknown_names_are_answered_with_the_choice(path: Path):
    with pytest.raises(ConfigurationError, match="choose one of bigram, transformers"):
        load_target("ngram", path)
    with pytest.raises(ConfigurationError, match="The engine bigram has no option 'speed': choose from capacity"):
        load_target("bigram", path, speed=3)


def test_a_model_that_is_not_there(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="does not exist"):
        load_target("bigram", tmp_path / "nothing")
    with pytest.raises(ConfigurationError, match="is a folder"):
        load_target("bigram", tmp_path)
    with pytest.raises(ConfigurationError, match=r"\[model\] path is missing: the engine transformers needs"):
        load_drafter("transformers", None)


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "tokenizer.json").write_text("{}")
    real = builtins.__import__

    def without_torch(name: str, *rest: Any, **more: Any) -> Any:
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        return real(name, *rest, **more)

    for name in [name for name in sys.modules if name.startswith("sdcp.engines.transformers")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("sdcp.engines.transformers", raising=False)
    monkeypatch.setattr(builtins, "__import__", without_torch)
    with pytest.raises(ConfigurationError, match=r"pip install 'sdcp\[transformers\]'"):
        load_target("transformers", tmp_path)
