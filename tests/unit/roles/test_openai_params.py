"""Parameters of the OpenAI API: honoured, neutral, or refused by name; never ignored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sdcp.messages.contract import Sampling
from sdcp.roles.openai_errors import ApiError
from sdcp.roles.openai_params import Asked, understand
from sdcp.roles.openai_text import IdentityText

TEXT = IdentityText(stop=(7,), context=100)


def asked(chat: bool = False, text: IdentityText = TEXT, **body: Any) -> Asked:
    start = {"messages": [{"role": "user", "content": "1 2"}]} if chat else {"prompt": "1 2"}
    return understand({"model": "m", **start, **body}, text, "m", 16, chat=chat)


def refusal(chat: bool = False, **body: Any) -> ApiError:
    with pytest.raises(ApiError) as refused:
        asked(chat, **body)
    return refused.value


def test_defaults_are_the_api_s_own() -> None:
    understood = asked()
    wanted = understood.wanted
    assert (wanted.prompt, wanted.max_new, wanted.stop) == ((1, 2), 16, (7,))
    assert (wanted.rule, wanted.sampling) == (2, Sampling(temperature_milli=1000))
    assert (understood.stream, understood.include_usage, understood.stop_strings) == (False, False, ())


def test_temperature_0_is_rule_1_and_everything_else_rule_2() -> None:
    assert asked(temperature=0, top_p=0.5).wanted.rule == 1
    assert asked(temperature=0.0004).wanted.rule == 1
    wanted = asked(temperature=0.7, top_p=0.9, top_k=40, seed=-1).wanted
    assert wanted.rule == 2
    assert wanted.sampling == Sampling(temperature_milli=700, top_p_milli=900, top_k=40, seed=2**64 - 1)
    assert asked(top_p=1.0, top_k=-1, seed=None).wanted.sampling == Sampling(temperature_milli=1000)


@pytest.mark.parametrize(
    ("body", "max_new"),
    [({"max_tokens": 5}, 5), ({"max_tokens": 0}, 0), ({}, 16), ({"max_tokens": 98}, 98)],
)
def test_the_length_of_an_answer(body: dict[str, int], max_new: int) -> None:
    assert asked(**body).wanted.max_new == max_new


def test_max_completion_tokens_goes_before_max_tokens_in_chats() -> None:
    assert asked(chat=True, max_tokens=5, max_completion_tokens=6).wanted.max_new == 6
    assert refusal(max_completion_tokens=6).param == "max_completion_tokens"


def test_what_does_not_fit_into_the_context_is_refused_as_the_api_does() -> None:
    for body, param in (({"max_tokens": 99}, "max_tokens"), ({"prompt": " ".join(["1"] * 100)}, "prompt")):
        error = refusal(**body)
        assert (error.status, error.code, error.param) == (400, "context_length_exceeded", param)
    assert asked(prompt=" ".join(["1"] * 95)).wanted.max_new == 5  # the default gives way


def test_stops() -> None:
    assert asked(stop="x").stop_strings == ("x",)
    assert asked(stop=["x", "yy"]).stop_strings == ("x", "yy")
    assert asked(stop_token_ids=[9, 7]).wanted.stop == (7, 9)
    assert asked(ignore_eos=True, stop_token_ids=[9]).wanted.stop == (9,)
    for stop in ("", [""], [1], {}, ["x"] * 17):
        if stop:
            assert refusal(stop=stop).param == "stop"


def test_options_of_streams_are_honoured_or_refused_too() -> None:
    assert asked(stream=True, stream_options={"include_usage": True}).include_usage
    assert not asked(stream=True, stream_options={"include_obfuscation": False}).include_usage
    for options in ({"include_usage": "yes"}, {"other": 1}, {"include_obfuscation": True}, 5):
        assert refusal(stream=True, stream_options=options).param in ("stream_options", "include_usage")


def test_half_characters_and_numbers_of_any_length_are_faults_of_the_request() -> None:
    assert refusal(prompt="\ud800").param == "prompt"
    assert refusal(prompt="9" * 5000).param == "prompt"
    assert refusal(chat=True, messages=[{"role": "user", "content": "\ud800"}]).param == "messages[0].content"
    parts = [{"type": "text", "text": "\ud800"}]
    assert refusal(chat=True, messages=[{"role": "user", "content": parts}]).param == "messages[0].content"


def test_what_is_told_of_a_request_can_be_written_and_is_short() -> None:
    for body in ({"\ud800": 1}, {"model": "\ud800"}, {"tools": ["x" * 10**6]}, {"x" * 10**6: 1}, {"model": [1]}):
        assert len(json.dumps(refusal(**body).body(), ensure_ascii=False).encode()) < 2000


@pytest.mark.parametrize("prompt", ["1 2", ["1 2"], [1, 2], [[1, 2]]])
def test_one_prompt_in_any_form(prompt: Any) -> None:
    assert asked(prompt=prompt).wanted.prompt == (1, 2)


@pytest.mark.parametrize(
    "prompt", [None, "", [], [[]], ["1", "2"], [[1], [2]], [1, "2"], [1.0], [-1], [True], 1, {}, [2**32]]
)
def test_no_prompt_no_tokens_or_several_prompts_are_refused(prompt: Any) -> None:
    assert refusal(prompt=prompt).param == "prompt"


def test_messages_of_text_alone() -> None:
    parts = [{"type": "text", "text": "1 "}, {"type": "text", "text": "2"}]
    message = [{"role": "developer", "content": parts}, {"role": "assistant", "content": "3"}]
    assert asked(chat=True, messages=message).wanted.prompt == (1, 2, 3)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hi", "messages"),
        ([{"role": "user", "content": ""}], "messages"),
        ([{"role": "tool", "content": "1"}], "messages[0].role"),
        ([{"content": "1"}], "messages[0].role"),
        ([{"role": "user", "content": "1"}, {"role": "user"}], "messages[1].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content"),
    ],
)
def test_other_messages_are_refused_where_the_fault_is(messages: Any, param: str) -> None:
    assert refusal(chat=True, messages=messages).param == param


@pytest.mark.parametrize(
    ("name", "neutral", "other"),
    [
        ("n", 1, 2),
        ("best_of", 1, 3),
        ("logprobs", False, True),
        ("logprobs", None, 0),
        ("top_logprobs", 0, 5),
        ("echo", False, True),
        ("presence_penalty", 0, 0.5),
        ("frequency_penalty", 0.0, -1),
        ("logit_bias", {}, {"5": 100}),
        ("suffix", None, "x"),
        ("tools", [], [{"type": "function"}]),
        ("response_format", {"type": "text"}, {"type": "json_object"}),
        ("min_tokens", 0, 3),
        ("repetition_penalty", 1.0, 1.1),
        ("store", False, True),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name_unless_it_asks_for_nothing(
    name: str, neutral: Any, other: Any
) -> None:
    assert asked(**{name: neutral}).wanted == asked().wanted
    error = refusal(**{name: other})
    assert (error.status, error.param, error.code) == (400, name, "unsupported_parameter")


def test_an_unknown_parameter_is_refused_by_name() -> None:
    error = refusal(temprature=0)
    assert (error.status, error.param, error.code) == (400, "temprature", "unknown_parameter")
    assert refusal(messages=[]).param == "messages"
    assert refusal(chat=True, prompt="1").param == "prompt"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 2.1),
        ("temperature", -0.1),
        ("temperature", "hot"),
        ("temperature", True),
        ("temperature", float("nan")),
        ("top_p", 1.5),
        ("top_k", -2),
        ("top_k", 1.5),
        ("seed", 2**64),
        ("seed", "1"),
        ("max_tokens", -1),
        ("max_tokens", 1.0),
        ("stop_token_ids", ["1"]),
        ("stream", "yes"),
        ("stream_options", True),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    assert refusal(**{name: value}).param == name


def test_stream_options_go_with_stream() -> None:
    assert asked(stream=True, stream_options={"include_usage": True}).include_usage
    assert refusal(stream_options={"include_usage": True}).param == "stream_options"


def test_another_model_is_not_found() -> None:
    error = refusal(model="gpt-5")
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")


def test_a_body_that_is_no_object() -> None:
    with pytest.raises(ApiError, match="JSON object"):
        understand([], TEXT, "m", 16, chat=False)
