"""The command `sdcp`. Every command has `--help` with an example; a mistake is one clear line and exit code 2.

Not here: what the commands do. Roles, engines and the fleet are imported when their command runs, so that `--help` and
`sdcp vectors` need neither torch nor a network.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sdcp import __version__
from sdcp.errors import ConfigurationError

app = typer.Typer(
    name="sdcp",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Speculative Decoding Coordination Protocol: router, verifier, drafters, cache and gateway.\n\n"
    'Example: sdcp up --once --prompt "Why is the sky blue?"',
)
ca = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Development authority and certificates (D9).\n\nExample: sdcp ca init certs",
)
models = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Model folders.\n\nExample: sdcp models fetch demo"
)
cache = typer.Typer(rich_markup_mode=None)
log = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Commit logs and manifests of sessions.\n\nExample: sdcp log verify https://127.0.0.1:7400/logs/NAME",
)
app.add_typer(ca, name="ca")
app.add_typer(models, name="models")
app.add_typer(cache, name="cache")
app.add_typer(log, name="log")

Config = Annotated[Path, typer.Option("--config", metavar="FILE", help="Settings (TOML, docs/configuration.md).")]
UntilStdinEnds = Annotated[bool, typer.Option("--until-stdin-ends", help="Stop when standard input ends.")]
LogLevel = Annotated[str, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")]


# typer carries click inside and names only leaves of its tree of errors: BadParameter < UsageError < ClickException.
_Mistake: Any = typer.BadParameter.__mro__[2]


def main() -> None:
    """Run the command; a mistake is one line on standard error and exit code 2."""
    try:
        sys.exit(app(standalone_mode=False))
    except (_Mistake, ConfigurationError) as error:
        print(_sentence(error), file=sys.stderr)
        sys.exit(2)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:  # `sdcp ... | head`: the reader has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _sentence(error: Any) -> str:
    text = error.format_message() if isinstance(error, _Mistake) else str(error)
    # Without arguments the message is the help page itself.
    return text if text.startswith("Usage:") else f"sdcp: {text}"


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass


# ---- roles ----------------------------------------------------------------------------------------------------------


def _serve(role: str, config: Path, log_level: str, until_stdin_ends: bool) -> None:
    from importlib import import_module

    from sdcp.roles import config as settings
    from sdcp.roles.process import run

    if log_level not in ("debug", "info", "warning", "error"):
        raise ConfigurationError(f"--log-level {log_level}: must be debug, info, warning or error")
    loaded = settings.load(config, getattr(settings, f"{role.capitalize()}Settings"))
    run(loaded, import_module(f"sdcp.roles.{role}").make, log_level=log_level, until_stdin_ends=until_stdin_ends)


@app.command()
def verifier(config: Config, log_level: LogLevel = "info", until_stdin_ends: UntilStdinEnds = False) -> None:
    """Serve a verifier, the only party that commits output.

    Prints `ready <base URI>` when it serves, as the other roles do.

    Example: sdcp verifier --config verifier.toml
    """
    _serve("verifier", config, log_level, until_stdin_ends)


@app.command()
def drafter(config: Config, log_level: LogLevel = "info", until_stdin_ends: UntilStdinEnds = False) -> None:
    """Serve a drafter, which proposes tokens.

    Example: sdcp drafter --config drafter-1.toml
    """
    _serve("drafter", config, log_level, until_stdin_ends)


@app.command()
def router(config: Config, log_level: LogLevel = "info", until_stdin_ends: UntilStdinEnds = False) -> None:
    """Serve a router, which assigns requests to drafters.

    It opens sessions at verifiers and assigns them to drafters by load.

    Example: sdcp router --config router.toml
    """
    _serve("router", config, log_level, until_stdin_ends)


@cache.callback(invoke_without_command=True)
def cache_(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Settings (TOML, docs/configuration.md).")
    ] = None,
    log_level: LogLevel = "info",
    until_stdin_ends: UntilStdinEnds = False,
) -> None:
    """Serve a cache: objects, leases and commit logs. With a command: look into one.

    Example: sdcp cache --config cache.toml
    """
    if context.invoked_subcommand is not None:
        return
    if config is None:
        raise ConfigurationError("Missing option '--config': the settings of a cache to serve")
    _serve("cache", config, log_level, until_stdin_ends)


@app.command()
def gateway(config: Config, log_level: LogLevel = "info", until_stdin_ends: UntilStdinEnds = False) -> None:
    """Serve the OpenAI API in front of a router.

    Example: sdcp gateway --config gateway.toml
    """
    _serve("gateway", config, log_level, until_stdin_ends)


@app.command("config")
def config_(
    role: Annotated[
        str, typer.Argument(metavar="ROLE", help="verifier, drafter, router, cache or gateway; all.")
    ] = "all",
) -> None:
    """Print every setting of a role, as Markdown.

    Example: sdcp config verifier
    """
    from sdcp.roles.config_docs import describe

    print(describe(role), end="")


# ---- certificates ---------------------------------------------------------------------------------------------------

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the authority.")]


@ca.command("init")
def ca_init(directory: Directory) -> None:
    """Make a development authority.

    Its files are DIR/ca.pem and DIR/ca.key; one that exists is kept.

    Example: sdcp ca init certs
    """
    from sdcp.http.authority import init_authority

    print(init_authority(directory))


@ca.command("issue")
def ca_issue(
    directory: Directory,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Files are DIR/NAME.pem and DIR/NAME.key.")],
    role: Annotated[
        list[str],
        typer.Option("--role", metavar="ROLE", help="router, verifier, drafter, cache, or front-end (a gateway)."),
    ],
    uri: Annotated[list[str], typer.Option("--uri", metavar="URI", help="Base URI of the instance; repeatable.")] = [],  # noqa: B006
    dns: Annotated[list[str], typer.Option("--dns", metavar="NAME", help="Host name; repeatable.")] = [],  # noqa: B006
    ip: Annotated[list[str], typer.Option("--ip", metavar="ADDRESS", help="Address; repeatable.")] = [],  # noqa: B006
) -> None:
    """Issue a certificate with a role and base URIs (D9).

    Without --dns and --ip it is good for the loopback.

    \b
    Example: sdcp ca issue certs --name verifier --role verifier --uri https://127.0.0.1:7402
    """
    from sdcp.http.authority import issue

    roles = ["front-end" if each == "gateway" else each for each in role]  # the command's name for it, and D9's
    files = issue(directory, name, roles, uri, dns, ip)
    print(files.certificate)
    print(files.key)


# ---- caches and logs ------------------------------------------------------------------------------------------------

CacheUri = Annotated[
    str | None,
    typer.Argument(
        metavar="[URI]", help="The cache: https, file, s3, valkey; absent: the first of `prefixes` in the settings."
    ),
]
LogUri = Annotated[str, typer.Argument(metavar="URI", help="The log, or its name in the settings' cache of logs.")]
AsRole = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings of a router, whose certificate is used; absent: --dir."),
]
FleetDirectory = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Folder of `sdcp up`.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]


@cache.command("ls")
def cache_ls(
    uri: CacheUri = None,
    kind: Annotated[str, typer.Option("--kind", metavar="KIND", help="objects, logs, leases, or all.")] = "all",
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Names that begin with it.")] = "",
    config: AsRole = None,
    directory: FleetDirectory = Path(".sdcp"),
    as_json: AsJson = False,
) -> None:
    """List objects, logs and leases.

    A line each, with --json one JSON object a line. Logs that are kept apart (`logs` in the settings) are in the cache
    of that URI.

    Example: sdcp cache ls --kind objects
    """
    from sdcp.audit.place import Access
    from sdcp.audit.stock import KINDS, ls

    if kind not in (*KINDS, "all"):
        raise ConfigurationError(f"--kind {kind}: must be objects, logs, leases or all")
    kinds = KINDS if kind == "all" else tuple(each for each in KINDS if each == kind)
    raise typer.Exit(ls(uri, Access(config, directory), kinds, prefix, as_json))


@cache.command("stat")
def cache_stat(
    uri: CacheUri = None, config: AsRole = None, directory: FleetDirectory = Path(".sdcp"), as_json: AsJson = False
) -> None:
    """Sum up what a cache holds.

    Objects, each counted in the fastest level that has it, what is leased, logs and leases. GET metrics of an https
    cache has each level's own sums.

    Example: sdcp cache stat --json
    """
    from sdcp.audit.place import Access
    from sdcp.audit.stock import stat

    raise typer.Exit(stat(uri, Access(config, directory), as_json))


@cache.command("gc")
def cache_gc(
    uri: CacheUri = None,
    older: Annotated[
        float, typer.Option("--older", metavar="SECONDS", min=0, help="Delete unleased objects of this age.")
    ] = 3600.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go; touch nothing.")] = False,
    config: AsRole = None,
    directory: FleetDirectory = Path(".sdcp"),
    as_json: AsJson = False,
) -> None:
    """Delete old objects that no lease holds.

    Leases whose time is over go first. Logs stay.

    Example: sdcp cache gc s3://bucket/mlc --older 86400
    """
    from sdcp.audit.place import Access
    from sdcp.audit.stock import gc

    raise typer.Exit(gc(uri, Access(config, directory), older, dry_run, as_json))


@log.command("show")
def log_show(
    uri: LogUri, config: AsRole = None, directory: FleetDirectory = Path(".sdcp"), as_json: AsJson = False
) -> None:
    """Print a commit log as a table, or a manifest.

    A manifest, and with --json a commit log too, is one JSON object a record. `sdcp cache ls --kind logs` has the
    names. Exit code 1 if a record cannot be read.

    Example: sdcp log show https://127.0.0.1:7400/logs/NAME
    """
    from sdcp.audit.logs import show
    from sdcp.audit.place import Access

    raise typer.Exit(show(uri, Access(config, directory), as_json))


@log.command("verify")
def log_verify(
    uri: LogUri,
    opening: Annotated[
        Path | None,
        typer.Option(
            "--opening", metavar="FILE", help="Contract and prompt, as `log show --json` prints them of a manifest."
        ),
    ] = None,
    greedy: Annotated[
        Path | None, typer.Option("--greedy", metavar="PATH", help="Target model: prove each token with it (D32).")
    ] = None,
    config: AsRole = None,
    directory: FleetDirectory = Path(".sdcp"),
    as_json: AsJson = False,
) -> None:
    """Audit a commit log and name its first bad record.

    The digest chain is derived again from the contract and prompt in the session's manifest, or in --opening. Exit
    code 1 if a record is bad, or a token is not what plain greedy decoding gives.

    \b
    Example: sdcp log verify https://127.0.0.1:7400/logs/NAME --greedy models/SmolLM2-135M-Instruct
    """
    from sdcp.audit.logs import verify
    from sdcp.audit.place import Access

    raise typer.Exit(verify(uri, Access(config, directory), opening, greedy, as_json))


# ---- models and vectors ---------------------------------------------------------------------------------------------


@models.command("fetch")
def models_fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="demo: SmolLM2-135M-Instruct.")],
    directory: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Folder of model folders.")] = Path("models"),
) -> None:
    """Download a model into a local folder.

    Weights as safetensors, and tokenizer.json; digests are checked. One that was cut short goes on where it was.

    Example: sdcp models fetch demo
    """
    from sdcp.engines.fetch import fetch_demo

    if name != "demo":
        raise ConfigurationError(f"{name}: unknown model; the one that can be fetched is: demo")
    last = ""

    def progress(step: str, share: float) -> None:
        nonlocal last
        line = f"{step} {share:4.0%}"
        if line != last:
            print(f"\r{line:<60}", end="", file=sys.stderr, flush=True)
            last = line

    folder = fetch_demo(directory, progress)
    print(file=sys.stderr)
    print(folder)


@models.command("digest")
def models_digest(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A weight file or a model folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Print the digests of a model and its tokenizer.

    Contracts name them by these (docs/reference-model.md).

    Example: sdcp models digest models/demo-drafter
    """
    from sdcp.engines.digests import model_digest, tokenizer_digest

    digests = {"model": model_digest(path).hex(), "tokenizer": tokenizer_digest(path).hex()}
    print(json.dumps(digests) if as_json else "\n".join(f"{name} {value}" for name, value in digests.items()))


@app.command()
def vectors(files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Vector files (JSON).")]) -> None:
    """Check this implementation against expected values.

    Ends with `N passed, M failed`. Exit code 1 if a case failed, 2 if a file cannot be read.

    Example: sdcp vectors tests/data/vectors/*.json
    """
    from sdcp.vectors import run

    raise typer.Exit(run(files))


@app.command()
def simulate(
    seeds: Annotated[int, typer.Option("--seeds", metavar="NUMBER", min=1, help="How many seeds to run.")] = 200,
    start: Annotated[int, typer.Option("--start", metavar="SEED", min=0, help="The first of them.")] = 0,
    seed: Annotated[int | None, typer.Option("--seed", metavar="SEED", min=0, help="Run this one alone.")] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Print all that happens in it.")] = False,
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", metavar="NUMBER", min=1, help="Ordinary sessions of so many tokens, for timing."),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", metavar="NUMBER", min=1, help="Processes.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Play sessions in simulated worlds and check what must hold.

    Messages are lost, late, repeated and overtaken; processes crash, stand still and are cut off; peers lie. A seed
    decides all of it, so it replays a run. Exit code 1 if an invariant was broken: then the shortest run is shown.

    Example: sdcp simulate --seeds 2000 --workers 2
    """
    from sdcp.simulate import Order, run

    order = Order(seeds=seeds, start=start, seed=seed, trace=trace, tokens=tokens, workers=workers, as_json=as_json)
    raise typer.Exit(run(order))


# ---- the whole system -----------------------------------------------------------------------------------------------


@app.command()
def up(
    target: Annotated[
        list[Path], typer.Option("--target", metavar="PATH", help="Target model; one verifier each.")
    ] = [],  # noqa: B006
    draft: Annotated[
        list[str],
        typer.Option(
            "--draft", metavar="MODEL", help="Draft model: a path, `ngram`, or `ngram+PATH`; one drafter each."
        ),
    ] = [],  # noqa: B006
    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Certificates, settings, logs and cache.")
    ] = Path(".sdcp"),
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="Ask this once everything is up.")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", metavar="NUMBER", min=0, help="Greatest length of that answer; 96 if not given."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Stop after the answer to --prompt.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Compare the answer with plain greedy decoding; exit 1 if it differs (D32).")
    ] = False,
    api: Annotated[
        str, typer.Option("--api", metavar="HOST:PORT", help="Address of the OpenAI API; port 0: a free one.")
    ] = "127.0.0.1:8000",
) -> None:
    """Start the whole system on loopback.

    Cache, router, verifiers, drafters and gateway, each its own process, over mutual TLS. Without --target and
    --draft: the demonstration models (`sdcp models fetch demo`). Ctrl-C stops everything that was started; the same
    DIR can be used again.

    Example: sdcp up --target models/SmolLM2-135M-Instruct --draft ngram
    """
    from sdcp.fleet import Plan, run

    raise typer.Exit(
        run(
            Plan(
                targets=tuple(target),
                drafts=tuple(draft),
                directory=directory,
                prompt=prompt,
                max_tokens=max_tokens,
                once=once,
                check=check,
                api=api,
            )
        )
    )


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What to ask.")],
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", metavar="NUMBER", min=0, help="Greatest length of the answer.")
    ] = 128,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", metavar="NUMBER", min=0.0, help="Logits are divided by it before sampling."),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p", metavar="NUMBER", min=0.0, max=1.0, help="Sample among the best tokens of this probability."
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option("--top-k", metavar="NUMBER", min=0, help="Sample among this many best tokens; 0: all."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", metavar="NUMBER", min=0, help="Of the verifier's draws; the drafter's own are not fixed by it."
        ),
    ] = None,
    rule: Annotated[str, typer.Option("--rule", metavar="RULE", help="greedy or sampling.")] = "greedy",
    raw: Annotated[bool, typer.Option("--raw", help="Complete the text; no chat template.")] = False,
    gateway_url: Annotated[
        str | None, typer.Option("--gateway", metavar="URL", help="URL of the API; absent: that of `sdcp up` in --dir.")
    ] = None,
    directory: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Folder of `sdcp up`.")] = Path(".sdcp"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of streamed text.")] = False,
) -> None:
    """Stream an answer, then print what speculation did.

    Example: sdcp generate "Name a river." --rule sampling --temperature 0.7
    """
    from sdcp.generate import Ask, run

    sampling = _sampling(rule, {"temperature": temperature, "top_p": top_p, "top_k": top_k, "seed": seed})
    raise typer.Exit(run(Ask(prompt, max_tokens, sampling, raw), gateway_url, directory, as_json))


def _sampling(rule: str, options: dict[str, float | None]) -> dict[str, Any]:
    """The parameters of the API; an option that would do nothing is refused."""
    given = {name: value for name, value in options.items() if value is not None}
    if rule == "sampling":
        if given.get("temperature") == 0:
            raise ConfigurationError("--temperature 0 is greedy: leave out --rule sampling, or give a greater one")
        return given
    if rule != "greedy":
        raise ConfigurationError(f"--rule {rule}: must be greedy or sampling")
    if given.pop("temperature", 0):
        raise ConfigurationError("--temperature goes with --rule sampling")
    for name in given:
        raise ConfigurationError(f"--{name.replace('_', '-')} goes with --rule sampling")
    return {"temperature": 0.0}


if __name__ == "__main__":
    main()
