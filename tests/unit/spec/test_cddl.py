"""`spec/sdcp.cddl` says what the CDDL in sections 4.1 and 5.2 says: only comments and line breaks differ."""

import re
from pathlib import Path

SPEC = Path(__file__).resolve().parents[3] / "spec"

COMMENT = re.compile(r";.*")
FIRST_LINE = re.compile(r"(?P<name>[a-z][a-z0-9-]*) +=(?P<body>.*)")
NEXT_LINE = re.compile(r" +\S|\}")


def rules(text: str) -> dict[str, str]:
    """Rule name to its body, without comments and with runs of white space as one space.

    A rule begins in the first column and goes on over indented lines and a closing brace; prose ends it.
    """
    found: dict[str, list[str]] = {}
    body: list[str] = []
    for line in COMMENT.sub("", text).splitlines():
        first = FIRST_LINE.match(line)
        if first:
            body = found[first["name"]] = [first["body"]]
        elif NEXT_LINE.match(line):
            body.append(line)
        else:
            body = []
    return {name: " ".join(" ".join(lines).split()) for name, lines in found.items()}


def test_cddl_file_has_the_rules_of_the_draft() -> None:
    drafted = rules((SPEC / "draft-li-sdcp.txt").read_text(encoding="utf-8"))
    assert drafted["policy"] == "{ session: session-id, from_round: uint, sampling: sampling }"
    assert rules((SPEC / "sdcp.cddl").read_text(encoding="utf-8")) == drafted
