"""The demonstration models themselves (`sdcp models fetch demo`): the law of rule 2, and greedy output (D32)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from sdcp.engines.registry import load_drafter, load_target
from sdcp.messages.contract import Sampling
from sdcp.ports import Drafter, DraftJob, Target, VerifyJob
from sdcp.rules.draws import seeded_luck
from sdcp.rules.profile import target_distribution

ROOT = Path(__file__).parents[2] / "models"
TARGET, DRAFTER = ROOT / "SmolLM2-135M-Instruct", ROOT / "demo-drafter"
TOP_K = 6
PROFILE = Sampling(temperature_milli=1500, top_k=TOP_K)
ROUNDS, BATCH = 600, 40
BOUND = 25.7  # chi-square with 5 degrees of freedom: exceeded by chance once in 10,000
PROMPT = (
    "<|im_start|>user\nWrite a short story about a robot.<|im_end|>\n<|im_start|>assistant\n"  # where both have ideas
)

pytestmark = pytest.mark.skipif(not TARGET.exists(), reason="run `sdcp models fetch demo` (make test does)")


@pytest.fixture(scope="module")
def target() -> Target:
    return load_target("transformers", TARGET, capacity=BATCH + 8, threads=1)


@pytest.fixture(scope="module")
def drafter() -> Drafter:
    return load_drafter("transformers", DRAFTER, threads=1, generator=np.random.default_rng(11))


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    from tokenizers import Tokenizer

    return list(Tokenizer.from_file(str(TARGET / "tokenizer.json")).encode(PROMPT).ids)


def chi_square(counts: NDArray[np.int64], p: NDArray[np.float64]) -> float:
    expected = p * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def first_tokens(target: Target, drafter: Drafter, prompt: list[int], *, honest: bool) -> list[int]:
    """The first emitted token of many rounds of one proposed token; a liar publishes another row than it drew from."""
    found: list[int] = []
    for start in range(0, ROUNDS, BATCH):
        jobs = []
        for number in range(start, start + BATCH):
            session = (number % BATCH).to_bytes(16, "big")
            draft = drafter.draft([DraftJob(session, prompt, len(prompt), 1, 2, PROFILE)])[0]
            assert draft.rows is not None
            rows = draft.rows if honest else np.full_like(draft.rows, 1 / draft.rows.shape[1])
            luck = seeded_luck(5, session, number + 1, 1).values
            jobs.append(VerifyJob(session, prompt, len(prompt), draft.tokens, 2, PROFILE, luck, rows, 9))
        for job, result in zip(jobs, target.verify(jobs), strict=True):
            assert result.additional is not None
            found.append(job.tokens[0] if result.accepted else result.additional)
    return found


@pytest.mark.requirement("S6.4-speculative-output", "S6.3-acceptance", "S6.3-scoring", "S5.2-sampled-from-row")
@pytest.mark.parametrize("honest", [True, False], ids=["rows sampled from", "other rows"])
def test_rule_2_has_the_targets_law_if_the_rows_are_those_sampled_from(
    target: Target, drafter: Drafter, prompt: list[int], honest: bool
) -> None:
    p = target_distribution(target.next_logits(b"law", prompt, len(prompt)), PROFILE)
    support = np.flatnonzero(p)
    assert len(support) == TOP_K
    tokens = first_tokens(target, drafter, prompt, honest=honest)
    assert set(tokens) <= set(support.tolist())
    counts = np.array([tokens.count(token) for token in support])
    assert (chi_square(counts, p[support]) < BOUND) is honest


@pytest.mark.requirement("S6.4-greedy-output", "S6.3-accepted-kv-valid")
@pytest.mark.decision("D32-near-ties")
def test_greedy_output_with_the_drafter_is_plain_decoding(target: Target, drafter: Drafter, prompt: list[int]) -> None:
    from sdcp.check import NEAR_TIE, compare

    history, session = list(prompt), b"greedy"
    while len(history) < len(prompt) + 40:
        draft = drafter.draft([DraftJob(session, history, len(history), 4, 1, Sampling())])[0]
        job = VerifyJob(session, history, len(history), draft.tokens, 1, Sampling(), (), None, 99)
        result = target.verify([job])[0]
        assert result.additional is not None
        history += [*draft.tokens[: result.accepted], result.additional]
    target.close(session)
    differences = compare(target, prompt, history[len(prompt) :])
    assert all(difference.gap < NEAR_TIE for difference in differences)
