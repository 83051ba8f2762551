"""The sums over a session's records (D35)."""

from __future__ import annotations

import pytest

from sdcp.machines.verifier_account import Account
from sdcp.messages.fields import U64_MAX
from sdcp.messages.output import Output
from sdcp.messages.record import CommitRecord


def record(**members: int) -> CommitRecord:
    return CommitRecord(epoch=1, round=1, tokens=(), committed=0, digest=bytes(32), **members)  # type: ignore[arg-type]


@pytest.mark.decision("D39")
def test_rounds_count_that_tell_both_numbers() -> None:
    account = Account()
    for each in (record(proposed=4, accepted=2), record(), record(proposed=9), record(proposed=3, accepted=3)):
        account.add(each)
    assert (account.proposed, account.accepted) == (7, 5)


@pytest.mark.decision("D35")
def test_whatever_a_log_claims_the_sums_can_be_sent() -> None:
    account = Account()
    for _ in range(2):
        account.add(record(proposed=U64_MAX, accepted=U64_MAX - 1))
    output = Output(
        session=bytes(16),
        epoch=1,
        from_=0,
        tokens=(),
        final=True,
        accepted=account.accepted,
        proposed=account.proposed,
    )
    assert Output.decode(output.encode()) == output
