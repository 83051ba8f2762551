"""The parameters of the OpenAI API: what is honoured, what is accepted in its neutral value, what is refused.

A parameter that this gateway cannot honour is refused with 400 and its name, never ignored, unless its value asks for
nothing (`n: 1`, `frequency_penalty: 0`, `logprobs: false`). Whoever gets an answer got what was asked for.

`top_k`, `stop_token_ids`, `ignore_eos` and `return_token_ids` are extensions known from other servers. Temperature and
top-p reach SDCP in thousandths (4.1), rounded. Rule 1 is used at temperature 0, rule 2 otherwise.

`seed` fixes the verifier's draws (6.4), which depend on the session's identifier and on what the drafters propose too:
the same seed twice has the same distribution, not the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sdcp.messages.contract import Sampling
from sdcp.messages.fields import U64_MAX
from sdcp.roles.delivery import Wanted
from sdcp.roles.openai_errors import ApiError, context_exceeded
from sdcp.roles.openai_text import MAX_TOKEN, Text

GREEDY, SPECULATIVE = 1, 2
MAX_STOPS = 16

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request understood: what to generate, and how to answer."""

    wanted: Wanted
    stop_strings: tuple[str, ...]
    stream: bool
    include_usage: bool
    token_ids: bool


def understand(body: Any, text: Text, model: str, default_max_tokens: int, *, chat: bool) -> Asked:
    """Read the body of a completion or chat completion. Raises ApiError, naming the parameter."""
    if not isinstance(body, dict):
        raise ApiError("The body must be a JSON object.")
    _refuse_unknown(body, chat)
    if not isinstance(body.get("model"), str | None):
        raise ApiError("'model' must be a text.", param="model")
    if body.get("model") not in (None, model):
        detail = f"The model {body['model']!r} is not served here; {model!r} is."
        raise ApiError(detail, status=404, param="model", code="model_not_found")
    prompt = tuple(_chat_prompt(body, text) if chat else _prompt(body, text))
    if not prompt:
        raise ApiError("The prompt has no tokens; give at least one.", param="messages" if chat else "prompt")
    rule, sampling = _sampling(body)
    wanted = Wanted(
        prompt=prompt,
        max_new=_max_new(body, text.context, len(prompt), default_max_tokens),
        stop=_stop_tokens(body, text),
        rule=rule,
        sampling=sampling,
    )
    options = _stream_options(body)
    stream = _flag(body, "stream")
    if options and not stream:
        raise ApiError("'stream_options' goes with 'stream' only.", param="stream_options")
    return Asked(
        wanted=wanted,
        stop_strings=_stop_strings(body),
        stream=stream,
        include_usage=_flag(options, "include_usage"),
        token_ids=_flag(body, "return_token_ids"),
    )


# ---- prompts ---------------------------------------------------------------------------------------------------------


def _prompt(body: Body, text: Text) -> list[int]:
    """One prompt: text, or token ids, either of them alone in a list."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return text.encode(_characters(prompt, "prompt"))
    if isinstance(prompt, list) and _are_tokens(prompt):
        return list(prompt)
    if isinstance(prompt, list) and any(isinstance(each, str | list) for each in prompt):
        raise ApiError("One prompt at a time: send a request for each.", param="prompt")
    raise ApiError("'prompt' must be a text or a list of token ids.", param="prompt")


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int and 0 <= each <= MAX_TOKEN for each in value)


def _chat_prompt(body: Body, text: Text) -> list[int]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError("'messages' must be a list of at least one message.", param="messages")
    return text.encode_chat([_message(message, f"messages[{index}]") for index, message in enumerate(messages)])


def _message(message: Any, where: str) -> dict[str, str]:
    if not isinstance(message, dict) or message.get("role") not in ("system", "developer", "user", "assistant"):
        raise ApiError(f"{where}: 'role' must be system, developer, user or assistant.", param=f"{where}.role")
    role = "system" if message["role"] == "developer" else message["role"]
    return {"role": role, "content": _content(message.get("content"), f"{where}.content")}


def _content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return _characters(content, where)
    texts = [_part(part) for part in content] if isinstance(content, list) else [None]
    known = [each for each in texts if each is not None]
    if len(known) < len(texts):
        raise ApiError(f"{where} must be text: a string, or parts of type text.", param=where)
    return _characters("".join(known), where)


def _part(part: Any) -> str | None:
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
    return text if isinstance(text, str) else None


def _characters(text: str, where: str) -> str:
    """JSON can write half a character (an escaped surrogate without its other half); no tokenizer knows it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ApiError(f"{where} has an escaped surrogate without its other half.", param=where) from None
    return text


# ---- limits and stops ------------------------------------------------------------------------------------------------


def _max_new(body: Body, context: int | None, prompt: int, default: int) -> int:
    given = [name for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    asked = _whole(body, given[0], 0, MAX_TOKEN) if given else None
    if context is None:
        return default if asked is None else asked
    room = context - prompt
    if room < 1 or (asked is not None and asked > room):
        detail = f"The model's context is {context} tokens; the prompt has {prompt}"
        detail += f" and {asked} more were asked for." if asked else "."
        raise context_exceeded(detail, given[0] if given and room > 0 else "prompt")
    return min(default, room) if asked is None else asked


def _stop_tokens(body: Body, text: Text) -> tuple[int, ...]:
    extra = body.get("stop_token_ids") or []
    if not _are_tokens(extra):
        raise ApiError("'stop_token_ids' must be a list of token ids.", param="stop_token_ids")
    own = () if _flag(body, "ignore_eos") else text.stop
    return tuple(dict.fromkeys([*own, *extra]))


def _stop_strings(body: Body) -> tuple[str, ...]:
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or not all(isinstance(each, str) and each for each in stops):
        raise ApiError("'stop' must be a text or a list of texts, none of them empty.", param="stop")
    if len(stops) > MAX_STOPS:
        raise ApiError(f"'stop' takes at most {MAX_STOPS} texts.", param="stop")
    return tuple(stops)


# ---- sampling (4.1, D22) ---------------------------------------------------------------------------------------------


def _sampling(body: Body) -> tuple[int, Sampling]:
    temperature = _number(body, "temperature", 1.0, 0.0, 2.0)
    top_p = _number(body, "top_p", 1.0, 0.0, 1.0)
    top_k = _whole(body, "top_k", -1, MAX_TOKEN) if body.get("top_k") is not None else 0
    seed = _whole(body, "seed", -(2**63), U64_MAX) if body.get("seed") is not None else None
    temperature_milli = round(1000 * temperature)
    if temperature_milli == 0:
        return GREEDY, Sampling(temperature_milli=0)
    return SPECULATIVE, Sampling(
        temperature_milli=temperature_milli,
        top_k=top_k if top_k > 0 else None,
        top_p_milli=round(1000 * top_p) if top_p < 1 else None,
        seed=None if seed is None else seed & U64_MAX,
    )


# ---- kinds of values -------------------------------------------------------------------------------------------------


def _number(body: Body, name: str, default: float, low: float, high: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if type(value) not in (int, float) or not low <= value <= high:
        raise ApiError(f"{name!r} must be a number from {low:g} to {high:g}.", param=name)
    return float(value)


def _whole(body: Body, name: str, low: int, high: int) -> int:
    value = body.get(name)
    if type(value) is not int or not low <= value <= high:
        raise ApiError(f"{name!r} must be a whole number from {low} to {high}.", param=name)
    return value


def _flag(body: Body, name: str) -> bool:
    value = body.get(name)
    if value not in (None, True, False):
        raise ApiError(f"{name!r} must be true or false.", param=name)
    return bool(value)


def _object(body: Body, name: str) -> dict[str, Any] | None:
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise ApiError(f"{name!r} must be an object.", param=name)
    return value


def _stream_options(body: Body) -> dict[str, Any]:
    options = _object(body, "stream_options") or {}
    for name, value in options.items():
        if name != "include_usage" and not (name == "include_obfuscation" and value is False):
            raise ApiError(f"Unrecognized option: {name!r}.", param="stream_options", code="unknown_parameter")
    return options


# ---- what is not honoured --------------------------------------------------------------------------------------------

_HONOURED = frozenset(
    (
        "model",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "stream",
        "stream_options",
        "return_token_ids",
    )
)
_CHAT = frozenset(("messages", "max_completion_tokens"))
_COMPLETION = frozenset(("prompt",))

# They name or label a request and change nothing of the answer.
_LABELS = frozenset(
    (
        "user",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "service_tier",
        "parallel_tool_calls",
    )
)


def _nothing(value: Any) -> bool:
    return value in (None, False, "", [], {})


_NEUTRAL: dict[str, Callable[[Any], bool]] = {
    "n": lambda value: value in (None, 1) and value is not True,
    "best_of": lambda value: value in (None, 1),
    "logprobs": lambda value: value is None or value is False,
    "top_logprobs": lambda value: value in (None, 0),
    "prompt_logprobs": lambda value: value is None,
    "echo": _nothing,
    "suffix": _nothing,
    "presence_penalty": lambda value: value in (None, 0),
    "frequency_penalty": lambda value: value in (None, 0),
    "repetition_penalty": lambda value: value in (None, 1),
    "length_penalty": lambda value: value in (None, 1),
    "min_p": lambda value: value in (None, 0),
    "min_tokens": lambda value: value in (None, 0),
    "use_beam_search": _nothing,
    "skip_special_tokens": lambda value: value in (None, True),
    "include_stop_str_in_output": _nothing,
    "logit_bias": _nothing,
    "tools": _nothing,
    "tool_choice": lambda value: value in (None, "none", "auto"),  # of no tools
    "functions": _nothing,
    "function_call": lambda value: value in (None, "none", "auto"),
    "response_format": lambda value: value in (None, {"type": "text"}),
    "modalities": lambda value: value in (None, ["text"]),
    "audio": _nothing,
    "prediction": _nothing,
    "reasoning_effort": lambda value: value in (None, "none"),
    "verbosity": lambda value: value in (None, "medium"),
    "web_search_options": _nothing,
    "store": _nothing,
}


def _refuse_unknown(body: Body, chat: bool) -> None:
    known = _HONOURED | _LABELS | (_CHAT if chat else _COMPLETION)
    for name, value in body.items():
        if name in known:
            continue
        if name not in _NEUTRAL:
            raise ApiError(f"Unrecognized parameter: {name!r}.", param=str(name), code="unknown_parameter")
        if not _NEUTRAL[name](value):
            detail = f"This gateway cannot honour {name!r} = {value!r}; leave it out."
            raise ApiError(detail, param=name, code="unsupported_parameter")
