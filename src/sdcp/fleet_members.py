"""Who is in a fleet of `sdcp up`, and each one's settings: which engine serves a model that was given as a path.

Not here: addresses, certificates and processes (`sdcp.fleet`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from sdcp.errors import ConfigurationError

DEMO_TARGET = Path("models/SmolLM2-135M-Instruct")
DEMO_DRAFTER = Path("models/demo-drafter")

GROUP_KEY = "verifiers.secret"
"""In the fleet's folder: what verifiers tag KV with (D44)."""

KV_INTERVAL = 64
"""Committed tokens between two publications: answers of a demonstration are short."""


@dataclass(frozen=True, slots=True)
class Member:
    """One process to be: its name, its role, and the lines of its settings below `[server]` and `[tls]`."""

    name: str
    role: str
    settings: str


def models_of(targets: tuple[Path, ...], drafts: tuple[str, ...]) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Return the models given, or else those of the demonstration. Raises ConfigurationError when one is not there."""
    asked = bool(targets)
    targets = targets or (DEMO_TARGET,)
    drafts = drafts or (f"ngram+{DEMO_DRAFTER}",) * 2
    if not asked and not DEMO_TARGET.exists():
        raise ConfigurationError(f"{DEMO_TARGET} is not there; run `sdcp models fetch demo` first")
    paths = [*targets, *(Path(draft.removeprefix("ngram+")) for draft in drafts if draft != "ngram")]
    for path in paths:
        if not path.exists():
            raise ConfigurationError(f"{path}: no such model file or folder")
    return targets, drafts


def members(targets: tuple[Path, ...], drafts: tuple[str, ...]) -> Iterator[Member]:
    """Give every process, from the back to the front. Settings say `@cache`, `@router`, `@api` for their addresses."""
    peers = '[cache]\nprefixes = ["@cache"]\n\n[routers]\nbase_uris = ["@router"]\n'
    yield Member("cache", "cache", '[store]\ndirectory = "store"\n')
    yield Member("router", "router", '[cache]\nprefixes = ["@cache"]\n')
    for number, target in enumerate(targets, 1):
        yield Member(f"verifier-{number}", "verifier", f"{_model(target)}\n{peers}{_kv(target, len(targets))}")
    for number, draft in enumerate(drafts, 1):
        yield Member(f"drafter-{number}", "drafter", f"{_drafter_model(draft, targets[0])}\n{peers}")
    gateway = f'[api]\nlisten = "@api"\nmodel_name = {_quoted(targets[0].stem)}\n'
    routers = '[routers]\nbase_uris = ["@router"]\n'
    yield Member("gateway", "gateway", f"{_model(targets[0])}\n{routers}\n{gateway}")


def _model(path: Path) -> str:
    engine = "transformers" if path.is_dir() else "bigram"
    return f'[model]\nengine = "{engine}"\npath = {_quoted(path.resolve())}\n'


def _kv(target: Path, verifiers: int) -> str:
    """A verifier that is not alone publishes KV for the others; the reference model has none."""
    if verifiers == 1 or not target.is_dir():
        return ""
    return f'\n[kv]\ngroup_key = "{GROUP_KEY}"\ninterval = {KV_INTERVAL}\n'


def _drafter_model(draft: str, target: Path) -> str:
    lookup = draft == "ngram" or draft.startswith("ngram+")
    path = draft.removeprefix("ngram").removeprefix("+") if lookup else draft
    if path and not lookup and not Path(path).is_dir():
        return _model(Path(path))
    engine = "+".join(["ngram"] * lookup + ["transformers"] * bool(path))
    lines = [f'[model]\nengine = "{engine}"']
    if path:  # a small model gains nothing from a second thread, and the verifier needs it
        lines += [f"path = {_quoted(Path(path).resolve())}", "threads = 1"]
    else:  # lookup knows no model: vocabulary and tokenizer are the target's
        lines += [f"vocabulary = {_vocabulary(target)}"]
        lines += [f"tokenizer = {_quoted(target.resolve() / 'tokenizer.json')}"] if target.is_dir() else []
    return "\n".join(lines) + "\n"


def _vocabulary(target: Path) -> int:
    """V of a model folder or of a reference model."""
    try:
        if target.is_dir():
            return int(json.loads((target / "config.json").read_text())["vocab_size"])
        with safe_open(target, framework="numpy") as file:
            return int(file.get_slice("logits").get_shape()[-1])
    except (OSError, ValueError, LookupError, SafetensorError) as fault:
        raise ConfigurationError(f"{target}: is no model: {fault}") from None


def _quoted(value: object) -> str:
    return json.dumps(str(value))  # a JSON string is a TOML basic string
