"""Escalation and m_cap over long random histories, against a plain twin written from the draft's words (6.5).

The twin holds five numbers and a phase, and knows nothing of `sdcp.rules`. It is compared with the rules, and with the
machine of a verifier: what verdicts and records say, what follows from them, over changes of drafter, self-decoding
periods, loads that move while a round is on its way, and takeovers by another verifier (6.9, D20).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdcp.machines.control import Busy
from sdcp.machines.effects import AppendLog, SelfDecode, Verify
from sdcp.machines.inputs import SelfDecoded, Verified
from sdcp.messages.contract import Action, Contract
from sdcp.messages.record import CommitRecord
from sdcp.messages.session import State
from sdcp.rules import escalation, limit
from tests.unit.machines.verifier_world import CONTRACT, DRAFTER, OTHER, TARGET, Client, V, World

BUSY = Busy(load=90, cap=4)
LADDERS = st.lists(st.sampled_from([1, 2, 3, 5]).map(Action), min_size=1, max_size=8)


@st.composite
def contracts(draw: st.DrawFn) -> Contract:
    return replace(
        CONTRACT,
        max_new=10**6,
        m_max=draw(st.integers(1, 12)),
        low_rounds=draw(st.integers(1, 3)),
        low_ratio=draw(st.sampled_from([None, 0, 1, 34, 50, 100])),
        fallback=tuple(draw(LADDERS)) * draw(st.integers(1, 8)),
        self_load=draw(st.sampled_from([None, 0, 50, 100])),
        self_max=draw(st.sampled_from([None, 0, 1, 3])),
    )


@dataclass
class Twin:
    """The draft's words, one after the other. `phase` is one of drafting, waiting, self-decoding, failed."""

    contract: Contract
    m_cap: int
    c: int = 0
    g: int = 0
    j: int = 0
    phase: str = "drafting"
    period: int = 0

    def round(self, a: int, m: int, load: int) -> int:
        """A round of M tokens, a of them accepted, ends at this load: its action."""
        low = self.is_low(a, m)
        action = self.count(low, load)
        if action == 1:
            self.m_cap = max(1, self.m_cap // 2)
        elif not low and load < BUSY.load:
            self.m_cap = min(self.m_cap + 1, self.contract.m_max)
        if load >= BUSY.load:
            self.m_cap = min(self.m_cap, BUSY.cap)
        self.phase = {0: "drafting", 1: "drafting", 2: "waiting", 3: "self-decoding", 5: "failed"}[action]
        self.period = 0
        return action

    def is_low(self, a: int, m: int) -> bool:
        """A round is low if 100 * a < low_ratio * M, or, when low_ratio is zero or absent, if a = 0."""
        if self.contract.low_ratio in (None, 0):
            return a == 0
        return 100 * a < self.contract.low_ratio * m

    def count(self, low: bool, load: int) -> int:
        """The three counters, then the entry of the list that applies, or continue."""
        if not low:
            self.c, self.g = 0, self.g + 1
            if self.g == self.contract.low_rounds:
                self.j = 0
            return 0
        self.c, self.g = self.c + 1, 0
        if self.c < self.contract.low_rounds:
            return 0
        self.c = 0
        while self.j < len(self.contract.fallback):
            entry, self.j = self.contract.fallback[self.j], self.j + 1
            if entry != 3 or self.permits(load):
                return int(entry)
        return 5

    def permits(self, load: int) -> bool:
        """self_decode: only with self_load, at no higher load, and not with a self_max of 0 (D29)."""
        contract = self.contract
        return contract.self_load is not None and load <= contract.self_load and contract.self_max != 0

    def goes_on_alone(self, load: int) -> bool:
        """Before each token of a period: stop after self_max tokens, or when the load exceeds self_load."""
        spent = self.contract.self_max is not None and self.period >= self.contract.self_max
        if spent or not self.permits(load):
            self.phase = "waiting"
        return self.phase == "self-decoding"

    def assigned(self, m_init: int, *, another: bool) -> None:
        """PUT drafter: j and the counters persist; another drafter starts at its own limit (D16)."""
        if another:
            self.m_cap = min(max(m_init, 1), self.contract.m_max)
        self.phase = "drafting"


# ---- the rules -------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S6.5.1-m-cap-range", "S6.5.2-counters", "S6.5.2-ladder-entry", "S6.5.2-low-round")
@given(contracts(), st.integers(1, 12), st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_the_rules_do_what_the_words_say(contract: Contract, m_init: int, luck: Random) -> None:
    m_cap, counters = limit.start(m_init, contract.m_max), escalation.Counters()
    twin = Twin(contract, min(m_init, contract.m_max))
    for _ in range(200):
        m = luck.randint(1, contract.m_max)
        a, load = luck.choice((0, luck.randint(0, m))), luck.choice((0, 50, 51, 89, 100))
        low = escalation.is_low(a, m, contract.low_ratio)
        counters, action = escalation.after_round(counters, low, contract, load)
        m_cap = limit.after_round(m_cap, contract.m_max, action, low, load_permits=load < BUSY.load)
        m_cap = min(m_cap, BUSY.cap) if load >= BUSY.load else m_cap
        assert action == twin.round(a, m, load)
        assert (counters.c, counters.g, counters.j, m_cap) == (twin.c, twin.g, twin.j, twin.m_cap)


# ---- the machine -----------------------------------------------------------------------------------------------------


class History:
    """A verifier and its twin, side by side. Engine and log are answered by hand, each at a load of its own."""

    def __init__(self, contract: Contract, luck: Random) -> None:
        self.contract, self.luck = contract, luck
        self.world = self.verifier(None)
        self.world.open()
        self.drafter: str | None = None
        self.twin = Twin(contract, contract.m_max)
        self.assign()

    def verifier(self, before: World | None) -> World:
        target = replace(TARGET, context=None)
        world = World(contract=self.contract, target=target, busy=BUSY, hold={Verify, SelfDecode, AppendLog})
        if before is not None:
            world.log = before.log
        return world

    def load(self) -> int:
        return self.luck.choice((0, 0, 30, 50, 51, 89, 90, 100))

    def assign(self) -> None:
        drafter, m_init = self.luck.choice((DRAFTER, OTHER)), self.luck.choice((0, 1, 3, 64))
        self.world.assign(drafter, m_init=m_init, round=self.luck.randrange(1000))
        self.twin.assigned(m_init, another=drafter != self.drafter)
        self.drafter = drafter

    def play(self) -> None:
        """One round, from its proposal to its verdict."""
        world, twin = self.world, self.twin
        m = self.luck.randint(1, twin.m_cap)
        a = self.luck.choice((0, 0, m, self.luck.randint(0, m)))
        assert self.drafter is not None
        base = {"drafter": self.drafter, "base": self.committed, "base_digest": world.state.digest}
        request = world.propose(*(1,) * m, client=Client((self.drafter,)), round=world.state.round + 1, **base)
        load = self.load()
        world.release(Verified(world.held[0].round, a, self.luck.randrange(V), load))
        self.append()
        action = twin.round(a, m, load)
        verdict = world.verdict(request)
        said = (verdict.action, verdict.m_cap, verdict.low, verdict.load)
        assert said == (action, twin.m_cap, twin.c, load)
        self.recorded(a, m)
        self.alone()

    @property
    def committed(self) -> int:
        return self.world.state.committed

    def append(self) -> None:
        """The record is durable, and the load another by then."""
        self.world.load = self.load()
        self.world.release()

    def alone(self) -> None:
        """The tokens of a self-decoding period, until it is over or a drafter comes."""
        while self.twin.phase == "self-decoding" and self.twin.goes_on_alone(self.world.load):
            assigned = self.luck.random() < 0.1
            self.world.release(SelfDecoded(self.world.held[0].round, self.luck.randrange(V), self.load()))
            if assigned:
                self.assign()
                self.twin.phase = "self-decoding"  # until the token is recorded
            self.append()
            self.twin.period += 1
            self.recorded(None, None)
            if assigned:
                self.twin.phase = "drafting"

    def recorded(self, accepted: int | None, proposed: int | None) -> None:
        """The record bears what a takeover needs (D20)."""
        last, twin = self.record, self.twin
        assert (last.accepted, last.proposed) == (accepted, proposed)
        assert last.round == self.world.state.round
        assert (last.low, last.g, last.j, last.m_cap) == (twin.c, twin.g, twin.j, self.cap_at_record)

    @property
    def record(self) -> CommitRecord:
        return self.world.log.records()[-1]

    @property
    def cap_at_record(self) -> int | None:
        """An assignment that waited for the record has set the limit of the next round, not of this."""
        return self.record.m_cap if self.record.accepted is None else self.twin.m_cap

    def take_over(self) -> None:
        """Another verifier goes on from the log alone."""
        action = self.record.action if self.world.log.records() else None
        epoch = self.world.machine.epoch + 1
        self.world = self.verifier(self.world)
        self.world.open(self.world.resume(epoch))
        assert self.twin.phase in ("drafting", "waiting")
        assert (self.world.state.state == State.WAITING) == (action in (2, 3))
        self.drafter = None
        self.assign()


STATES = {"drafting": State.DRAFTING, "waiting": State.WAITING, "failed": State.FAILED}


@pytest.mark.requirement(
    "S6.5.1-m-cap-range",
    "S6.5.1-lowered-under-load",
    "S6.5.1-restored-gradually",
    "S6.5.2-j-persists",
    "S6.5.2-self-decode-rounds",
    "S6.5.2-self-decode-ends",
    "S6.3-control",
)
@pytest.mark.decision("D16-start", "D16-moves", "D20-restored", "D29-left-alone", "D29-load", "D29-assignment")
@given(contracts(), st.randoms(use_true_random=False))
@settings(max_examples=25)
def test_the_machine_does_what_the_words_say(contract: Contract, luck: Random) -> None:
    history = History(contract, luck)
    for _ in range(30):
        history.play()
        assert history.world.state.state == STATES[history.twin.phase]
        if history.twin.phase == "failed":
            return
        if luck.random() < 0.05:
            history.take_over()
        elif history.twin.phase == "waiting" or luck.random() < 0.1:
            history.assign()
