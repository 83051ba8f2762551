"""Fence and epoch of a log, record by record (6.8, docs/mlc.md)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp.ports import LogFencedError
from sdcp.stores.records import NO_RECORDS, advance
from tests.unit.stores.samples import commit, fence

RECORDS = st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=12)


def _plain(records: list[tuple[bool, int]]) -> bool:
    """Whether all may be appended in turn, said as docs/mlc.md says it."""
    for index, (is_fence, epoch) in enumerate(records):
        before = records[:index]
        if is_fence and any(epoch <= other for _, other in before):
            return False
        if not is_fence and any(epoch < other for fences, other in before if fences):
            return False
    return True


@given(RECORDS, st.integers(0, 12))
def test_one_append_or_many_are_judged_alike_and_as_the_text_says(records, cut):
    encoded = [fence(epoch) if is_fence else commit(epoch) for is_fence, epoch in records]
    parts = [part for part in (b"".join(encoded[:cut]), b"".join(encoded[cut:])) if part]
    epochs, allowed = NO_RECORDS, True
    try:
        for part in parts:
            epochs = advance(epochs, part)
    except LogFencedError:
        allowed = False
    assert allowed == _plain(records)
    if allowed:
        assert epochs[0] == max((epoch for is_fence, epoch in records if is_fence), default=None)
        assert epochs[1] == max(epoch for _, epoch in records)


def test_a_refused_append_says_what_is_in_its_way():
    with pytest.raises(LogFencedError, match="fenced at epoch 4"):
        advance((4, 4), commit(3))
    with pytest.raises(LogFencedError, match="holds epoch 4"):
        advance((2, 4), fence(3))
