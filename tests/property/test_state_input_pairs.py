"""Every pair of state and input, of every machine: a legal state follows, or a refusal that changed nothing.

Machines are brought into each of their states (`visits`) and told inputs of every class (`verifier_inputs` and the
like): fitting ones, stale ones, and what a peer should never say. What may go wrong is this, and nothing else:

- A machine raises nothing. What a shell must not do is written at the inputs: a timer has a name that the machine
  gave it, and an engine finds what the rule can find. An answer to what nobody asked changes nothing.
- A request that is refused at once has changed nothing.
- The invariants of `machine_invariants` hold, and what has ended stays so.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from sdcp.machines.drafter import DrafterSession
from sdcp.machines.effects import Refuse
from sdcp.machines.inputs import RequestCancelled
from sdcp.machines.router import RouterSession
from sdcp.machines.verifier import VerifierSession
from sdcp.testing.states import INPUTS, STATES, state_of, unreachable
from tests.property.drafter_inputs import drafter_inputs
from tests.property.machine_invariants import check_drafter, check_effects, check_router, check_verifier
from tests.property.router_inputs import router_inputs
from tests.property.snapshots import Album, Snapshot, parts
from tests.property.verifier_inputs import verifier_inputs
from tests.property.visits import visit

SEEDS, MOST = range(60), 3
"""Worlds to drive, and machines to keep of each state."""

MACHINES: dict[type, tuple[Callable[[Any], Iterator[Any]], Callable[..., None]]] = {
    VerifierSession: (verifier_inputs, check_verifier),
    DrafterSession: (drafter_inputs, check_drafter),
    RouterSession: (router_inputs, check_router),
}


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Album:
    album = Album(state_of, MOST)
    visit(tmp_path_factory.mktemp("visits"), album, SEEDS)
    return album


@pytest.mark.parametrize("machine", MACHINES)
def test_every_state_is_visited_and_no_pair_that_cannot_be(album: Album, machine: type) -> None:
    assert set(album.snapshots[machine]) == set(STATES[machine])
    pairs = {(state, given) for each, state, given in album.pairs if each is machine}
    assert {given for _, given in pairs} <= set(INPUTS[machine])
    assert [pair for pair in pairs if unreachable(machine, *pair)] == []


@pytest.mark.requirement(
    "S6.3-append-before-release", "S6.3-commit-atomic", "S6.7-only-recorded", "S6.9-fence-first", "S6.2-one-outstanding"
)
@pytest.mark.decision("D19-ended", "D27-not-abandoned", "D27-lost", "D28-refused", "D30-stale-epoch")
@pytest.mark.parametrize(
    ("machine", "state"), [(machine, state) for machine in MACHINES for state in STATES[machine]], ids=str
)
def test_a_legal_state_follows_or_a_refusal_that_changed_nothing(album: Album, machine: type, state: str) -> None:
    inputs, check = MACHINES[machine]
    tried: set[type] = set()
    for snapshot in album.snapshots[machine][state]:
        before = snapshot.revive()
        for given in inputs(before):
            tried.add(type(given))
            after, own = copied(snapshot, before, given)
            whole, idle = parts(after), is_idle(after, own)
            wanted = after.handle(own)
            check_effects(wanted)
            check(before, given, wanted, after)
            assert state_of(after) in STATES[machine]
            assert not idle or wanted == [], f"{own} answers nothing, and something came of it"
            if idle or is_refused(wanted, own):
                assert parts(after) == whole, f"{own} changed something"
    assert tried == set(INPUTS[machine])


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("seed", range(25))
def test_nor_do_many_inputs_lead_out_of_the_legal_states(album: Album, machine: type, seed: int) -> None:
    """What one hostile input leaves behind, the next one may find."""
    luck = Random(seed)
    inputs, check = MACHINES[machine]
    states = [state for state in STATES[machine] if machine is not VerifierSession or not is_before_serving(state)]
    after = luck.choice(album.snapshots[machine][luck.choice(states)]).revive()
    for number in range(10_000, 10_025):
        before, given = after, numbered(some_input(luck, [*inputs(after)], after), number)
        after, own = pickle.loads(pickle.dumps((before, given)))
        wanted = after.handle(own)
        check_effects(wanted)
        check(before, given, wanted, after)


def numbered(given: Any, number: int) -> Any:
    """A request under a number of its own."""
    is_request = hasattr(given, "request") and not isinstance(given, RequestCancelled)
    return replace(given, request=number) if is_request else given


def is_before_serving(state: str) -> bool:
    """Whether a verifier in that state opens, or may begin to: it has no octets then."""
    return state == "new" or state.startswith("opening")


def some_input(luck: Random, given: list[Any], machine: Any) -> Any:
    """Any input, but one that answers nothing only now and then; each class as often as the others."""
    likely = [each for each in given if luck.random() < 0.1 or not is_idle(machine, each)]
    kind = luck.choice(sorted({type(each) for each in likely}, key=lambda each: each.__name__))
    return luck.choice([each for each in likely if type(each) is kind])


def copied(snapshot: Snapshot, machine: Any, given: Any) -> tuple[Any, Any]:
    """Another machine in that state, and the input for it: an answer names the other machine's own effect."""
    if isinstance(machine, VerifierSession) and machine.phase is None:
        return snapshot.revive(), given
    both: tuple[Any, Any] = pickle.loads(pickle.dumps((machine, given)))
    return both


def is_idle(machine: Any, given: Any) -> bool:
    """Whether nothing is outstanding that an input could answer."""
    answered = getattr(given, "answers", None)
    if answered is not None and answered is not machine._awaited:
        return True
    return unreachable(type(machine), state_of(machine), type(given)) is not None


def is_refused(wanted: list[Any], given: Any) -> bool:
    """Whether an input was a request, and was refused at once."""
    match wanted:
        case [Refuse(request=request)]:
            return request == getattr(given, "request", None)
    return False
