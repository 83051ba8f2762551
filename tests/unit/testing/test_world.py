"""The parts of a world: queue, network, shell and store do what they say, before anything is tested with them."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from sdcp.machines.effects import (
    Abandon,
    AppendLog,
    CancelTimer,
    FetchTokens,
    ReadLog,
    Refuse,
    Reply,
    SendEvent,
    SetTimer,
)
from sdcp.machines.inputs import LogAppended, LogFenced, LogMoved, LogRead, RequestCancelled, TimerFired, TokensFetched
from sdcp.messages.record import CommitRecord, FenceRecord
from sdcp.messages.session import SessionState
from sdcp.testing.agenda import Agenda
from sdcp.testing.driven import Driven
from sdcp.testing.network import SILENCE, Call, Faults, Network
from sdcp.testing.store import Store

LOG = "memory:/logs/one"


def record(round: int, epoch: int = 1) -> bytes:
    return CommitRecord(epoch=epoch, round=round, tokens=(), committed=0, digest=bytes(32)).encode()


# ---- the queue -------------------------------------------------------------------------------------------------------


def drain(agenda: Agenda) -> None:
    while agenda.step():
        pass


def test_without_luck_work_is_done_in_order_and_timers_fire_last() -> None:
    agenda, done = Agenda(), list[Any]()
    agenda.set_timer(agenda, "a", done.append)
    agenda.set_timer(agenda, "b", done.append)
    for number in range(3):
        agenda.add(done.append, number)
    agenda.set_timer(agenda, "a", done.append)  # moved behind b
    drain(agenda)
    assert done == [0, 1, 2, "b", "a"]


def test_cancelled_and_forgotten_timers_do_not_fire() -> None:
    agenda, done = Agenda(), list[str]()
    agenda.set_timer(1, "a", done.append)
    agenda.set_timer(2, "b", done.append)
    agenda.set_timer(2, "c", done.append)
    agenda.cancel_timer(2, "c")
    agenda.cancel_timer(2, "never set")
    agenda.forget(1)
    drain(agenda)
    assert done == ["b"]


def test_with_luck_every_order_comes_up_and_a_seed_gives_one() -> None:
    def order(seed: int) -> tuple[Any, ...]:
        agenda, done = Agenda(Random(seed), early=0.3), list[Any]()
        agenda.set_timer(1, "timer", done.append)
        for number in range(3):
            agenda.add(done.append, number)
        drain(agenda)
        return tuple(done)

    orders = [order(seed) for seed in range(400)]
    assert orders == [order(seed) for seed in range(400)]
    assert len(set(orders)) == 24


# ---- the network -----------------------------------------------------------------------------------------------------


def outcomes(faults: Faults, seeds: int = 300) -> Counter[tuple[int, str]]:
    """How often the request arrived, and what its sender heard."""
    met: Counter[tuple[int, str]] = Counter()
    for seed in range(seeds):
        luck, heard, arrived = Random(seed), list[Any](), list[Call]()
        agenda = Agenda(luck)
        network = Network(agenda, luck, faults)

        def arrive(call: Call, network: Network = network, arrived: list[Call] = arrived) -> None:
            arrived.append(call)
            network.answer(call, "answer")

        network.send(Call(heard.append), arrive)
        drain(agenda)
        assert len(heard) == 1, "each sender hears once"
        met[len(arrived), "silence" if heard[0] is SILENCE else heard[0]] += 1
    return met


@pytest.mark.parametrize(
    ("faults", "possible"),
    [
        (Faults(), {(1, "answer")}),
        (Faults(lost=0.5), {(1, "answer"), (0, "silence")}),
        (Faults(unanswered=0.5), {(1, "answer"), (1, "silence")}),
        (Faults(twice=0.5), {(1, "answer"), (2, "answer")}),
        (Faults(late=0.5), {(1, "answer"), (1, "silence")}),
    ],
)
def test_each_fault_does_its_own_and_nothing_else(faults: Faults, possible: set[tuple[int, str]]) -> None:
    met = outcomes(faults)
    assert set(met) == possible
    assert min(met.values()) > 20


def test_messages_travel_as_bytes_when_they_are_to() -> None:
    state = SessionState(session=bytes(16), epoch=1, round=0, committed=0, digest=bytes(32))
    network = Network(Agenda(), None, encoded=True)
    heard: list[Any] = []
    network.settle(Call(heard.append), Reply(1, state))
    assert heard == [Reply(1, state)]
    assert heard[0].message is not state


# ---- the shell -------------------------------------------------------------------------------------------------------


class Scripted:
    """A machine that answers each input with the effects of a script."""

    def __init__(self, script: dict[Any, list[Any]]) -> None:
        self.script = script
        self.given: list[Any] = []

    def handle(self, event: Any) -> list[Any]:
        self.given.append(event)
        return self.script.get(event, [])


def driven(script: dict[Any, list[Any]]) -> tuple[Driven, Agenda, Network]:
    agenda = Agenda()
    network = Network(agenda, None)
    return Driven(Scripted(script), agenda, network), agenda, network


def given(held: Driven) -> list[Any]:
    assert isinstance(held.machine, Scripted)
    return held.machine.given


def test_a_request_is_answered_once() -> None:
    held, agenda, _ = driven({1: [Reply(1, None), Reply(1, None)]})
    heard: list[Any] = []
    held.ask(Call(heard.append), lambda request: request)
    drain(agenda)
    assert heard == [Reply(1, None)]


def test_a_machine_that_died_between_two_effects_does_no_more() -> None:
    held, agenda, _ = driven({"go": [SetTimer("a", 1), SendEvent(None), SetTimer("b", 1)]})  # type: ignore[arg-type]
    heard: list[Any] = []
    held.ask(Call(heard.append), lambda _: "waits")
    held.able({SendEvent: lambda _: held.die()})
    held.handle("go")
    held.handle("after")
    drain(agenda)
    assert given(held) == ["waits", "go"]
    assert heard == [SILENCE], "who waits hears nothing, but not for ever"


def test_work_of_the_dead_is_not_done_and_what_they_sent_is() -> None:
    held, agenda, network = driven({})
    done: list[str] = []
    held.work(lambda: done.append("work"))
    held.send(lambda call: done.append("sent") or network.answer(call, "answer"), lambda answer: answer)
    held.die()
    drain(agenda)
    assert done == ["sent"]
    assert given(held) == []


def test_abandon_ends_what_is_under_way() -> None:
    held, agenda, network = driven({"stop": [Abandon()], "on": [SetTimer("t", 1), CancelTimer("u")]})
    held.send(lambda call: network.answer(call, "answer"), lambda answer: answer)
    held.work(lambda: "work")
    held.handle("on")
    held.handle("stop")
    drain(agenda)
    assert given(held) == ["on", "stop", TimerFired("t")]


def test_a_peer_that_gives_up_is_told_to_the_machine_once() -> None:
    held, agenda, network = driven({})
    call = Call(lambda _: None)
    held.ask(call, lambda request: request)
    network.give_up(call)
    network.give_up(call)
    drain(agenda)
    assert given(held) == [1, RequestCancelled(1)]


def test_an_answer_that_says_nothing_is_no_input() -> None:
    held, agenda, network = driven({})
    held.send(lambda call: network.answer(call, Refuse(0, None)), lambda _: None)  # type: ignore[arg-type]
    drain(agenda)
    assert given(held) == []


# ---- the store -------------------------------------------------------------------------------------------------------


def test_appends_are_conditional_and_fenced() -> None:
    seen: list[bytes] = []
    store = Store(appended=seen.append)
    first = store.append(AppendLog(LOG, record(1), None), load=7)
    assert isinstance(first, LogAppended)
    assert first.load == 7
    assert isinstance(store.append(AppendLog(LOG, record(2), None)), LogMoved)
    fence = FenceRecord(epoch=2).encode()
    fenced = store.append(AppendLog(LOG, fence, first.etag))
    assert isinstance(fenced, LogAppended)
    assert isinstance(store.append(AppendLog(LOG, record(2), fenced.etag)), LogFenced)
    assert isinstance(store.append(AppendLog(LOG, fence, fenced.etag)), LogFenced)
    assert store.read(ReadLog(LOG, len(record(1)))) == LogRead(len(record(1)), fence, fenced.etag)
    assert seen == [record(1), fence]
    assert (store.octets_written, store.octets_read) == (len(record(1)) + len(fence), len(fence))


def test_a_store_that_knows_no_fences_takes_a_stale_epoch() -> None:
    store = Store(enforces_fences=False)
    store.append(AppendLog(LOG, FenceRecord(epoch=2).encode(), None))
    assert isinstance(store.append(AppendLog(LOG, record(1), '"1"')), LogAppended)


def test_a_log_that_is_not_there_has_no_tag() -> None:
    assert Store().read(ReadLog(LOG, 0)) == LogRead(0, b"", None)


def test_token_objects_come_back_or_say_why_not() -> None:
    store = Store()
    ref = store.put_tokens((1, 2, 300))
    assert store.fetch_tokens(FetchTokens(ref, 99)) == TokensFetched(ref, (1, 2, 300))
    statuses = [store.fetch_tokens(FetchTokens(*each)) for each in ((ref, 3), ("memory:/other", 99))]
    assert [each.error.status for each in statuses if not isinstance(each, TokensFetched)] == [422, 503]
