"""An answer against plain greedy decoding (D32)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sdcp.check import NEAR_TIE, check_greedy, compare
from sdcp.engines.bigram import BigramTarget, write_bigram
from sdcp.errors import ConfigurationError
from sdcp.generate import Answer


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.safetensors"
    logits = np.array([[0, 1, 2], [2, 0, 2 - NEAR_TIE / 2], [1, 0, 0]], np.float32)
    write_bigram(path, logits)
    return path


@pytest.mark.decision("D32-near-ties")
def test_plain_decoding_is_led_along_the_answer(model: Path) -> None:
    engine = BigramTarget(model)
    assert compare(engine, [0], [2, 0, 2]) == []
    (wrong,) = compare(engine, [0], [1, 0, 2])
    assert (wrong.index, wrong.token, wrong.plain, wrong.gap) == (0, 1, 2, 1.0)
    (tie,) = compare(engine, [1], [2, 0])
    assert tie.gap < NEAR_TIE


@pytest.mark.decision("D32-near-ties")
@pytest.mark.parametrize(("tokens", "code"), [([2, 0, 2], 0), ([2, 2], 1), ([1], 1)])
def test_only_near_ties_may_differ(model: Path, tokens: list[int], code: int) -> None:
    answer = Answer(prompt_token_ids=[0], token_ids=tokens, tokens=len(tokens))
    assert check_greedy(model, answer) == code


def test_an_answer_without_ids_cannot_be_checked(model: Path) -> None:
    with pytest.raises(ConfigurationError, match="no token ids"):
        check_greedy(model, Answer(tokens=3))
