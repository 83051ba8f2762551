"""The batcher: rounds first, prefills never starved, bounds kept, nothing lost or doubled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp.machines.batcher import Batch, Batcher, Ticket


def ticket(number: int, session: int | None = None, size: int = 1) -> Ticket:
    return Ticket(number, bytes([number if session is None else session]), size)


def numbers(batch: Batch | None) -> list[int]:
    assert batch is not None
    return [each.number for each in batch.tickets]


def test_nothing_waits():
    assert Batcher(4, 4).take() is None


@pytest.mark.requirement("S6.3-batching")
def test_all_that_waits_rides_in_arrival_order():
    batcher = Batcher(8, 100)
    for number in range(3):
        batcher.add_round(ticket(number))
    batch = batcher.take()
    assert numbers(batch) == [0, 1, 2]
    assert batch is not None
    assert not batch.prefill
    assert batcher.take() is None


def test_rounds_first_then_one_chunk_of_prefill_has_its_turn():
    batcher = Batcher(1, 100)
    batcher.add_prefill(ticket(9))
    for number in range(3):
        batcher.add_round(ticket(number))
    assert [numbers(batcher.take()) for _ in range(4)] == [[0], [9], [1], [2]]


def test_prefills_go_on_without_rounds_and_take_turns():
    batcher = Batcher(1, 100)
    batcher.add_prefill(ticket(1))
    batcher.add_prefill(ticket(2))
    first = batcher.take()
    assert first is not None
    batcher.add_prefill(first.tickets[0])  # incomplete: behind the other
    assert [numbers(batcher.take()) for _ in range(2)] == [[2], [1]]


def test_bounds_of_a_pass():
    batcher = Batcher(2, 10)
    for number, size in enumerate([6, 4, 1, 30, 1]):
        batcher.add_round(ticket(number, size=size))
    assert [numbers(batcher.take()) for _ in range(4)] == [[0, 1], [2], [3], [4]]


def test_one_job_of_a_session_per_batch_oldest_first():
    batcher = Batcher(8, 100)
    for number, session in [(0, 1), (1, 1), (2, 2)]:
        batcher.add_round(ticket(number, session))
    assert [numbers(batcher.take()) for _ in range(2)] == [[0, 2], [1]]


def test_what_waits_is_counted_by_kind():
    batcher = Batcher(8, 100)
    for number in range(3):
        batcher.add_round(ticket(number, number))
    batcher.add_prefill(ticket(3, 3))
    assert (batcher.rounds, batcher.prefills) == (3, 1)
    batcher.take()
    assert (batcher.rounds, batcher.prefills) == (0, 1)


def test_a_waiting_prefill_can_be_withdrawn_once():
    batcher = Batcher(8, 100)
    batcher.add_prefill(ticket(1))
    assert batcher.holds(b"\x01")
    assert batcher.withdraw_prefill(1)
    assert not batcher.withdraw_prefill(1)
    assert not batcher.holds(b"\x01")
    assert len(batcher) == 0


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(1, 9)), max_size=40),
    st.integers(1, 5),
    st.integers(1, 12),
)
def test_every_job_is_taken_once_in_session_order_within_bounds(
    jobs: list[tuple[bool, int, int]], most_jobs: int, most_tokens: int
):
    batcher = Batcher(most_jobs, most_tokens)
    for number, (prefill, session, size) in enumerate(jobs):
        (batcher.add_prefill if prefill else batcher.add_round)(ticket(number, session, size))
    batches = list(iter(batcher.take, None))
    for batch in batches:
        sizes = [each.size for each in batch.tickets]
        assert 1 <= len(sizes) <= most_jobs
        assert batch.prefill or len(sizes) == 1 or sum(sizes) <= most_tokens
        assert len({each.session for each in batch.tickets}) == len(sizes)
    for kind in (True, False):
        taken = [each for batch in batches if batch.prefill == kind for each in batch.tickets]
        assert sorted(each.number for each in taken) == [n for n, job in enumerate(jobs) if job[0] == kind]
        for session in range(5):
            order = [each.number for each in taken if each.session == bytes([session])]
            assert order == sorted(order)
