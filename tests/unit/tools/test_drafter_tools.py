"""The tools that make and measure the demonstration drafter: what they count, keep out and write."""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))

from drafter_data import Batch, Batches, Text, output_ids, texts  # noqa: E402
from drafter_model import Projected, config_for, distillation_loss, from_drafter, from_target, load, save  # noqa: E402
from drafter_prompts import Passages, build, held_out_runs, overlaps  # noqa: E402
from measure_drafters import Case, proposers, put_into_card, rounds  # noqa: E402
from target_writer import DecodeAttention, Writer, in_waves, save_shard  # noqa: E402

from sdcp.engines.fetch_gguf import write_safetensors  # noqa: E402

PASSAGES = Passages([f"Paragraph {number} tells of a river and a bridge. It has two sentences." for number in range(9)])


def held_out(tmp_path: Path, *prompts: str) -> set[tuple[str, ...]]:
    path = tmp_path / "held_out.jsonl"
    path.write_text("".join(json.dumps({"turns": [prompt]}) + "\n" for prompt in prompts))
    return held_out_runs(path)


def test_a_prompt_that_shares_eight_words_with_a_held_out_one_is_found(tmp_path: Path) -> None:
    runs = held_out(tmp_path, "one two three four five six seven eight nine", "Who was it?")
    assert overlaps("zero TWO three, four five six seven eight nine!", runs)
    assert not overlaps("two three four five six seven eight, but not that", runs)
    assert overlaps("who was it", runs), "short prompts count whole"
    assert not overlaps("who was it then", runs)


def test_prompts_come_from_the_seed_without_held_out_ones(tmp_path: Path) -> None:
    first, _ = build(200, 3, PASSAGES, set())
    assert build(200, 3, PASSAGES, set())[0] == first
    assert len({prompt for _, prompt in first}) == 200
    runs = held_out(tmp_path, *(prompt for _, prompt in first[:50]))
    clean, dropped = build(200, 3, PASSAGES, runs)
    assert dropped >= 50
    assert not {prompt for _, prompt in clean} & {prompt for _, prompt in first[:50]}


def test_a_pass_yields_the_agreeing_run_and_one_token() -> None:
    """Answer 1..6 with M = 3: two agree and one is added, none agrees and one is added, two agree and end it."""
    case = Case("qa", [9], [1, 2, 3, 4, 5, 6])
    proposed = {0: [1, 2, 8], 3: [7, 5, 6], 4: [5, 6]}
    tally = rounds(case, lambda committed, length: proposed[committed][:length], 3)
    assert (tally.passes, tally.proposed, tally.accepted, tally.tokens) == (3, 8, 4, 6)


def test_lookup_goes_first_only_where_it_matches_two_tokens() -> None:
    case = Case("qa", [1, 2, 3, 4, 7, 2], [3, 4, 8])
    by_name = proposers(case, best=[30, 40, 50])
    assert by_name["lookup"](0, 2) == [3, 4], "after 2 came 3 4"
    assert by_name["both"](0, 2) == [30, 40], "a match of one token is left to the model"
    assert by_name["both"](1, 2) == [4, 7], "2 3 has occurred: the lookup goes first"


def test_the_table_replaces_only_what_stands_between_the_marks(tmp_path: Path) -> None:
    card = tmp_path / "README.md"
    card.write_text("a\n<!-- figures -->\nold\n<!-- end of figures -->\nb\n")
    put_into_card(card, "new")
    assert card.read_text() == "a\n<!-- figures -->\nnew\n<!-- end of figures -->\nb\n"


def test_waves_hold_every_prompt_once_with_neighbours_of_like_length() -> None:
    lengths = random.Random(1).choices(range(100), k=50)
    order = in_waves(lengths, 20)
    assert sorted(order) == list(range(50))
    assert [lengths[index] for index in order[:20]] == sorted(lengths[:20])
    assert [lengths[index] for index in order[20:40]] == sorted(lengths[20:40], reverse=True)


class CountingModel:
    """Stands for the target: after token t comes t + 1, and 7 ends a text."""

    slots = 2

    def start(self, slots: list[int], prompts: list[list[int]]) -> torch.Tensor:
        return self._after([prompt[-1] for prompt in prompts])

    def step(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self._after(tokens.tolist())

    def _after(self, tokens: list[int]) -> torch.Tensor:
        logits = torch.zeros(len(tokens), 40)
        for line, token in enumerate(tokens):
            logits[line, (token + 1) % 40] = 9.0
        return logits


def test_shards_give_back_what_the_writer_wrote(tmp_path: Path) -> None:
    """More prompts than slots; texts end at the end token or at their length, and each token has its row."""
    writer = Writer(CountingModel(), length=4, end=7, seed=0)
    prompts = [(0, [2, 3], True), (1, [5], True), (2, [20, 21, 22], True)]
    save_shard(tmp_path / "shard-0-0000.npz", list(writer.run(iter(prompts))))
    found = {text.prompt: text for text in texts(tmp_path)}
    answers = {prompt: text.tokens[text.start :].tolist() for prompt, text in found.items()}
    assert answers == {0: [4, 5, 6, 7], 1: [6, 7], 2: [23, 24, 25, 26]}
    for text in found.values():
        assert text.top_ids[:, 0].tolist() == text.tokens[text.start :].tolist()
        assert text.top_probabilities.shape == text.top_ids.shape


def test_a_batch_points_at_the_positions_before_the_scored_tokens() -> None:
    rows = np.array([[6, 9], [7, 5]], dtype=np.uint16)
    chances = np.array([[0.75, 0.25], [0.5, 0.5]], dtype=np.float16)
    short = Text(np.array([4, 6, 7], dtype=np.uint16), 1, rows, chances, 1, True)
    long = Text(np.array([1, 2, 3, 6, 7], dtype=np.uint16), 3, rows, chances, 2, True)
    ids = output_ids([short, long], 3, 12)
    assert ids.tolist() == [5, 6, 7]
    batch = Batches([short, long], ids, 12, 100).batch([0, 1])
    assert batch.tokens.tolist() == [[4, 6, 0, 0], [1, 2, 3, 6]]
    assert batch.tokens.flatten()[batch.at].tolist() == [4, 6, 3, 6]
    assert batch.weights.tolist() == [[0.75, 0.0], [0.5, 0.5]] * 2, "token 9 has no row in the head"
    assert batch.best.tolist() == [1, 2, 1, 2]


def test_the_loss_and_its_gradient_are_those_of_cross_entropy() -> None:
    logits = torch.randn(3, 7, requires_grad=True)
    rows, weights = torch.tensor([[0, 3], [6, 0], [2, 1]]), torch.tensor([[0.5, 0.25], [0.9, 0.0], [0.3, 0.3]])
    nothing = torch.zeros(0)
    loss = distillation_loss(logits, Batch(nothing, nothing, rows, weights, nothing))
    plain = -(weights * torch.log_softmax(logits, 1).gather(1, rows)).sum() / weights.sum()
    torch.testing.assert_close(loss, plain)
    expected = torch.autograd.grad(plain, logits)[0]
    torch.testing.assert_close(torch.autograd.grad(loss, logits)[0], expected)


def test_the_written_drafter_says_what_the_trained_one_says(tmp_path: Path) -> None:
    """Format of the folder: Hugging Face names, output_ids, output_vocabulary; maps multiplied out."""
    target = tmp_path / "target"
    target.mkdir()
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    known = special | {"vocab_size": 50, "max_position_embeddings": 64}
    (target / "config.json").write_text(json.dumps(known | {"rms_norm_eps": 1e-5}))
    wide = np.random.default_rng(0).normal(size=(50, 24)).astype(np.float16)
    write_safetensors(target / "model.safetensors", {"model.embed_tokens.weight": wide})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (target / name).write_text("{}")
    trained = from_target(target, config_for(target, 16, 1, 32, 2), np.array([3, 5, 8, 13], dtype=np.int32))
    assert isinstance(trained.lm_head, Projected)
    torch.nn.init.normal_(trained.lm_head.correction)
    save(trained, target, tmp_path / "drafter")
    again = load(tmp_path / "drafter")
    tokens, at = torch.tensor([[1, 4, 9]]), torch.tensor([0, 2])
    torch.testing.assert_close(again(tokens, at), trained(tokens, at), atol=0.02, rtol=0.02)
    config = json.loads((tmp_path / "drafter" / "config.json").read_text())
    assert (config["output_vocabulary"], config["tie_word_embeddings"]) == (4, False)
    assert again.output_ids.tolist() == [3, 5, 8, 13]
    further = from_drafter(target, again)
    torch.testing.assert_close(further(tokens, at), trained(tokens, at), atol=0.02, rtol=0.02)
    assert isinstance(further.lm_head, Projected), "training goes on in the same form"


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_decode_attention_is_plain_attention_over_each_rows_own_length() -> None:
    torch.manual_seed(0)
    query, positions = torch.randn(3, 4, 8), torch.tensor([0, 5, 2])
    keys, values = (torch.randn(3, 2, 6, 8).bfloat16() for _ in range(2))
    found = DecodeAttention(8, 2, 2)(query, keys, values, positions).view(3, 4, 8)
    for row, reach in enumerate((positions + 1).tolist()):
        k, v = (part[row, :, :reach].float().repeat_interleave(2, 0) for part in (keys, values))
        plain = torch.nn.functional.scaled_dot_product_attention(query[row][:, None], k, v)[:, 0]
        torch.testing.assert_close(found[row], plain, atol=1e-4, rtol=1e-4)


def test_the_first_prompts_of_each_category_are_measured() -> None:

    from measure_drafters import chosen

    lines = [{"category": name, "turns": [f"{name} {number}"]} for number in range(3) for name in ("qa", "rag")]
    path = SimpleNamespace(read_text=lambda: "\n".join(json.dumps(line) for line in lines))
    assert chosen(SimpleNamespace(prompts=path, per_category=2)) == [
        ("qa", "qa 0"),
        ("rag", "rag 0"),
        ("qa", "qa 1"),
        ("rag", "rag 1"),
    ]
