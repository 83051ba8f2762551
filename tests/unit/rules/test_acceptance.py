"""The acceptance rules: 6.4, D14, D22 to D25, D29. The exact law of rule 2 is in tests/property."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sdcp.messages.contract import Sampling
from sdcp.rules.acceptance import (
    GREEDY,
    RULES,
    SPECULATIVE,
    Outcome,
    accept,
    accept_greedy,
    accept_speculative,
    residual,
    self_decode,
    truncate,
)
from sdcp.rules.draws import Luck, draw
from sdcp.rules.profile import argmax, target_distribution

BELOW_ONE = float(np.nextafter(1, 0))
V = 4


def peaks(*tokens: int) -> NDArray[np.float32]:
    """Logits [len(tokens), V] whose argmax at each position is the token given."""
    return np.eye(V, dtype=np.float32)[list(tokens)]


class Scored:
    """Scores that remember which positions were asked for."""

    def __init__(self, logits: NDArray[np.float32]) -> None:
        self.logits, self.asked = logits, list[int]()

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        self.asked.append(index)
        return self.logits[index]


# -- rule 1 ------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.4-greedy-accept", "S6.4-greedy-stops", "S6.4-greedy-additional")
@pytest.mark.parametrize(
    ("tokens", "accepted", "additional"), [((1, 2, 3), 3, 0), ((1, 2, 0), 2, 3), ((1, 3, 3), 1, 2), ((0, 2, 3), 0, 1)]
)
def test_greedy_keeps_what_is_the_argmax_and_adds_the_argmax_that_follows(
    tokens: tuple[int, ...], accepted: int, additional: int
) -> None:
    assert accept_greedy(peaks(1, 2, 3, 0), tokens) == Outcome(accepted, additional)


@pytest.mark.requirement("S6.4-greedy-accept")
def test_greedy_breaks_ties_by_the_smaller_identifier() -> None:
    level = np.zeros((2, V))
    assert accept_greedy(level, (0,)) == Outcome(1, 0)
    assert accept_greedy(level, (1,)) == Outcome(0, 0)


@pytest.mark.requirement("S6.4-greedy-stops", "S6.4-in-order")
def test_nothing_after_the_first_rejection_is_scored() -> None:
    scores = Scored(peaks(1, 2, 3, 0))
    accept_greedy(scores, (1, 0, 3))
    assert scores.asked == [0, 1]
    scores = Scored(peaks(1, 2, 3, 0))
    luck = Luck.of((0.5,) * 7, 3)
    accept_speculative(scores, (1, 0, 3), peaks(1, 0, 3), Sampling(temperature_milli=0), luck)
    assert scores.asked == [0, 1]


@pytest.mark.requirement("S6.4-greedy-output")
@given(st.data())
def test_rounds_of_greedy_are_plain_greedy_decoding_whatever_is_proposed(data: st.DataObject) -> None:
    """A target whose logits depend on the last token; proposals come from anywhere."""
    table = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 3, (V, V)).astype(np.float32)
    plain = [0]
    while len(plain) < 30:
        plain.append(argmax(table[plain[-1]]))
    output = [0]
    while len(output) < 20:
        tokens = data.draw(st.lists(st.integers(0, V - 1), min_size=1, max_size=5))
        scores = table[[output[-1], *tokens]]
        output += accept_greedy(scores, tokens).emitted(tokens)
    assert output == plain[: len(output)]


# -- rule 2 ------------------------------------------------------------------------------------------------------------

P = np.log(np.array([[0.5, 0.25, 0.125, 0.125], [0.25, 0.25, 0.25, 0.25]]))
Q = np.array([[0.25, 0.5, 0.25, 0.0]], dtype=np.float32)


@pytest.mark.requirement("S6.4-speculative-accept", "S6.4-speculative-residual", "S6.4-speculative-all-accepted")
@pytest.mark.parametrize(
    ("token", "r", "u", "outcome"),
    [
        (0, BELOW_ONE, 0.6, Outcome(1, 2)),  # p > q: always accepted; the additional token is drawn from p[2]
        (1, 0.4999, 0.6, Outcome(1, 2)),  # p/q = 1/2
        (1, 0.5001, 0.0, Outcome(0, 0)),  # residual: 1/4 on 0, 1/8 on 3
        (1, 0.5001, 0.666, Outcome(0, 0)),
        (1, 0.5001, 0.667, Outcome(0, 3)),
        (2, 0.4999, 0.0, Outcome(1, 0)),
        (2, 0.5001, 0.9, Outcome(0, 3)),
    ],
)
def test_speculative_accepts_below_p_over_q_else_draws_from_the_residual(
    token: int, r: float, u: float, outcome: Outcome
) -> None:
    assert accept_speculative(P, (token,), Q, Sampling(), Luck((r,), (u, u))) == outcome


@pytest.mark.requirement("S6.4-speculative-accept")
def test_a_uniform_equal_to_the_ratio_rejects() -> None:
    """r < p/q, strictly: at temperature 0 the rejected token has p = 0, and r = 0 must not accept it."""
    zero = Sampling(temperature_milli=0)
    assert accept_speculative(P, (1,), Q, zero, Luck((0.0,), (0.0, 0.0))) == Outcome(0, 0)


@pytest.mark.decision("D14-beyond-max-new")
def test_rule_2_adds_no_token_where_the_accepted_ones_fill_the_room() -> None:
    luck = Luck((0.0, 0.0), (0.5,) * 3)
    certain = np.eye(V, dtype=np.float32)[[2, 3]]
    scores = Scored(np.where(np.eye(V)[[2, 3, 1]], 0.0, -np.inf))
    assert accept_speculative(scores, (2, 3), certain, Sampling(), luck, room=2) == Outcome(2, None)
    assert scores.asked == [0, 1]
    assert accept_speculative(scores, (2, 3), certain, Sampling(), luck, room=3) == Outcome(2, 1)


@pytest.mark.requirement("S4.1-temperature-zero")
@given(st.lists(st.integers(0, V - 1), min_size=1, max_size=4), st.data())
def test_at_temperature_zero_rule_2_decides_as_rule_1(tokens: list[int], data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    scores = rng.integers(0, 3, (len(tokens) + 1, V)).astype(np.float32)
    one_hot = np.eye(V, dtype=np.float32)[tokens]
    luck = Luck.of(tuple(rng.random(2 * len(tokens) + 1)), len(tokens))
    assert accept_speculative(scores, tokens, one_hot, Sampling(temperature_milli=0), luck) == accept_greedy(
        scores, tokens
    )


@pytest.mark.decision("D23-residual")
def test_a_residual_that_rounding_left_empty_is_replaced_by_p() -> None:
    p = np.array([0.25, 0.75])
    assert (residual(p, np.array([0.25, 0.75], dtype=np.float32)) == p).all()
    assert (residual(p, np.array([0.5, 0.75], dtype=np.float32)) == p).all()
    assert residual(p, np.array([0.5, 0.5], dtype=np.float32)).tolist() == [0, 0.25]


@pytest.mark.decision("D25-verifier")
def test_the_ratio_is_in_float64_of_the_row_as_published() -> None:
    """q = 0.1 as binary32 is above 0.1, so p/q is below 1 by 1.5e-8: only float64 sees it."""
    p = np.log(np.array([[0.1, 0.9], [0.5, 0.5]]))
    q = np.array([[0.1, 0.9]], dtype=np.float32)
    assert accept_speculative(p, (0,), q, Sampling(), Luck((1 - 1e-8,), (0.0, 0.0))).accepted == 0
    assert accept_speculative(p, (0,), q, Sampling(), Luck((1 - 2e-8,), (0.0, 0.0))).accepted == 1


@pytest.mark.decision("D27")
@given(st.integers(0, 999))
def test_values_that_the_outcome_does_not_need_do_not_change_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, q = rng.normal(size=(4, V)), rng.dirichlet(np.ones(V), 3).astype(np.float32)
    tokens = [int(rng.choice(V, p=row / row.sum())) for row in q.astype(np.float64)]
    luck = Luck.of(tuple(rng.random(7)), 3)
    outcome = accept_speculative(scores, tokens, q, Sampling(), luck)
    needed = outcome.accepted
    other = Luck(
        tuple(value if index <= needed else 1 - value for index, value in enumerate(luck.acceptance)),
        tuple(value if index == needed else 1 - value for index, value in enumerate(luck.additional)),
    )
    assert accept_speculative(scores, tokens, q, Sampling(), other) == outcome


# -- room (D14) --------------------------------------------------------------------------------------------------------


@pytest.mark.decision("D14-beyond-max-new")
@given(st.integers(0, 999), st.sampled_from([GREEDY, SPECULATIVE]), st.integers(1, 6))
def test_what_lies_beyond_max_new_is_not_scored_and_changes_nothing_that_is_committed(
    seed: int, rule: int, room: int
) -> None:
    rng = np.random.default_rng(seed)
    scores, q = rng.normal(size=(5, V)), rng.dirichlet(np.ones(V), 4).astype(np.float32)
    tokens, luck = [int(row.argmax()) for row in q], tuple(rng.random(9))
    whole = accept(rule, scores, tokens, q, Sampling(), luck)
    scored = Scored(scores)  # type: ignore[arg-type]
    short = accept(rule, scored, tokens, q, Sampling(), luck, room=room)
    assert truncate(short.emitted(tokens), (), 0, room) == truncate(whole.emitted(tokens), (), 0, room)
    assert short.accepted == min(whole.accepted, room)
    assert max(scored.asked) < room
    assert (short.additional is None) == (short.accepted == room)


# -- the registry and self-decoding ------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.4-registered-rules", "S6.4-q-rows-carried")
def test_two_rules_are_registered_and_one_needs_rows() -> None:
    assert {number: rule.needs_rows for number, rule in RULES.items()} == {1: False, 2: True}
    with pytest.raises(ValueError, match="draft rows"):
        accept(SPECULATIVE, P, (1,), None, Sampling(), (0.5, 0.5))
    with pytest.raises(ValueError, match="random values"):
        accept(SPECULATIVE, P, (1,), Q, Sampling(), ())


@pytest.mark.decision("D25-rule-1")
def test_rule_1_ignores_rows_and_luck() -> None:
    scores = peaks(1, 2)
    assert accept(GREEDY, scores, (1,), None, Sampling(), ()) == Outcome(1, 2)
    assert accept(GREEDY, scores, (1,), np.full((1, V), np.nan, np.float32), Sampling(), (0.1,)) == Outcome(1, 2)


@pytest.mark.decision("D24", "D29-rule")
def test_self_decoding_follows_the_rule() -> None:
    logits, sampling = P[0], Sampling(temperature_milli=1500, top_k=3)
    assert self_decode(GREEDY, logits, sampling, ()) == 0
    for u in (0.0, 0.3, 0.6, 0.99):
        assert self_decode(SPECULATIVE, logits, sampling, (u,)) == draw(target_distribution(logits, sampling), u)


# -- truncation --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.3-truncation")
@pytest.mark.decision("D5", "D14-accepted")
@pytest.mark.parametrize(
    ("emitted", "stop", "committed", "max_new", "kept", "finished"),
    [
        ((5, 6, 7), (6,), 0, 10, (5, 6), True),
        ((5, 6, 6), (7, 6), 0, 10, (5, 6), True),
        ((5, 6, 7), (7,), 0, 10, (5, 6, 7), True),
        ((5, 6, 7), (), 0, 10, (5, 6, 7), False),
        ((5, 6, 7), (), 7, 10, (5, 6, 7), True),
        ((5, 6, 7), (), 8, 10, (5, 6), True),
        ((5, 6, 7), (7,), 8, 10, (5, 6), True),
        ((5, 6, 7), (5,), 8, 10, (5,), True),
        ((5, 6, 7), (2**32,), 0, 10, (5, 6, 7), False),
    ],
)
def test_tokens_are_cut_after_the_first_stop_token_and_at_max_new(
    emitted: Sequence[int], stop: Sequence[int], committed: int, max_new: int, kept: tuple[int, ...], finished: bool
) -> None:
    assert truncate(emitted, stop, committed, max_new) == (kept, finished)
