"""The mutants fit the package, and what is on record of them fits the mutants. Nothing is run against them here."""

from __future__ import annotations

import ast
import re
from collections import Counter

import pytest

from tests.mutants import records
from tests.mutants.mutant import ROOT, Mutant, known_ids, read
from tests.mutants.tiers import TIERS

MUTANTS = read()
FOUND = records.load(MUTANTS)


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


def test_every_mutant_is_caught_by_a_test_that_there_is() -> None:
    assert [name for name, found in FOUND.items() if records.cheapest(found) is None] == []
    names: dict[str, set[str]] = {}
    for found in FOUND.values():
        for tier in TIERS:
            test = found.get(tier.name)
            if tier.tests and isinstance(test, str):
                file, _, rest = test.partition("::")
                if file not in names:
                    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
                    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
                    names[file] = {node.name for node in ast.walk(tree) if isinstance(node, functions)}
                assert rest.partition("[")[0].rpartition("::")[2] in names[file], test


def test_the_page_is_made_of_the_record() -> None:
    assert records.TABLE.read_text(encoding="utf-8") == records.table(MUTANTS, FOUND)
