"""Contract and prompt of a session, without which no digest chain can be derived again (4.2).

They stand in the session's manifest (D45), beside the commit log under a name that differs in the first letter, or in a
JSON file: `{"contract": {...}, "prompt": [...]}`, byte strings in base64url as RFC 8949 6.1 maps them.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdcp.errors import ConfigurationError, ProblemError
from sdcp.messages.contract import Contract
from sdcp.messages.fields import TOKENS
from sdcp.messages.manifest import ManifestRecord, PromptRecord, RequestRecord, parse_manifest_record
from sdcp.ports import Cache, LogDamagedError, LogSlice
from sdcp.wire import cbor

COMMIT_LOG, MANIFEST = "c", "m"
_OCTETS = ("target", "tokenizer", "scope")


@dataclass(frozen=True, slots=True)
class Session:
    """What d[0] is made of."""

    contract: Contract
    prompt: tuple[int, ...]


async def of_manifest(cache: Cache, log: str) -> Session:
    """Read the manifest of the commit log `log`. Raises ConfigurationError."""
    parent, _, name = log.rpartition("/")
    if name.startswith(MANIFEST):
        raise ConfigurationError(f"{log}: is a manifest; verify the commit log, {parent}/{COMMIT_LOG}{name[1:]}")
    if not name.startswith(COMMIT_LOG):
        raise ConfigurationError(f"{log}: the name says nothing of a manifest; give contract and prompt with --opening")
    ref = f"{parent}/{MANIFEST}{name[1:]}"
    try:
        found = await cache.read_log(ref)
    except LogDamagedError as damage:  # contract and prompt stand first, and may be intact
        found = LogSlice(0, damage.data, "")
    if found.etag is None:
        raise ConfigurationError(f"{ref}: there is no manifest; give contract and prompt with --opening")
    try:
        return session_of(list(records(found.data)))
    except ProblemError as fault:
        raise ConfigurationError(f"{ref}: is no manifest: {fault.detail}") from None
    except ValueError as fault:
        raise ConfigurationError(f"{ref}: {fault}") from None


def records(data: bytes) -> Iterator[ManifestRecord]:
    """The records of a manifest whose kind is known. Raises a ProblemError."""
    for _, value in cbor.decode_sequence(data):
        record = parse_manifest_record(value)
        if record is not None:
            yield record


def session_of(manifest: list[ManifestRecord]) -> Session:
    """Contract and whole prompt. Raises ValueError for a manifest that has not both."""
    if not manifest or not isinstance(manifest[0], RequestRecord):
        raise ValueError("the manifest does not begin with the session's request")
    first = manifest[0]
    further = [token for each in manifest if isinstance(each, PromptRecord) for token in each.tokens]
    prompt = (*first.request.prompt, *further)
    if len(prompt) != first.prompt_length:
        raise ValueError(f"the manifest has {len(prompt)} tokens of a prompt of {first.prompt_length}")
    return Session(first.contract, prompt)


def of_file(path: Path) -> Session:
    """Read a JSON file. Raises ConfigurationError."""
    try:
        document = json.loads(path.read_text())
        contract = {name: _plain(name, value) for name, value in document["contract"].items()}
        return Session(Contract.parse(contract), TOKENS.parse(document["prompt"]))
    except OSError as fault:
        raise ConfigurationError(f"{path}: cannot be read: {fault.strerror}") from None
    except ProblemError as fault:
        raise ConfigurationError(f"{path}: {fault.detail}") from None
    except (ValueError, LookupError, TypeError, AttributeError, binascii.Error):
        raise ConfigurationError(
            f'{path}: is not JSON of the form {{"contract": {{...}}, "prompt": [...]}} with base64url byte strings'
        ) from None


def _plain(name: str, value: Any) -> Any:
    if name in _OCTETS:
        return _octets(value)
    return [_octets(each) for each in value] if name == "drafters" else value


def _octets(text: str) -> bytes:
    return base64.b64decode(f"{text}{'=' * (-len(text) % 4)}".encode("ascii"), altchars=b"-_", validate=True)
