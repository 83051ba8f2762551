"""KV of known prefixes is given out for exactly the tokens that are the same (D44); more in tests/engines."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'sdcp[transformers]'")

from sdcp.engines.prefixes import PAGE, PrefixStore  # noqa: E402
from sdcp.engines.ragged import SessionKV  # noqa: E402


def session(tokens: list[int]) -> SessionKV:
    """One whose KV are the tokens themselves."""
    kv = SessionKV()
    values = torch.tensor(tokens, dtype=torch.float32).reshape(1, -1, 1)
    kv.extend(tokens, [{0: (values, values)}])
    return kv


@pytest.mark.parametrize("length", [2, PAGE, PAGE + 1, 3 * PAGE])
@pytest.mark.parametrize("other", [1, (1 << 61) - 1], ids=["another", "of the same hash"])
@pytest.mark.parametrize("at", [0, -2, -1])
def test_a_token_that_differs_ends_what_is_reused(length: int, other: int, at: int) -> None:
    known = list(range(1, length + 1))
    store = PrefixStore(1 << 20)
    store.put(session(known), length)
    wanted = list(known)
    wanted[at] += other
    kv = SessionKV()
    same = length + at if at else 0
    assert store.take(kv, wanted) == same
    assert kv.tokens == known[:same]
    assert not same or kv.copied(0, same)[0][0].flatten().tolist() == known[:same]
