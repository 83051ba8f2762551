"""Writes the vectors of the kit, `../vectors/*.json`: python make_vectors.py [--check]

They are made from the text of the draft and of the decisions by the modules beside this one, with hashlib, hmac, struct
and nothing of any implementation; cbor2 confirms every encoding. `--check` writes nothing and exits 1 when a file
is not what would be written. What the kinds mean: `../docs/vectors.md`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import cbor2
import vectors_arithmetic as arithmetic
import vectors_control as control
import vectors_messages
import vectors_wire as wire
from vectors_stream import Case

FOLDER = Path(__file__).resolve().parents[1] / "vectors"


# Kind: what it is about, the sentences and clauses it rests on, its cases.
KINDS: dict[str, tuple[str, str, Callable[[], list[Case]]]] = {
    "chain": (
        "contract encoding and digest (4.1), prefix digests d[0..n] (4.2)",
        "S4.1-contract-digest S4.1-contract-digest-formula S4.2-chain-start S4.2-chain-step S4.2-uint32-network-order "
        "D4-senders D26-digest",
        arithmetic.chains,
    ),
    "uniform": (
        "random values derived from a seed (6.4, D24)",
        "S6.4-seed-derivation S6.4-seed-purpose S6.4-seed-53-bits D24-position",
        arithmetic.uniforms,
    ),
    "distribution": (
        "the target distribution (4.1, D22)",
        "S4.1-profile-order S4.1-temperature-zero D22-order D22-absent D22-ties D22-argmax",
        arithmetic.distributions,
    ),
    "greedy": (
        "rule 1, before truncation (6.4)",
        "S6.4-in-order S6.4-greedy-accept S6.4-greedy-stops S6.4-greedy-additional",
        arithmetic.greedies,
    ),
    "speculative": (
        "rule 2 with a seed, before truncation (6.4, D22 to D25)",
        "S6.4-speculative-draw S6.4-speculative-accept S6.4-speculative-residual S6.4-speculative-all-accepted "
        "D23-draw D23-residual D24-position D25-verifier",
        arithmetic.speculatives,
    ),
    "self_decode": (
        "the token of a round without a proposal (6.5.2, D24, D29)",
        "S6.5.2-self-decode D24-self-decoded D29-rule",
        arithmetic.self_decodings,
    ),
    "truncation": (
        "what of a round is committed (6.3 step 7, D14)",
        "S6.3-truncation D14-accepted D5-stop",
        control.truncations,
    ),
    "escalation": (
        "counters c, g, j and the action of each round (6.5.2, D15, D29)",
        "S6.5.2-low-round S6.5.2-low-round-no-ratio S6.5.2-counters S6.5.2-after-low S6.5.2-after-not-low "
        "S6.5.2-ladder-restarts S6.5.2-ladder-entry S6.5.2-ladder-skips S6.5.2-c-reset S6.5.2-ladder-exhausted "
        "S6.5.2-self-decode-permitted D15-low D29-self-max-0",
        control.escalations,
    ),
    "limit": (
        "m_cap from verdict to verdict, the load permitting (6.5.1, D16)",
        "S6.5.1-m-cap-range S6.5.1-restored-gradually S6.5.2-reduce D16-start D16-moves",
        control.limits,
    ),
    "draft_length": (
        "the recommended M (6.2)",
        "S6.2-expected-tokens S6.2-length-maximizes S6.2-loaded-proposes-fewer",
        control.draft_lengths,
    ),
    "log": (
        "what a reader finds in a commit log (6.8, D20)",
        "S6.8-record-epoch S6.8-fence-record S6.8-fence-refuses-older S4.2-chain-step D20-log D20-void",
        wire.logs,
    ),
    "rows": (
        "the q_rows object (5.2, 6.3 step 5, D25)",
        "S5.2-q-rows-format S5.2-q-rows-order S6.4-zero-q-rejected D5-proposed D25-rows",
        wire.q_rows,
    ),
    "problem": (
        "what a refusal says (5.1, Table 2, D1, D2)",
        "S5.1-problem-details S5.1-unlisted-status D1-form D1-about-blank D1-suffix D2-session-state",
        wire.problems,
    ),
    "path": ("identifiers in paths (5.1, D7)", "S5.1-session-path-id D7-path", wire.paths),
}


def files() -> dict[str, Case]:
    """File name to content; the messages have a file each, whose cases say what they rest on."""
    found = {
        kind: {"kind": kind, "about": about, "rests_on": rests_on.split(), "cases": make()}
        for kind, (about, rests_on, make) in KINDS.items()
    }
    cases = vectors_messages.messages()
    for message in dict.fromkeys(case["message"] for case in cases):
        about = f"{message}: what octets mean, or how they are refused (5.2)"
        own = [case for case in cases if case["message"] == message]
        rests_on = list(dict.fromkeys(name for case in own for name in case["rests_on"]))
        found[f"message-{message}"] = {"kind": "message", "about": about, "rests_on": rests_on, "cases": own}
    return found


def confirm(cases: Iterable[Case]) -> None:
    """Ask cbor2 whether what is called deterministic is so, and whether what is to be taken is well-formed."""
    for case in cases:
        for name in ("means", "contract_cbor"):
            if name in case:
                octets = bytes.fromhex(case[name])
                assert cbor2.dumps(cbor2.loads(octets), canonical=True) == octets, case["name"]
        if "means" in case:
            cbor2.loads(bytes.fromhex(case["hex"]))


def text(content: Case) -> str:
    """One line a case, so that a change shows as the cases it touches."""
    lines = ",\n".join("  " + json.dumps(case, ensure_ascii=False, allow_nan=False) for case in content["cases"])
    head = "".join(f" {json.dumps(key)}: {json.dumps(content[key])},\n" for key in content if key != "cases")
    return f'{{\n{head} "cases": [\n{lines}\n ]\n}}\n'


def main(words: list[str]) -> int:
    """Write the files, or compare them. Returns the exit code."""
    wanted: dict[str, Any] = {}
    for name, content in files().items():
        confirm(content["cases"])
        wanted[f"{name}.json"] = text(content)
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    if "--check" in words:
        stale = sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))
        print(*(f"stale: {name}" for name in stale), sep="\n", end="\n" if stale else "")
        return 1 if stale else 0
    for name, content in wanted.items():
        (FOLDER / name).write_text(content, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
