"""Make the demonstration drafter: prompts, then text that the target writes, then distillation into a small Llama.

    python tools/train_drafter.py --target models/SmolLM2-135M-Instruct --work ~/drafter \\
        --free-text ~/sqlite3-doc --held-out spec_bench.jsonl --out models/demo-drafter

Three phases, each of which can be stopped and run again (`--phase` runs one alone):

prompts  draws training prompts (drafter_prompts) into WORK/prompts.jsonl. The prompts in --held-out are never used, nor
         is any that shares eight words in a row with one: the count of those dropped is printed.
write    the target answers them (target_writer) into WORK/shard-*.npz: about a million tokens an hour on two free
         cores. Stop it when there is enough; it goes on with what is left. On a busy machine run two of it instead,
         `--threads 1 --share 0/2` and `--threads 1 --share 1/2`: then neither waits for the other's core.
distil   trains on all shards there are, and writes --out. The state is kept after each epoch in WORK/distil.pt.

The same seed, shards, machine and thread count give the same drafter; another machine gives one of like quality.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from drafter_data import HELD_OUT, Batch, Batches, Text, output_ids, texts
from drafter_model import Drafter, agreement, config_for, distillation_loss, from_drafter, from_target, load, save
from drafter_prompts import build, held_out_runs, passages
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from target_writer import PackedLlama, Row, Writer, in_waves, save_shard
from transformers import AutoTokenizer

SHARD = 100  # texts in a shard
WAVE = 1500  # prompts sorted by length together

console = Console()


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True, help="the target's Hugging Face folder")
    parser.add_argument("--work", type=Path, required=True, help="where prompts, shards and the training state go")
    parser.add_argument("--out", type=Path, help="the drafter's folder")
    parser.add_argument(
        "--held-out", type=Path, required=True, help="prompts never to train on: JSON lines with `turns`"
    )
    parser.add_argument("--free-text", type=Path, nargs="*", default=[], help="folders with .txt and .html to cut from")
    parser.add_argument("--phase", choices=["prompts", "write", "distil", "all"], default="all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    writing = parser.add_argument_group("write")
    writing.add_argument("--prompts", type=int, default=20000, help="how many prompts to draw")
    writing.add_argument("--slots", type=int, default=192, help="texts written at once")
    writing.add_argument("--share", default="0/1", help="I/N: write every Nth prompt from the Ith on")
    writing.add_argument("--tokens", type=int, default=144, help="the longest answer")
    writing.add_argument("--longest-prompt", type=int, default=640, help="longer prompts are left out")
    writing.add_argument("--greedy", type=float, default=0.6, help="share of answers written greedily, others at 0.7")
    training = parser.add_argument_group("distil")
    training.add_argument("--start", type=Path, help="go on from this drafter's folder; its sizes and head hold")
    training.add_argument("--hidden", type=int, default=128)
    training.add_argument("--layers", type=int, default=2)
    training.add_argument("--feed", type=int, default=384)
    training.add_argument("--heads", type=int, default=4)
    training.add_argument("--output-vocabulary", type=int, default=12288)
    training.add_argument("--longest", type=int, default=4096, help="leave out longer texts, prompt and answer")
    training.add_argument(
        "--minutes", type=float, default=math.inf, help="end the schedule after so long at the latest"
    )
    training.add_argument("--last-rate", type=float, default=0.02, help="the rate at the end, as a share of --rate")
    training.add_argument("--epochs", type=int, default=3)
    training.add_argument("--rate", type=float, default=3e-3)
    training.add_argument("--batch", type=int, default=6000, help="tokens in a batch, prompts and padding included")
    return parser.parse_args(words)


def draw_prompts(settings: argparse.Namespace) -> list[tuple[str, str]]:
    """(kind, prompt) pairs, from WORK/prompts.jsonl if an earlier run has drawn them."""
    path: Path = settings.work / "prompts.jsonl"
    if not path.exists():
        runs = held_out_runs(settings.held_out)
        found, dropped = build(settings.prompts, settings.seed, passages(settings.free_text), runs)
        console.print(f"{len(found)} prompts; {dropped} dropped because they share eight words with a held-out prompt")
        part = path.with_suffix(".part")
        part.write_text("".join(json.dumps(pair) + "\n" for pair in found))
        os.replace(part, path)
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()]


@torch.inference_mode()
def write_texts(settings: argparse.Namespace, prompts: list[tuple[str, str]]) -> None:
    """Answer every prompt that no shard holds yet."""
    tokens = prompt_tokens(settings.target, [prompt for _, prompt in prompts])
    luck = random.Random(settings.seed)
    greedy = [luck.random() < settings.greedy for _ in prompts]
    share, shares = (int(number) for number in settings.share.split("/"))
    shards = len(list(settings.work.glob(f"shard-{share}-*.npz")))
    done = {text.prompt for text in texts(settings.work)}
    fitting = [index for index, ids in enumerate(tokens) if len(ids) <= settings.longest_prompt]
    order = [fitting[index] for index in in_waves([len(tokens[index]) for index in fitting], WAVE)]
    left = [index for index in order[share::shares] if index not in done]
    model = PackedLlama(settings.target, settings.slots, settings.longest_prompt + settings.tokens, settings.threads)
    writer = Writer(model, settings.tokens, end_token(settings.target), settings.seed + shards)
    rows = writer.run((index, tokens[index], greedy[index]) for index in left)
    with progress("writing") as bar:
        task = bar.add_task("texts", total=len(left))
        for number, shard in enumerate(in_shards(rows), start=shards):
            save_shard(settings.work / f"shard-{share}-{number:04d}.npz", shard)
            bar.advance(task, len(shard))


def in_shards(rows: Iterator[Row]) -> Iterator[list[Row]]:
    shard: list[Row] = []
    for row in rows:
        shard.append(row)
        if len(shard) == SHARD:
            yield shard
            shard = []
    if shard:
        yield shard


def prompt_tokens(target: Path, prompts: list[str]) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(target)
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    ids: list[list[int]] = tokenizer.apply_chat_template(chats, add_generation_prompt=True, return_dict=True)[
        "input_ids"
    ]
    return ids


def end_token(target: Path) -> int:
    return int(json.loads((target / "config.json").read_text())["eos_token_id"])


class Distillation:
    """AdamW over the shards with a warm-up and a cosine; keeps its best epoch by held-out agreement."""

    def __init__(self, settings: argparse.Namespace) -> None:
        self.settings, self.state = settings, settings.work / "distil.pt"
        torch.manual_seed(settings.seed)
        found = texts(settings.work)
        trained = [text for text in found if text.prompt % HELD_OUT and len(text.tokens) <= settings.longest]
        held_out = [text for text in found if text.prompt % HELD_OUT == 0]
        self.drafter = _first(settings, trained)
        sizes = (self.drafter.output_ids, self.drafter.config.vocab_size, settings.batch)
        self.batches, check = Batches(trained, *sizes), Batches(held_out, *sizes)
        self.check = [check.batch(group) for group in check.epoch(0)]
        self.optimizers = _optimizers(self.drafter, settings.rate)
        self.began = time.monotonic()
        self.steps = settings.epochs * len(self.batches.epoch(0))
        self.step, self.best = 0, 0.0
        count = sum(len(text.top_ids) for text in trained)
        console.print(f"{len(trained)} texts with {count} scored tokens; {len(held_out)} texts held out")

    def run(self) -> None:
        first = self._resume()
        with progress("distilling") as bar:
            task = bar.add_task("steps", total=self.steps, completed=self.step)
            for epoch in range(first, self.settings.epochs):
                for group in self.batches.epoch(self.settings.seed + epoch):
                    if self._done() < 1.0:
                        self._learn(self.batches.batch(group))
                        bar.advance(task)
                self._end_epoch(epoch)

    def _done(self) -> float:
        """How much of the schedule is behind: by steps or by time, whichever is more."""
        minutes = (time.monotonic() - self.began) / 60
        return max(self.step / self.steps, minutes / self.settings.minutes)

    def _learn(self, batch: Batch) -> None:
        last = self.settings.last_rate
        cosine = last + (1 - last) * (1 + math.cos(math.pi * self._done())) / 2
        rate = self.settings.rate * min(1.0, (self.step + 1) / 30) * cosine
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * group["share"]
            optimizer.zero_grad()
        loss = distillation_loss(self.drafter(batch.tokens, batch.at), batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_([p for p in self.drafter.parameters() if not p.grad.is_sparse], 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        self.step += 1

    def _end_epoch(self, epoch: int) -> None:
        loss, same = agreement(self.drafter, self.check)
        console.print(f"epoch {epoch + 1}: held-out cross-entropy {loss:.3f}, best token agrees {same:.3f}")
        if same > self.best:
            self.best = same
            save(self.drafter, self.settings.target, self.settings.out)
        state = {"drafter": self.drafter.state_dict(), "optimizers": [each.state_dict() for each in self.optimizers]}
        part = self.state.with_suffix(".part")
        torch.save(state | {"step": self.step, "epoch": epoch + 1, "best": self.best, "steps": self.steps}, part)
        os.replace(part, self.state)

    def _resume(self) -> int:
        """The epoch to go on with; a state over other shards or settings does not fit and is left alone."""
        if not self.state.exists():
            return 0
        state = torch.load(self.state)
        if state["steps"] != self.steps:
            console.print(f"{self.state} is of other shards or settings: starting over")
            return 0
        self.drafter.load_state_dict(state["drafter"])
        for optimizer, kept in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        self.step, self.best = state["step"], state["best"]
        return int(state["epoch"])


def _first(settings: argparse.Namespace, trained: list[Text]) -> Drafter:
    """The drafter before its first step."""
    if settings.start is not None:
        return from_drafter(settings.target, load(settings.start))
    config = config_for(settings.target, settings.hidden, settings.layers, settings.feed, settings.heads)
    return from_target(settings.target, config, output_ids(trained, settings.output_vocabulary, config.vocab_size))


def _optimizers(drafter: Drafter, rate: float) -> list[torch.optim.Optimizer]:
    """Slow for what moves every row (maps), slower than the layers for single rows (corrections)."""
    groups: dict[str, dict[str, Any]] = {
        "map": {"params": [], "weight_decay": 0.0, "share": 0.1},
        "correction": {"params": [], "weight_decay": 0.05, "share": 0.3},
        "matrix": {"params": [], "weight_decay": 0.05, "share": 1.0},
        "vector": {"params": [], "weight_decay": 0.0, "share": 1.0},
        "sparse": {"params": [], "share": 0.3},
    }
    for name, weight in drafter.named_parameters():
        last = "sparse" if name.endswith("embed_tokens.correction") else name.rsplit(".", 1)[-1]
        groups[last if last in groups else "matrix" if weight.ndim > 1 else "vector"]["params"].append(weight)
    sparse = torch.optim.SparseAdam([groups.pop("sparse")], lr=rate, betas=(0.9, 0.95))
    return [torch.optim.AdamW(list(groups.values()), lr=rate, betas=(0.9, 0.95), fused=True), sparse]


def progress(what: str) -> Progress:
    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console)


def main(words: list[str]) -> None:
    settings = arguments(words)
    torch.set_num_threads(settings.threads)
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # AMX: training noise is far above this rounding
    settings.work.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    if settings.phase in ("prompts", "write", "all"):
        prompts = draw_prompts(settings)
        if settings.phase != "prompts":
            write_texts(settings, prompts)
    if settings.phase in ("distil", "all"):
        if settings.out is None:
            sys.exit("--out: say where the drafter goes")
        Distillation(settings).run()
    console.print(f"done after {(time.monotonic() - began) / 60:.1f} minutes")


if __name__ == "__main__":
    main(sys.argv[1:])
