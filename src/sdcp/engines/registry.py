"""Engines by name: what a configuration calls them, and what has to be installed for each.

A heavy engine is imported when it is chosen. Everything that can be wrong here is wrong in a file or on the command
line, so it is said in one sentence as a ConfigurationError.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from sdcp.engines.digests import IDENTITY_TOKENIZER, tokenizer_digest
from sdcp.errors import ConfigurationError
from sdcp.ports import Drafter, Target

Options: TypeAlias = Mapping[str, Any]


def load_target(engine: str, path: Path | None, tokenizer: Path | None = None, **options: Any) -> Target:
    """Load a target model.

    engine: a key of TARGETS. path: the model's file or folder. tokenizer: a tokenizer.json or its folder, when it does
    not lie beside the weights. options: the engine's own (docs of its class). ConfigurationError says what is wrong.
    """
    return _chosen("target", TARGETS, engine)(path, tokenizer, options)  # type: ignore[no-any-return]


def load_drafter(engine: str, path: Path | None, tokenizer: Path | None = None, **options: Any) -> Drafter:
    """Load a drafter; as `load_target`. The option `vocabulary` is V of the target, if it is another (D5)."""
    return _chosen("drafter", DRAFTERS, engine)(path, tokenizer, options)  # type: ignore[no-any-return]


Loader: TypeAlias = Callable[[Path | None, Path | None, Options], Any]


def _chosen(role: str, table: Mapping[str, Loader], engine: str) -> Loader:
    if engine not in table:
        raise ConfigurationError(f"There is no {role} engine {engine!r}: choose one of {', '.join(table)}.")
    return table[engine]


def _bigram_target(path: Path | None, tokenizer: Path | None, options: Options) -> Target:
    from sdcp.engines.bigram import BigramTarget

    return _made("bigram", BigramTarget, _table(path), options=options)  # type: ignore[no-any-return]


def _bigram_drafter(path: Path | None, tokenizer: Path | None, options: Options) -> Drafter:
    from sdcp.engines.bigram import BigramDrafter

    return _made("bigram", BigramDrafter, _table(path), options=options)  # type: ignore[no-any-return]


def _transformers_target(path: Path | None, tokenizer: Path | None, options: Options) -> Target:
    folder = _given(path, "transformers")
    kind = _transformers().TransformersTarget
    return _made("transformers", kind, folder, tokenizer_digest(tokenizer or folder), options=options)  # type: ignore[no-any-return]


def _transformers_drafter(path: Path | None, tokenizer: Path | None, options: Options) -> Drafter:
    folder = _given(path, "transformers")
    kind = _transformers().TransformersDrafter
    return _made("transformers", kind, folder, tokenizer_digest(tokenizer or folder), options=options)  # type: ignore[no-any-return]


def _ngram(path: Path | None, tokenizer: Path | None, options: Options) -> Drafter:
    from sdcp.engines.ngram import NgramDrafter

    vocabulary = options.get("vocabulary")
    if not isinstance(vocabulary, int) or vocabulary < 1:
        raise ConfigurationError("The engine ngram has no model to tell V: set `vocabulary` to that of the target.")
    digest = tokenizer_digest(tokenizer) if tokenizer else IDENTITY_TOKENIZER
    return _made("ngram", NgramDrafter, vocabulary, digest, options=_without(options, "vocabulary"))  # type: ignore[no-any-return]


def _mixed(path: Path | None, tokenizer: Path | None, options: Options) -> Drafter:
    from sdcp.engines.mixed import MixedDrafter
    from sdcp.engines.ngram import NgramDrafter

    model = _transformers_drafter(path, tokenizer, options)
    return MixedDrafter(NgramDrafter(model.vocabulary, model.tokenizer), model)


TARGETS: dict[str, Loader] = {"bigram": _bigram_target, "transformers": _transformers_target}
DRAFTERS: dict[str, Loader] = {
    "bigram": _bigram_drafter,
    "ngram": _ngram,
    "transformers": _transformers_drafter,
    "ngram+transformers": _mixed,
}


def _transformers() -> Any:
    # Threads that spin while they wait for each other starve the other processes of a small machine: a pass of two
    # spinning threads beside one busy process was seen to take twenty times as long. Read once, when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        from sdcp.engines import transformers
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"The engine transformers needs the package {error.name}: pip install 'sdcp[transformers]'."
        ) from error
    return transformers


def _given(path: Path | None, engine: str) -> Path:
    if path is None:
        raise ConfigurationError(f"[model] path is missing: the engine {engine} needs a model.")
    if not path.exists():
        raise ConfigurationError(f"The engine {engine} needs a model: {path} does not exist.")
    return path


def _table(path: Path | None) -> Path:
    file = _given(path, "bigram")
    if file.is_dir():
        raise ConfigurationError(f"The engine bigram needs a safetensors file: {file} is a folder.")
    return file


def _without(options: Options, name: str) -> Options:
    return {key: value for key, value in options.items() if key != name}


def _made(engine: str, kind: Callable[..., Any], *arguments: Any, options: Options) -> Any:
    """Call an engine's class, refusing options that it does not have."""
    known = list(inspect.signature(kind).parameters)[len(arguments) :]
    unknown = [name for name in options if name not in known]
    if unknown:
        choice = f"choose from {', '.join(known)}" if known else "it has none"
        raise ConfigurationError(f"The engine {engine} has no option {unknown[0]!r}: {choice}.")
    return kind(*arguments, **options)
