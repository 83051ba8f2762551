"""The ledgers of the draft and of the decisions, and who claims what in them: tests, modules, conformance checks.

`spec/requirements.toml` holds each sentence of the draft once, `spec/decisions.toml` each clause of docs/decisions.md.
A test claims ids with `@pytest.mark.requirement(...)` and `@pytest.mark.decision(...)`; a conformance check claims them
in its decorator. Claims are read from the syntax of the sources: nothing is imported, nothing has to be installed.

Words: the *node* of a test is its path and name as pytest writes them, `tests/unit/x/test_y.py::test_z`. A *marker
that reaches no test* stands where pytest would not apply it; it is a fault.

Not here: whether a test is a good one, and the page made of all this (`tools.spec_map`).
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = Path("src/sdcp")

ID = re.compile(r"S\d+(?:\.\d+)*-[a-z0-9]+(?:-[a-z0-9]+)*|D\d+a?(?:-[a-z0-9]+)*")
"""A sentence of the draft, a decision, or a clause of one."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
# Tables of the draft that its modules cite by name, and the section each is entered under.
TABLES = {"5.1": "Table 1", "6.9": "Table 2"}


@dataclass(frozen=True)
class Requirement:
    """A sentence of the draft. `modules`: files below src/sdcp that implement it. `line`: where its entry starts."""

    id: str
    section: str
    keyword: str
    text: str
    modules: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class Clause:
    """A clause of a decision, `D12-order` of D12."""

    id: str
    decision: str
    text: str
    line: int


@dataclass(frozen=True)
class Claim:
    """`claimant` (a test's node, a check's id) says that it breaks when `id` does; `path` is its file."""

    id: str
    claimant: str
    path: str


# -- ledgers -----------------------------------------------------------------------------------------------------------


def requirements(root: Path = ROOT) -> list[Requirement]:
    """Every sentence of the draft that asks for something, in the order of the ledger."""
    source = (root / "spec" / "requirements.toml").read_text(encoding="utf-8")
    lines = _lines_of_ids(source)
    return [
        Requirement(
            entry["id"],
            entry["section"],
            entry["keyword"],
            entry["text"],
            tuple(entry.get("module", ())),
            lines[entry["id"]],
        )
        for entry in tomllib.loads(source)["requirement"]
    ]


def clauses(root: Path = ROOT) -> list[Clause]:
    """Every clause of the decisions that asks for something, in the order of the ledger."""
    source = (root / "spec" / "decisions.toml").read_text(encoding="utf-8")
    lines = _lines_of_ids(source)
    return [
        Clause(entry["id"], entry["id"].split("-")[0], entry["text"], lines[entry["id"]])
        for entry in tomllib.loads(source)["clause"]
    ]


def _lines_of_ids(source: str) -> dict[str, int]:
    found = ((number, re.match(r'id = "([^"]+)"', line)) for number, line in enumerate(source.splitlines(), start=1))
    return {match[1]: number for number, match in found if match}


# -- markers in tests --------------------------------------------------------------------------------------------------


@cache
def marked(kind: str, root: Path = ROOT) -> tuple[Claim, ...]:
    """Every claim that a test makes with `pytest.mark.<kind>`, by file and in the order of the file."""
    found = []
    for path in sorted((root / "tests").rglob("*.py")):
        name, source = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
        if f"pytest.mark.{kind}" in source:
            found += [Claim(identifier, f"{name}::{test}", name) for test, identifier in carried(source, kind)]
    return tuple(found)


def carried(source: str, kind: str) -> list[tuple[str, str]]:
    """(test, id) for every id that a test of the module carries: by itself, by its class, or by the module.

    A test carries what stands in its decorators, and in the assignments of the module that these name (a list of
    `pytest.param`). The test of a class is `TestClass::test_x`.
    """
    module = ast.parse(source)
    tables = {name: statement for statement in module.body for name in _assigned(statement)}
    everywhere = _ids(tables["pytestmark"], kind) if "pytestmark" in tables else []
    return [
        (name, identifier)
        for name, function, outer in _tests(module.body, kind, "", everywhere)
        for identifier in dict.fromkeys([*outer, *_ids_of_decorators(function, tables, kind)])
    ]


def stray(source: str, kind: str) -> list[str]:
    """The ids in markers that reach no test."""
    if f"pytest.mark.{kind}" not in source:
        return []
    reached = {identifier for _, identifier in carried(source, kind)}
    return [identifier for identifier in _ids(ast.parse(source), kind) if identifier not in reached]


def _tests(
    body: Iterable[ast.stmt], kind: str, prefix: str, outer: list[str]
) -> Iterator[tuple[str, Function, list[str]]]:
    """(name, function, ids from the classes around it and the module) for every test."""
    for statement in body:
        if isinstance(statement, Function) and statement.name.startswith("test_"):
            yield prefix + statement.name, statement, outer
        if isinstance(statement, ast.ClassDef) and statement.name.startswith("Test"):
            own = [part for part in statement.body if "pytestmark" in _assigned(part)]
            ids = [identifier for part in (*statement.decorator_list, *own) for identifier in _ids(part, kind)]
            yield from _tests(statement.body, kind, f"{prefix}{statement.name}::", [*outer, *ids])


def _ids_of_decorators(function: Function, tables: dict[str, ast.stmt], kind: str) -> Iterator[str]:
    """What stands in the decorators, and in the tables that they name, however many names are between."""
    seen: set[str] = set()
    todo: list[ast.AST] = list(function.decorator_list)
    while todo:
        part = todo.pop(0)
        yield from _ids(part, kind)
        names = {node.id for node in ast.walk(part) if isinstance(node, ast.Name)} & tables.keys()
        todo += [tables[name] for name in sorted(names - seen)]
        seen |= names


def _assigned(statement: ast.stmt) -> list[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _ids(part: ast.AST, kind: str) -> list[str]:
    """The ids of every `pytest.mark.<kind>(...)` in a piece of source; each must be a literal string."""
    calls = [node for node in ast.walk(part) if isinstance(node, ast.Call)]
    marks = [call for call in calls if ast.unparse(call.func) == f"pytest.mark.{kind}"]
    return [str(ast.literal_eval(argument)) for call in marks for argument in call.args]


# -- modules -----------------------------------------------------------------------------------------------------------


def cites(source: str, section: str) -> bool:
    """Whether a docstring or a comment of a module cites the section, by its number or by its table."""
    word = re.compile(rf"(?<![\d.]){re.escape(section)}(?!\d|\.\d)")
    table = TABLES.get(section)
    return any(word.search(text) or (table is not None and table in text) for text in _words(source))


def _words(source: str) -> Iterator[str]:
    """Docstrings (of attributes too) and comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


# -- conformance checks ------------------------------------------------------------------------------------------------


@cache
def checks(root: Path = ROOT) -> tuple[Claim, ...]:
    """Every claim of a check of the conformance kit, by file and in the order of the file; none without the kit."""
    found = []
    for path in sorted((root / "conformance" / "src").rglob("*.py")):
        name = path.relative_to(root).as_posix()
        for check, identifier in claimed(path.read_text(encoding="utf-8")):
            found.append(Claim(identifier, check, name))
    return tuple(found)


def claimed(source: str) -> list[tuple[str, str]]:
    """(check, id) for every `check("V-x", ...ids..., decisions=[...])`, as a decorator or in a loop that makes several.

    In a loop `f"{role}-x"` is shown as `*-x`, and claims all that the table of the loop lists if it passes a part on.
    """
    module = ast.parse(source)
    tables = {name: statement for statement in module.body for name in _assigned(statement)}
    found = []
    for statement in module.body:
        listed = _listed(statement, tables)
        for call in ast.walk(statement):
            if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] == "check" and call.args:
                passed_on = listed if any(isinstance(argument, ast.Starred) for argument in call.args) else []
                words = dict.fromkeys([*_strings(call), *passed_on])
                found += [(_pattern(call.args[0]), word) for word in words if ID.fullmatch(word)]
    return found


def _listed(statement: ast.stmt, tables: dict[str, ast.stmt]) -> list[str]:
    """The literal strings of the tables that a loop goes through."""
    if not isinstance(statement, ast.For):
        return []
    names = [node.id for node in ast.walk(statement.iter) if isinstance(node, ast.Name) and node.id in tables]
    return [word for name in names for word in _strings(tables[name])]


def _pattern(name: ast.expr) -> str:
    """A literal, or an f-string with `*` for what is filled in."""
    if isinstance(name, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in name.values)
    return str(ast.literal_eval(name))


def _strings(part: ast.AST) -> list[str]:
    """The literal strings in a piece of source, in the order in which they stand."""
    nodes = [node for node in ast.walk(part) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [str(node.value) for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset))]
