"""Numbers as large as a message can bear: what follows them has no octets, so no machine asks for it (5.2, 6.4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sdcp import errors
from sdcp.machines import effects as fx
from sdcp.machines import inputs
from sdcp.messages.contract import Action, ContractSampling
from sdcp.messages.record import CommitRecord, FenceRecord
from sdcp.rules.draws import LAST_ROUND
from tests.unit.machines import test_drafter
from tests.unit.machines.router_bench import Bench
from tests.unit.machines.test_router_failover import HOT, running
from tests.unit.machines.verifier_world import CONTRACT, World, of

U64 = 2**64 - 1


def test_a_log_fenced_with_the_last_epoch_ends_the_session() -> None:
    bench = running((11,))
    bench.log.append(FenceRecord(epoch=U64))
    bench.give(inputs.VerifierLost())
    bench.run()
    assert bench.session.ended is Action.FAIL
    assert not bench.all_done(fx.SendOpen)


@pytest.mark.parametrize("round", [LAST_ROUND + 1, U64])
def test_a_verifier_whose_rounds_are_not_of_32_bits_loses_the_session(round: int) -> None:
    bench = Bench()
    bench.start()
    bench.change(HOT)
    policy = bench.take(fx.SendPolicy)
    bench.give(inputs.StateReceived(bench.session_state(round=round), policy))
    assert bench.names()[-1] == "ReadLog"  # to fence it
    bench.run()
    assert bench.session.epoch == 2


@pytest.mark.requirement("S6.4-seed-derivation")
@pytest.mark.parametrize(("round", "opens"), [(LAST_ROUND - 1, True), (LAST_ROUND, False), (U64, False)])
def test_a_verifier_opens_no_session_that_has_no_next_round(round: int, opens: bool) -> None:
    world = World(contract=replace(CONTRACT, rule=2, sampling=ContractSampling(seed=1)))
    world.log.put(CommitRecord(epoch=1, round=round, tokens=(4,), committed=1, digest=world.digest((4,))))
    request = world.open(world.resume())
    if opens:
        world.assign()
        assert world.verdict(world.propose(5)).round == LAST_ROUND
    else:
        assert type(world.refusal(request)) is errors.InvalidContent
        assert not of(world.seen, fx.Prefill)


@pytest.mark.parametrize(("round", "drafts"), [(LAST_ROUND - 1, True), (LAST_ROUND, False), (U64, False)])
def test_a_drafter_that_is_given_the_last_round_has_nothing_to_propose(round: int, drafts: bool) -> None:
    effects = test_drafter.Bench().assign(round=round)
    assert isinstance(effects[-1], fx.Draft if drafts else fx.EndSession)
