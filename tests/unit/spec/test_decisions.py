"""The ledger of decisions agrees with docs/decisions.md, and with the markers in the tests.

`spec/decisions.toml` holds each clause of a decision that states behaviour once; a test that breaks when a clause is
broken carries `@pytest.mark.decision("D12-order", ...)`. A test may rest on a decision without guarding a clause of it;
then it carries the decision alone.
"""

import re
import tomllib
from collections import Counter

import pytest
from tools import spec_ledger
from tools.spec_ledger import ROOT

LEDGER = tomllib.loads((ROOT / "spec" / "decisions.toml").read_text(encoding="utf-8"))
CLAUSES = spec_ledger.clauses()
# Decision and text of every entry.
ENTRIES = [(clause.decision, clause.text) for clause in CLAUSES]
ENTRIES += [(entry["decision"], entry["text"]) for entry in LEDGER["explanation"]]

DECISION = re.compile(r"^- \*\*(?P<id>D\d+a?)\b[^*]*\*\*(?P<body>.*?)(?=^- \*\*D|^## |\Z)", re.MULTILINE | re.DOTALL)
IDENTIFIER = re.compile(r"D\d+a?-[a-z0-9]+(?:-[a-z0-9]+)*")


def squeezed(text: str) -> str:
    return " ".join(text.split())


# The words of each decision after its heading.
DECISIONS = {
    found["id"]: squeezed(found["body"])
    for found in DECISION.finditer((ROOT / "docs" / "decisions.md").read_text(encoding="utf-8"))
}


def test_the_decisions_are_found() -> None:
    assert list(DECISIONS)[:10] == ["D1", "D2", "D3", "D4", "D5", "D6", "D7", "D8", "D9", "D9a"]
    assert {int(name.strip("Da")) for name in DECISIONS} == set(range(1, len(DECISIONS)))


def test_entries_have_exactly_the_known_keys() -> None:
    assert {frozenset(entry) for entry in LEDGER["clause"]} == {frozenset({"id", "text"})}
    assert {frozenset(entry) for entry in LEDGER["explanation"]} == {frozenset({"decision", "text"})}


def test_ids_are_unique_and_name_their_decision() -> None:
    assert not [name for name, times in Counter(clause.id for clause in CLAUSES).items() if times > 1]
    assert not [clause.id for clause in CLAUSES if not IDENTIFIER.fullmatch(clause.id)]
    assert {clause.decision for clause in CLAUSES} == set(DECISIONS)


def test_every_text_stands_verbatim_in_its_decision_in_order() -> None:
    assert not [text for decision, text in ENTRIES if squeezed(text) not in DECISIONS[decision]]
    order = list(DECISIONS)
    places = [
        (order.index(clause.decision), DECISIONS[clause.decision].index(squeezed(clause.text))) for clause in CLAUSES
    ]
    assert places == sorted(places)


@pytest.mark.parametrize("decision", DECISIONS)
def test_every_word_of_a_decision_is_in_a_clause_or_an_explanation(decision: str) -> None:
    left = DECISIONS[decision]
    for name, text in ENTRIES:
        if name == decision:
            left = left.replace(squeezed(text), "\n")
    assert not re.search(r"\w", left), left.split("\n")


def test_every_clause_has_a_test_and_every_marker_names_a_clause_or_a_decision() -> None:
    known = {clause.id for clause in CLAUSES}
    claims = spec_ledger.marked("decision")
    assert [claim.claimant for claim in claims if claim.id not in known | DECISIONS.keys()] == []
    assert known - {claim.id for claim in claims} == set()
