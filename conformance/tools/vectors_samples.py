"""The ten messages, each in its smallest form and with all that its fullest form adds (4.1, 5.2).

Not here: what can be done to them (`vectors_messages`).
"""

from __future__ import annotations

from typing import Any

Members = dict[str, Any]
BIGGEST = 2**64 - 1
SESSION, HASH = bytes(range(16)), bytes([0xD5]) * 32

CONTRACT: Members = {
    "target": bytes([0x11]) * 32,
    "tokenizer": bytes([0x22]) * 32,
    "rule": 1,
    "m_max": 8,
    "max_new": 64,
    "stop": [2],
    "low_rounds": 2,
    "fallback": [1, 2],
}
SAMPLING: Members = {"temperature_milli": 700, "top_k": 40, "top_p_milli": 900, "seed": BIGGEST}
STATUS: Members = {"instance": "d1", "role": 1, "load": 20, "queue": 0, "ttl_ms": 2000}
HEAD: Members = {"session": SESSION, "epoch": 1}

SMALLEST: dict[str, Members] = {
    "contract": CONTRACT,
    "session-open": {**HEAD, "contract": CONTRACT, "prompt": [], "commit_log": "https://mlc.example/logs/1"},
    "session-state": {**HEAD, "round": 0, "committed": 0, "digest": HASH},
    "assignment": {
        **HEAD,
        "contract": CONTRACT,
        "verifier": "https://v.example/",
        "drafter": "https://d.example/",
        "prompt": [1, 2, 3],
        "round": 0,
        "committed": 0,
        "digest": HASH,
        "m_init": 4,
    },
    "proposal": {
        **HEAD,
        "round": 1,
        "drafter": "https://d.example/",
        "base": 0,
        "base_digest": HASH,
        "tokens": [5],
        "status": STATUS,
    },
    "verdict": {
        **HEAD,
        "round": 1,
        "accepted": 0,
        "emitted": [],
        "committed": 0,
        "digest": HASH,
        "action": 0,
        "m_cap": 1,
        "low": 0,
        "load": 0,
    },
    "output": {**HEAD, "from": 0, "tokens": [], "final": False},
    "status": STATUS,
    "event": {**HEAD, "kind": 2, "committed": 0, "digest": HASH},
    "policy": {"session": SESSION, "from_round": 1, "sampling": {}},
}
RESUME: Members = {
    "round": 4,
    "committed": 9,
    "digest": HASH,
    "committed_tokens": "https://mlc.example/o/2",
    "target_kv": "https://mlc.example/o/3",
}
# Every optional member, and numbers at the ends of their ranges.
FULLEST: dict[str, Members] = {
    "contract": CONTRACT
    | {
        "drafters": [bytes([0x33]) * 32, bytes([0x44]) * 32],
        "sampling": SAMPLING,
        "m_max": 64,
        "max_new": BIGGEST,
        "stop": [],
        "low_rounds": 1,
        "low_ratio": 100,
        "fallback": [1, 2, 3, 5],
        "self_load": 100,
        "self_max": BIGGEST,
        "scope": bytes(16),
    },
    "session-open": {
        "epoch": 2,
        "prompt": "https://mlc.example/o/1",
        "prompt_kv": "https://mlc.example/o/4",
        "resume": RESUME,
    },
    "session-state": {"epoch": BIGGEST, "round": BIGGEST, "committed": BIGGEST, "state": 5},
    "assignment": {
        "prompt": "https://mlc.example/o/1",
        "round": 7,
        "sampling": SAMPLING,
        "committed": 9,
        "committed_tokens": "https://mlc.example/o/2",
        "m_init": BIGGEST,
    },
    "proposal": {
        "tokens": [0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1],
        "q_rows": "https://mlc.example/o/5",
        "draft_kv": "https://mlc.example/o/6",
        "status": STATUS | {"accept_milli": 1000, "cache_mbps": 40000},
    },
    "verdict": {"accepted": 2, "emitted": [5, 6, 7], "committed": 3, "action": 5, "m_cap": 64, "low": 3, "load": 100},
    "output": {"from": BIGGEST, "tokens": [1, 2], "final": True, "finish": 4},
    "status": {"role": 2, "load": 100, "accept_milli": 0, "cache_mbps": 0, "ttl_ms": BIGGEST},
    "event": {"kind": 5, "committed": BIGGEST},
    "policy": {"from_round": BIGGEST, "sampling": SAMPLING},
}
