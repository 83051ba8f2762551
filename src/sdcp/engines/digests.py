"""Digests of models and tokenizers (docs/reference-model.md, 4.1): what a contract names.

A model is one weight file, or a folder of weight files; its tokenizer is the `tokenizer.json` beside the weights. The
reference model is the exception: its tokens stand for themselves, whatever lies beside it.
Hashing gigabytes takes seconds, so the digest of a large file is remembered by (path, size, mtime) in a small JSON file
under the user's cache folder (`XDG_CACHE_HOME`). A memory that cannot be read or written is only slow, never wrong.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path

from safetensors import SafetensorError, safe_open

from sdcp.errors import ConfigurationError

IDENTITY_TOKENIZER = hashlib.sha256(b"sdcp-identity-tokenizer-1").digest()
"""The tokenizer of the reference model: token ids stand for themselves."""

WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")
"""Weight files of a folder, by preference: the first pattern that matches anything names them all."""

LARGE = 1 << 20
"""Files below this many bytes are hashed every time."""


def model_digest(path: Path) -> bytes:
    """Return the digest of a weight file, or of a folder: of `name 0x00 sha256(file)` in name order if it has several.

    ConfigurationError when there are no weights at `path`.
    """
    if path.is_file():
        return file_digest(path)
    files = weight_files(path)
    if len(files) == 1:
        return file_digest(files[0])
    total = hashlib.sha256()
    for file in files:
        total.update(file.name.encode() + b"\x00" + file_digest(file))
    return total.digest()


def weight_files(folder: Path) -> list[Path]:
    """Return the weight files of a folder in name order. ConfigurationError when there are none."""
    if not folder.exists():
        raise ConfigurationError(f"{folder} does not exist: give a model's file or folder.")
    for pattern in WEIGHTS:
        files = sorted(folder.glob(pattern), key=lambda file: file.name)
        if files:
            return files
    raise ConfigurationError(f"No model weights ({', '.join(WEIGHTS)}) at {folder}: give a model's file or folder.")


def tokenizer_digest(path: Path) -> bytes:
    """Return the SHA-256 of the tokenizer.json at `path`, in it, or beside it; that of a reference model is fixed.

    ConfigurationError when there is none.
    """
    return IDENTITY_TOKENIZER if _is_reference_model(path) else file_digest(tokenizer_file(path))


def tokenizer_file(path: Path) -> Path:
    """Find the tokenizer.json that `path` names: itself, one in that folder, or one beside that file."""
    candidates = (path,) if path.suffix == ".json" else (path / "tokenizer.json", path.parent / "tokenizer.json")
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise ConfigurationError(f"No tokenizer.json at {path}: give the tokenizer's file or its folder.")


def _is_reference_model(path: Path) -> bool:
    if not path.is_file() or path.suffix == ".json":
        return False
    try:
        with safe_open(path, framework="numpy") as file:
            return {"logits"} <= set(file.keys()) <= {"logits", "start"}
    except (OSError, SafetensorError):  # another format
        return False


def file_digest(path: Path) -> bytes:
    """Return the SHA-256 of one file, remembered when it is large."""
    try:
        status = path.stat()
    except OSError as error:
        raise ConfigurationError(f"Cannot read {path}: {error.strerror}.") from error
    if status.st_size < LARGE:
        return _hash(path)
    key = f"{path.resolve()}|{status.st_size}|{status.st_mtime_ns}"
    memory = _Memory()
    known = memory.get(key)
    if known is None:
        known = _hash(path)
        memory.put(key, known)
    return known


def _hash(path: Path) -> bytes:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()


class _Memory:
    """The remembered digests: one JSON object, replaced whole so that a reader never sees half of it."""

    def __init__(self) -> None:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self._path = Path(root) / "sdcp" / "digests.json"

    def get(self, key: str) -> bytes | None:
        value = self._read().get(key)
        return bytes.fromhex(value) if isinstance(value, str) and len(value) == 64 else None

    def put(self, key: str, digest: bytes) -> None:
        with contextlib.suppress(OSError):  # a read-only home costs time, no more
            self._path.parent.mkdir(parents=True, exist_ok=True)
            content = json.dumps({**self._read(), key: digest.hex()}, indent=0)
            with tempfile.NamedTemporaryFile("w", dir=self._path.parent, delete=False) as stream:
                stream.write(content)
            Path(stream.name).replace(self._path)

    def _read(self) -> dict[str, object]:
        try:
            known = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}
