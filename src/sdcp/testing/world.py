"""One session in a world with a clock: the parts of a `Pair`, with time, deadlines, cuts, statuses and incidents.

A world is built from a `Scenario` and nothing else, so a scenario replays it. Faults stop at `scenario.until_ms`; then
the session has to come to its end. The invariants are those of `checks`, at every step, and those of `ending` at the
end. Not here: where scenarios come from (`scenario`), and many of them (`sdcp.simulate`).
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, Final

from sdcp.machines.effects import Draft, Prefill, Reply, SelfDecode, SendProposal, Verify
from sdcp.machines.inputs import PolicyReceived
from sdcp.machines.router import Patience
from sdcp.messages.contract import Action, Contract
from sdcp.messages.session import SessionState
from sdcp.messages.status import DRAFTER, VERIFIER, Status
from sdcp.testing.agenda import Agenda
from sdcp.testing.checks import Broken, Watch
from sdcp.testing.clock import Clock
from sdcp.testing.driven import Driven, Observer
from sdcp.testing.fate import Fate, Name, Stroke
from sdcp.testing.incidents import Incident, happen
from sdcp.testing.ladder import Ladder
from sdcp.testing.lying import HONEST
from sdcp.testing.network import Faults, Network
from sdcp.testing.observer import Recorder
from sdcp.testing.pair import Pair
from sdcp.testing.reporting import TTL_MS, ReportedRouter, Reporter
from sdcp.testing.routing import Router
from sdcp.testing.scenario import Scenario
from sdcp.testing.surroundings import Surroundings
from sdcp.testing.wires import Wires

END_MS: Final = 60_000.0
"""So long after the faults a session is over."""

MOST_STEPS: Final = 20_000
"""And so many: else it goes round in circles."""

SETTLE_MS: Final = 12_000.0
"""After the end: longer than any deadline, pause and delay."""


class World(Pair):
    """One run. `script`: the strokes of fate are these, and no others."""

    def __init__(self, scenario: Scenario, script: Mapping[Name, Stroke] | None = None) -> None:
        self.scenario = scenario
        self.broken = self.withdrawn = False
        self._read = 0
        self._lied_to = scenario.liars is not HONEST
        self._script = script
        self._effects: dict[str, int] = {}
        self._planned: dict[tuple[str, int], Incident] = {}
        cast = scenario.cast()
        self.target = cast.target
        super().__init__(
            scenario.contract,
            scenario.prompt,
            cast.target,
            cast.drafters,
            cast.setting,
            luck=Random(scenario.seed ^ 0x5DC9),
            faults=scenario.faults,
        )
        self._plan()

    # ---- the parts ---------------------------------------------------------------------------------------------------

    def _make_agenda(self) -> Agenda:
        self.clock = Clock()
        return self.clock

    def _make_network(self, faults: Faults) -> Network:
        fate = Fate(Random(self.scenario.seed ^ 0xFA7E), faults, self._script)
        self.wires = Wires(self.clock, fate, encoded=self.setting.encoded)
        return self.wires

    def _make_observer(self) -> Observer | None:
        watch, scenario = self.watch, self.scenario
        checks: dict[type, Any] = {}
        if scenario.liars is HONEST:
            watch.ladder = Ladder(scenario.contract, min(max(scenario.m_init, 1), scenario.contract.m_max))
            watch.onward = scenario.onward()
            checks = _checks(watch)
        self.recorder = Recorder(self.clock, checks, self._performed_by)
        return self.recorder

    def _make_router(
        self, around: Surroundings, contract: Contract, prompt: tuple[int, ...], patience: Patience
    ) -> Router:
        router = ReportedRouter(
            around, contract, prompt, patience, self.verifiers, self.drafters, keeps=self.scenario.keeps
        )
        for status in self._statuses(contract):
            Reporter(status, around, router, self.wires.down)
        return router

    def _statuses(self, contract: Contract) -> list[Status]:
        verifiers = [(uri, VERIFIER, contract.target) for uri in self.verifiers]
        drafters = [(uri, DRAFTER, instance.engine.model) for uri, instance in self.drafters.items()]
        return [
            Status(
                instance=uri,
                role=role,
                load=load,
                queue=0,
                ttl_ms=TTL_MS,
                base=uri,
                model=model,
                tokenizer=contract.tokenizer,
            )
            for (uri, role, model), load in zip(verifiers + drafters, self.scenario.loads, strict=False)
        ]

    # ---- what happens ------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        for incident in self.scenario.incidents:
            if incident.after_effects is None:
                self.clock.watch_for("", incident.at_ms, happen, self, incident)
            else:
                self._planned[incident.who, incident.after_effects] = incident
        self.clock.watch_for("", self.scenario.until_ms, self._faults_end)

    def _performed_by(self, party: str) -> None:
        number = self._effects[party] = self._effects.get(party, 0) + 1
        if self._planned and (party, number) in self._planned:
            happen(self, self._planned[party, number])

    def _faults_end(self) -> None:
        self._planned.clear()
        self.wires.fate.calm()
        self.calm()

    # ---- running -----------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Let the next thing happen. False: nothing is left to happen."""
        self.steps += 1
        if self._lied_to:
            self.troupe.meddle(self)
        happened = self.clock.step()
        if len(self.front_end.tokens) != self._read:
            self._read = self._check_read(self._read)
        return happened

    def play(self) -> World:
        """Run the scenario to its end, and beyond it for a while. Raises Broken where an invariant does not hold."""
        clock, end_ms = self.clock, self.scenario.until_ms + END_MS
        front_end, until_ms = self.front_end, self.scenario.until_ms
        while (front_end.finish is None and front_end.failure is None) or (clock.now_ms < until_ms and not clock.idle):
            if clock.now_ms > end_ms or self.steps > MOST_STEPS or not self.step():
                raise Broken(
                    f"no end at {clock.now_ms:.0f} ms, after {self.steps} steps, "
                    f"with {len(self.watch.tokens)} tokens committed"
                )
        over_ms = clock.now_ms + SETTLE_MS
        while not clock.idle and clock.now_ms < over_ms:
            self.step()
        self._check_end()
        return self

    def _check_read(self, before: int) -> int:
        """What the front end has read since is what stands in the log there: nothing lost, repeated or reordered."""
        read, held = self.front_end.tokens, self.watch.tokens
        if len(read) < before or read[before:] != held[before : len(read)]:
            raise Broken("the front end has read what is not in the log, or has lost what it read (6.7)")
        return len(read)

    def _check_end(self) -> None:
        """What must be so when a session is over, and nothing is under way any more."""
        front_end, watch = self.front_end, self.watch
        if front_end.failure is not None:
            known = watch.tokens and not self.scenario.keeps  # a life may end before it writes who opened the session
            if known or not self.scenario.may_be_refused:
                raise Broken(f"the request was refused: {front_end.failure}")
            return
        if front_end.tokens != watch.tokens:
            raise Broken(f"the front end has {len(front_end.tokens)} tokens, and {len(watch.tokens)} are committed")
        if front_end.finish is Action.FINISH:
            watch.finished()
        elif not (self.withdrawn or self.broken or self.scenario.may_give_up):
            watch.failed()


def _checks(watch: Watch) -> dict[type, Any]:
    """What is checked of each effect, before it is carried out."""

    def verifies(driven: Driven, given: Any, effect: Verify | SelfDecode) -> None:
        watch.verifies(effect, driven.machine.epoch, driven.party, driven)  # type: ignore[attr-defined]

    def replies(driven: Driven, given: Any, effect: Reply) -> None:
        if isinstance(effect.message, SessionState) and watch.ladder is not None:
            watch.ladder.assigned()
            if isinstance(given, PolicyReceived):
                watch.updates(given.message, driven)

    return {
        Verify: verifies,
        SelfDecode: verifies,
        Prefill: lambda driven, _, effect: watch.holds(effect.prefix, len(effect.prefix), driven.party),
        Draft: lambda driven, _, effect: watch.holds(effect.prefix, effect.length, driven.party),
        SendProposal: lambda driven, _, effect: watch.proposes(effect.message, driven.party),
        Reply: replies,
    }
