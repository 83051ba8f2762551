"""One session of verifiers and drafters in one process: real machines, real engines, a fake network.

A `Pair` couples the machines of verifiers, drafters and the router of one session with a front end, a store and a
network, all in memory and in one thread. Whatever is to happen stands in one queue. Without `luck` it is worked off in
order and nothing fails; with it, a seed decides the order, and which of the faults happen when, so a seed replays a
whole run. After each step the invariants of `sdcp.testing.checks` have been checked.

There is no clock, no sleep, no socket, no HTTP, no certificate, and no task: answers come or do not come, timers fire
when nothing else is left to do. Peers are correct, if slow, lost or dead, unless `liars` says otherwise. One session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from sdcp.machines import drafter_rounds, router_steps
from sdcp.machines.control import Busy
from sdcp.messages.contract import Contract, Sampling
from sdcp.ports import Drafter, Target
from sdcp.testing import drafting, routing
from sdcp.testing.agenda import Agenda
from sdcp.testing.checks import Broken
from sdcp.testing.driven import Observer
from sdcp.testing.front_end import FrontEnd
from sdcp.testing.lying import HONEST, Liars
from sdcp.testing.lying_troupe import Troupe
from sdcp.testing.network import SOUND, Faults, Network
from sdcp.testing.routing import Router
from sdcp.testing.surroundings import Surroundings
from sdcp.testing.verifying import Habits

SESSION: Final = b"sdcp-testing-one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upheavals:
    """Chances, from 0 to 1, of what happens to the session before a step.

    crash: the verifier loses all it knows. suspect: the router takes it for lost, wrongly. change: the same of the
    drafter. leave: the drafter loses all it knows. profile: the front end changes the sampling profile. early: a timer
    fires although something else is left to do.
    """

    crash: float = 0.0
    suspect: float = 0.0
    change: float = 0.0
    leave: float = 0.0
    profile: float = 0.0
    early: float = 0.0


CALM: Final = Upheavals()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What may differ from one world to the next.

    `load` is the verifiers' load in percent, `uniforms(count)` the values that an unseeded round draws, `plain` what
    the output has to be a prefix of. `encoded`: messages travel as bytes of CBOR. `kv_interval`: as in `[kv]` (D44).
    """

    m_init: int = 64
    inline_prompt: int = 8192
    verifiers: int = 1
    load: Callable[[], int] = lambda: 0
    busy: Busy | None = None
    uniforms: Callable[[int], tuple[float, ...]] | None = None
    enforces_fences: bool = True
    encoded: bool = False
    kv_interval: int = 0
    watched: bool = True
    patience: tuple[router_steps.Patience, drafter_rounds.Patience] = (routing.ENDLESS, drafting.ENDLESS)
    plain: Sequence[int] | None = None
    session: bytes = SESSION
    liars: Liars = HONEST


class Pair:
    """One session, from its submission to its end. `steps` counts the steps, `boundaries` the verifiers' effects.

    `crash_at`: the verifier crashes when so many of its effects have been carried out.
    """

    def __init__(
        self,
        contract: Contract,
        prompt: Sequence[int],
        target: Target,
        drafters: Sequence[Drafter],
        setting: Setting | None = None,
        *,
        luck: Random | None = None,
        faults: Faults = SOUND,
        upheavals: Upheavals = CALM,
        crash_at: int | None = None,
    ) -> None:
        self.setting = setting or Setting()
        self.steps = 0
        self.boundaries = 0
        self.crash_at = crash_at
        self.upheavals = upheavals
        self._luck = luck
        self._looked = False
        self._build(contract, tuple(prompt), target, drafters, faults)

    def _build(
        self, contract: Contract, prompt: tuple[int, ...], target: Target, drafters: Sequence[Drafter], faults: Faults
    ) -> None:
        setting, luck = self.setting, self._luck
        self.troupe = Troupe(setting.liars, luck, setting.session, watched=setting.watched)
        self.watch = self.troupe.watch(
            contract, prompt, setting.plain, enforces_fences=setting.enforces_fences, width=target.vocabulary
        )
        appended, leaves = (self.watch.appended, self.watch.leaves) if setting.watched else (_unseen, _unseen)
        self.store = self.troupe.store(enforces_fences=setting.enforces_fences, appended=appended)
        self.agenda = self._make_agenda()
        self.network = self._make_network(faults)
        around = Surroundings(setting.session, self.agenda, self.network, self.store, leaves, self._make_observer())
        habits = Habits(
            load=setting.load,
            uniforms=setting.uniforms or _uniforms(luck),
            busy=setting.busy,
            kv_interval=setting.kv_interval,
        )
        self.verifiers = {
            uri: self.troupe.verifier(
                uri, target, around, habits, lambda event: self.router.told(event), self._performed
            )
            for uri in (f"https://verifier-{number}.test/" for number in range(1, setting.verifiers + 1))
        }
        find = self.verifiers.__getitem__
        self.drafters = {
            uri: self.troupe.drafter(uri, engine, around, find, setting.patience[1])
            for uri, engine in ((f"https://drafter-{n}.test/", engine) for n, engine in enumerate(drafters, start=1))
        }
        patience = replace(setting.patience[0], m_init=setting.m_init, inline_prompt=setting.inline_prompt)
        self.router = self._make_router(around, contract, prompt, patience)
        self.front_end = FrontEnd(around, self.router, find)
        self.agenda.add(self.front_end.submit)

    # What a world with a clock has in its place (`world`).

    def _make_agenda(self) -> Agenda:
        return Agenda(self._luck, self.upheavals.early)

    def _make_network(self, faults: Faults) -> Network:
        return Network(self.agenda, self._luck, faults, encoded=self.setting.encoded)

    def _make_observer(self) -> Observer | None:
        return None

    def _make_router(
        self, around: Surroundings, contract: Contract, prompt: tuple[int, ...], patience: router_steps.Patience
    ) -> Router:
        return Router(around, contract, prompt, patience, self.verifiers, self.drafters)

    # ---- running -----------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether the front end has seen the end, one way or the other."""
        return self.front_end.finish is not None or self.front_end.failure is not None

    @property
    def output(self) -> tuple[int, ...]:
        """What the front end has read."""
        return tuple(self.front_end.tokens)

    def step(self) -> bool:
        """Let one thing happen. False: nothing is left to happen."""
        self.steps += 1
        self._upheave()
        self.troupe.meddle(self)
        if self.agenda.idle and not self._looked:
            self._looked = True
            self.router.look()
            return True
        self._looked = False
        happened = self.agenda.step()
        if self.setting.watched:
            self._check()
        return happened

    def run(self, until: Callable[[], bool] | None = None, *, most: int = 200_000) -> Pair:
        """Go on until the front end has seen the end, or until `until`; Broken after `most` more steps."""
        last = self.steps + most
        while not (self.finished if until is None else until()):
            if self.steps >= last or not self.step():
                raise Broken(f"no end after {self.steps} steps, with {len(self.watch.tokens)} tokens committed")
        return self

    def settle(self, *, most: int = 10_000) -> Pair:
        """Let everything that is under way come to its end, timers apart."""
        last = self.steps + most
        while not self.agenda.idle and self.steps < last:
            self.step()
        return self

    def calm(self) -> None:
        """From now on nothing fails any more."""
        self.network.faults, self.upheavals, self.agenda.early = SOUND, CALM, 0.0
        self.troupe.liars = HONEST

    def _check(self) -> None:
        read, held = self.front_end.tokens, self.watch.tokens
        if len(read) > len(held) or (read and read[-1] != held[len(read) - 1]):
            raise Broken("the front end has read what is not in the log")

    # ---- upheavals ---------------------------------------------------------------------------------------------------

    def crash_verifier(self) -> None:
        """The verifier of the session loses all it knows; the router hears of it some time."""
        uri = self.router.machine.verifier
        if uri is not None:
            self.verifiers[uri].crash()
            self.agenda.add(self.router.lose_verifier)

    def suspect_verifier(self) -> None:
        """The router takes the verifier for lost, although it goes on."""
        self.router.lose_verifier()

    def change_drafter(self) -> None:
        """The router takes the drafter for lost, although it goes on."""
        self.router.lose_drafter()

    def crash_drafter(self) -> None:
        """The drafter of the session loses all it knows; the router hears of it some time."""
        uri = self.router.machine.drafter
        if uri is not None:
            self.drafters[uri].crash()
            self.agenda.add(self.router.lose_drafter)

    def change_profile(self, sampling: Sampling, from_round: int | None = None) -> None:
        """The front end wants another sampling profile."""
        self.front_end.change_profile(sampling, from_round)

    def _performed(self) -> None:
        self.boundaries += 1
        if self.boundaries == self.crash_at:
            self.crash_verifier()

    def _upheave(self) -> None:
        luck, chances = self._luck, self.upheavals
        if luck is None or chances is CALM:
            return
        for chance, upheave in (
            (chances.crash, self.crash_verifier),
            (chances.suspect, self.suspect_verifier),
            (chances.change, self.change_drafter),
            (chances.leave, self.crash_drafter),
            (chances.profile, lambda: self.change_profile(_some_profile(luck))),
        ):
            if chance and luck.random() < chance:
                upheave()


def _unseen(_: object) -> None:
    """Nobody looks on."""


def _uniforms(luck: Random | None) -> Callable[[int], tuple[float, ...]]:
    """Values for unseeded rounds; a world without luck has none to give."""
    if luck is None:
        return lambda count: (0.5,) * count
    return lambda count: tuple(luck.random() for _ in range(count))


def _some_profile(luck: Random) -> Sampling:
    return Sampling(
        temperature_milli=luck.choice((None, 0, 500, 1500)),
        top_k=luck.choice((None, 2)),
        seed=luck.choice((None, luck.randrange(1 << 32))),
    )
