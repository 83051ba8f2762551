"""When KV is published, and which record names it (6.3, D44)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sdcp.machines.effects import AppendLog, DropOlderKv, Prefill, PublishKv, Reply, SelfDecode, Verify
from sdcp.machines.inputs import KvPublished, StopRequested
from sdcp.messages.contract import Action
from tests.unit.machines.verifier_world import CONTRACT, PROMPT, World, of


def named(world: World) -> list[str | None]:
    """What each record names."""
    return [record.kv for record in world.log.records()]


@pytest.mark.decision("D44-interval")
def test_kv_is_published_after_every_so_many_committed_tokens_beyond_the_last_time() -> None:
    world = World(kv_interval=5).started()
    for _ in range(4):
        world.play(world.right(2))  # three tokens each
    published = of(world.seen, PublishKv)
    assert [effect.length - len(PROMPT) for effect in published] == [6, 12]
    assert [*published[0].prefix[: published[0].length]] == [*PROMPT, *world.log.tokens[:6]]


@pytest.mark.decision("D44-interval")
def test_an_interval_of_nothing_publishes_nothing() -> None:
    world = World().started()
    world.play(world.right(2), lambda: world.right(8))
    assert of(world.seen, PublishKv) == []
    assert named(world) == [None, None]


@pytest.mark.decision("D44-interval")
def test_tokens_that_were_committed_elsewhere_are_not_counted() -> None:
    world = World(kv_interval=5).started()
    world.play(world.right(7))
    taken = World(kv_interval=5, log=world.log)
    taken.open(taken.resume())
    taken.assign()
    taken.play(taken.right(3))
    assert of(taken.seen, PublishKv) == []
    taken.play(taken.right(1))
    assert len(of(taken.seen, PublishKv)) == 1


@pytest.mark.decision("D44-beside")
def test_a_verdict_is_out_before_anything_is_published_and_rounds_go_on_meanwhile() -> None:
    world = World(kv_interval=1, hold={PublishKv}).started()
    request = world.propose(*world.right(2))
    kinds = [type(effect) for effect in world.seen]
    assert kinds.index(PublishKv) > max(place for place, kind in enumerate(kinds) if kind is Reply)
    world.verdict(request)
    world.play(world.right(2), lambda: world.right(2))
    assert len(of(world.seen, PublishKv)) == 1, "one at a time"
    world.release()
    world.play(world.right(2))
    assert len(of(world.seen, PublishKv)) == 2, "what became due meanwhile"


@pytest.mark.decision("D44-named")
def test_the_next_record_names_what_was_published_and_only_that_one() -> None:
    world = World(kv_interval=3).started()
    for _ in range(3):
        world.play(world.right(1))
    assert named(world) == [None, None, f"kv of {len(PROMPT) + 4}"]
    world.play(world.right(1))
    assert named(world)[3] is None


@pytest.mark.decision("D44-named")
def test_a_record_that_was_made_before_does_not_name_it_and_the_one_after_does() -> None:
    world = World(kv_interval=1, hold={PublishKv}).started()
    world.play(world.right(1))
    world.hold = {PublishKv, AppendLog}
    world.propose(*world.right(1))
    world.release(index=0)  # published while the record of round 2 is on its way
    world.hold = {PublishKv}
    world.release()
    world.play(world.right(1))
    assert named(world) == [None, None, f"kv of {len(PROMPT) + 2}"]


@pytest.mark.decision("D44-named")
def test_what_could_not_be_published_is_left_out_and_tried_again_when_the_next_is_due() -> None:
    world = World(kv_interval=4, hold={PublishKv}).started()
    world.play(world.right(3))
    world.release(KvPublished(len(PROMPT) + 4, None))
    world.play(world.right(1))
    assert len(of(world.seen, PublishKv)) == 1
    world.play(world.right(1))
    assert len(of(world.seen, PublishKv)) == 2
    assert named(world) == [None, None, None]


@pytest.mark.decision("D44-named")
def test_an_answer_that_nobody_asked_for_is_named_nowhere() -> None:
    world = World(kv_interval=2, hold={PublishKv}).started()
    world.handle(KvPublished(len(PROMPT), "of another life"))
    world.play(world.right(1))
    world.handle(KvPublished(len(PROMPT) + 1, "of another length"))
    world.play(world.right(1))
    assert named(world) == [None, None]


@pytest.mark.decision("D44-dropped")
def test_older_objects_go_once_the_record_that_names_the_new_one_is_durable() -> None:
    world = World(kv_interval=1, hold={PublishKv}).started()
    world.play(world.right(1))
    world.release(KvPublished(len(PROMPT) + 2, "first"))
    world.hold |= {AppendLog}
    world.propose(*world.right(1))
    assert of(world.seen, DropOlderKv) == [], "not while the record is on its way"
    world.release()
    assert of(world.seen, DropOlderKv) == [DropOlderKv("first")]


@pytest.mark.decision("D44-interval")
@pytest.mark.parametrize("ending", ["finish", "stop"])
def test_a_session_that_ends_or_is_told_to_stop_publishes_no_more(ending: str) -> None:
    world = World(contract=replace(CONTRACT, max_new=4), kv_interval=4, hold={Verify}).started()
    world.propose(*world.right(3 if ending == "finish" else 2))
    if ending == "stop":
        world.handle(StopRequested())
    world.release()
    assert of(world.seen, PublishKv) == []


@pytest.mark.decision("D44-interval")
def test_self_decoded_tokens_count_as_well() -> None:
    contract = replace(CONTRACT, low_rounds=1, fallback=(Action.SELF_DECODE,), self_load=100, self_max=4)
    world = World(contract=contract, kv_interval=3).started()
    world.play(world.wrong())
    assert len(of(world.seen, SelfDecode)) == 4
    assert [effect.length - len(PROMPT) for effect in of(world.seen, PublishKv)] == [3]
    assert f"kv of {len(PROMPT) + 3}" in named(world)


@pytest.mark.requirement("S6.9-resume")
@pytest.mark.decision("D44-loaded")
def test_kv_of_the_committed_prefix_comes_before_kv_of_the_prompt() -> None:
    world = World().started()
    world.play(world.right(2))
    for members, kv in (({"target_kv": "new"}, "new"), ({}, "old")):
        taken = World(log=world.log)
        taken.open(replace(taken.resume(world.log.fence + 2, **members), prompt_kv="old"))
        [prefill] = of(taken.seen, Prefill)
        assert prefill.kv == kv
