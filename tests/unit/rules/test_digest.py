"""Contract digest and prefix chain: 4.1, 4.2. The independent vectors are checked in test_vectors."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp.messages.contract import Action, Contract, ContractSampling
from sdcp.rules.digest import contract_digest, extend_all, prefix_digest
from sdcp.wire import cbor

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=20)
CONTRACT = Contract(
    target=b"t" * 32,
    tokenizer=b"k" * 32,
    rule=2,
    sampling=ContractSampling(temperature_milli=700, seed=2**64 - 1),
    m_max=8,
    max_new=100,
    stop=(2, 7),
    low_rounds=2,
    fallback=(Action.REDUCE, Action.FAIL),
)


@pytest.mark.requirement("S4.1-contract-digest", "S4.1-contract-digest-formula")
def test_the_contract_digest_is_the_hash_of_domain_zero_octet_and_deterministic_cbor() -> None:
    """Encoded by hand: keys in order of their encodings, so shorter names come first."""
    stop, rule, m_max = b"\x64stop\x82\x02\x07", b"\x64rule\x02", b"\x65m_max\x08"
    target, max_new = b"\x66target\x58\x20" + b"t" * 32, b"\x67max_new\x18\x64"
    sampling = b"\x68sampling\xa2" + b"\x64seed\x1b" + b"\xff" * 8 + b"\x71temperature_milli\x19\x02\xbc"
    fallback, tokenizer = b"\x68fallback\x82\x01\x05", b"\x69tokenizer\x58\x20" + b"k" * 32
    members = [rule, stop, m_max, target, max_new, fallback, sampling, tokenizer, b"\x6alow_rounds\x02"]
    expected = hashlib.sha256(b"SDCP-CONTRACT-1\x00" + b"\xa9" + b"".join(members)).digest()
    assert contract_digest(CONTRACT.to_plain()) == expected


@pytest.mark.requirement("S4.1-digest-once")
@pytest.mark.decision("D4")
def test_the_digest_is_over_our_own_encoding_whatever_the_sender_chose() -> None:
    plain = CONTRACT.to_plain()
    loose = b"\xbf" + b"".join(cbor.encode(key) + cbor.encode(plain[key]) for key in sorted(plain)) + b"\xff"
    assert loose != cbor.encode(plain)
    assert contract_digest(cbor.decode(loose)) == contract_digest(plain)  # type: ignore[arg-type]


@pytest.mark.requirement("S4.2-chain-start", "S4.2-uint32-network-order")
@given(TOKENS)
@pytest.mark.decision("D26-digest")
def test_d_0_hashes_contract_and_prompt_with_its_length(prompt: list[int]) -> None:
    numbers = b"".join(number.to_bytes(4, "big") for number in [len(prompt), *prompt])
    assert prefix_digest(b"c" * 32, prompt) == hashlib.sha256(b"SDCP-PREFIX-1\x00" + b"c" * 32 + numbers).digest()


@pytest.mark.requirement("S4.2-chain-step")
@given(TOKENS)
def test_d_k_hashes_the_one_before_and_one_token(output: list[int]) -> None:
    chain = b"d" * 32
    for token in output:
        assert extend_all(chain, [token]) == hashlib.sha256(chain + token.to_bytes(4, "big")).digest()
        chain = extend_all(chain, [token])
    assert extend_all(b"d" * 32, output) == chain


@pytest.mark.requirement("S4.2-other-prefix-detected")
@given(TOKENS, TOKENS)
def test_where_prompt_ends_and_output_begins_matters(prompt: list[int], output: list[int]) -> None:
    moved = prefix_digest(b"c" * 32, prompt + output)
    assert (extend_all(prefix_digest(b"c" * 32, prompt), output) == moved) == (output == [])


@pytest.mark.decision("D5-range")
@pytest.mark.parametrize("token", [2**32, -1])
def test_a_token_that_has_no_four_octets_is_a_value_error(token: int) -> None:
    with pytest.raises(ValueError, match="token"):
        extend_all(b"d" * 32, [token])
    with pytest.raises(ValueError, match="token"):
        prefix_digest(b"c" * 32, [1, token])
