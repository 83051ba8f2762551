"""The mutants fit the package, and what is on record of them fits the mutants. Nothing is run against them here."""

from __future__ import annotations

import ast
import re
from collections import Counter

import pytest

from tests.mutants.mutant import ROOT, Mutant, known_ids, read

MUTANTS = read()


def test_there_are_enough() -> None:
    assert len(MUTANTS) >= 50
    assert not [name for name, times in Counter(mutant.name for mutant in MUTANTS).items() if times > 1]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_and_parses(mutant: Mutant) -> None:
    for file, text in mutant.texts().items():
        ast.parse(text, file)
        assert text != (ROOT / "src" / "sdcp" / file).read_text(encoding="utf-8")


def test_what_a_mutant_says_of_itself() -> None:
    ids = known_ids()
    assert {"S6.3-base-check", "D9a", "D39"} <= ids
    for mutant in MUTANTS:
        assert re.fullmatch(r"[a-z0-9.]+(-[a-z0-9.]+)*", mutant.name), mutant.name
        assert mutant.breaks, mutant.name
        assert set(mutant.breaks) <= ids, mutant.name
        assert re.fullmatch(r"[A-Z/a-z`].*[^.]\.", mutant.fault), mutant.name
