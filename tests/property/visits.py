"""Brings machines into all of their states: seeded worlds in which much goes wrong, and short scripts for the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sdcp.errors import StaleBase
from sdcp.machines import drafter_rounds, router_steps
from sdcp.machines.commit_log import TIMER as LOG_TIMER
from sdcp.machines.drafter import DrafterSession
from sdcp.machines.drafter_joining import DraftModel
from sdcp.machines.drafter_rounds import AGAIN
from sdcp.machines.effects import DrawRandom
from sdcp.machines.inputs import (
    AssignmentReceived,
    Drafted,
    DraftFailed,
    EngineFailed,
    LogMoved,
    LogUnanswered,
    OutputFetched,
    OutputUnavailable,
    ProposalRefused,
    ProposalUnanswered,
    RandomDrawn,
    RequestSubmitted,
    SelfDecoded,
    StopRequested,
    TimerFired,
    VerifierUnanswered,
)
from sdcp.machines.router import RouterSession
from sdcp.machines.verifier import VerifierSession
from sdcp.messages.contract import Action, Contract, ContractSampling
from sdcp.messages.round import Assignment
from sdcp.testing.engines import bigram, contract_for, guesses, random_logits
from sdcp.testing.network import Faults
from sdcp.testing.pair import Pair, Setting, Upheavals
from tests.property.snapshots import Album
from tests.unit.machines import router_bench, verifier_world
from tests.unit.machines.verifier_world import CONTRACT, TARGET, World

V = verifier_world.V
DRAFT_MODEL = DraftModel(model=b"m" * 32, tokenizer=TARGET.tokenizer, width=V, context=64)
VERIFIER, DRAFTER, OTHER = "https://verifier-1.test/", "https://drafter-1.test/", "https://drafter-2.test/"
RUNGS = (Action.REDUCE, Action.SELF_DECODE, Action.SWITCH)
TROUBLE = Upheavals(crash=0.01, suspect=0.01, change=0.02, leave=0.01, profile=0.05, early=0.2)


@contextmanager
def watched(album: Album) -> Iterator[None]:
    """While this lasts, the album sees every input of every machine."""
    with pytest.MonkeyPatch.context() as patch:
        for machine in (VerifierSession, DrafterSession, RouterSession):
            patch.setattr(machine, "handle", _watching(album, machine.handle))
        yield


def _watching(album: Album, handle: Any) -> Any:
    def watching(machine: Any, given: Any) -> Any:
        album.before(machine, given)
        return handle(machine, given)

    return watching


def visit(folder: Path, album: Album, seeds: range) -> None:
    """Drive worlds and scripts, the album looking on."""
    target = bigram(folder / "visited", random_logits(V, seed=3))
    with watched(album):
        for seed in seeds:
            _world(target, Random(seed)).run(most=20_000)
        for script in SCRIPTS:
            script()


def _world(target: Any, luck: Random) -> Pair:
    contract = contract_for(
        target,
        rule=luck.choice((1, 2, 2)),
        sampling=luck.choice((None, None, ContractSampling(seed=7, top_k=3))),
        m_max=luck.randint(1, 8),
        max_new=luck.randint(4, 30),
        low_rounds=luck.randint(1, 2),
        low_ratio=luck.choice((None, 50)),
        fallback=tuple(luck.choice(RUNGS) for _ in range(6)),
        self_load=60,
        self_max=luck.choice((None, 2, 4)),
    )
    setting = Setting(
        m_init=luck.randint(0, 9),
        verifiers=2,
        load=lambda: luck.choice((0, 0, 50, 95)),
        enforces_fences=luck.random() < 0.5,
        patience=(router_steps.Patience(attempts=2, inline_prompt=luck.choice((2, 8))), drafter_rounds.Patience()),
    )
    prompt = tuple(luck.randrange(V) for _ in range(4))
    faults = Faults(lost=0.1, late=0.1, twice=0.1, unanswered=0.1)
    drafters = [guesses(V, luck.randrange(99)), guesses(V, luck.randrange(99))]
    return Pair(contract, prompt, target, drafters, setting, luck=luck, faults=faults, upheavals=TROUBLE)


# ---- what no such world comes to -------------------------------------------------------------------------------------


def _verifier_stops() -> None:
    """Self-decoding when the process is told to end; and a session in which the engine breaks."""
    world = World(contract=replace(CONTRACT, low_rounds=1, fallback=(Action.SELF_DECODE,), self_load=50)).started()
    world.hold = {verifier_world.SelfDecode}
    world.propose(*world.wrong())
    world.handle(StopRequested())
    world.release()
    world.handle(StopRequested())


def _verifier_draws_alone() -> None:
    """Self-decoding under rule 2 without a seed, while the log answers late or not at all."""
    contract = replace(CONTRACT, rule=2, low_rounds=1, fallback=(Action.SELF_DECODE,), self_load=50)
    for answers in ((LogMoved(),), (LogUnanswered(), TimerFired(LOG_TIMER))):
        world = World(contract=contract).started()
        world.hold = {DrawRandom}
        world.propose(0)
        world.release(RandomDrawn(1, (0.99, 0.5)))  # refused, and so the verifier goes on alone
        for given in (RandomDrawn(2, (0.5,)), SelfDecoded(2, 1, 0), *answers, StopRequested()):
            world.machine.handle(given)


def _verifier_fails() -> None:
    for rung, stop in ((Action.FAIL, ()), (Action.SWITCH, (0,))):
        world = World(contract=replace(CONTRACT, low_rounds=1, fallback=(rung,), stop=stop)).started()
        world.propose(*(world.wrong() if not stop else world.right(6)))
        world.output()
    world = World(hold={verifier_world.Verify}).started()
    world.output(0, 1000)
    world.propose()
    world.handle(EngineFailed(1, "broken"))
    world.output(0, 1000)


def assignment(contract: Contract = CONTRACT, **members: Any) -> Assignment:
    """An assignment as the verifier's world has it."""
    message = World(contract=contract).assignment(DRAFTER, epoch=1, verifier=VERIFIER)
    return replace(message, **members)


def _drafter_joins() -> None:
    """A router that gives no object of the committed tokens (D9a)."""
    machine = DrafterSession(DRAFT_MODEL)
    digest = World().digest((4, 5))
    machine.handle(AssignmentReceived(1, assignment(committed=2, round=1, digest=digest)))
    machine.handle(StopRequested())


def _drafter_waits() -> None:
    machine = DrafterSession(DRAFT_MODEL)
    machine.handle(AssignmentReceived(1, assignment()))
    machine.handle(DraftFailed(1, "not now"))
    machine.handle(StopRequested())
    machine.handle(AssignmentReceived(2, assignment()))
    machine.handle(Drafted(1, (4,), 1.0))
    machine.handle(ProposalUnanswered(1))
    machine.handle(StopRequested())


def _drafter_catches_up() -> None:
    machine = DrafterSession(DRAFT_MODEL)
    for given in (AssignmentReceived(1, assignment()), Drafted(1, (4,), 1.0), ProposalRefused(1, StaleBase("no"), 1)):
        machine.handle(given)
    machine.handle(OutputUnavailable(None))
    machine.handle(TimerFired(AGAIN))
    machine.handle(OutputFetched(0, (4, 5), 1, False))
    machine.handle(StopRequested())


def _router_probes() -> None:
    bench = router_bench.Bench()
    bench.start()
    bench.locate(1)
    bench.give(VerifierUnanswered(bench.pending.pop()))
    bench.fire()


def _router_reminds() -> None:
    bench = router_bench.Bench()
    bench.start()
    bench.fire("reminder")
    bench.give(VerifierUnanswered(bench.pending.pop()))
    bench.fire()


def _router_stores_a_prompt() -> None:
    bench = router_bench.Bench(inline_prompt=2)
    bench.give(RequestSubmitted(1))
    bench.give(RequestSubmitted(2))


SCRIPTS = (
    _verifier_stops,
    _verifier_draws_alone,
    _verifier_fails,
    _drafter_joins,
    _drafter_waits,
    _drafter_catches_up,
    _router_probes,
    _router_reminds,
    _router_stores_a_prompt,
)
