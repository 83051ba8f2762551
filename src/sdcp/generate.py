"""`sdcp generate`: one request to a gateway, its text as it comes, and what speculation did.

Speaks the OpenAI API over HTTP, with the gateway's own extension `sdcp` in the last chunk (docs/decisions.md, D35).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from sdcp.errors import ConfigurationError

# The first token may wait for a long prompt; between chunks a session may change its drafter or its verifier.
TIMEOUT = httpx.Timeout(120.0, connect=5.0)


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt, at most `max_tokens` of answer, sampling parameters of the API; `raw`: no chat template."""

    prompt: str
    max_tokens: int
    sampling: dict[str, Any]
    raw: bool


@dataclass(slots=True)
class Answer:
    """The text, its token ids, and the account of the session (D35). Times in seconds."""

    text: str = ""
    prompt_token_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    first_token_s: float = 0.0
    first_chunk_tokens: int = 0
    total_s: float = 0.0
    tokens: int = 0
    passes: int = 0
    proposed: int = 0
    accepted: int = 0

    def figures(self) -> dict[str, float | int | None]:
        """What speculation did, rounded for reading. The rate is that of the tokens after the first chunk."""
        written = self.tokens - self.first_chunk_tokens
        writing_s = max(self.total_s - self.first_token_s, 1e-9)
        rounds = max(self.passes, 1)
        return {
            "tokens": self.tokens,
            "seconds": round(self.total_s, 2),
            "first_token_seconds": round(self.first_token_s, 2),
            "tokens_per_second": round(written / writing_s, 1) if written > 0 else None,
            "rounds": self.passes,
            "accepted_per_round": round(self.accepted / rounds, 2),
            "acceptance": round(self.accepted / self.proposed, 3) if self.proposed else None,
            "tokens_per_target_pass": round(self.tokens / rounds, 2),
        }


def run(ask: Ask, gateway_url: str | None, directory: Path, as_json: bool) -> int:
    """Ask, print the answer and the figures. Returns the exit code; raises ConfigurationError."""
    result = answer(ask, _url_of(directory) if gateway_url is None else base_url(gateway_url), as_json)
    if as_json:
        print(json.dumps({**asdict(result), "figures": result.figures()}))
    return 0


def base_url(given: str) -> str:
    """Return the URL below which `/v1` is, also where that was given along. Raises ConfigurationError."""
    url = given.rstrip("/").removesuffix("/v1").rstrip("/")
    if not url.startswith(("http://", "https://")) or not url.partition("://")[2]:
        raise ConfigurationError(f"--gateway {given}: must be a URL such as http://127.0.0.1:8000")
    return url


def answer(ask: Ask, url: str, quiet: bool) -> Answer:
    """Stream one answer; unless `quiet`, print the text on standard output and the figures on standard error."""
    result = Answer()
    began = time.monotonic()
    for chunk in _chunks(ask, url):
        piece = _take(result, chunk)
        if piece and not result.first_token_s:
            result.first_token_s = time.monotonic() - began
            result.first_chunk_tokens = max(len(result.token_ids), 1)  # a gateway that gives no ids gave one at least
        if not quiet:
            print(piece, end="", flush=True)
    result.total_s = time.monotonic() - began
    if not quiet:
        print(flush=True)
        for name, value in result.figures().items():
            print(f"  {name.replace('_', ' '):<24} {'-' if value is None else value}", file=sys.stderr)
    return result


def _chunks(ask: Ask, url: str) -> Iterator[dict[str, Any]]:
    body: dict[str, Any] = {
        "model": _model_name(url),
        "max_tokens": ask.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        **ask.sampling,
    }
    if ask.raw:
        path, body["prompt"] = "completions", ask.prompt
    else:
        path, body["messages"] = "chat/completions", [{"role": "user", "content": ask.prompt}]
    try:
        with httpx.stream("POST", f"{url}/v1/{path}", json=body, timeout=TIMEOUT) as response:
            if response.status_code != 200:
                response.read()
                raise ConfigurationError(f"{url}: {_complaint(response)}")
            yield from _events(response.iter_lines())
    except httpx.HTTPError as fault:
        raise ConfigurationError(f"{url}: {fault or type(fault).__name__}; is `sdcp up` running?") from None


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        chunk = json.loads(line.removeprefix("data: "))
        if "error" in chunk:
            raise ConfigurationError(f"the answer broke off: {chunk['error']['message']}")
        yield chunk


def _take(result: Answer, chunk: dict[str, Any]) -> str:
    """Add one chunk to the result; return its text."""
    usage, account = chunk.get("usage"), chunk.get("sdcp")
    if usage:
        result.tokens = usage["completion_tokens"]
    if account:
        result.passes, result.proposed, result.accepted = account["passes"], account["proposed"], account["accepted"]
    result.prompt_token_ids += chunk.get("prompt_token_ids") or []
    piece = ""
    for choice in chunk.get("choices", ()):
        piece += choice.get("text") or choice.get("delta", {}).get("content") or ""
        result.token_ids += choice.get("token_ids") or []
        result.finish_reason = choice.get("finish_reason") or result.finish_reason
    result.text += piece
    return piece


def _model_name(url: str) -> str:
    try:
        response = httpx.get(f"{url}/v1/models", timeout=TIMEOUT)
        return str(response.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError) as fault:
        raise ConfigurationError(f"{url}: {fault or type(fault).__name__}; is `sdcp up` running?") from None


def _complaint(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, LookupError):
        return f"answered {response.status_code}"


def _url_of(directory: Path) -> str:
    try:
        return str(json.loads((directory / "fleet.json").read_text())["api"])
    except (OSError, ValueError, LookupError):
        raise ConfigurationError(f"no system in {directory}; start one with `sdcp up`, or give --gateway") from None
