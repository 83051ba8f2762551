"""The reference model as target and drafter (docs/reference-model.md), against the rules applied by hand."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from sdcp.engines.bigram import BigramDrafter, BigramTarget, write_bigram
from sdcp.errors import ConfigurationError, InvalidContent
from sdcp.messages.contract import Sampling
from sdcp.ports import DraftJob, VerifyJob
from sdcp.rules.acceptance import accept
from sdcp.rules.draws import draw, seeded_luck
from sdcp.rules.profile import target_distribution
from sdcp.wire.rows import check_rows

V = 7
LOGITS = np.random.default_rng(1).normal(size=(V, V)).astype(np.float32) * 2
START = np.random.default_rng(2).normal(size=V).astype(np.float32)
SESSION = bytes(16)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_bigram(tmp_path / "model.safetensors", LOGITS, START)
    return tmp_path / "model.safetensors"


def verify_job(tokens: tuple[int, ...], **other: object) -> VerifyJob:
    members: dict[str, object] = {
        "session": SESSION,
        "prefix": [3, 5, 2],
        "length": 2,  # the shared prefix has grown meanwhile: only its first two tokens count
        "tokens": tokens,
        "rule": 1,
        "profile": Sampling(),
        "luck": (),
        "rows": None,
        "room": 99,
    }
    return VerifyJob(**{**members, **other})  # type: ignore[arg-type]


def draft_job(**other: object) -> DraftJob:
    members: dict[str, object] = {
        "session": SESSION,
        "prefix": [3, 5],
        "length": 2,
        "count": 4,
        "rule": 2,
        "profile": Sampling(),
    }
    return DraftJob(**{**members, **other})  # type: ignore[arg-type]


def greedy(after: int, count: int) -> tuple[int, ...]:
    tokens: list[int] = []
    for _ in range(count):
        after = int(LOGITS[after].argmax())
        tokens.append(after)
    return tuple(tokens)


@pytest.mark.requirement("S4.1-target-digest", "S4.1-tokenizer-digest")
def test_model_digest_is_that_of_the_file_and_the_tokenizer_is_the_identity(path: Path):
    target = BigramTarget(path)
    assert target.model == hashlib.sha256(path.read_bytes()).digest()
    assert target.tokenizer == hashlib.sha256(b"sdcp-identity-tokenizer-1").digest()
    assert (target.vocabulary, target.context) == (V, None)


def test_context_is_read_from_the_metadata(tmp_path: Path):
    write_bigram(tmp_path / "m", LOGITS, context=100)
    assert BigramTarget(tmp_path / "m").context == 100


@pytest.mark.requirement("S6.3-scoring", "S6.3-acceptance", "S6.4-greedy-accept")
def test_greedy_accepts_the_argmax_chain_and_stops_at_the_first_other_token(path: Path):
    target = BigramTarget(path)
    chain = greedy(5, 4)
    wrong = (chain[0], (chain[1] + 1) % V, chain[2])
    results = target.verify([verify_job(chain[:3]), verify_job(wrong), verify_job(())])
    assert [(each.accepted, each.additional) for each in results] == [(3, chain[3]), (1, chain[1]), (0, chain[0])]


def test_positions_beyond_the_room_are_not_evaluated(path: Path):
    chain = greedy(5, 3)
    result = BigramTarget(path).verify([verify_job(chain, room=2)])[0]
    assert (result.accepted, result.additional) == (2, None)  # D14


@pytest.mark.requirement("S6.3-scoring", "S6.3-acceptance", "S6.4-speculative-accept")
@pytest.mark.parametrize("length", [0, 2])
def test_speculative_equals_the_rule_applied_to_the_table(path: Path, length: int):
    profile = Sampling(temperature_milli=800, top_k=5, top_p_milli=950)
    drafted = BigramDrafter(path).draft([draft_job(length=length, profile=profile)])[0]
    tokens, rows = drafted.tokens, drafted.rows
    first = LOGITS[5] if length else START
    scores = np.stack([first, *(LOGITS[token] for token in tokens)]) * np.float32(1)
    for seed in range(40):
        luck = seeded_luck(seed, SESSION, 1, len(tokens)).values
        job = verify_job(tokens, length=length, rule=2, profile=profile, rows=rows, luck=luck)
        expected = accept(2, scores, tokens, rows, profile, luck)
        result = BigramTarget(path).verify([job])[0]
        assert (result.accepted, result.additional) == (expected.accepted, expected.additional)


@pytest.mark.decision("D25-drafter")
def test_draft_rows_are_the_profile_in_binary32_and_pass_the_check(path: Path):
    profile = Sampling(temperature_milli=500, top_k=3)
    result = BigramDrafter(path).draft([draft_job(profile=profile)])[0]
    assert result.rows is not None
    assert result.rows.dtype == np.float32
    check_rows(result.rows, result.tokens)
    for row, after in zip(result.rows, (5, *result.tokens), strict=False):
        assert (row == target_distribution(LOGITS[after], profile).astype(np.float32)).all()


def test_without_profile_the_rows_are_the_plain_softmax(path: Path):
    drafter = BigramDrafter(path, profile=False)
    row = drafter.draft([draft_job(profile=Sampling(temperature_milli=0))])[0].rows
    assert row is not None
    assert (row[0] == target_distribution(LOGITS[5], Sampling()).astype(np.float32)).all()


@pytest.mark.requirement("S5.2-sampled-from-row")
@pytest.mark.decision("D25-drafter")
@pytest.mark.parametrize("profile", [Sampling(), Sampling(temperature_milli=3000, top_k=3)])
def test_tokens_are_drawn_from_the_published_rows(path: Path, profile: Sampling):
    """D25: the very row, not the float64 one; replayed with the same generator."""
    drafter = BigramDrafter(path, generator=np.random.default_rng(7))
    result = drafter.draft([draft_job(count=20, profile=profile)])[0]
    replay = np.random.default_rng(7)
    assert result.rows is not None
    assert list(result.tokens) == [draw(row.astype(np.float64), replay.random()) for row in result.rows]


@pytest.mark.requirement("S6.4-random-independent", "S6.4-drafter-derivation")
@pytest.mark.decision("D31-independent")
def test_drafters_differ_from_each_other(path: Path):
    """Their randomness is the operating system's, never the contract's seed (6.4)."""
    job = draft_job(count=60, profile=Sampling(seed=1))
    assert BigramDrafter(path).draft([job])[0].tokens != BigramDrafter(path).draft([job])[0].tokens


def test_rule_1_drafts_the_most_probable_tokens_without_rows(path: Path):
    result = BigramDrafter(path).draft([draft_job(rule=1)])[0]
    assert (result.tokens, result.rows) == (greedy(5, 4), None)


@pytest.mark.parametrize("width", [4, 11])
@pytest.mark.decision("D5-width")
def test_a_drafter_of_another_width_cuts_or_pads_before_it_samples(path: Path, width: int):
    result = BigramDrafter(path, vocabulary=width).draft([draft_job(count=30, prefix=[3], length=1)])[0]
    assert result.rows is not None
    assert result.rows.shape == (30, width)  # D5
    check_rows(result.rows, result.tokens)
    assert (result.rows[:, V:] == 0).all()


@pytest.mark.decision("D26-start")
def test_an_empty_prompt_needs_start(tmp_path: Path, path: Path):
    """D26."""
    write_bigram(tmp_path / "plain", LOGITS)
    assert BigramTarget(path).takes_empty_prompt
    without = BigramTarget(tmp_path / "plain")
    assert not without.takes_empty_prompt
    with pytest.raises(InvalidContent):
        without.verify([verify_job((), length=0)])


@pytest.mark.parametrize("job", [{"length": 0}, {"prefix": [V + 1], "length": 1}])
def test_a_drafter_guesses_where_its_table_has_nothing_to_say(tmp_path: Path, job: dict[str, object]):
    """Without a proposal there is no round: the session would stand still for ever."""
    write_bigram(tmp_path / "plain", LOGITS)
    drafter = BigramDrafter(tmp_path / "plain", vocabulary=V + 3)
    assert drafter.draft([draft_job(rule=1, **job)])[0].tokens == (0, *greedy(0, 3))
    result = drafter.draft([draft_job(**job)])[0]
    assert result.rows is not None
    check_rows(result.rows, result.tokens)
    assert (result.rows[0] == np.float32(1 / (V + 3))).all()


def test_drafting_ends_at_the_context(tmp_path: Path):
    write_bigram(tmp_path / "m", LOGITS, context=4)
    assert len(BigramDrafter(tmp_path / "m").draft([draft_job(count=9)])[0].tokens) == 2


@pytest.mark.parametrize(
    ("logits", "start"),
    [(LOGITS[:3], None), (LOGITS[0], None), (LOGITS, START[:2])],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, logits: np.ndarray, start: np.ndarray | None):
    write_bigram(tmp_path / "m", logits, start)
    with pytest.raises(ConfigurationError, match="no reference model"):
        BigramTarget(tmp_path / "m")


def test_a_file_that_is_none_is_refused(tmp_path: Path):
    (tmp_path / "m").write_bytes(b"nonsense")
    with pytest.raises(ConfigurationError, match="Cannot read"):
        BigramTarget(tmp_path / "m")
