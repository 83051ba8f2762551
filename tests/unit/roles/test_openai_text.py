"""Text of the OpenAI API: pieces that never change again, stop strings, chat templates."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from sdcp.errors import ConfigurationError
from sdcp.roles.openai_errors import ApiError
from sdcp.roles.openai_text import FolderText, IdentityText, StopStrings, Transcript, WindowDecoder

SAMPLE = ["the quick brown fox jumps over the lazy dog", "Füße, naïve café, 日本語のテキスト", "emoji 👩‍👩‍👧 🎉🎉 done"]


def byte_level() -> Tokenizer:
    """A small byte-level BPE: characters beyond ASCII take several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|end|>", "<|user|>", "<|assistant|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(SAMPLE, trainer)
    return tokenizer


def metaspace() -> Tokenizer:
    """A tokenizer whose decoder drops the first space, so that a token alone looks unlike a token that follows."""
    words = [f"▁{word}" for word in ["a", "bb", "ccc", "dd"]] + list("abcd")
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="a"))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


BYTE_LEVEL, METASPACE = byte_level(), metaspace()


def decode_by(tokenizer: Tokenizer) -> Callable[[list[int]], str]:
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=True)


# ---- decoders --------------------------------------------------------------------------------------------------------


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), max_size=40))
def test_pieces_are_whole_characters_and_together_the_text(text: str) -> None:
    decoder = WindowDecoder(decode_by(BYTE_LEVEL))
    pieces = [decoder.push(token) for token in BYTE_LEVEL.encode(text).ids]
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) + decoder.flush() == text


@given(st.lists(st.integers(0, 319), max_size=40), st.sampled_from([BYTE_LEVEL, METASPACE]))
def test_any_tokens_decode_piecewise_as_they_do_at_once(tokens: list[int], tokenizer: Tokenizer) -> None:
    tokens = [token % tokenizer.get_vocab_size() for token in tokens]
    decoder = WindowDecoder(decode_by(tokenizer))
    pieces = [decoder.push(token) for token in tokens]
    whole = tokenizer.decode(tokens, skip_special_tokens=True)
    shown = "".join(pieces)
    assert whole.startswith(shown.rstrip("\ufffd"))
    if "\ufffd" not in whole:
        assert shown + decoder.flush() == whole


def test_half_a_character_at_the_end_is_shown_at_last() -> None:
    decoder = WindowDecoder(decode_by(BYTE_LEVEL))
    tokens = BYTE_LEVEL.encode("x💤").ids[:-1]
    assert "".join(decoder.push(token) for token in tokens) == "x"
    assert set(decoder.flush()) == {"\ufffd"}


def test_the_identity_tokenizer_reads_what_it_writes() -> None:
    text = IdentityText()
    decoder = text.decoder()
    written = "".join(decoder.push(token) for token in (5, 0, 4294967295)) + decoder.flush()
    assert written == "5 0 4294967295"
    assert text.encode(written) == [5, 0, 4294967295]
    assert text.encode_chat([{"role": "user", "content": "1 2"}, {"role": "assistant", "content": "3"}]) == [1, 2, 3]


@pytest.mark.parametrize("prompt", ["hello", "1 -2", "1.5", "4294967296", "٣"])
def test_the_identity_tokenizer_refuses_what_is_no_token_id(prompt: str) -> None:
    with pytest.raises(ApiError):
        IdentityText().encode(prompt)


# ---- stop strings ----------------------------------------------------------------------------------------------------

FEW = st.text("ab", min_size=1, max_size=4)


@given(st.lists(st.text("ab", max_size=5), max_size=8), st.lists(FEW, max_size=3))
def test_text_ends_before_the_first_stop_string_however_it_is_cut(pieces: list[str], stops: list[str]) -> None:
    machine = StopStrings(stops)
    shown = "".join(machine.feed(piece) for piece in pieces) + machine.flush()
    text = "".join(pieces)
    ends = [text.find(stop) for stop in stops if stop in text]
    assert machine.hit == bool(ends)
    if not ends:
        assert shown == text
    else:
        # The stop string that is complete first ends the text; one that begins earlier may come complete later.
        cut = next(size for size in range(len(text) + 1) if any(stop in text[:size] for stop in stops))
        assert text[:cut].startswith(shown)
        assert not any(stop in shown for stop in stops)


def test_the_beginning_of_a_stop_string_is_held_back_until_it_is_none() -> None:
    machine = StopStrings(["</s>"])
    assert [machine.feed(piece) for piece in ("a<", "/", "b", "<", "/s", ">x")] == ["a", "", "</b", "", "", ""]
    assert machine.hit
    assert machine.flush() == ""


# ---- transcripts -----------------------------------------------------------------------------------------------------


def transcript(*stops: str, stop_tokens: tuple[int, ...] = ()) -> Transcript:
    return Transcript(IdentityText().decoder(), stops, stop_tokens)


def test_a_stop_token_is_counted_and_shows_no_text() -> None:
    answer = transcript(stop_tokens=(9,))
    assert answer.push((1, 2, 9, 3)) == "1 2"
    assert (answer.finish(), answer.reason, answer.token_ids) == ("", "stop", [1, 2, 9])


def test_a_stop_string_over_two_deliveries_ends_the_answer_before_it() -> None:
    answer = transcript("2 3")
    pieces = [answer.push((1, 2)), answer.push((3, 4))]
    assert "".join(pieces) + answer.finish() == "1 "
    assert (answer.reason, answer.token_ids) == ("stop", [1, 2, 3])


def test_an_answer_that_no_stop_ended_was_cut_by_its_length_and_loses_nothing() -> None:
    answer = transcript("2 5")
    assert answer.push((1, 2)) == "1 "
    assert (answer.finish(), answer.reason) == ("2", "length")


# ---- model folders ---------------------------------------------------------------------------------------------------

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def folder(tmp_path: Path, **files: object) -> FolderText:
    BYTE_LEVEL.save(str(tmp_path / "tokenizer.json"))
    for name, document in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    return FolderText(tmp_path, tmp_path / "tokenizer.json")


def test_a_chat_is_rendered_by_the_model_s_template(tmp_path: Path) -> None:
    settings = {"chat_template": TEMPLATE, "eos_token": {"content": "<|end|>"}}
    text = folder(tmp_path, tokenizer_config=settings)
    tokens = text.encode_chat([{"role": "user", "content": " hi "}])
    assert BYTE_LEVEL.decode(tokens, skip_special_tokens=False) == "<|user|>hi<|end|><|assistant|>"
    assert text.stop == (BYTE_LEVEL.token_to_id("<|end|>"),)
    assert text.context is None


def test_what_ends_an_answer_comes_from_the_generation_settings_first(tmp_path: Path) -> None:
    text = folder(
        tmp_path,
        generation_config={"eos_token_id": [7, 8]},
        config={"eos_token_id": 3, "max_position_embeddings": 99},
        tokenizer_config={"eos_token": "<|end|>"},
    )
    assert (text.stop, text.context) == ((7, 8), 99)


def test_without_a_template_a_chat_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ApiError, match="no chat template"):
        folder(tmp_path).encode_chat([{"role": "user", "content": "hi"}])


def test_a_template_that_refuses_a_conversation_says_why(tmp_path: Path) -> None:
    text = folder(tmp_path, tokenizer_config={"chat_template": "{{ raise_exception('roles must alternate') }}"})
    with pytest.raises(ApiError, match="roles must alternate"):
        text.encode_chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    "template",
    ["{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.append(1) }}", "{{ cycler.__init__.__globals__ }}"],
)
def test_a_template_comes_with_the_weights_and_is_kept_in_a_sandbox(tmp_path: Path, template: str) -> None:
    text = folder(tmp_path, tokenizer_config={"chat_template": template})
    with pytest.raises(ApiError, match="does not take"):
        text.encode_chat([{"role": "user", "content": "hi"}])


def test_a_faulty_template_or_tokenizer_is_the_operator_s_to_mend(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="template"):
        folder(tmp_path, tokenizer_config={"chat_template": "{% if %}"})
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="is no tokenizer"):
        FolderText(tmp_path, tmp_path / "tokenizer.json")
