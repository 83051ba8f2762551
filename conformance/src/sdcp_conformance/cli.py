"""`sdcp-conformance`: the commands. A fault of the command line is one line and exit code 2."""

from __future__ import annotations

import asyncio
import fnmatch
import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sdcp_conformance import baseline as baselines
from sdcp_conformance import report
from sdcp_conformance.registry import DECISIONS, DRAFT, ROLES, Check, all_checks
from sdcp_conformance.runner import FAILED, Plan, Result
from sdcp_conformance.runner import run as run_plan
from sdcp_conformance.subject import SubjectError

app = typer.Typer(
    help="Judge an implementation of SDCP over the wire.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Roles = Annotated[list[str], typer.Option("--role", metavar="ROLE", help="verifier, drafter or router; repeatable.")]
Only = Annotated[list[str], typer.Option("--only", metavar="ID", help="A check's id, or a pattern; repeatable.")]
Profile = Annotated[str, typer.Option("--profile", metavar="PROFILE", help="draft, decisions or all.")]


def main() -> None:
    """Run a command."""
    try:
        app()
    except (CommandError, baselines.BaselineError, SubjectError) as fault:
        print(f"sdcp-conformance: {fault}", file=sys.stderr)
        sys.exit(2)


class CommandError(Exception):
    """What was asked for cannot be; one line."""


@app.command()
def run(
    subject: Annotated[
        str, typer.Option("--subject", metavar="COMMAND", help="Starts one role: COMMAND ROLE --config FILE.")
    ],
    role: Roles = [],  # noqa: B006
    only: Only = [],  # noqa: B006
    profile: Profile = "all",
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write results as JSON.")] = None,
    junit_file: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML.")] = None,
    baseline: Annotated[
        Path | None, typer.Option("--baseline", metavar="FILE", help="Ids that are expected to fail, one a line.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Checks at a time.")] = 8,
    patience: Annotated[
        float, typer.Option("--patience", metavar="SECONDS", min=0.1, help="How long to wait for what must come.")
    ] = 10.0,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop after the first unexpected failure.")] = False,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Keep settings, certificates and logs there.")
    ] = None,
) -> None:
    """Run the checks against a subject.

    Exit code 1: a check failed that the baseline does not name, or one passed that it names. 2: the subject or the
    command line is not as it must be.

    \b
    Example: sdcp-conformance run --subject sdcp --role verifier --only 'V-open-*'
    """
    checks = _selected(role, only, profile)
    expected = frozenset() if baseline is None else baselines.read(baseline, {each.id for each in all_checks()})
    plan = Plan(subject, checks, jobs, patience, fail_fast, keep, expected=expected)
    began = time.monotonic()
    results = _with_progress(plan)
    verdict = baselines.judge(results, expected)
    ran = [each for each in results if each.check.role not in plan.broken]
    if ran:
        report.table(Console(), ran, baselines.judge(ran, expected), expected)
    if json_file is not None:
        _write(json_file, report.as_json(results, verdict, subject, time.monotonic() - began))
    if junit_file is not None:
        _write(junit_file, report.as_junit(results, expected))
    if plan.broken:
        raise SubjectError("\n".join(dict.fromkeys(plan.broken.values())))
    raise typer.Exit(verdict.exit_code)


@app.command("list")
def list_checks(
    role: Roles = [],  # noqa: B006
    only: Only = [],  # noqa: B006
    profile: Profile = "all",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array.")] = False,
) -> None:
    """List the checks, with the sentences of the draft and the decisions that they rest on.

    \b
    Example: sdcp-conformance list --role drafter
    """
    checks = _selected(role, only, profile)
    if as_json:
        print(json.dumps([each.as_json() for each in checks], indent=1))
        return
    for each in checks:
        print(f"{each.id}  [{each.profile}]  {each.title}")
        print(f"    {' '.join((*each.requirements, *each.decisions))}")


def _selected(roles: list[str], only: list[str], profile: str) -> list[Check]:
    for each in roles:
        if each not in ROLES.values():
            raise CommandError(f"--role {each}: must be one of {', '.join(ROLES.values())}")
    if profile not in (DRAFT, DECISIONS, "all"):
        raise CommandError(f"--profile {profile}: must be draft, decisions or all")
    checks = [
        each
        for each in all_checks()
        if (not roles or each.role in roles) and (profile == "all" or each.profile == profile)
    ]
    for pattern in only:
        if not any(fnmatch.fnmatchcase(each.id, pattern) for each in checks):
            raise CommandError(f"--only {pattern}: there is no such check; see `sdcp-conformance list`")
    if only:
        checks = [each for each in checks if any(fnmatch.fnmatchcase(each.id, pattern) for pattern in only)]
    if not checks:
        raise CommandError("no check is left to run")
    return checks


def _with_progress(plan: Plan) -> list[Result]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=len(plan.checks))

        def tell(result: Result) -> None:
            progress.update(task, advance=1, description=f"{result.check.role} {result.check.id}")
            if (
                result.outcome == FAILED
                and result.check.role not in plan.broken
                and result.check.id not in plan.expected
            ):
                progress.console.print(f"failed: {result.check.id}", markup=False)

        plan.tell = tell
        return asyncio.run(run_plan(plan))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as fault:
        raise CommandError(f"{path}: cannot be written: {fault.strerror}") from None


if __name__ == "__main__":
    main()
