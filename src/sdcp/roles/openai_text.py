"""Text to tokens and back, piece by piece: for the OpenAI API of the gateway.

Words: a *piece* is text that can be shown because no later token changes it. Half a character is no piece, and neither
is what may be the beginning of a stop string.

A model folder brings `tokenizer.json` and, for chats, a template in `tokenizer_config.json` or `chat_template.jinja`,
which is rendered in a sandbox, since it comes with the weights. The reference model has no text of its own: its tokens
are written as decimal ids with spaces between (docs/reference-model.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer

from sdcp.errors import ConfigurationError
from sdcp.roles.openai_errors import ApiError

REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are no character (yet)
MAX_TOKEN = 2**32 - 1

Messages = Sequence[Mapping[str, str]]


class Decoder(Protocol):
    """Tokens of one answer, in order, to pieces."""

    def push(self, token: int) -> str:
        """Return the piece that this token completes; often empty."""
        ...

    def flush(self) -> str:
        """Return what is left, complete or not."""
        ...


class Text(Protocol):
    """What the API asks of a model's tokenizer. `stop`: tokens that end an answer. `context` None: unlimited."""

    stop: tuple[int, ...]
    context: int | None

    def encode(self, text: str) -> list[int]:
        """The tokens of a prompt. Raises ApiError."""
        ...

    def encode_chat(self, messages: Messages) -> list[int]:
        """The tokens of a conversation that the assistant is to continue. Raises ApiError."""
        ...

    def decoder(self) -> Decoder:
        """A decoder for one answer."""
        ...


class IdentityText:
    """Token ids stand for themselves, in decimal, with spaces between."""

    def __init__(self, stop: tuple[int, ...] = (), context: int | None = None) -> None:
        self.stop = stop
        self.context = context

    def encode(self, text: str) -> list[int]:
        """See `Text.encode`."""
        words = text.split()
        if not all(
            word.isascii() and word.isdecimal() and len(word) <= 10 and int(word) <= MAX_TOKEN for word in words
        ):
            raise ApiError("This model takes token ids: decimal numbers with spaces between.", param="prompt")
        return [int(word) for word in words]

    def encode_chat(self, messages: Messages) -> list[int]:
        """See `Text.encode_chat`; a conversation is the ids of all its messages."""
        return self.encode(" ".join(message["content"] for message in messages))

    def decoder(self) -> Decoder:
        """See `Text.decoder`."""
        return _Identity()


class _Identity:
    def __init__(self) -> None:
        self._separator = ""

    def push(self, token: int) -> str:
        piece = f"{self._separator}{token}"
        self._separator = " "
        return piece

    def flush(self) -> str:
        return ""


class FolderText:
    """The tokenizer of a model folder."""

    def __init__(self, folder: Path, tokenizer: Path) -> None:
        """`tokenizer` is the tokenizer.json. Raises ConfigurationError."""
        try:
            self._tokenizer = Tokenizer.from_file(str(tokenizer))
        except Exception as fault:  # the library raises bare Exceptions
            raise ConfigurationError(f"{tokenizer}: is no tokenizer: {fault}") from None
        settings = _document(folder / "tokenizer_config.json")
        model = _document(folder / "config.json")
        generation = _document(folder / "generation_config.json")
        self._words = {key: _word(settings.get(key)) for key in ("bos_token", "eos_token", "pad_token", "unk_token")}
        self._render = _template(folder, settings)
        self.context = model.get("max_position_embeddings")
        self.stop = self._stop(generation, model)

    def _stop(self, generation: Mapping[str, Any], model: Mapping[str, Any]) -> tuple[int, ...]:
        for source in (generation, model):
            found = source.get("eos_token_id")
            if found is not None:
                return tuple(found) if isinstance(found, list) else (int(found),)
        eos = self._words["eos_token"]
        known = None if eos is None else self._tokenizer.token_to_id(eos)
        return () if known is None else (known,)

    def encode(self, text: str) -> list[int]:
        """See `Text.encode`."""
        return list(self._tokenizer.encode(text).ids)

    def encode_chat(self, messages: Messages) -> list[int]:
        """See `Text.encode_chat`. The template writes special tokens itself."""
        if self._render is None:
            raise ApiError("This model has no chat template; use /v1/completions.", param="messages")
        try:
            text = self._render(messages=list(messages), add_generation_prompt=True, **self._words)
        except Exception as fault:  # a template may fail in any way at what a client sends
            raise ApiError(
                f"The model's chat template does not take these messages: {fault}", param="messages"
            ) from None
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decoder(self) -> Decoder:
        """See `Text.decoder`."""
        return WindowDecoder(lambda ids: self._tokenizer.decode(ids, skip_special_tokens=True))


class WindowDecoder:
    """Decodes a window of the last tokens before and after each new one; what the new one adds is the piece.

    What a token looks like depends on its neighbours (spaces, bytes of one character), so the window begins where the
    last piece but one ended, and a piece is held back while it ends in half a character.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []  # from the beginning of the last piece shown
        self._shown = 0  # how many of them are shown

    def push(self, token: int) -> str:
        """See `Decoder.push`."""
        self._tokens.append(token)
        piece = self._piece()
        if not piece or piece.endswith(REPLACEMENT):
            return ""
        self._tokens = self._tokens[self._shown :]
        self._shown = len(self._tokens)
        return piece

    def flush(self) -> str:
        """See `Decoder.flush`."""
        piece = self._piece()
        self._shown = len(self._tokens)
        return piece

    def _piece(self) -> str:
        return self._decode(self._tokens)[len(self._decode(self._tokens[: self._shown])) :]


class StopStrings:
    """Ends a text before the first occurrence of a stop string, across pieces. `hit`: one has occurred."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.hit = False

    def feed(self, piece: str) -> str:
        """Return what of the text so far can be shown and was not yet."""
        if self.hit:
            return ""
        text = self._held + piece
        ends = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if ends:
            self.hit, self._held = True, ""
            return text[: min(ends)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Return what was held back: the text is over, so it was no stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that begins `stop`."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)


class Transcript:
    """One answer as it grows: `token_ids` so far, and the `reason` of its end: stop, length, or None yet."""

    def __init__(self, decoder: Decoder, stop_strings: Sequence[str], stop_tokens: Sequence[int]) -> None:
        self._decoder = decoder
        self._stops = StopStrings(stop_strings)
        self._stop_tokens = frozenset(stop_tokens)
        self.token_ids: list[int] = []
        self.reason: str | None = None

    def push(self, tokens: Sequence[int]) -> str:
        """Take new tokens; return the piece. A stop token shows no text; tokens after a stop are not taken."""
        pieces: list[str] = []
        for token in tokens:
            if self.reason is not None:
                break
            self.token_ids.append(token)
            if token in self._stop_tokens:
                self.reason = "stop"
            else:
                pieces.append(self._stops.feed(self._decoder.push(token)))
                self.reason = "stop" if self._stops.hit else None
        return "".join(pieces)

    def finish(self) -> str:
        """The session has ended, or a stop string has: return the last piece."""
        if self._stops.hit:
            return ""
        piece = self._stops.feed(self._decoder.flush())
        if self._stops.hit:
            self.reason = "stop"
            return piece
        self.reason = self.reason or "length"
        return piece + self._stops.flush()


def _document(file: Path) -> dict[str, Any]:
    """A JSON object beside the weights; nothing when there is no such file. Raises ConfigurationError."""
    try:
        document = json.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as fault:
        raise ConfigurationError(f"{file}: cannot be read: {fault}") from None
    return document if isinstance(document, dict) else {}


def _word(value: Any) -> str | None:
    """A special token, written as text or as an object with its `content`."""
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else None


def _template(folder: Path, settings: Mapping[str, Any]) -> Callable[..., str] | None:
    """Compile the chat template, if there is one. Raises ConfigurationError."""
    source = settings.get("chat_template")
    file = folder / "chat_template.jinja"
    if file.is_file():
        source = file.read_text()
    if isinstance(source, list):  # several, by name
        source = next((each.get("template") for each in source if each.get("name") == "default"), None)
    if not isinstance(source, str):
        return None
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise ConfigurationError("the model has a chat template, and jinja2, which renders it, is not here") from None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols"],
        autoescape=False,
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now(UTC).strftime(form)
    try:
        return environment.from_string(source).render
    except TemplateError as fault:
        raise ConfigurationError(f"{folder}: the chat template is faulty: {fault}") from None


def _raise(message: str) -> None:
    """What templates call when they do not take a conversation."""
    raise ValueError(message)
