"""The ledger of requirements agrees with the draft, and the markers in the tests agree with the ledger.

`spec/requirements.toml` holds each requirement of `spec/draft-li-sdcp.txt` once; a test that breaks when a requirement
is broken carries `@pytest.mark.requirement(id, ...)`, and one that rests on a decision (docs/decisions.md) carries
`@pytest.mark.decision(id, ...)`. This module compares them: every requirement has a test, and every id in a marker
exists. It does not say whether a test is a good one. Run as a script, it prints the ids that no test names.
"""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DRAFT = (ROOT / "spec" / "draft-li-sdcp.txt").read_text(encoding="utf-8")
DECISIONS = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
LEDGER = tomllib.loads((ROOT / "spec" / "requirements.toml").read_text(encoding="utf-8"))
REQUIREMENTS: list[dict[str, str]] = LEDGER["requirement"]
EXPLANATIONS: list[dict[str, str]] = LEDGER["explanation"]

BCP14 = re.compile(
    r"\b(?:MUST NOT|MUST|REQUIRED|SHALL NOT|SHALL|SHOULD NOT|SHOULD|NOT RECOMMENDED|RECOMMENDED|MAY|OPTIONAL)\b"
)
KEYWORDS = {"MUST", "MUST NOT", "REQUIRED", "SHOULD", "RECOMMENDED", "MAY", "procedure"}
IDENTIFIER = re.compile(r"S(?P<section>\d+(?:\.\d+)*)-[a-z0-9]+(?:-[a-z0-9]+)*")

HEADING = re.compile(r"(?P<section>\d+(?:\.\d+)*)\. [A-Z]")
CAPTION = re.compile(r"Table \d: |Role\tMethod|Type suffix\t|Rule \d, [a-z ]+:$")
# What may stand between two requirements of one sentence.
JOINING = {"and"}


def squeezed(text: str) -> str:
    """The text with runs of white space as one space and without the pilcrows that end the draft's paragraphs."""
    return " ".join(text.replace("¶", " ").split())


def sections() -> dict[str, str]:
    """Section number to its squeezed text, without heading, table captions and subsections."""
    found: dict[str, list[str]] = {"": []}
    current = ""
    for line in DRAFT.splitlines():
        heading = HEADING.match(line)
        if heading:
            current = heading["section"]
            found[current] = []
        elif not CAPTION.match(line):
            found[current].append(line)
    return {section: squeezed("\n".join(lines)) for section, lines in found.items()}


SECTIONS = sections()


def spans(text: str, within: str) -> list[tuple[int, int]]:
    """Start and end of every place where text stands in within."""
    return [match.span() for match in re.finditer(re.escape(squeezed(text)), within)]


def markers(source: str, kind: str) -> Iterator[str]:
    """The ids that a test module names with `pytest.mark.<kind>`, wherever it stands; each must be a literal."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == f"pytest.mark.{kind}":
            for argument in node.args:
                yield str(ast.literal_eval(argument))


def marked(kind: str) -> dict[str, list[str]]:
    """Id to the test files that name it with `pytest.mark.<kind>`."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for identifier in markers(path.read_text(encoding="utf-8"), kind):
            found.setdefault(identifier, []).append(path.relative_to(ROOT).as_posix())
    return found


def without_a_test(named: Collection[str]) -> list[str]:
    """The ids, in the order of the ledger, that are not among those named by tests."""
    return [entry["id"] for entry in REQUIREMENTS if entry["id"] not in named]


def test_entries_have_exactly_the_known_keys() -> None:
    assert {frozenset(entry) for entry in REQUIREMENTS} == {frozenset({"id", "section", "keyword", "text"})}
    assert {frozenset(entry) for entry in EXPLANATIONS} == {frozenset({"section", "text"})}


def test_ids_are_unique() -> None:
    repeated = [name for name, times in Counter(entry["id"] for entry in REQUIREMENTS).items() if times > 1]
    assert not repeated


def test_ids_are_kebab_case_and_name_their_section() -> None:
    for entry in REQUIREMENTS:
        match = IDENTIFIER.fullmatch(entry["id"])
        assert match, entry["id"]
        assert match["section"] == entry["section"], entry["id"]


def test_entries_stand_in_the_order_of_the_sections() -> None:
    order = [[int(part) for part in entry["section"].split(".")] for entry in REQUIREMENTS]
    assert order == sorted(order)


def test_keyword_is_the_one_bcp14_word_of_the_text() -> None:
    assert {entry["keyword"] for entry in REQUIREMENTS} <= KEYWORDS
    for entry in REQUIREMENTS:
        expected = [] if entry["keyword"] == "procedure" else [entry["keyword"]]
        assert BCP14.findall(entry["text"]) == expected, entry["id"]


def test_every_text_stands_verbatim_in_its_section() -> None:
    entries = REQUIREMENTS + EXPLANATIONS
    strayed = [entry for entry in entries if not spans(entry["text"], SECTIONS[entry["section"]])]
    assert not strayed


def uncovered(section: str) -> Iterator[str]:
    """Every BCP 14 word of a section that no entry with that keyword holds, with some of the text around it."""
    text = SECTIONS[section]
    covered = [
        (*span, entry["keyword"])
        for entry in REQUIREMENTS
        if entry["section"] == section
        for span in spans(entry["text"], text)
    ]
    for word in BCP14.finditer(text):
        if not any(start <= word.start() < end and word[0] == keyword for start, end, keyword in covered):
            yield f"{section}: {text[max(0, word.start() - 60) : word.end() + 40]}"


def test_every_bcp14_word_of_the_draft_is_covered() -> None:
    assert not [place for section in SECTIONS for place in uncovered(section)]


@pytest.mark.parametrize("section", [name for name in SECTIONS if name.startswith(("4", "5", "6"))])
def test_every_sentence_is_a_requirement_or_an_explanation(section: str) -> None:
    text = SECTIONS[section]
    left = list(text)
    for entry in REQUIREMENTS + EXPLANATIONS:
        if entry["section"] == section:
            for start, end in spans(entry["text"], text):
                left[start:end] = "\n" * (end - start)
    words = set(re.findall(r"\w+", "".join(left)))
    assert words <= JOINING, [piece for piece in "".join(left).split("\n") if re.search(r"\w", piece)]


def test_markers_are_found_in_decorators_and_parameters() -> None:
    source = (
        "@pytest.mark.requirement('S1-a', 'S1-b')\n@pytest.mark.decision('D1')\ndef test_x(): ...\n"
        "pytestmark = pytest.mark.requirement('S1-c')\n"
        "case = pytest.param(1, marks=[pytest.mark.slow, pytest.mark.requirement('S1-d')])\n"
    )
    assert sorted(markers(source, "requirement")) == ["S1-a", "S1-b", "S1-c", "S1-d"]
    assert list(markers(source, "decision")) == ["D1"]


def test_every_marker_names_a_known_requirement() -> None:
    known = {entry["id"] for entry in REQUIREMENTS}
    assert not {name: files for name, files in marked("requirement").items() if name not in known}


def test_every_marker_names_a_known_decision() -> None:
    known = set(re.findall(r"^- \*\*(D\d+a?)\b", DECISIONS, re.MULTILINE))
    assert {"D1", "D9a", "D32"} <= known
    assert not {name: files for name, files in marked("decision").items() if name not in known}


def test_an_id_without_a_test_is_listed_until_a_test_names_it() -> None:
    every = [entry["id"] for entry in REQUIREMENTS]
    assert without_a_test([]) == every
    assert without_a_test(every[1:]) == every[:1]
    assert without_a_test(every) == []


def test_every_requirement_has_a_test() -> None:
    assert without_a_test(marked("requirement")) == []


if __name__ == "__main__":
    missing = without_a_test(marked("requirement"))
    print(f"{len(missing)} of {len(REQUIREMENTS)} requirements without a test", *missing, sep="\n  ")
