"""What an audit of a commit log finds: the first bad record, and nothing in a good log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp.audit.chain import audit, read
from sdcp.messages.contract import Action, Contract
from sdcp.messages.record import CommitRecord, FenceRecord
from sdcp.rules.digest import digest_of, extend_all, prefix_digest

CONTRACT = Contract(
    target=bytes(32),
    tokenizer=bytes(32),
    rule=1,
    m_max=4,
    max_new=20,
    stop=(7,),
    low_rounds=4,
    fallback=(Action.REDUCE,),
)
PROMPT = (5, 6)


def log_of(
    *rounds: tuple[int, ...],
    contract: Contract = CONTRACT,
    prompt: tuple[int, ...] = PROMPT,
    epochs: tuple[int, ...] = (),
    **members: Any,
) -> list[CommitRecord]:
    """Good commit records of these tokens, one round each."""
    digest, committed, records = prefix_digest(digest_of(contract), prompt), 0, []
    for number, tokens in enumerate(rounds, 1):
        digest, committed = extend_all(digest, tokens), committed + len(tokens)
        epoch = epochs[number - 1] if epochs else 1
        records.append(
            CommitRecord(
                epoch=epoch,
                round=number,
                tokens=tokens,
                committed=committed,
                digest=digest,
                proposed=4,
                accepted=len(tokens) - 1,
                **members,
            )
        )
    return records


GOOD = log_of((1, 2), (3,), (4, 5, 6), (8,), (9, 7))


def octets(*records: CommitRecord | FenceRecord) -> bytes:
    return b"".join(record.encode() for record in records)


def test_a_good_log_has_no_fault_and_gives_the_output() -> None:
    findings = audit(octets(*GOOD), CONTRACT, PROMPT)
    assert findings.fault is None
    assert findings.output == [1, 2, 3, 4, 5, 6, 8, 9, 7]
    assert findings.digest == GOOD[-1].digest
    assert findings.ended == Action.FINISH


def test_an_empty_log_is_good_and_ends_at_the_prompt() -> None:
    findings = audit(b"", CONTRACT, PROMPT)
    assert (findings.fault, findings.output, findings.ended) == (None, [], None)
    assert findings.digest == prefix_digest(digest_of(CONTRACT), PROMPT)


def test_a_fence_and_the_void_record_behind_it_are_no_faults() -> None:
    first, second = log_of((1, 2), (3,), epochs=(1, 2))
    late = replace(second, epoch=1, tokens=(9, 9))
    findings = audit(octets(first, FenceRecord(epoch=2), late, second), CONTRACT, PROMPT)
    assert findings.fault is None
    assert [entry.void for entry in findings.entries] == [False, False, True, False]
    assert findings.output == [1, 2, 3]


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 2))
def test_one_changed_token_is_found_at_its_record(index: int, place: int) -> None:
    tokens = list(GOOD[index].tokens)
    tokens[place % len(tokens)] += 1000
    log = [*GOOD[:index], replace(GOOD[index], tokens=tuple(tokens)), *GOOD[index + 1 :]]
    fault = audit(octets(*log), CONTRACT, PROMPT).fault
    assert fault is not None
    assert (fault.index, fault.start) == (index, len(octets(*GOOD[:index])))


@given(st.integers(0, len(GOOD) - 2))
def test_a_record_that_is_missing_is_missed(index: int) -> None:
    fault = audit(octets(*GOOD[:index], *GOOD[index + 1 :]), CONTRACT, PROMPT).fault
    assert fault is not None
    assert fault.index == index


@given(st.binary(min_size=1, max_size=40), st.integers(0, len(GOOD)))
def test_what_is_no_record_is_named_where_it_stands(noise: bytes, index: int) -> None:
    data = octets(*GOOD[:index]) + b"\xff" + noise
    fault = audit(data, CONTRACT, PROMPT).fault
    assert fault is not None
    assert (fault.index, fault.start) == (index, len(octets(*GOOD[:index])))


@given(st.integers(1, len(octets(*GOOD)) - 1))
def test_a_log_cut_inside_a_record_is_found(length: int) -> None:
    fault = audit(octets(*GOOD)[:length], CONTRACT, PROMPT).fault
    ends = [len(octets(*GOOD[:count])) for count in range(len(GOOD) + 1)]
    if length in ends:
        assert fault is None
    else:
        assert fault is not None
        assert fault.start == max(end for end in ends if end < length)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (log_of((1,), epochs=(3,)), "no fence begins that epoch"),
        ([*log_of((1,)), FenceRecord(epoch=2), *log_of((1,), (2,), epochs=(1, 3))[1:]], "no fence begins that epoch"),
        (log_of((1, 7), (2,)), "ended the session"),
        (log_of((1,), (2,), action=Action.FAIL), "ended the session"),
        (log_of(*[(1,)] * 21), "ended the session"),
        ([replace(GOOD[0], accepted=3)], "do not go together"),
        ([replace(GOOD[0], accepted=0)], "do not go together"),
        ([replace(GOOD[0], proposed=0)], "do not go together"),
        ([replace(GOOD[0], proposed=5)], "do not go together"),
        ([replace(record, accepted=None) for record in log_of(())], "do not go together"),
        (log_of((7, 1)), "stop token stands before"),
        (log_of((1, 2, 3, 4, 5), (1, 2, 3, 4, 5), (1, 2, 3, 4, 5), (1, 2, 3, 4), (1, 2)), "over max_new"),
    ],
)
def test_what_the_contract_does_not_allow(log: list[Any], reason: str) -> None:
    fault = audit(octets(*log), CONTRACT, PROMPT).fault
    assert fault is not None
    assert reason in fault.reason


@pytest.mark.parametrize("tokens", [(1, 7), (1, 2, 7)])
def test_a_round_may_be_cut_at_a_stop_token(tokens: tuple[int, ...]) -> None:
    [record] = log_of(tokens)
    assert audit(octets(replace(record, accepted=4)), CONTRACT, PROMPT).fault is None


@pytest.mark.parametrize("change", [{"max_new": 21}, {"stop": ()}, {"rule": 2}])
def test_another_contract_is_another_chain(change: dict[str, Any]) -> None:
    fault = audit(octets(*GOOD), replace(CONTRACT, **change), PROMPT).fault
    assert fault is not None
    assert fault.index == 0
    assert "digest chain" in fault.reason


def test_another_prompt_is_another_chain() -> None:
    fault = audit(octets(*GOOD), CONTRACT, (5, 7)).fault
    assert fault is not None
    assert fault.index == 0


def test_reading_alone_needs_no_contract() -> None:
    findings = read(octets(*log_of((1,), (7, 7), (2,))))
    assert findings.fault is None
    assert findings.output == [1, 7, 7, 2]
