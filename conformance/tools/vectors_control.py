"""Vectors of what follows a round: truncation, escalation, the limit, and how many tokens to draft.

Inputs and expectations as in `vectors_arithmetic`.
"""

from __future__ import annotations

from collections.abc import Sequence

import vectors_rules as rules
from vectors_stream import Case, Stream, clear


def truncations() -> list[Case]:
    """What of the emitted tokens is committed."""
    edges: list[tuple[str, list[int], list[int], int, int]] = [
        ("nothing to cut", [4, 5, 6], [2], 0, 10),
        ("after the first stop token", [4, 2, 5, 2], [2], 0, 10),
        ("a stop token at the end", [4, 2], [2], 0, 10),
        ("at max_new", [4, 5, 6], [2], 8, 10),
        ("exactly max_new", [4, 5], [], 8, 10),
        ("a stop token beyond max_new does not count", [4, 5, 2], [2], 8, 10),
        ("a stop token that no vocabulary holds", [4, 5], [2**40], 0, 10),
        ("of several stop tokens the first that comes", [4, 7, 2], [2, 7], 0, 10),
    ]
    return [_truncation(*edge) for edge in edges]


def _truncation(name: str, emitted: list[int], stop: list[int], committed: int, max_new: int) -> Case:
    truncated, finished = rules.truncate(emitted, stop, committed, max_new)
    given: Case = {"name": name, "emitted": emitted, "stop": stop, "committed": committed, "max_new": max_new}
    return given | {"truncated": truncated, "finished": finished}


def escalations() -> list[Case]:
    """Counters and actions over a history. A round is (a, M, load)."""
    low, good, busy = (0, 4, 10), (4, 4, 10), (0, 4, 90)
    self_decoding: Case = {"low_rounds": 1, "fallback": [3, 2], "self_load": 50}
    edges: list[tuple[str, Case, Sequence[tuple[int, int, int]]]] = [
        ("R low rounds apply the next entry", {"low_rounds": 2, "fallback": [1, 2]}, [low] * 4),
        ("an exhausted ladder fails", {"low_rounds": 1, "fallback": [1]}, [low, low]),
        ("a good round resets c", {"low_rounds": 2, "fallback": [1, 2]}, [low, good, low, low]),
        ("R good rounds reset j", {"low_rounds": 2, "fallback": [1, 2]}, [low, low, good, good, low, low]),
        ("fewer than R good rounds do not", {"low_rounds": 2, "fallback": [1, 2]}, [low, low, good, low, low]),
        ("without a ratio one accepted token is enough", {"low_rounds": 1, "fallback": [1, 2]}, [(1, 64, 0), low]),
        ("a ratio of 0 is none", {"low_rounds": 1, "fallback": [1, 2], "low_ratio": 0}, [(1, 64, 0), low]),
        ("exactly the ratio is not low", {"low_rounds": 1, "fallback": [1], "low_ratio": 50}, [(2, 4, 0), (1, 3, 0)]),
        ("a ratio of 100 wants all", {"low_rounds": 1, "fallback": [1, 1], "low_ratio": 100}, [(4, 4, 0), (3, 4, 0)]),
        ("self_decode at little load", self_decoding, [low]),
        ("self_decode is skipped on a busy verifier", self_decoding, [busy]),
        ("at exactly self_load it is permitted", self_decoding, [(0, 4, 50)]),
        ("without self_load it is skipped", {"low_rounds": 1, "fallback": [3, 2]}, [(0, 4, 0)]),
        ("a self_max of 0 never permits it", self_decoding | {"self_max": 0}, [low]),
        ("skipped to the end of the ladder: fail", {"low_rounds": 1, "fallback": [3, 3]}, [low]),
        ("an entry fail fails", {"low_rounds": 1, "fallback": [5, 1]}, [low]),
    ]
    return [_escalation(*edge) for edge in edges] + clear(8, _some_escalation, "escalation")


def _escalation(name: str, terms: Case, rounds: Sequence[tuple[int, int, int]]) -> Case:
    given = [{"accepted": accepted, "m": m, "load": load} for accepted, m, load in rounds]
    return {"name": name, **terms, "steps": rules.escalate(terms, given)}


def _some_escalation(stream: Stream) -> Case:
    fallback = [(1, 2, 3, 5)[stream.below(4)] for _ in range(1 + stream.below(4))]
    terms: Case = {"low_rounds": 1 + stream.below(3), "fallback": fallback, "low_ratio": stream.below(101)}
    terms["self_load"] = stream.below(101)
    rounds = [{"m": 1 + stream.below(8), "load": stream.below(101)} for _ in range(16)]
    given = [{"accepted": stream.below(each["m"] + 1), **each} for each in rounds]
    return {**terms, "steps": rules.escalate(terms, given)}


def limits() -> list[Case]:
    """m_cap over a history: g a good round, l a low one, r one whose action is reduce."""
    edges = [("it starts at m_init", 3, 8, "ggl"), ("at least at 1", 0, 8, "g"), ("at most at m_max", 99, 8, "g")]
    edges += [
        ("reduce halves, not below 1", 7, 8, "rrrr"),
        ("a low round leaves it", 4, 8, "lllg"),
        ("m_max 1", 1, 1, "grg"),
    ]
    return [_limit(*edge) for edge in edges]


def _limit(name: str, m_init: int, m_max: int, rounds: str) -> Case:
    given = [{"action": int(each == "r"), "low_round": each != "g"} for each in rounds]
    start, steps = rules.limits(m_init, m_max, given)
    return {"name": name, "m_init": m_init, "m_max": m_max, "start": start, "steps": steps}


def draft_lengths() -> list[Case]:
    """The recommended M."""
    edges = [
        ("nothing is accepted: one token", 0.0, 1.0, 10.0, 8),
        ("everything is accepted: all of them", 1.0, 1.0, 10.0, 8),
        ("a cheap drafter proposes more", 0.8, 0.01, 1.0, 64),
        ("a dear one fewer", 0.8, 0.5, 1.0, 64),
        ("within the limit", 0.9, 0.01, 1.0, 5),
        ("a limit of one", 0.9, 0.01, 1.0, 1),
    ]
    return [_draft_length(*edge) for edge in edges] + clear(12, _some_draft_length, "draft length")


def _draft_length(name: str, alpha: float, t_d: float, t_v: float, limit: int) -> Case:
    m, expected = rules.draft_length(alpha, t_d, t_v, limit)
    given: Case = {"name": name, "alpha": alpha, "t_d": t_d, "t_v": t_v, "limit": limit}
    return given | {"m": m, "expected_tokens": expected}


def _some_draft_length(stream: Stream) -> Case:
    times = stream.between(0.001, 0.2), stream.between(0.05, 2)
    case = _draft_length("", stream.between(0, 1), *times, 1 + stream.below(64))
    del case["name"]
    return case
