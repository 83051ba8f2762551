"""`Prefer: wait=N` (RFC 7240, D8): it shortens our own wait, and nothing else."""

from __future__ import annotations

import pytest

from sdcp.roles.prefer import wait_ms


@pytest.mark.decision("D8-wait", "D33-location")
@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (None, 25_000),
        ("", 25_000),
        ("wait=0", 0),
        ("wait=3", 3_000),
        ("WAIT = 3", 3_000),
        ('wait="3"', 3_000),
        ("wait=99", 25_000),
        ("respond-async, wait=3", 3_000),
        ("wait=3; x=1, handling=lenient", 3_000),
        ("await=3", 25_000),
        ("wait=-1", 25_000),
        ("wait=3s", 25_000),
        ("wait=1.5", 25_000),
        ("wait", 25_000),
    ],
)
def test_the_wait_of_a_long_poll(field: str | None, expected: int) -> None:
    assert wait_ms(field, 25_000) == expected
