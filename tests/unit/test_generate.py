"""Reading an answer of the gateway, and what is made of its figures."""

from __future__ import annotations

import pytest

from sdcp.generate import Answer, _take, base_url


def test_chunks_add_up() -> None:
    answer = Answer()
    chunks = [
        {"choices": [{"delta": {"role": "assistant", "content": ""}}], "prompt_token_ids": [1, 2]},
        {"choices": [{"delta": {"content": "He"}, "token_ids": [7]}]},
        {"choices": [{"text": "llo", "token_ids": [8, 9], "finish_reason": "stop"}]},
        {"choices": [], "usage": {"completion_tokens": 3}, "sdcp": {"passes": 2, "proposed": 6, "accepted": 1}},
    ]
    assert "".join(_take(answer, chunk) for chunk in chunks) == "Hello" == answer.text
    assert (answer.prompt_token_ids, answer.token_ids, answer.finish_reason) == ([1, 2], [7, 8, 9], "stop")
    assert (answer.tokens, answer.passes, answer.proposed, answer.accepted) == (3, 2, 6, 1)


def test_figures_say_what_speculation_did() -> None:
    answer = Answer(tokens=24, passes=8, proposed=32, accepted=13, first_token_s=0.5, first_chunk_tokens=4, total_s=2.5)
    figures = answer.figures()
    assert figures["tokens_per_second"] == 10.0
    assert figures["tokens_per_target_pass"] == 3.0
    assert figures["accepted_per_round"] == 1.62
    assert figures["acceptance"] == 0.406


def test_an_answer_of_nothing_has_figures_too() -> None:
    assert Answer().figures()["acceptance"] is None


def test_an_answer_in_one_chunk_has_no_rate() -> None:
    answer = Answer(tokens=4, first_token_s=0.5, first_chunk_tokens=4, total_s=0.5)
    assert answer.figures()["tokens_per_second"] is None


@pytest.mark.parametrize("given", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_the_url_of_the_api_may_end_as_other_clients_want_it(given: str) -> None:
    assert base_url(given) == "http://h:1"
