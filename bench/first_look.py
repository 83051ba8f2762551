"""A first look: plain decoding, transformers' assisted generation, and this system, side by side in one run.

    python bench/first_look.py --prompts 8 --tokens 64 --concurrency 1 8

All of them answer the same prompts greedily with the same target, and with the same packed-float16 arithmetic where the
CPU has it. `transformers` at N > 1 decodes a padded batch; its assisted generation takes one prompt at a time. Figures
are tokens per second over the whole run (prompts included), as ratios to plain decoding by transformers. Machines are
noisy: read the ratios, run it more than once. Where a round's time goes is read from the roles' own metrics.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sdcp.engines.causal import _load_cut
from sdcp.engines.linears import pack_all
from sdcp.engines.registry import load_target
from sdcp.fleet import Fleet, Plan
from sdcp.generate import Answer, Ask, answer
from sdcp.http.client import Client
from sdcp.http.tls import TlsFiles, client_context
from sdcp.messages.contract import Sampling
from sdcp.ports import PrefillJob, Target, VerifyJob

console = Console()


@dataclass
class Figures:
    tokens: int = 0
    seconds: float = 0.0
    passes: int = 0
    accepted: int = 0
    steps: dict[str, tuple[float, int]] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


def prompts_of(path: Path, count: int) -> list[str]:
    """One prompt of each category in turn, first turns, short enough for the demonstration."""
    by_category: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if len(entry["turns"][0]) < 1200:
            by_category.setdefault(entry["category"], []).append(entry["turns"][0])
    rounds = max(map(len, by_category.values()))
    ordered = [group[i] for i in range(rounds) for group in by_category.values() if i < len(group)]
    return ordered[:count]


class Peer:
    """transformers, with the same weights, arithmetic and drafter."""

    def __init__(self, target: Path, drafter: Path) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

        self.torch = torch
        self.tokenizer = AutoTokenizer.from_pretrained(target)
        self.tokenizer.padding_side = "left"
        self.model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
        self.drafter = self._whole_head(drafter, AutoConfig.from_pretrained(drafter))
        for model in (self.model, self.drafter):
            pack_all(model)

    def _whole_head(self, path: Path, config: Any) -> Any:
        """The demonstration drafter with its cut head spread over the whole vocabulary."""
        torch = self.torch
        model, ids = _load_cut(path, config, torch.float32)
        model.set_attn_implementation("sdpa")
        head, index = model.get_output_embeddings(), torch.tensor(ids)

        class Spread(torch.nn.Module):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.head = head

            def forward(self, hidden: Any) -> Any:
                logits = torch.full((*hidden.shape[:-1], config.vocab_size), -1e9)
                logits[..., index] = self.head(hidden)
                return logits

        model.lm_head = Spread()
        return model.eval()

    def ids(self, prompts: list[str]) -> Any:
        texts = [
            self.tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
            )
            for prompt in prompts
        ]
        return self.tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)

    def generate(self, prompts: list[str], count: int, **options: Any) -> Figures:
        inputs = self.ids(prompts)
        began = time.perf_counter()
        with self.torch.inference_mode():
            out = self.model.generate(
                **inputs, max_new_tokens=count, do_sample=False, pad_token_id=self.tokenizer.eos_token_id, **options
            )
        seconds = time.perf_counter() - began
        new = out[:, inputs["input_ids"].shape[1] :]
        ends = (new == self.tokenizer.eos_token_id).cumsum(1).cumsum(1) <= 1  # up to and with the first end
        return Figures(int(ends.sum()), seconds)

    def plain(self, prompts: list[str], count: int) -> Figures:
        return self.generate(prompts, count)

    def assisted(self, prompts: list[str], count: int) -> Figures:
        return total(self.generate([prompt], count, assistant_model=self.drafter) for prompt in prompts)

    def lookup(self, prompts: list[str], count: int) -> Figures:
        return total(self.generate([prompt], count, prompt_lookup_num_tokens=4) for prompt in prompts)


def total(parts: Any) -> Figures:
    sums = Figures()
    for part in parts:
        sums.tokens += part.tokens
        sums.seconds += part.seconds
    return sums


def our_plain(engine: Target, rows: list[list[int]], stop: int, count: int) -> Figures:
    """Plain decoding by our engine: every row one token a pass, all rows in one ragged pass."""
    began = time.perf_counter()
    prefixes = {bytes([i]) * 16: list(ids) for i, ids in enumerate(rows)}
    for session, prefix in prefixes.items():
        while not engine.prefill([PrefillJob(session, prefix, len(prefix))], 512)[0]:
            pass
    alive, tokens = set(prefixes), 0
    for _ in range(count):
        jobs = [VerifyJob(s, p, len(p), (), 1, Sampling(), (), None, 1) for s, p in prefixes.items() if s in alive]
        for job, result in zip(jobs, engine.verify(jobs), strict=True):
            prefixes[job.session].append(int(result.additional or 0))
            tokens += 1
            if result.additional == stop:
                alive.discard(job.session)
        if not alive:
            break
    for session in prefixes:
        engine.close(session)
    return Figures(tokens, time.perf_counter() - began)


class System:
    """This system, as `sdcp up` starts it."""

    def __init__(self, target: Path, drafts: tuple[str, ...], directory: Path) -> None:
        plan = Plan(
            targets=(target,),
            drafts=drafts,
            directory=directory,
            prompt=None,
            max_tokens=0,
            once=False,
            check=False,
            api="127.0.0.1:0",
        )
        self.fleet = Fleet(plan)

    async def measure(self, prompts: list[str], count: int, concurrency: int) -> Figures:
        before = await self.steps()
        began = time.perf_counter()
        with ThreadPoolExecutor(concurrency) as pool:
            asks = [Ask(prompt, count, {"temperature": 0.0}, raw=False) for prompt in prompts]
            loop = asyncio.get_running_loop()
            answers: list[Answer] = await asyncio.gather(
                *(loop.run_in_executor(pool, answer, ask, self.fleet.api_url, True) for ask in asks)
            )
        seconds = time.perf_counter() - began
        after = await self.steps()
        figures = Figures(sum(a.tokens for a in answers), seconds, sum(a.passes for a in answers))
        figures.accepted = sum(a.accepted for a in answers)
        zero = (0.0, 0)
        figures.steps = {
            step: (sums[0] - before.get(step, zero)[0], sums[1] - before.get(step, zero)[1])
            for step, sums in after.items()
        }
        return figures

    async def steps(self) -> dict[str, tuple[float, int]]:
        """Seconds and count of every step, summed over the roles."""
        client = Client(client_context(TlsFiles.of(self.fleet.directory / "certs", "gateway")))
        found: dict[str, tuple[float, int]] = {}
        try:
            for name, base in self.fleet.bases.items():
                role = name.partition("-")[0]
                if role in ("verifier", "drafter", "cache"):
                    text = (await client.request("GET", f"{base}/metrics")).body
                    for step, (seconds, times) in steps_of(bytes(text).decode()).items():
                        key = f"{role} {step}"
                        old = found.get(key, (0.0, 0))
                        found[key] = (old[0] + seconds, old[1] + times)
        finally:
            await client.close()
        return found


def steps_of(text: str) -> dict[str, tuple[float, int]]:
    sums = dict(re.findall(r'sdcp_step_seconds_sum\{step="(\w+)"\} (\S+)', text))
    counts = dict(re.findall(r'sdcp_step_seconds_count\{step="(\w+)"\} (\S+)', text))
    return {step: (float(sums[step]), int(float(counts[step]))) for step in sums}


def show(results: dict[int, dict[str, Figures]]) -> None:
    for concurrency, rows in results.items():
        base = next(iter(rows.values())).rate
        most = max(figures.rate for figures in rows.values()) or 1.0
        table = Table("system", "tokens/s", "", "x plain", "per pass", "accepted", title=f"{concurrency} at once")
        for name, figures in rows.items():
            per_pass = f"{figures.tokens / figures.passes:.2f}" if figures.passes else "-"
            accepted = f"{figures.accepted / figures.passes:.2f}" if figures.passes else "-"
            ratio = f"{figures.rate / base:.2f}" if base else "-"
            bar = "█" * round(10 * figures.rate / most)
            table.add_row(name, f"{figures.rate:.1f}", bar, ratio, per_pass, accepted)
        console.print(table)
        for name, figures in rows.items():
            if figures.steps and figures.passes:
                show_steps(name, figures)


def show_steps(name: str, figures: Figures) -> None:
    table = Table("step", "ms per round", "times", title=f"{name}: where a round's time goes")
    for step, (seconds, times) in sorted(figures.steps.items(), key=lambda item: -item[1][0]):
        if times:
            table.add_row(step, f"{1000 * seconds / figures.passes:.2f}", str(times))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--target", type=Path, default=Path("models/SmolLM2-135M-Instruct"))
    parser.add_argument("--drafter", type=Path, default=Path("models/demo-drafter"))
    parser.add_argument("--data", type=Path, default=Path("tests/data/spec_bench_public.jsonl"))
    parser.add_argument("--dir", type=Path, default=Path(".sdcp-bench"))
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    results = asyncio.run(measure(arguments))
    show(results)
    if arguments.json:
        document = {n: {name: vars(f) | {"rate": f.rate} for name, f in rows.items()} for n, rows in results.items()}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")


async def measure(arguments: argparse.Namespace) -> dict[int, dict[str, Figures]]:
    prompts = prompts_of(arguments.data, arguments.prompts)
    results: dict[int, dict[str, Figures]] = {n: {} for n in arguments.concurrency}
    in_process(arguments, prompts, results)
    for name, drafts in (
        ("sdcp, lookup + model", (f"ngram+{arguments.drafter}",) * 2),
        ("sdcp, model", (str(arguments.drafter),) * 2),
        ("sdcp, lookup", ("ngram", "ngram")),
    ):
        system = System(arguments.target, drafts, arguments.dir)
        system.fleet.prepare()
        try:
            await system.fleet.start()
            await system.measure(prompts[:1], 8, 1)
            for concurrency in arguments.concurrency:
                results[concurrency][name] = await system.measure(prompts, arguments.tokens, concurrency)
        finally:
            await system.fleet.stop()
    return results


def in_process(arguments: argparse.Namespace, prompts: list[str], results: dict[int, dict[str, Figures]]) -> None:
    """The peers, one after another; whatever they hold is gone before the system starts."""
    peer = Peer(arguments.target, arguments.drafter)
    engine = load_target("transformers", arguments.target)
    stop = peer.tokenizer.eos_token_id
    rows = [peer.ids([prompt])["input_ids"][0].tolist() for prompt in prompts]
    peer.plain(prompts[:1], 4)
    kinds: dict[str, Callable[[list[int]], Figures]] = {
        "plain, transformers": lambda some: peer.plain([prompts[i] for i in some], arguments.tokens),
        "plain, our engine": lambda some: our_plain(engine, [rows[i] for i in some], stop, arguments.tokens),
        "assisted, transformers + model": lambda some: peer.assisted([prompts[i] for i in some], arguments.tokens),
        "assisted, transformers + lookup": lambda some: peer.lookup([prompts[i] for i in some], arguments.tokens),
    }
    for name, decode in kinds.items():
        for concurrency in arguments.concurrency:
            groups = [
                list(range(start, min(start + concurrency, len(prompts))))
                for start in range(0, len(prompts), concurrency)
            ]
            with console.status(f"{name}, {concurrency} at once"):
                results[concurrency][name] = total(decode(group) for group in groups)


if __name__ == "__main__":
    main()
