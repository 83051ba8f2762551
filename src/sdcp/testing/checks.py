"""What must be so at every moment of a world, whatever fails in it (1.3, 4.2, 6.3 step 8, 6.7, 6.8).

The watch sees each record at the moment at which it becomes durable, and each answer of a verifier at the moment at
which it leaves. It computes the chain and the validity of records by itself, with nothing of `sdcp.machines`. A world
with an observer also shows it what verifiers and drafters take for committed, and what they make of it. Whatever does
not hold raises `Broken`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

from sdcp.machines.effects import Refuse, Reply, SelfDecode, Verify
from sdcp.messages.contract import Action, Contract, Sampling
from sdcp.messages.output import Output
from sdcp.messages.record import CommitRecord, Record, parse_record
from sdcp.messages.round import Proposal, Verdict
from sdcp.messages.session import Policy, SessionState
from sdcp.rules.digest import contract_digest, prefix_digest
from sdcp.testing.ladder import Ladder
from sdcp.wire import cbor


class Broken(AssertionError):
    """An invariant does not hold."""


class Watch:
    """What is durable: `tokens` is the committed output, `records` the valid commit records by round.

    With `plain`, the output must be a prefix of it: what plain decoding of the target gives. `enforces_fences` says
    whether the store keeps stale records out; else they are in the log, and void. `ladder` reads the control step a
    second time. `onward` is plain decoding that goes on after a stop token: with it each round's outcome is foretold.
    """

    ladder: Ladder | None = None
    onward: Sequence[int] | None = None

    def __init__(
        self,
        contract: Contract,
        prompt: Sequence[int],
        plain: Sequence[int] | None = None,
        *,
        enforces_fences: bool = True,
    ) -> None:
        self.tokens: list[int] = []
        self.records: dict[int, CommitRecord] = {}
        self.accounts = [(0, 0)]  # by round: tokens proposed and accepted up to it (D35)
        self.fence = 0
        self.void = 0
        self.digests = [prefix_digest(contract_digest(contract.to_plain()), prompt)]
        self.verdicts: dict[tuple[int, int], Verdict] = {}
        self._contract = contract
        self._plain = plain
        self._enforces_fences = enforces_fences
        self._round = 0
        self._prompt = [*prompt]
        self._scored: dict[object, int] = {}
        self._outcomes: dict[tuple[int, int], tuple[int | None, int]] = {}
        self._policies: dict[object, list[Policy]] = {}

    # ---- the log -----------------------------------------------------------------------------------------------------

    def appended(self, data: bytes) -> None:
        """Octets have become durable."""
        for _, record in records_in(data):
            self._take(record)

    def _take(self, record: Record) -> None:
        if not isinstance(record, CommitRecord):
            _hold(record.epoch > self.fence, f"a fence of epoch {record.epoch} after one of {self.fence}")
            self.fence = record.epoch
        elif record.epoch < self.fence:
            _hold(not self._enforces_fences, f"a record of epoch {record.epoch} after the fence {self.fence} (6.8)")
            self.void += 1
        else:
            self._follow(record)

    def _follow(self, record: CommitRecord) -> None:
        """A valid record goes on from the last one: rounds, tokens, chain (4.2, 6.3 step 8)."""
        _hold(record.epoch == max(self.fence, 1), f"epoch {record.epoch} committed under the fence {self.fence}")
        _hold(record.round == self._round + 1, f"round {record.round} after round {self._round}")
        self._foretold(record)
        self._extend(record.tokens)
        _hold(record.committed == len(self.tokens), f"committed is {record.committed}, not {len(self.tokens)}")
        _hold(record.digest == self.digests[-1], f"the chain is cut at round {record.round} (4.2)")
        proposed, accepted = self.accounts[-1]
        self.accounts.append((proposed + (record.proposed or 0), accepted + (record.accepted or 0)))
        self.records[record.round] = record
        self._round = record.round
        fault = self.ladder.fault(record) if self.ladder is not None else None
        _hold(fault is None, fault or "")

    def _foretold(self, record: CommitRecord) -> None:
        """Greedy rounds have one outcome: what was scored, and plain decoding, decide it (6.4, D14)."""
        if self.onward is None or self._plain is None:
            return
        accepted, proposed = self._outcomes[record.epoch, record.round]
        said = (record.accepted, record.proposed or 0)
        _hold(said == (accepted, proposed), f"round {record.round} accepted {said} of what was scored, not {accepted}")
        begin = len(self.tokens)
        emitted = tuple(self._plain[begin : begin + (accepted or 0) + 1])
        _hold(record.tokens == emitted, f"round {record.round} emits {record.tokens}, not {emitted}")

    def _extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.digests.append(hashlib.sha256(self.digests[-1] + token.to_bytes(4, "big")).digest())
        before = len(self.tokens)
        self.tokens += tokens
        _hold(len(self.tokens) <= self._contract.max_new, "more than max_new tokens are committed (6.3 step 7)")
        _hold(not set(self._contract.stop) & set(self.tokens[max(before - 1, 0) : -1]), "a token follows a stop token")
        if self._plain is not None:
            _hold(list(tokens) == list(self._plain[before : len(self.tokens)]), f"{tokens} at {before} is not plain")

    # ---- what leaves a verifier --------------------------------------------------------------------------------------

    def leaves(self, answer: Reply | Refuse) -> None:
        """An answer leaves a verifier: what it says must be durable already (6.3 step 8, 6.7)."""
        message = answer.message if isinstance(answer, Reply) else answer.state
        match message:
            case Verdict():
                self._verdict(message)
            case Output():
                shown = tuple(self.tokens[message.from_ : message.from_ + len(message.tokens)])
                _hold(shown == message.tokens, f"output from {message.from_} shows what the log does not hold (6.7)")
                self._account(message)
            case SessionState():
                known = len(self.digests) > message.committed and self.digests[message.committed] == message.digest
                _hold(known, f"a session-state names {message.committed} tokens that the log does not hold")

    def _account(self, output: Output) -> None:
        """The accounts are those of the whole session, whoever served it before (D35, D39)."""
        if output.passes is not None:
            said, held = (output.proposed, output.accepted), self.accounts[output.passes : output.passes + 1]
            _hold([said] == held, f"the accounts after {output.passes} rounds are {said}, not {held} (D35)")

    def _verdict(self, verdict: Verdict) -> None:
        record = self.records.get(verdict.round)
        _hold(record is not None, f"the verdict of round {verdict.round} left before its record was durable")
        assert record is not None
        said = (verdict.epoch, verdict.emitted, verdict.committed, verdict.digest, verdict.accepted, verdict.action)
        held = (record.epoch, record.tokens, record.committed, record.digest, record.accepted, record.action)
        _hold(said == held, f"the verdict of round {verdict.round} is not what its record says")
        first = self.verdicts.setdefault((verdict.epoch, verdict.round), verdict)
        _hold(first == verdict, f"round {verdict.round} has two verdicts (6.3 step 3)")
        _hold(1 <= verdict.m_cap <= self._contract.m_max, f"m_cap is {verdict.m_cap} (6.5.1)")

    # ---- what verifiers and drafters take for committed --------------------------------------------------------------

    def holds(self, prefix: Sequence[int], length: int, who: str) -> None:
        """Somebody goes on from a prefix: it must be that of the log, whose tokens are what they are for ever."""
        start = len(self._prompt)
        held = length - start <= len(self.tokens) and list(prefix[:length]) == (self._prompt + self.tokens)[:length]
        _hold(held, f"{who} goes on from {length - start} tokens that are not those of the log (1.3, 4.2)")

    def verifies(self, effect: Verify | SelfDecode, epoch: int, who: str, machine: object) -> None:
        """A machine lets a round be scored: once, under the profile in force, after what is committed (6.6, D27)."""
        self.holds(effect.prefix, effect.length, who)
        _hold(self._scored.get(machine, 0) < effect.round, f"{who} scores round {effect.round} again (D27)")
        self._scored[machine] = effect.round
        wanted = self._profile(machine, effect.round)
        _hold(effect.profile == wanted, f"{who} scores round {effect.round} under {effect.profile}, not {wanted}")
        tokens = effect.tokens if isinstance(effect, Verify) else None
        self._outcomes[epoch, effect.round] = self._outcome(effect.length - len(self._prompt), tokens)

    def _outcome(self, begin: int, tokens: tuple[int, ...] | None) -> tuple[int | None, int]:
        """a and M of a greedy round; None for one that the target decodes by itself."""
        if tokens is None or self.onward is None:
            return None, 0
        accepted, right = 0, self.onward[begin : begin + len(tokens)]
        while accepted < len(right) and tokens[accepted] == right[accepted]:
            accepted += 1
        return accepted, len(tokens)

    def updates(self, policy: Policy, machine: object) -> None:
        """A verifier has taken a change of the profile (6.6)."""
        self._policies.setdefault(machine, []).append(policy)

    def _profile(self, machine: object, round: int) -> Sampling:
        ruling = [each.sampling for each in self._policies.get(machine, ()) if each.from_round <= round]
        return ruling[-1] if ruling else self._contract.profile

    def proposes(self, proposal: Proposal, who: str) -> None:
        """A drafter proposes: after a committed prefix, and no more than anybody may (6.2)."""
        known = self.digests[proposal.base : proposal.base + 1]
        _hold(known == [proposal.base_digest], f"{who} proposes after a prefix that was never committed (4.2)")
        _hold(1 <= len(proposal.tokens) <= self._contract.m_max, f"{who} proposes {len(proposal.tokens)} tokens (6.2)")

    # ---- the end -----------------------------------------------------------------------------------------------------

    def finished(self) -> None:
        """The session has finished: with a stop token, or with all it may have (6.3 step 7)."""
        stopped = bool(self.tokens) and self.tokens[-1] in self._contract.stop
        whole = stopped or len(self.tokens) == self._contract.max_new
        _hold(whole, f"the session finished with {len(self.tokens)} tokens")
        _hold(self._plain is None or self.tokens == list(self._plain), "the output is not that of plain decoding")

    def failed(self) -> None:
        """The session has failed by its ladder: its last record says so (6.5.2)."""
        last = self.records.get(self._round)
        _hold(last is not None and last.action == Action.FAIL, "the session failed, and no record says why")


@lru_cache(maxsize=64)
def records_in(data: bytes) -> tuple[tuple[int, Record], ...]:
    """Return the records in octets of a log, each with the octet at which it ends; several who watch ask in turn."""
    return tuple((end, parse_record(value)) for end, value in cbor.decode_sequence(data))


def _hold(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)
