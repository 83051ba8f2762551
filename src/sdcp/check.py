"""Whether an answer is what plain greedy decoding by the target alone would have given (D32).

Each token is compared with the argmax of a pass of its own over the prefix before it, without any drafter. For a real
model the numerics of a pass may depend on how many tokens ride in it: where the two differ, the target must hold them
for a near tie, and such places are counted and shown. For the reference model nothing may differ.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from rich.progress import track

from sdcp.engines.registry import load_target
from sdcp.errors import ConfigurationError
from sdcp.generate import Answer
from sdcp.ports import Target

NEAR_TIE = 1e-3  # D32: the greatest gap of logits that numerics may decide
SESSION = bytes(16)


@dataclass(frozen=True, slots=True)
class Difference:
    """An output index where plain decoding gives another token, and how much more the target likes it, in logits."""

    index: int
    token: int
    plain: int
    gap: float


def check_greedy(target: Path, answer: Answer) -> int:
    """Compare, say what was found on standard error, return 0 if every difference is a near tie, else 1."""
    if answer.tokens and not (answer.prompt_token_ids and answer.token_ids):
        raise ConfigurationError("the gateway gave no token ids to compare")
    engine = load_target("transformers" if target.is_dir() else "bigram", target)
    differences = compare(engine, answer.prompt_token_ids, answer.token_ids)
    for difference in differences:
        where = f"  token {difference.index}: {difference.token}, plain decoding {difference.plain}"
        print(f"{where}, gap {difference.gap:.2e}", file=sys.stderr)
    wrong = [difference for difference in differences if difference.gap >= NEAR_TIE]
    print(
        f"  {len(answer.token_ids)} tokens compared with plain greedy decoding: "
        f"{len(differences) - len(wrong)} near ties, {len(wrong)} wrong",
        file=sys.stderr,
    )
    return 1 if wrong else 0


def compare(engine: Target, prompt: list[int], tokens: list[int]) -> list[Difference]:
    """Return where plain decoding, led along `tokens`, would have gone another way."""
    prefix = list(prompt)
    differences = []
    for index, token in enumerate(track(tokens, description="plain decoding", transient=True)):
        logits = engine.next_logits(SESSION, prefix, len(prefix))
        plain = int(logits.argmax())  # the first of equals: the smallest id (D22)
        if plain != token:
            differences.append(Difference(index, token, plain, float(logits[plain] - logits[token])))
        prefix.append(token)
    engine.close(SESSION)
    return differences
