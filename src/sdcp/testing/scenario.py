"""A scenario: one session, who takes part in it, and all that is to go wrong, drawn from a seed.

Everything in it is said in its fields, so a scenario with fewer incidents or smaller chances is another scenario that
can be played (`shrink`). The distribution is meant to be wild: short ladders and long ones, a limit of one token,
requests of a few tokens, stop tokens, an empty prompt, stores without fences, peers that lie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from types import MappingProxyType
from typing import Final

import numpy as np

from sdcp.engines.digests import IDENTITY_TOKENIZER
from sdcp.engines.ngram import NgramDrafter
from sdcp.machines import drafter_rounds, router_steps
from sdcp.machines.control import Busy
from sdcp.messages.contract import Action, Contract, ContractSampling, Sampling
from sdcp.ports import Drafter
from sdcp.rules.acceptance import GREEDY, SPECULATIVE
from sdcp.testing import drafting, routing
from sdcp.testing.engines import cycle_logits, guesses, random_logits
from sdcp.testing.incidents import DRAFTER, VERIFIER, Incident
from sdcp.testing.lying import HONEST, Liars, some_liars
from sdcp.testing.network import SOUND, Faults
from sdcp.testing.pair import Setting
from sdcp.testing.surroundings import CACHE, FRONT_END, ROUTER
from sdcp.testing.tables import Table, TableDrafter, TableTarget

TOKENS: Final = 64
"""The longest session."""

RUNGS = (Action.REDUCE, Action.SWITCH, Action.SELF_DECODE)
DRAFTERS = ("same", "near", "noisy", "brief", "heedless", "lookup", "guesses", "contrary")
GOOD_DRAFTERS = ("same", "near")
KINDS = (
    "crash",
    "effect",
    "effect",
    "still",
    "still",
    "cut",
    "cut",
    "suspect",
    "suspect",
    "stop",
    "break",
    "profile",
    "profile",
)
IMPATIENT = (
    router_steps.Patience(attempts=2, verifier_wait_ms=600, recovery_wait_ms=600, drafter_wait_ms=2_000, failovers=2),
    drafter_rounds.Patience(tries=2),
)
ENDLESS = (routing.ENDLESS, drafting.ENDLESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Tables that belong together: the target's, two worse ones, and one that is always wrong."""

    target: Table
    near: Table
    noisy: Table
    contrary: Table


@lru_cache
def family(name: str) -> Family:
    """`cycle`: greedy output visits every token; `wild`: any table; `tiny`: three tokens."""
    size = 3 if name == "tiny" else 24
    random = random_logits(size, seed=8)
    logits = cycle_logits(size, seed=7) + np.float32(0.2) * random if name != "wild" else random_logits(size, seed=5)
    start = random_logits(size, seed=6)[0]
    noise = random_logits(size, seed=9)
    return Family(
        target=Table(f"{name} target", logits, start),
        near=Table(f"{name} near", logits + np.float32(0.5) * noise, start),
        noisy=Table(f"{name} noisy", logits + np.float32(1.2) * noise, start),
        contrary=Table(f"{name} contrary", -logits, -start),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """The engines of one run, fresh, and how the parties are set."""

    target: TableTarget
    drafters: tuple[Drafter, ...]
    setting: Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`until_ms`: when the faults stop. `loads`: what instances report, verifiers first. `keeps`: the router keeps a
    manifest (D45). `kv_interval`: committed tokens between two publications of KV, 0 for never (D44).
    """

    seed: int
    contract: Contract
    prompt: tuple[int, ...]
    models: str
    drafters: tuple[str, ...]
    verifiers: int = 1
    m_init: int = 8
    inline_prompt: int = 8192
    loads: tuple[int, ...] = (0,) * 6
    busy_verifiers: bool = False
    enforces_fences: bool = True
    encoded: bool = False
    impatient: bool = False
    faults: Faults = SOUND
    liars: Liars = HONEST
    incidents: tuple[Incident, ...] = ()
    until_ms: float = 0.0
    keeps: bool = False
    kv_interval: int = 0

    @property
    def may_be_refused(self) -> bool:
        """Whether the request may be turned away: a router with little patience, or one that withdraws at once."""
        return self.impatient or any(each.what == "withdraw" for each in self.incidents)

    @property
    def may_give_up(self) -> bool:
        """Whether the session may end without a record that says so."""
        return self.impatient

    def plain(self) -> tuple[int, ...] | None:
        """Return what plain decoding gives; None where nothing but a distribution is known."""
        contract = self.contract
        if contract.rule != GREEDY:
            return None
        return family(self.models).target.plain(self.prompt, contract.max_new, contract.stop)

    def onward(self) -> tuple[int, ...] | None:
        """The same, but for a stop token: it goes on."""
        contract = self.contract
        if contract.rule != GREEDY:
            return None
        return family(self.models).target.plain(self.prompt, contract.max_new, ())

    def cast(self) -> Cast:
        """Return fresh engines, and how the parties are set."""
        luck = Random(self.seed ^ 0xCA57)
        tables = family(self.models)
        patience = IMPATIENT if self.impatient else ENDLESS
        setting = Setting(
            m_init=self.m_init,
            inline_prompt=self.inline_prompt,
            verifiers=self.verifiers,
            load=(lambda: luck.randrange(101)) if self.busy_verifiers else (lambda: 30),
            busy=Busy(),
            enforces_fences=self.enforces_fences,
            encoded=self.encoded,
            kv_interval=self.kv_interval,
            patience=patience,
            plain=self.plain(),
            liars=self.liars,
        )
        drafters = tuple(_drafter(name, tables, Random(luck.getrandbits(32))) for name in self.drafters)
        return Cast(target=TableTarget(tables.target), drafters=drafters, setting=setting)


def _drafter(name: str, tables: Family, luck: Random) -> Drafter:
    match name:
        case "lookup":
            return NgramDrafter(tables.target.vocabulary, IDENTITY_TOKENIZER)
        case "guesses":
            return guesses(tables.target.vocabulary, luck.getrandbits(32))
        case "brief":
            return TableDrafter(tables.noisy, luck, most=2)
        case "heedless":
            return TableDrafter(tables.noisy, luck, follows=False)
    return TableDrafter(_TABLES[name](tables), luck)


_TABLES: Final[Mapping[str, Callable[[Family], Table]]] = MappingProxyType(
    {
        "same": lambda tables: tables.target,
        "near": lambda tables: tables.near,
        "noisy": lambda tables: tables.noisy,
        "contrary": lambda tables: tables.contrary,
    }
)


# ---- from a seed -----------------------------------------------------------------------------------------------------


def scenario_of(seed: int, tokens: int | None = None) -> Scenario:
    """Draw a scenario; with `tokens` every session has exactly so many, an ordinary contract, and good drafters."""
    luck = Random(seed)
    models = luck.choice(("cycle", "cycle", "wild", "tiny")) if tokens is None else "cycle"
    contract = _contract(luck, family(models).target, tokens)
    until_ms = luck.choice((0.0, 60.0, 300.0, 300.0, 1_000.0, 1_000.0, 3_000.0, 10_000.0))
    verifiers, drafters = luck.randint(1, 3), luck.randint(1, 3)
    parties = Parties(verifiers, drafters)
    scenario = Scenario(
        seed=seed,
        contract=contract,
        prompt=tuple(luck.randrange(family(models).target.vocabulary) for _ in range(luck.choice((0, 1, 2, 5)))),
        models=models,
        drafters=tuple(luck.choice(DRAFTERS if tokens is None else GOOD_DRAFTERS) for _ in range(drafters)),
        verifiers=verifiers,
        m_init=luck.randint(0, 9) if tokens is None else 16,
        inline_prompt=luck.choice((1, 8192, 8192)),
        loads=tuple(luck.randrange(101) for _ in range(6)),
        busy_verifiers=luck.random() < 0.6,
        enforces_fences=luck.random() < 0.65,
        encoded=luck.random() < 0.1,
        impatient=tokens is None and luck.random() < 0.15,
        faults=_faults(luck) if until_ms else SOUND,
        incidents=_incidents(luck, parties, until_ms, tokens is None) if until_ms else (),
        until_ms=until_ms,
        liars=some_liars(luck) if until_ms and tokens is None and luck.random() < 0.25 else HONEST,
    )
    return _with_manifest(Random(seed ^ 0xF11E), scenario)


def _with_manifest(luck: Random, scenario: Scenario) -> Scenario:
    """In half of the scenarios the router keeps a manifest; then it may crash, and verifiers may publish KV (D44).

    The others are as they would be.
    """
    if luck.random() < 0.5:
        return scenario
    until_ms = scenario.until_ms
    lives = tuple(_life(luck, until_ms) for _ in range(luck.choice((0, 1, 1, 2, 4)))) if until_ms else ()
    kv_interval = luck.choice((0, 1, 2, 5))
    return replace(scenario, keeps=True, incidents=scenario.incidents + lives, kv_interval=kv_interval)


def _life(luck: Random, until_ms: float) -> Incident:
    at_ms = luck.random() * min(until_ms, luck.choice((30.0, 120.0, 600.0, until_ms)))
    for_ms = luck.choice((0.0, 10.0, 100.0, 1_000.0, 4_000.0))
    match luck.choice(("crash", "effect", "effect", "split")):
        case "effect":
            return Incident(what="crash", who=ROUTER, after_effects=luck.randint(1, 60), for_ms=for_ms)
        case "split":
            return Incident(what="begin another life of", who=ROUTER, at_ms=at_ms)
    return Incident(what="crash", who=ROUTER, at_ms=at_ms, for_ms=for_ms)


def _contract(luck: Random, target: Table, tokens: int | None) -> Contract:
    kinds = luck.choice((RUNGS, RUNGS, (Action.SELF_DECODE, Action.SWITCH)))
    rungs = tuple(luck.choice(kinds) for _ in range(luck.choice((1, 2, 4, 9, 40, 40))))
    if tokens is not None:
        return _usual(target, tokens)
    return Contract(
        target=target.model,
        tokenizer=IDENTITY_TOKENIZER,
        rule=luck.choice((GREEDY, GREEDY, SPECULATIVE)),
        sampling=luck.choice((None, ContractSampling(seed=luck.getrandbits(64)), _profile(luck, ContractSampling))),
        m_max=luck.choice((1, 2, 4, 8, 8)),
        max_new=luck.choice((0, 1, 2, 3, 9, 17, 33, TOKENS, TOKENS, TOKENS)),
        stop=luck.choice(((), (), (luck.randrange(target.vocabulary),), (0, 9_999))),
        low_rounds=luck.choice((1, 2, 3)),
        low_ratio=luck.choice((None, 0, 50, 100)),
        fallback=rungs if luck.random() < 0.8 else (*rungs, Action.FAIL)[-3:],
        self_load=luck.choice((None, 0, 60, 100, 100)),
        self_max=luck.choice((None, 0, 1, 4, 30)),
    )


def _usual(target: Table, tokens: int) -> Contract:
    """A contract as operators have it, of exactly so many tokens, greedy."""
    return Contract(
        target=target.model,
        tokenizer=IDENTITY_TOKENIZER,
        rule=GREEDY,
        m_max=16,
        max_new=tokens,
        stop=(),
        low_rounds=4,
        fallback=(Action.REDUCE, Action.SWITCH, Action.SELF_DECODE, Action.SWITCH, Action.SELF_DECODE),
        self_load=100,
    )


def _profile(luck: Random, kind: type = Sampling) -> Sampling:
    made: Sampling = kind(
        temperature_milli=luck.choice((None, 0, 500, 1_500)),
        top_k=luck.choice((None, 2)),
        top_p_milli=luck.choice((None, 900)),
        seed=luck.choice((None, luck.getrandbits(32))),
    )
    return made


def _faults(luck: Random) -> Faults:
    lost, late, twice, unanswered = (luck.choice((0.0, 0.03, 0.15)) for _ in range(4))
    return Faults(lost=lost, late=late, twice=twice, unanswered=unanswered, slow=luck.choice((0.0, 0.1, 0.4)))


@dataclass(frozen=True, slots=True)
class Parties:
    """How many instances there are of each role."""

    verifiers: int
    drafters: int

    def verifier(self, luck: Random) -> str:
        """One of the verifiers; mostly the one that serves."""
        return VERIFIER if luck.random() < 0.6 else f"https://verifier-{luck.randint(1, self.verifiers)}.test/"

    def drafter(self, luck: Random) -> str:
        """One of the drafters; mostly the one that is assigned."""
        return DRAFTER if luck.random() < 0.6 else f"https://drafter-{luck.randint(1, self.drafters)}.test/"


def _incidents(luck: Random, parties: Parties, until_ms: float, ends: bool) -> tuple[Incident, ...]:
    made = [_incident(luck, parties, until_ms) for _ in range(luck.choice((0, 1, 2, 4, 8, 12)))]
    if ends and luck.random() < 0.12:
        made.append(Incident(what="withdraw", at_ms=luck.random() * until_ms))
    if ends and luck.random() < 0.06:
        made.append(Incident(what="break the engine of", who=VERIFIER, at_ms=luck.random() * until_ms, for_ms=20.0))
    return tuple(made)


def _incident(luck: Random, parties: Parties, until_ms: float) -> Incident:
    at_ms = luck.random() * min(until_ms, luck.choice((30.0, 120.0, 600.0, until_ms)))
    for_ms = luck.choice((0.0, 10.0, 100.0, 1_000.0, 4_000.0))
    verifier, drafter = parties.verifier(luck), parties.drafter(luck)
    anyone: Sequence[str] = (verifier, verifier, drafter, ROUTER)
    match luck.choice(KINDS):
        case "effect":
            who = f"https://verifier-{luck.randint(1, parties.verifiers)}.test/"
            who = luck.choice((who, who, f"https://drafter-{luck.randint(1, parties.drafters)}.test/"))
            return Incident(what="crash", who=who, after_effects=luck.randint(1, 60), for_ms=for_ms)
        case "still":
            return Incident(what="stand still", who=luck.choice(anyone), at_ms=at_ms, for_ms=for_ms + 5.0)
        case "cut":
            one, other = luck.sample((verifier, drafter, ROUTER, CACHE, FRONT_END), 2)
            return Incident(what="cut off", who=one, other=other, at_ms=at_ms, for_ms=for_ms + 5.0)
        case "suspect":
            return Incident(what="suspect", who=luck.choice((VERIFIER, DRAFTER)), at_ms=at_ms)
        case "stop":
            return Incident(what="stop", who=luck.choice((verifier, drafter)), at_ms=at_ms, for_ms=for_ms)
        case "break":
            return Incident(what="break the engine of", who=drafter, at_ms=at_ms, for_ms=for_ms)
        case "profile":
            from_round = luck.choice((None, None, luck.randint(1, 12)))
            return Incident(what="change the profile", sampling=_profile(luck), from_round=from_round, at_ms=at_ms)
    return Incident(what="crash", who=luck.choice((verifier, drafter)), at_ms=at_ms, for_ms=for_ms)
