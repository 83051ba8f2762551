"""The ledger of requirements agrees with the draft, with the sources, and with the markers in the tests.

`spec/requirements.toml` holds each requirement of `spec/draft-li-sdcp.txt` once; a test that breaks when a requirement
is broken carries `@pytest.mark.requirement(id, ...)`. This module compares them: every sentence of the draft is in the
ledger, every requirement has a test, and the modules that it names cite its section. It does not say whether a test is
a good one.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator

import pytest
from tools import spec_ledger
from tools.spec_ledger import ROOT, SOURCES, Requirement

DRAFT = (ROOT / "spec" / "draft-li-sdcp.txt").read_text(encoding="utf-8")
LEDGER = tomllib.loads((ROOT / "spec" / "requirements.toml").read_text(encoding="utf-8"))
REQUIREMENTS = spec_ledger.requirements()
EXPLANATIONS: list[dict[str, str]] = LEDGER["explanation"]
# Section and text of every entry.
ENTRIES = [(entry["section"], entry["text"]) for entry in LEDGER["requirement"] + EXPLANATIONS]

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


def test_entries_have_exactly_the_known_keys() -> None:
    known = frozenset({"id", "section", "keyword", "module", "text"})
    assert {frozenset(entry) for entry in LEDGER["requirement"]} == {known}
    assert {frozenset(entry) for entry in EXPLANATIONS} == {frozenset({"section", "text"})}


def test_ids_are_unique() -> None:
    repeated = [name for name, times in Counter(entry.id for entry in REQUIREMENTS).items() if times > 1]
    assert not repeated


def test_ids_are_kebab_case_and_name_their_section() -> None:
    for entry in REQUIREMENTS:
        match = IDENTIFIER.fullmatch(entry.id)
        assert match, entry.id
        assert match["section"] == entry.section, entry.id


def test_entries_stand_in_the_order_of_the_sections() -> None:
    order = [[int(part) for part in entry.section.split(".")] for entry in REQUIREMENTS]
    assert order == sorted(order)


def test_keyword_is_the_one_bcp14_word_of_the_text() -> None:
    assert {entry.keyword for entry in REQUIREMENTS} <= KEYWORDS
    for entry in REQUIREMENTS:
        expected = [] if entry.keyword == "procedure" else [entry.keyword]
        assert BCP14.findall(entry.text) == expected, entry.id


def test_every_text_stands_verbatim_in_its_section() -> None:
    strayed = [text for section, text in ENTRIES if not spans(text, SECTIONS[section])]
    assert not strayed


def uncovered(section: str) -> Iterator[str]:
    """Every BCP 14 word of a section that no entry with that keyword holds, with some of the text around it."""
    text = SECTIONS[section]
    covered = [
        (*span, entry.keyword) for entry in REQUIREMENTS if entry.section == section for span in spans(entry.text, text)
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
    for entry_section, entry_text in ENTRIES:
        if entry_section == section:
            for start, end in spans(entry_text, text):
                left[start:end] = "\n" * (end - start)
    words = set(re.findall(r"\w+", "".join(left)))
    assert words <= JOINING, [piece for piece in "".join(left).split("\n") if re.search(r"\w", piece)]


@pytest.mark.parametrize("entry", REQUIREMENTS, ids=lambda entry: entry.id)
def test_the_modules_of_a_requirement_exist_and_cite_its_section(entry: Requirement) -> None:
    assert entry.modules
    for module in entry.modules:
        source = (ROOT / SOURCES / module).read_text(encoding="utf-8")
        assert spec_ledger.cites(source, entry.section), f"{module} does not cite {entry.section}"


def test_every_requirement_has_a_test_and_every_marker_names_a_requirement() -> None:
    known = {entry.id for entry in REQUIREMENTS}
    claims = spec_ledger.marked("requirement")
    assert [claim.claimant for claim in claims if claim.id not in known] == []
    assert known - {claim.id for claim in claims} == set()
