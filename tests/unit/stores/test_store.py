"""What every store does (docs/mlc.md), asked of each of them."""

from __future__ import annotations

import asyncio

import pytest

from sdcp.errors import Conflict, Forbidden, MalformedBody, PreconditionFailed
from sdcp.ports import LogFencedError, LogMovedError, ObjectMissingError, StoreFullError
from tests.unit.stores.samples import commit, fence


async def test_an_object_is_given_back_as_it_was_put(make_store):
    store = make_store()
    info, new = await store.put("a", memoryview(b"octets"), "verifier")
    assert new
    assert (info.name, info.size, info.owner) == ("a", 6, "verifier")
    assert await store.get("a") == (info, b"octets")
    assert store.look("a") == info


async def test_an_object_never_changes(make_store):
    store = make_store()
    first, _ = await store.put("a", b"one", "x")
    assert await store.put("a", b"one", "y") == (first, False)
    with pytest.raises(PreconditionFailed):
        await store.put("a", b"two", "x")
    assert (await store.get("a"))[1] == b"one"


async def test_of_simultaneous_puts_one_creates(make_store):
    store = make_store()
    outcomes = await asyncio.gather(*(store.put("a", b"same", "x") for _ in range(8)))
    assert sorted(new for _, new in outcomes) == [False] * 7 + [True]
    assert len({info.version for info, _ in outcomes}) == 1


async def test_what_is_not_there(make_store):
    store = make_store()
    assert store.look("a") is None
    with pytest.raises(ObjectMissingError):
        await store.get("a")
    with pytest.raises(ObjectMissingError):
        await store.delete("a")


async def test_versions_rise_and_never_come_twice_also_after_delete(make_store):
    store = make_store()
    seen = []
    for _ in range(3):
        seen.append((await store.put("a", b"same", "x"))[0].version)
        await store.delete("a")
        seen.append((await store.append(f"log{len(seen)}", fence(1), None)).version)
    assert seen == sorted(set(seen))


async def test_a_leased_object_is_not_deleted(make_store):
    store = make_store()
    await store.put("a", b"1", "x")
    await store.take_lease("l", "x", ["a"], 1000)
    with pytest.raises(Conflict):
        await store.delete("a")
    await store.release_lease("l", "x")
    await store.delete("a")


async def test_a_lease_is_all_or_nothing_and_names_what_is_missing(make_store):
    store = make_store()
    await store.put("a", b"1", "x")
    with pytest.raises(ObjectMissingError, match="'b'"):
        await store.take_lease("l", "x", ["a", "b"], 1000)
    await store.delete("a")


async def test_a_renewed_lease_holds_what_it_names_now(make_store, clock):
    store = make_store()
    await store.put("a", b"1", "x")
    await store.put("b", b"1", "x")
    await store.take_lease("l", "x", ["a"], 1000)
    clock.now += 0.9
    await store.take_lease("l", "x", ["b", "b"], 1000)
    await store.delete("a")
    clock.now += 0.9
    with pytest.raises(Conflict):
        await store.delete("b")
    clock.now += 0.2
    await store.delete("b")


async def test_two_leases_hold_until_the_last_ends(make_store, clock):
    store = make_store()
    await store.put("a", b"1", "x")
    await store.take_lease("short", "x", ["a"], 10)
    await store.take_lease("long", "y", ["a"], 1000)
    clock.now += 0.5
    await store.sweep()
    with pytest.raises(Conflict):
        await store.delete("a")
    clock.now += 1
    await store.sweep()
    assert store.figures()["leases"] == store.figures()["leased_octets"] == 0
    await store.delete("a")


async def test_a_lease_belongs_to_who_took_it(make_store):
    store = make_store()
    await store.put("a", b"1", "x")
    await store.take_lease("l", "x", ["a"], 1000)
    with pytest.raises(Forbidden):
        await store.take_lease("l", "y", ["a"], 1000)
    with pytest.raises(Forbidden):
        await store.release_lease("l", "y")
    await store.release_lease("l", "x")
    await store.release_lease("l", "y")  # idempotent: there is nothing to refuse


async def test_the_least_recently_used_goes_first_and_a_look_is_no_use(make_store):
    store = make_store(300)
    for name in "abc":
        await store.put(name, bytes(100), "x")
    await store.get("a")
    store.look("b")
    await store.put("d", bytes(100), "x")
    assert [name for name in "abcd" if store.look(name)] == ["a", "c", "d"]
    with pytest.raises(ObjectMissingError):
        await store.get("b")


async def test_nothing_leased_is_ever_evicted_and_a_put_without_room_fails(make_store):
    store = make_store(300)
    await store.put("a", bytes(200), "x")
    await store.put("b", bytes(100), "x")
    await store.take_lease("l", "x", ["a"], 1000)
    with pytest.raises(StoreFullError):
        await store.put("c", bytes(101), "x")
    assert store.look("b"), "nothing is evicted in vain"
    await store.put("c", bytes(100), "x")
    assert store.look("b") is None
    await store.release_lease("l", "x")
    await store.put("d", bytes(300), "x")
    assert (await store.get("d"))[1] == bytes(300)


async def test_an_expired_lease_protects_no_longer(make_store, clock):
    store = make_store(300)
    await store.put("a", bytes(300), "x")
    await store.take_lease("l", "x", ["a"], 1000)
    clock.now += 2
    await store.sweep()
    await store.put("b", bytes(300), "x")
    with pytest.raises(ObjectMissingError):
        await store.get("a")


async def test_a_log_grows_by_conditional_appends(make_store):
    store = make_store()
    assert store.log_state("s") is None
    assert await store.read_log("s", 0) == (b"", None)
    first = await store.append("s", commit(1), None)
    second = await store.append("s", commit(1, 2) + commit(1, 3), first.version)
    assert second.version > first.version
    whole = commit(1) + commit(1, 2) + commit(1, 3)
    assert await store.read_log("s", 0) == (whole, second)
    assert store.log_state("s") == second
    assert second.size == len(whole)


async def test_octets_of_a_log_from_and_to_anywhere(make_store):
    store = make_store()
    whole, version = b"", None
    for number in range(5):
        version = (await store.append("s", commit(1, number), version)).version
        whole += commit(1, number)
    for start in range(len(whole) + 2):
        for stop in (None, 0, start - 1, start, start + 1, start + 60, len(whole) + 9):
            if stop is None or stop >= 0:
                assert (await store.read_log("s", start, stop))[0] == whole[start:stop]


async def test_an_append_to_a_log_that_has_moved_is_refused(make_store):
    store = make_store()
    with pytest.raises(LogMovedError):
        await store.append("s", commit(1), 7)
    first = await store.append("s", commit(1), None)
    for version in (None, first.version + 1):
        with pytest.raises(LogMovedError):
            await store.append("s", commit(1, 2), version)
    assert (await store.read_log("s", 0))[0] == commit(1)


async def test_of_simultaneous_appends_one_wins(make_store):
    store = make_store()
    outcomes = await asyncio.gather(
        *(store.append("s", commit(1, number), None) for number in range(20)), return_exceptions=True
    )
    assert sum(not isinstance(outcome, Exception) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, LogMovedError) for outcome in outcomes) == 19


async def test_a_record_below_the_highest_fence_is_refused(make_store):
    """6.8: after a fence record with epoch E+1, appends carrying an epoch lower than E+1 MUST fail."""
    store = make_store()
    version = (await store.append("s", commit(1) + fence(3), None)).version
    for data in (commit(2), commit(1), commit(3) + commit(2)):
        with pytest.raises(LogFencedError):
            await store.append("s", data, version)
    state = await store.append("s", commit(3) + commit(4), version)
    assert (state.fence, state.epoch) == (3, 4)
    assert (await store.read_log("s", 0))[0] == commit(1) + fence(3) + commit(3) + commit(4)


@pytest.mark.parametrize("before", [commit(4), fence(4), commit(4) + fence(5) + commit(9)])
async def test_a_fence_must_be_above_every_epoch_in_the_log(make_store, before):
    store = make_store()
    state = await store.append("s", before, None)
    for epoch in (0, 3, state.epoch):
        with pytest.raises(LogFencedError):
            await store.append("s", fence(epoch), state.version)
    assert (await store.append("s", fence(state.epoch + 1), state.version)).fence == state.epoch + 1


@pytest.mark.parametrize("data", [b"", commit(1)[:-1], commit(1) + b"\xa1", b"\x01", b"\xa0", b"\xa1\x65epoch\x20"])
async def test_what_is_no_sequence_of_records_is_refused(make_store, data):
    store = make_store()
    with pytest.raises(MalformedBody):
        await store.append("s", data, None)
    assert store.log_state("s") is None


async def test_unknown_members_and_the_largest_epoch_are_taken(make_store):
    """D20: unknown keys are ignored; an epoch is any CDDL uint."""
    store = make_store()
    record = b"\xa2\x65epoch\x1b" + b"\xff" * 8 + b"\x61x\xf6"
    assert (await store.append("s", record, None)).epoch == 2**64 - 1


async def test_logs_take_no_notice_of_each_other(make_store):
    store = make_store()
    await store.append("s", fence(9), None)
    await store.append("t", commit(1), None)
    assert (await store.read_log("t", 0))[0] == commit(1)


async def test_after_many_sessions_objects_and_leases_are_back_where_they_began(make_store, clock):
    store = make_store()
    before = store.figures()
    for number in range(200):
        await store.put(f"o{number}", bytes(10), "x")
        await store.take_lease(f"l{number}", "x", [f"o{number}"], 1000)
        if number % 2:
            await store.release_lease(f"l{number}", "x")
            await store.delete(f"o{number}")
    clock.now += 2
    await store.sweep()
    for number in range(0, 200, 2):
        await store.delete(f"o{number}")
    after = store.figures()
    for name in ("objects", "object_octets", "leases", "leased_octets"):
        assert before[name] == after[name] == 0


@pytest.mark.decision("D41-idle")
async def test_an_object_goes_that_nobody_holds_and_nobody_has_used_for_so_long(make_store, clock):
    store = make_store(idle_s=60)
    for name in ("left", "read", "put again", "held", "looked at"):
        await store.put(name.replace(" ", "-"), b"octets", "x")
    await store.take_lease("l", "x", ["held"], 1_000_000)
    clock.now += 59
    await store.get("read")
    await store.put("put-again", b"octets", "x")
    store.look("looked-at")
    await store.sweep()
    assert store.figures()["objects"] == 5
    clock.now += 1
    await store.sweep()
    assert {entry.name for entry in store.listing("objects")} == {"read", "put-again", "held"}
    assert (await store.put("left", b"other octets", "x"))[1], "it may come anew"
    clock.now += 600
    await store.sweep()
    assert {entry.name for entry in store.listing("objects")} == {"held"}
    await store.release_lease("l", "x")
    clock.now += 59
    await store.sweep()
    assert store.look("held") is not None, "it was held a minute ago"
    clock.now += 1
    await store.sweep()
    figures = store.figures()
    assert (figures["objects"], figures["object_octets"], figures["idle"], figures["evictions"]) == (0, 0, 6, 0)


@pytest.mark.decision("D41-idle")
async def test_the_time_of_an_object_begins_when_its_last_lease_has_ended_by_time(make_store, clock):
    store = make_store(idle_s=60)
    await store.put("a", b"octets", "x")
    await store.take_lease("l", "x", ["a"], 100_000)
    await store.take_lease("m", "y", ["a"], 200_000)
    clock.now += 150
    await store.sweep()
    clock.now += 51
    await store.sweep()
    assert store.look("a") is not None
    clock.now += 60
    await store.sweep()
    assert store.look("a") is None


async def test_without_an_idle_time_objects_stay_until_their_room_is_needed(make_store, clock):
    store = make_store()
    await store.put("a", b"octets", "x")
    clock.now += 1e6
    await store.sweep()
    assert store.look("a") is not None


# -- listings ----------------------------------------------------------------------------------------------------------


async def test_objects_are_listed_by_name_with_what_is_known_of_them(make_store, clock):
    store = make_store()
    first, _ = await store.put("b", b"octets", "verifier")
    clock.now += 5
    second, _ = await store.put("a", b"x", "drafter")
    await store.take_lease("l", "verifier", ["b"], 1000)
    listed = store.listing("objects")
    assert [(e.name, e.size, e.version, e.owner, e.leased) for e in listed] == [
        ("a", 1, second.version, "drafter", False),
        ("b", 6, first.version, "verifier", True),
    ]
    assert [entry.age_s for entry in listed] == [0, 5]
    assert all(entry.level for entry in listed)


async def test_leases_are_listed_with_what_they_hold_until_they_end(make_store, clock):
    store = make_store()
    for name in "ab":
        await store.put(name, b"x", "x")
    await store.take_lease("m", "y", ["a"], 500)
    await store.take_lease("l", "x", ["b", "a"], 2000)
    clock.now += 1
    await store.sweep()
    (entry,) = store.listing("leases")
    assert (entry.name, entry.owner, entry.objects, entry.size) == ("l", "x", ("b", "a"), 0)
    assert (entry.age_s, entry.expires_s) == (pytest.approx(1), pytest.approx(1))


async def test_logs_are_listed_as_of_their_last_append(make_store):
    store = make_store()
    await store.append("s", commit(1), None)
    state = await store.append("s", commit(1, 2), store.log_state("s").version)
    (entry,) = store.listing("logs")
    assert (entry.name, entry.size, entry.version) == ("s", state.size, state.version)


async def test_a_listing_comes_in_pages_of_one_prefix(make_store):
    store = make_store()
    for number in range(25):
        await store.put(f"o{number:02}", b"x", "x")
        await store.append(f"o{number:02}", fence(1), None)
    await store.put("p", b"x", "x")
    for kind in ("objects", "logs"):
        names: list[str] = []
        while page := store.listing(kind, "o", names[-1] if names else "", 10):
            assert len(page) <= 10
            names += [entry.name for entry in page]
        assert names == [f"o{number:02}" for number in range(25)]
    assert store.listing("objects", "o24", "o24") == store.listing("leases") == []


async def test_a_listing_is_no_use_of_what_it_shows(make_store):
    store = make_store(300)
    for name in "abc":
        await store.put(name, bytes(100), "x")
    store.listing("objects", "a")
    await store.put("d", bytes(100), "x")
    assert store.look("a") is None
