"""A session as the kit knows it: contract, prompt, committed tokens, round; whoever plays router or drafter uses it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from sdcp_conformance.encoding import encode
from sdcp_conformance.oracle.bigram import TARGET, TOKENIZER, V
from sdcp_conformance.oracle.chain import extend, prefix_digest
from sdcp_conformance.oracle.control import SWITCH
from sdcp_conformance.worlds.world import DRAFTER, changed, path_id

PROMPT = [3, 4]


def contract_of(**members: Any) -> dict[str, Any]:
    """A contract that the kit's models can keep, with `members` changed (MISSING: left out)."""
    contract = {
        "target": TARGET.digest,
        "tokenizer": TOKENIZER,
        "rule": 1,
        "m_max": 4,
        "max_new": 60,
        "stop": [],
        "low_rounds": 3,
        "fallback": [SWITCH],
    }
    return changed(contract, members)


class SessionFacts:
    """`output`: committed tokens; `round`: the last; `m_cap`: the limit for the next one; `log_ref`: commit_log."""

    def __init__(
        self, contract: Mapping[str, Any], prompt: Sequence[int] = PROMPT, m_init: int = 3, epoch: int = 1
    ) -> None:
        self.id = secrets.token_bytes(16)
        self.contract = dict(contract)
        self.prompt = list(prompt)
        self.m_init = self.m_cap = m_init
        self.epoch = epoch
        self.round = 0
        self.output: list[int] = []
        self.log_ref = ""

    @property
    def path(self) -> str:
        """`sessions/{id}` for this session."""
        return f"sessions/{path_id(self.id)}"

    @property
    def prefix(self) -> list[int]:
        """Prompt and committed tokens."""
        return self.prompt + self.output

    @property
    def digest(self) -> bytes:
        """d[n]."""
        return self.digest_at(len(self.output))

    def digest_at(self, committed: int) -> bytes:
        """d[k] after k = `committed` tokens of the output."""
        return extend(prefix_digest(self.contract, self.prompt), self.output[:committed])

    def next_tokens(self, count: int) -> list[int]:
        """The tokens of plain greedy decoding from here on."""
        return TARGET.next_tokens(self.prefix, count)

    def wrong_tokens(self, count: int = 2) -> list[int]:
        """Tokens of which rule 1 accepts none."""
        return [(self.next_tokens(1)[0] + 1) % V] * count

    def half_right(self, right: int, count: int) -> list[int]:
        """`count` tokens of which rule 1 accepts exactly the first `right`."""
        tokens = self.next_tokens(right + 1)
        return [*tokens[:right], *[(tokens[right] + 1) % V] * (count - right)]

    def commit(self, tokens: Sequence[int]) -> dict[str, Any]:
        """Take a round's tokens in; return its commit record (D20)."""
        self.round += 1
        self.output += tokens
        return {
            "epoch": self.epoch,
            "round": self.round,
            "tokens": list(tokens),
            "committed": len(self.output),
            "digest": self.digest,
        }

    # -- messages, right unless changed -------------------------------------------------------------------------------

    def state(self, **changes: Any) -> dict[str, Any]:
        """session-state."""
        state = {"session": self.id, "epoch": self.epoch, "round": self.round}
        return changed({**state, "committed": len(self.output), "digest": self.digest}, changes)

    def open_message(self, **changes: Any) -> dict[str, Any]:
        """session-open."""
        message = {"session": self.id, "epoch": self.epoch, "contract": self.contract}
        return changed({**message, "prompt": self.prompt, "commit_log": self.log_ref}, changes)

    def assignment_message(self, verifier: str, drafter: str = DRAFTER, **changes: Any) -> dict[str, Any]:
        """assignment."""
        message = {"session": self.id, "epoch": self.epoch, "contract": self.contract, "verifier": verifier}
        message |= {"drafter": drafter, "prompt": self.prompt, "round": self.round, "m_init": self.m_init}
        return changed({**message, "committed": len(self.output), "digest": self.digest}, changes)

    def proposal_message(self, tokens: Sequence[int], drafter: str = DRAFTER, **changes: Any) -> dict[str, Any]:
        """proposal of these tokens for the next round."""
        status = {"instance": drafter, "role": 1, "load": 0, "queue": 0, "ttl_ms": 60_000}
        message = {"session": self.id, "epoch": self.epoch, "round": self.round + 1, "drafter": drafter}
        message |= {"base": len(self.output), "base_digest": self.digest, "tokens": list(tokens), "status": status}
        return changed(message, changes)


def tokens_object(tokens: Sequence[int]) -> bytes:
    """The octets of a `prompt` or `committed_tokens` object (D20)."""
    return encode(list(tokens))
