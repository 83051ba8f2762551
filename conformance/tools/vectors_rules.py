"""The arithmetic of the draft, written for the vectors alone from its text and from the decisions: plain and slow.

Nothing here is shared with any implementation. Where a result hangs by less than `MARGIN` on a float, it raises
`Unclear`: such a case would judge an implementation by its rounding.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

MARGIN = 1e-7


class Unclear(Exception):
    """Rounding could decide this case: it is no vector."""


# -- identity (4.1, 4.2) -----------------------------------------------------------------------------------------------


def contract_digest(encoded: bytes) -> bytes:
    """4.1, over the deterministic encoding of the contract."""
    return hashlib.sha256(b"SDCP-CONTRACT-1" + b"\x00" + encoded).digest()


def chain(digest: bytes, prompt: Sequence[int], output: Sequence[int]) -> list[bytes]:
    """d[0] to d[n] (4.2)."""
    start = b"SDCP-PREFIX-1" + b"\x00" + digest + struct.pack(f">{1 + len(prompt)}I", len(prompt), *prompt)
    found = [hashlib.sha256(start).digest()]
    for token in output:
        found.append(hashlib.sha256(found[-1] + struct.pack(">I", token)).digest())
    return found


# -- random values (6.4, D24) ------------------------------------------------------------------------------------------


def message_of(session: bytes, round_: int, i: int, purpose: int) -> bytes:
    """What the HMAC is taken over."""
    return b"SDCP-VERIFY-1" + b"\x00" + session + struct.pack(">IIB", round_, i, purpose)


def uniform(seed: int, session: bytes, round_: int, i: int, purpose: int) -> float:
    """The first 53 bits of the HMAC, divided by 2**53."""
    key = struct.pack(">Q", seed)
    octets = hmac.new(key, message_of(session, round_, i, purpose), hashlib.sha256).digest()
    return (int.from_bytes(octets, "big") >> 256 - 53) / 2**53


def draw(weights: Sequence[float], u: float) -> int:
    """The smallest token whose cumulative weight exceeds u times the total (D23)."""
    total, cumulative = math.fsum(weights), 0.0
    for token, weight in enumerate(weights):
        cumulative += weight
        if abs(cumulative - u * total) < MARGIN * total and weight > 0:
            raise Unclear
        if cumulative > u * total:
            return token
    raise Unclear


# -- the target distribution (4.1, D22) --------------------------------------------------------------------------------


def argmax(logits: Sequence[float]) -> int:
    """The smallest token of the greatest logit."""
    return max(range(len(logits)), key=lambda token: (logits[token], -token))


def distribution(logits: Sequence[float], sampling: Mapping[str, int]) -> list[float]:
    """Temperature, then top-k, then top-p, each renormalized."""
    temperature = sampling.get("temperature_milli", 1000) / 1000
    if temperature == 0:
        best = argmax(logits)
        return [float(token == best) for token in range(len(logits))]
    top = max(logits)
    p = _normalized([math.exp((logit - top) / temperature) for logit in logits])
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    p = _kept(p, order[: sampling.get("top_k", 0) or None])
    return _kept(p, order[: _nucleus([p[token] for token in order], sampling.get("top_p_milli", 1000))])


def _nucleus(descending: Sequence[float], top_p_milli: int) -> int:
    """How many of the most probable tokens reach top_p; at least one, all when it is off."""
    if top_p_milli == 1000:
        return len(descending)
    total = 0.0
    for count, weight in enumerate(descending, start=1):
        total += weight
        if abs(total - top_p_milli / 1000) < MARGIN:
            raise Unclear
        if total >= top_p_milli / 1000:
            return count
    raise Unclear


def _kept(p: Sequence[float], tokens: Sequence[int]) -> list[float]:
    kept = set(tokens)
    return _normalized([weight if token in kept else 0.0 for token, weight in enumerate(p)])


def _normalized(weights: Sequence[float]) -> list[float]:
    total = math.fsum(weights)
    return [weight / total for weight in weights]


# -- acceptance (6.4) --------------------------------------------------------------------------------------------------


def greedy(logits: Sequence[Sequence[float]], tokens: Sequence[int]) -> tuple[int, list[int]]:
    """Rule 1: a, and the emitted tokens before truncation."""
    accepted = 0
    while accepted < len(tokens) and tokens[accepted] == argmax(logits[accepted]):
        accepted += 1
    return accepted, [*tokens[:accepted], argmax(logits[accepted])]


def speculative(case: Mapping[str, Any]) -> tuple[int, list[int]]:
    """Rule 2 with a seed: a, and the emitted tokens before truncation."""
    sampling, session, round_ = case["sampling"], bytes.fromhex(case["session"]), case["round"]
    tokens, accepted = case["tokens"], 0
    for i, token in enumerate(tokens, start=1):
        p, q = distribution(case["logits"][i - 1], sampling), case["q"][i - 1]
        r, ratio = uniform(sampling["seed"], session, round_, i, 0), p[token] / q[token]
        if abs(r - ratio) < MARGIN:
            raise Unclear
        if not r < min(1.0, ratio):
            left = [max(0.0, mine - its) for mine, its in zip(p, q, strict=True)]
            weights = left if math.fsum(left) > MARGIN else _nothing_left(left, p)
            break
        accepted = i
    else:
        weights = distribution(case["logits"][len(tokens)], sampling)
    u = uniform(sampling["seed"], session, round_, accepted + 1, 1)
    return accepted, [*tokens[:accepted], draw(weights, u)]


def _nothing_left(left: Sequence[float], p: Sequence[float]) -> Sequence[float]:
    """A residual whose total is 0 is replaced by p (D23)."""
    if any(left):
        raise Unclear
    return p


def self_decode(case: Mapping[str, Any]) -> int:
    """The token of a self-decoding round (6.5.2, D24, D29)."""
    if case["rule"] == 1:
        return argmax(case["logits"])
    u = uniform(case["sampling"]["seed"], bytes.fromhex(case["session"]), case["round"], 1, 1)
    return draw(distribution(case["logits"], case["sampling"]), u)


def truncate(emitted: Sequence[int], stop: Sequence[int], committed: int, max_new: int) -> tuple[list[int], bool]:
    """After the first stop token and at max_new (6.3 step 7); whether that finishes the session."""
    kept: list[int] = []
    for token in emitted:
        if committed + len(kept) == max_new:
            break
        kept.append(token)
        if token in stop:
            return kept, True
    return kept, committed + len(kept) == max_new


# -- control (6.5) -----------------------------------------------------------------------------------------------------


def escalate(terms: Mapping[str, Any], rounds: Sequence[Mapping[str, int]]) -> list[dict[str, int]]:
    """Action and counters after each round, until one ends the session. `low` is c."""
    c = g = j = 0
    found = []
    for given in rounds:
        action = 0
        if _is_low(given["accepted"], given["m"], terms.get("low_ratio")):
            c, g = c + 1, 0
            if c == terms["low_rounds"]:
                action, j = _rung(terms, j, given["load"])
                c = 0
        else:
            c, g = 0, g + 1
            j = 0 if g >= terms["low_rounds"] else j
        found.append({**given, "action": action, "low": c, "g": g, "j": j})
        if action == 5:
            break
    return found


def _is_low(accepted: int, m: int, low_ratio: int | None) -> bool:
    return 100 * accepted < low_ratio * m if low_ratio else accepted == 0


def _rung(terms: Mapping[str, Any], j: int, load: int) -> tuple[int, int]:
    fallback = terms["fallback"]
    while j < len(fallback):
        entry, j = fallback[j], j + 1
        self_load = terms.get("self_load")
        permitted = self_load is not None and load <= self_load and terms.get("self_max") != 0
        if entry != 3 or permitted:
            return entry, j
    return 5, j


def limits(m_init: int, m_max: int, rounds: Sequence[Mapping[str, Any]]) -> tuple[int, list[dict[str, Any]]]:
    """m_cap at the start and after each round, the verifier's load permitting (6.5.1, D16)."""
    start = m_cap = min(max(m_init, 1), m_max)
    found = []
    for given in rounds:
        if given["action"] == 1:
            m_cap = max(1, m_cap // 2)
        elif not given["low_round"]:
            m_cap = min(m_cap + 1, m_max)
        found.append({**given, "m_cap": m_cap})
    return start, found


def draft_length(alpha: float, t_d: float, t_v: float, limit: int) -> tuple[int, float]:
    """The recommended M (6.2), the smallest of equals, and the expected tokens of a round of it."""
    rates = [_expected(alpha, m) / (m * t_d + t_v) for m in range(1, limit + 1)]
    best = max(rates)
    near = [m for m, rate in enumerate(rates, start=1) if rate > best * (1 - MARGIN)]
    if len(near) > 1:
        raise Unclear
    return near[0], _expected(alpha, near[0])


def _expected(alpha: float, m: int) -> float:
    return m + 1.0 if alpha == 1 else (1 - alpha ** (m + 1)) / (1 - alpha)
