"""Objects that a cache has lost or changed although they were leased: the router stores them anew (6.9, D20)."""

from __future__ import annotations

import pytest

from sdcp import errors
from sdcp.machines import effects as fx
from sdcp.machines import inputs
from tests.unit.machines.router_bench import D1, D2, PROMPT, V1, V2, Bench

GONE = errors.Overloaded("The object is not there.")


@pytest.mark.decision("D20")
@pytest.mark.parametrize("fault", [GONE, errors.InvalidContent("no array"), errors.Conflict("not the digest")])
def test_a_verifier_that_cannot_have_the_committed_tokens_is_followed_by_one_with_a_new_object(
    fault: errors.ProblemError,
) -> None:
    bench = Bench()
    bench.start()
    bench.commit(11, 12)
    bench.verifiers = [V2, V1]
    bench.give(inputs.VerifierLost())
    bench.run(until=fx.SendOpen)
    refused = bench.take(fx.SendOpen)
    bench.give(inputs.VerifierRefused(fault, refused))
    bench.run()
    first, second = (each.message.resume for each in bench.all_done(fx.SendOpen)[-2:])
    assert first is not None
    assert second is not None
    assert first.committed_tokens != second.committed_tokens
    assert bench.objects[second.committed_tokens] == (11, 12)


@pytest.mark.decision("D20")
def test_a_drafter_that_cannot_have_the_tokens_is_followed_by_one_with_new_objects() -> None:
    bench = Bench(inline_prompt=1)
    bench.start()
    bench.commit(11, 12)
    bench.drafters = [D2, D1]
    bench.give(inputs.DrafterLost())
    bench.run(until=fx.SendAssignment)
    refused = bench.take(fx.SendAssignment)
    bench.give(inputs.AssignmentRefused(GONE, refused))
    bench.run()
    first, second = (each.message for each in bench.all_done(fx.SendAssignment)[-2:])
    assert (first.prompt, first.committed_tokens) != (second.prompt, second.committed_tokens)
    assert bench.objects[second.prompt] == PROMPT
    assert bench.objects[second.committed_tokens or ""] == (11, 12)
    assert bench.names()[-1] == "SendAssignment"


@pytest.mark.decision("D20")
def test_a_prompt_that_is_lost_before_the_session_is_open_is_stored_anew() -> None:
    bench = Bench(inline_prompt=1)
    bench.verifiers = [V1, V2]
    bench.ask(inputs.RequestSubmitted)
    bench.run(until=fx.SendOpen)
    bench.give(inputs.VerifierRefused(GONE, bench.take(fx.SendOpen)))
    bench.run()
    first, second = (each.message.prompt for each in bench.all_done(fx.SendOpen))
    assert first != second
    assert bench.objects[second] == PROMPT
    assert bench.names()[-1] == "SendAssignment"


def test_refusals_for_other_reasons_cost_few_objects() -> None:
    """Verifiers that are busy for long: stored at the refusals 1, 2, 4, 8 and 16 of twenty."""
    bench = Bench()
    bench.start()
    bench.commit(11)
    bench.give(inputs.VerifierLost())
    bench.run(until=fx.SendOpen)
    before = len(bench.all_done(fx.StoreTokens))
    for _ in range(20):
        bench.verifiers = [V1, None, V1]
        bench.give(inputs.VerifierRefused(GONE, bench.take(fx.SendOpen)))
        bench.run(until=fx.SendOpen)
    assert len(bench.all_done(fx.StoreTokens)) - before == 5
