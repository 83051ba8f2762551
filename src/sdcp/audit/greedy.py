"""Whether each committed token is what the target alone would have written: a proof of a greedy log (D32)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sdcp.check import NEAR_TIE, Difference, compare
from sdcp.engines.registry import load_target
from sdcp.errors import ConfigurationError
from sdcp.messages.contract import Contract
from sdcp.rules.acceptance import GREEDY


def differences(model: Path, contract: Contract, prompt: Sequence[int], output: Sequence[int]) -> list[Difference]:
    """Return where plain greedy decoding goes another way. ConfigurationError: another model, or rule 2."""
    if contract.rule != GREEDY:
        raise ConfigurationError(
            f"the session's tokens were drawn (rule {contract.rule}): only a greedy session can be replayed"
        )
    if not model.exists():
        raise ConfigurationError(f"{model}: no such model file or folder")
    engine = load_target("transformers" if model.is_dir() else "bigram", model)
    if engine.model != contract.target:
        raise ConfigurationError(
            f"{model} has the digest {engine.model.hex()}, and the session's target is {contract.target.hex()}"
        )
    return compare(engine, list(prompt), list(output))


def wrong(found: Sequence[Difference]) -> list[Difference]:
    """Those that numerics do not explain."""
    return [each for each in found if each.gap >= NEAR_TIE]
