"""Prompt lookup against a plain twin that searches the whole prefix (6.2, D31)."""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sdcp.engines.mixed import MixedDrafter
from sdcp.engines.ngram import NgramDrafter
from sdcp.messages.contract import Sampling
from sdcp.ports import DraftJob, DraftResult
from sdcp.wire.rows import check_rows

V = 4
TOKENIZER = bytes(32)


def job(prefix: list[int], length: int | None = None, count: int = 4, rule: int = 1, session: int = 0) -> DraftJob:
    return DraftJob(bytes([session]) * 16, prefix, len(prefix) if length is None else length, count, rule, Sampling())


def plain_match(tokens: list[int]) -> tuple[int, int]:
    """Of the longest match, the latest: looked for from the end, at every place."""
    for n in (3, 2, 1):
        for position in range(len(tokens) - 1, n - 1, -1):
            if len(tokens) > n and tokens[position - n : position] == tokens[-n:]:
                return n, position
    return 0, 0


def plain_draft(tokens: list[int], count: int) -> tuple[int, ...]:
    n, position = plain_match(tokens)
    if n == 0:
        return tuple(tokens[-1:] or [0])
    grown = list(tokens)
    for _ in range(count):
        grown.append(grown[position])
        position += 1
    return tuple(grown[len(tokens) :])


@given(st.lists(st.integers(0, V - 1), max_size=60), st.lists(st.integers(1, 9), min_size=1, max_size=8), st.data())
def test_equals_the_plain_twin_as_the_prefix_grows(tokens: list[int], steps: list[int], data: st.DataObject):
    drafter = NgramDrafter(V, TOKENIZER)
    length = 0
    for step in steps:
        length = min(len(tokens), length + step)
        count = data.draw(st.integers(1, 6))
        asked = job(tokens, length, count)
        assert drafter.matched(asked) == plain_match(tokens[:length])[0]
        assert drafter.draft([asked])[0].tokens == plain_draft(tokens[:length], count)


def test_the_longest_match_counts_then_the_latest():
    prefix = [1, 2, 3, 0, 2, 3, 1, 1, 2, 3]
    assert NgramDrafter(V, TOKENIZER).draft([job(prefix, count=2)])[0].tokens == (0, 2)


def test_rows_are_one_hot_under_rule_2():
    """D31: certain before anything was drawn, so q = 1."""
    result = NgramDrafter(V, TOKENIZER).draft([job([1, 2, 1, 2], rule=2)])[0]
    assert result.rows is not None
    assert result.rows.shape == (4, V)
    check_rows(result.rows, result.tokens)
    assert (result.rows[np.arange(4), result.tokens] == 1).all()


def test_without_a_match_one_token_is_proposed_whatever_it_is():
    drafter = NgramDrafter(V, TOKENIZER)
    assert drafter.draft([job([1, 2, 3])])[0].tokens == (3,)
    assert drafter.draft([job([], session=1)])[0].tokens == (0,)


def test_close_forgets_and_sessions_are_apart():
    drafter = NgramDrafter(V, TOKENIZER)
    first, second = drafter.draft([job([1, 2, 1]), job([3, 0, 3], session=1)])
    assert (first.tokens[0], second.tokens[0]) == (2, 0)
    drafter.close(bytes(16))
    drafter.close(b"never seen")
    assert drafter.draft([job([1, 3, 1])])[0].tokens[0] == 3


class Recording:
    """A model that proposes token 0 and remembers what it was asked."""

    vocabulary, context, model, tokenizer = V, 50, bytes(32), TOKENIZER

    def __init__(self) -> None:
        self.asked: list[list[DraftJob]] = []
        self.closed: list[bytes] = []

    def draft(self, jobs: list[DraftJob]) -> list[DraftResult]:
        self.asked.append(jobs)
        return [DraftResult((0,), None) for _ in jobs]

    def close(self, session: bytes) -> None:
        self.closed.append(session)


def test_mixed_asks_the_model_in_one_batch_where_fewer_than_two_tokens_match():
    model = Recording()
    mixed = MixedDrafter(NgramDrafter(V, TOKENIZER), model)  # type: ignore[arg-type]
    jobs = [job([1, 2, 3]), job([1, 2, 3, 1, 2], count=1, session=1), job([1, 2, 1], session=2)]
    assert [each.tokens for each in mixed.draft(jobs)] == [(0,), (3,), (0,)]
    assert model.asked == [[jobs[0], jobs[2]]]
    mixed.close(bytes(16))
    assert model.closed == [bytes(16)]


def test_mixed_leaves_the_model_alone_when_all_match():
    model = Recording()
    mixed = MixedDrafter(NgramDrafter(V, TOKENIZER), model)  # type: ignore[arg-type]
    assert mixed.draft([job([1, 2, 1, 2], count=3)])[0].tokens == (1, 2, 1)
    assert model.asked == []


def test_mixed_has_a_digest_of_its_own():
    mixed = MixedDrafter(NgramDrafter(V, TOKENIZER), Recording())  # type: ignore[arg-type]
    assert mixed.model == hashlib.sha256(NgramDrafter.model + bytes(32)).digest()
    assert (mixed.vocabulary, mixed.context, mixed.tokenizer) == (V, 50, TOKENIZER)
