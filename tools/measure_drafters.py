"""How good the demonstration drafters are: lookup, the model, and both together, on prompts they have never seen.

    python tools/measure_drafters.py --target models/SmolLM2-135M-Instruct --drafter models/demo-drafter \\
        --prompts spec_bench.jsonl --work ~/drafter

The target continues each prompt greedily once (weights in bfloat16, chat template, first turn; kept in
WORK/continuations.json).
A greedy target takes just the longest run of proposals that its own continuation has, so a drafter is judged against
that continuation, round by round, without asking the target again: what a run over the protocol would count, without
its time. Nothing here is a timing.

Words: a *pass* is one run of the target over M proposals. It yields those accepted and one token of its own.
`acceptance` is accepted / proposed, `tokens` is tokens per pass; M counts proposals. Writes WORK/figures.json and puts
the tables between the `figures` marks of the drafter's README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from drafter_model import load
from rich.console import Console
from rich.progress import track
from target_writer import PackedLlama, Writer
from train_drafter import end_token, prompt_tokens

from sdcp.engines.mixed import LEAST_MATCH
from sdcp.engines.ngram import Index

MARKS = ("<!-- figures -->", "<!-- end of figures -->")
SLOTS = 32  # texts that the target writes at once
DRAFTERS = ("lookup", "model", "both")


@dataclass(frozen=True)
class Case:
    """A prompt with the chat template, and what the target says: token ids."""

    category: str
    prompt: list[int]
    answer: list[int]


@dataclass
class Tally:
    """What the rounds of some cases came to."""

    passes: int = 0
    proposed: int = 0
    accepted: int = 0
    tokens: int = 0

    def add(self, other: Tally) -> None:
        self.passes += other.passes
        self.proposed += other.proposed
        self.accepted += other.accepted
        self.tokens += other.tokens

    def figures(self) -> dict[str, float]:
        return {
            "tokens_per_pass": round(self.tokens / self.passes, 3),
            "acceptance": round(self.accepted / max(1, self.proposed), 3),
            "passes": self.passes,
            "tokens": self.tokens,
        }


Proposer = Callable[[int, int], list[int]]
"""(committed tokens of the answer, M) to proposals."""


def rounds(case: Case, propose: Proposer, length: int) -> Tally:
    """Play the case: propose, accept the longest run that the answer has, go on after the target's own token."""
    tally, committed = Tally(), 0
    while committed < len(case.answer):
        room = min(length, len(case.answer) - committed)
        accepted = agreeing(propose(committed, room), case.answer[committed:])
        taken = min(accepted + 1, len(case.answer) - committed)
        tally.add(Tally(1, room, accepted, taken))
        committed += taken
    return tally


def agreeing(proposed: list[int], answer: list[int]) -> int:
    """How many proposals from the first on are the answer's."""
    for index, (token, right) in enumerate(zip(proposed, answer, strict=False)):
        if token != right:
            return index
    return min(len(proposed), len(answer))


def lookups(case: Case) -> list[tuple[int, Index]]:
    """For every number of committed tokens: the length of the match, and the index as it was."""
    found = []
    for committed in range(len(case.answer)):
        index = Index()
        index.grow(case.prompt + case.answer, len(case.prompt) + committed)
        found.append((index.match()[0], index))
    return found


def looked_up(index: Index, length: int) -> list[int]:
    matched, position = index.match()
    return list(index.continuation(position, length)) if matched else []


def proposers(case: Case, best: list[int]) -> dict[str, Proposer]:
    """best: the model's best token after the prompt and each number of committed tokens.

    Those are the model's proposals as far as they agree with the answer, and no further one can be accepted.
    """
    known = lookups(case)

    def lookup(committed: int, length: int) -> list[int]:
        return looked_up(known[committed][1], length)

    def model(committed: int, length: int) -> list[int]:
        return best[committed : committed + length]

    def both(committed: int, length: int) -> list[int]:
        return (lookup if known[committed][0] >= LEAST_MATCH else model)(committed, length)

    return {"lookup": lookup, "model": model, "both": both}


@torch.inference_mode()
def best_tokens(drafter: Any, case: Case) -> list[int]:
    """The drafter's best token at each position of the answer, given what comes before it."""
    sequence = torch.tensor([case.prompt + case.answer[:-1]])
    logits = drafter(sequence, torch.arange(len(case.prompt) - 1, sequence.shape[1]))
    return [int(drafter.output_ids[row]) for row in logits.argmax(1).tolist()]


def continuations(settings: argparse.Namespace) -> list[Case]:
    """The cases, from WORK/continuations.json if an earlier run has made them with these settings."""
    path: Path = settings.work / "continuations.json"
    asked = {"per_category": settings.per_category, "tokens": settings.tokens, "context": settings.context}
    if path.exists() and (kept := json.loads(path.read_text()))["asked"] == asked:
        return [Case(**case) for case in kept["cases"]]
    cases = list(_continued(settings))
    path.write_text(json.dumps({"asked": asked, "cases": [vars(case) for case in cases]}))
    return cases


@torch.inference_mode()
def _continued(settings: argparse.Namespace) -> list[Case]:
    texts = chosen(settings)
    prompts = [ids[-settings.context :] for ids in prompt_tokens(settings.target, [text for _, text in texts])]
    reach = max(len(prompt) for prompt in prompts) + settings.tokens
    model = PackedLlama(settings.target, min(len(prompts), SLOTS), reach, settings.threads)
    writer = Writer(model, settings.tokens, end_token(settings.target), seed=0)
    jobs = ((number, prompt, True) for number, prompt in enumerate(prompts))
    rows = {row.prompt: row for row in track(writer.run(jobs), "the target writes", total=len(prompts))}
    return [
        Case(category, prompts[number], rows[number].tokens[len(prompts[number]) :])
        for number, (category, _) in enumerate(texts)
    ]


def chosen(settings: argparse.Namespace) -> list[tuple[str, str]]:
    """The first prompts of each category, first turns, in the file's order."""
    counts: dict[str, int] = defaultdict(int)
    found = []
    for line in settings.prompts.read_text().splitlines():
        record = json.loads(line)
        counts[record["category"]] += 1
        if counts[record["category"]] <= settings.per_category:
            found.append((record["category"], record["turns"][0]))
    return found


def measure(cases: list[Case], drafter: Any, lengths: list[int]) -> dict[str, dict[str, dict[str, float]]]:
    """{category or "all": {"model M=3": figures}}."""
    tallies: dict[str, dict[str, Tally]] = defaultdict(lambda: defaultdict(Tally))
    for case in track(cases, "the drafters propose"):
        by_name = proposers(case, best_tokens(drafter, case))
        for name in DRAFTERS:
            for length in lengths:
                tally = rounds(case, by_name[name], length)
                for group in (case.category, "all"):
                    tallies[group][f"{name} M={length}"].add(tally)
    return {group: {key: tally.figures() for key, tally in row.items()} for group, row in tallies.items()}


def table(figures: dict[str, dict[str, dict[str, float]]], lengths: list[int]) -> str:
    """Markdown: a row a category, tokens per pass and acceptance in each cell."""
    columns = [f"{name} M={length}" for name in DRAFTERS for length in lengths]
    lines = ["| category | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
    for group in [*sorted(figures.keys() - {"all"}), "all"]:
        cells = [
            f"{figures[group][key]['tokens_per_pass']:.2f} ({figures[group][key]['acceptance']:.2f})" for key in columns
        ]
        lines.append(f"| {group} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def put_into_card(card: Path, text: str) -> None:
    """Replace what stands between the marks; a card without marks is left alone."""
    content = card.read_text() if card.exists() else ""
    if all(mark in content for mark in MARKS):
        before, rest = content.split(MARKS[0])
        card.write_text(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{rest.split(MARKS[1])[1]}")


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines with `category` and `turns`")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--per-category", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--context", type=int, default=2048, help="prompts are cut to their last so many tokens")
    parser.add_argument("--lengths", type=int, nargs="+", default=[3, 5])
    parser.add_argument("--threads", type=int, default=2)
    settings = parser.parse_args(words)
    torch.set_num_threads(settings.threads)
    settings.work.mkdir(parents=True, exist_ok=True)
    cases = continuations(settings)
    figures = measure(cases, load(settings.drafter), settings.lengths)
    (settings.work / "figures.json").write_text(json.dumps(figures, indent=1))
    text = f"{len(cases)} prompts, {settings.tokens} greedy tokens: tokens per target pass (acceptance).\n\n"
    text += table(figures, settings.lengths)
    put_into_card(settings.drafter / "README.md", text)
    Console().print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
