"""Worlds with a clock, part by part: the agenda with a time, fate, and the wires."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from sdcp.testing.clock import Clock
from sdcp.testing.fate import CALM_MS, Fate, Stroke
from sdcp.testing.network import SILENCE, SOUND, Call, Faults
from sdcp.testing.wires import DEADLINE_MS, WORK_MS, Wires


def drain(clock: Clock, until_ms: float = 60_000.0) -> None:
    while clock.now_ms < until_ms and clock.step():
        pass


# ---- the clock -------------------------------------------------------------------------------------------------------


def test_things_happen_when_they_are_due_and_at_one_moment_in_the_order_asked_for() -> None:
    clock, done = Clock(), list[Any]()

    def note(what: str) -> None:
        done.append((clock.now_ms, what))

    clock.post("", 5.0, note, "late")
    clock.set_timer(1, "timer", note, 3.0)
    clock.add(note, "now")
    clock.add(note, "now too")
    clock.watch_for("", 3.0, note, "watched")
    assert not clock.idle
    drain(clock)
    assert done == [(0.0, "now"), (0.0, "now too"), (3.0, "timer"), (3.0, "watched"), (5.0, "late")]
    assert not clock.step()


def test_a_timer_set_again_moves_and_one_that_is_cancelled_or_forgotten_never_fires() -> None:
    clock, done = Clock(), list[str]()
    for owner, name in ((1, "a"), (1, "b"), (2, "c"), (2, "d")):
        clock.set_timer(owner, name, done.append, 1.0)
    clock.set_timer(2, "d", done.append, 9.0)
    clock.cancel_timer(2, "c")
    clock.cancel_timer(2, "never set")
    clock.forget(1)
    assert clock.idle, "timers keep nobody waiting"
    drain(clock)
    assert (done, clock.now_ms) == (["d"], 9.0)


def test_who_stands_still_does_everything_later_and_in_order() -> None:
    clock, done = Clock(), list[Any]()
    clock.stop("one")
    clock.stop("one")
    clock.post("one", 1.0, done.append, "work")
    clock.set_timer(0, "timer", done.append, 2.0, "one")
    clock.post("other", 3.0, done.append, "other")
    clock.watch_for("", 4.0, clock.go_on, "one")
    clock.watch_for("", 6.0, clock.go_on, "one")
    while clock.now_ms < 6.0:
        assert clock.step()
        assert clock.now_ms == 6.0 or done in ([], ["other"])
    assert not clock.idle
    drain(clock)
    assert done == ["other", "work", "timer"]
    assert clock.now_ms == 6.0, "time does not go back"


# ---- fate ------------------------------------------------------------------------------------------------------------


def test_strokes_have_names_and_a_script_of_them_replays_them() -> None:
    faults = Faults(lost=0.2, late=0.2, twice=0.2, unanswered=0.3, slow=0.2)
    calls = [(kind, *pair) for kind in ("request", "answer", "work") for pair in (("a", "b"), ("b", "a"))] * 40

    def play(fate: Fate) -> list[Stroke | None]:
        return [fate.befalls(*call) for call in calls]

    first = Fate(Random(1), faults)
    drawn = play(first)
    assert {stroke.what for stroke in drawn if stroke} == {"lost", "late", "twice", "unanswered", "slow"}
    assert play(Fate(Random(2), SOUND, first.met)) == drawn
    kept = dict(list(first.met.items())[::2])
    again = play(Fate(Random(3), faults, kept))
    assert [stroke for stroke in again if stroke] == list(kept.values())


def test_nothing_befalls_anything_once_it_is_calm() -> None:
    scripted = {("request", "a", "b", number): Stroke("lost") for number in range(9)}
    for fate in (Fate(Random(1), Faults(lost=1.0)), Fate(Random(1), SOUND, scripted)):
        assert fate.befalls("request", "a", "b") is not None
        fate.calm()
        assert fate.befalls("request", "a", "b") is None


def test_each_kind_meets_its_own_faults_alone() -> None:
    fate = Fate(Random(1), Faults(lost=1.0, unanswered=1.0))
    met = {kind: fate.befalls(kind, "a", "b") for kind in ("request", "answer", "work")}
    assert {kind: stroke and stroke.what for kind, stroke in met.items()} == {
        "request": "lost",
        "answer": "unanswered",
        "work": None,
    }


# ---- the wires -------------------------------------------------------------------------------------------------------


class Line:
    """Somebody calls somebody, who answers at once. `happened`: what, and when."""

    def __init__(self, faults: Faults = SOUND, script: dict[Any, Stroke] | None = None) -> None:
        self.clock = Clock()
        self.wires = Wires(self.clock, Fate(Random(5), faults, script))
        self.happened: list[tuple[float, Any]] = []

    def call(self, sender: str = "a", to: str = "b") -> Call:
        call = Call(lambda answer: self._note("silence" if answer is SILENCE else answer), sender=sender)
        self.wires.send(call, self._arrive, to)
        return call

    def _arrive(self, call: Call) -> None:
        self._note("arrived")
        call.cancel = lambda: self._note("cancelled")
        self.wires.answer(call, "answer")

    def _note(self, what: object) -> None:
        self.happened.append((self.clock.now_ms, what))


ANSWERED = [(CALM_MS, "arrived"), (2 * CALM_MS, "answer")]


def test_a_message_takes_its_time() -> None:
    line = Line()
    line.call()
    drain(line.clock)
    assert line.happened == ANSWERED


@pytest.mark.parametrize(
    ("kind", "stroke", "happened"),
    [
        ("request", Stroke("lost"), [(DEADLINE_MS, "silence")]),
        ("request", Stroke("slow", 50.0), [(50.0, "arrived"), (52.0, "answer")]),
        ("request", Stroke("twice", 50.0), [*ANSWERED, (50.0, "arrived")]),
        ("request", Stroke("late", 3.0), [ANSWERED[0], (3.0, "silence"), (5.0, "cancelled")]),
        ("answer", Stroke("slow", 50.0), [ANSWERED[0], (52.0, "answer")]),
        (
            "answer",
            Stroke("unanswered"),
            [ANSWERED[0], (DEADLINE_MS, "silence"), (DEADLINE_MS + CALM_MS, "cancelled")],
        ),
    ],
)
def test_each_stroke_does_its_own(kind: str, stroke: Stroke, happened: list[Any]) -> None:
    between = ("a", "b") if kind == "request" else ("b", "a")
    line = Line(script={(kind, *between, 1): stroke})
    line.call()
    drain(line.clock)
    assert line.happened == happened


def test_who_is_cut_off_hears_nothing_either_way_until_all_cuts_are_mended() -> None:
    line = Line()
    line.wires.cut("b", "a")
    line.wires.cut("a", "b")
    line.call()
    line.call("a", "c")
    line.wires.mend("a", "b")
    line.call()
    drain(line.clock, DEADLINE_MS + 1)
    assert line.happened == [*ANSWERED, (DEADLINE_MS, "silence"), (DEADLINE_MS, "silence")]
    line.wires.mend("a", "b")
    line.happened.clear()
    line.call()
    drain(line.clock)
    assert [what for _, what in line.happened] == ["arrived", "answer"]


def test_an_answer_is_cut_off_too() -> None:
    line = Line()
    line.call()
    line.clock.watch_for("", 1.0, line.wires.cut, "a", "b")
    drain(line.clock)
    assert [what for _, what in line.happened] == ["arrived", "silence", "cancelled"]


def test_who_calls_one_that_is_down_hears_so_at_once() -> None:
    line = Line()
    line.wires.down.add("b")
    line.call()
    drain(line.clock)
    assert line.happened == [(2 * CALM_MS, "silence")]


def test_each_call_has_its_own_deadline() -> None:
    line = Line(Faults(lost=1.0))
    for after_ms in (0.0, 10.0, 500.0):
        line.clock.watch_for("", after_ms, line.call)
    drain(line.clock)
    assert line.happened == [(after_ms + DEADLINE_MS, "silence") for after_ms in (0.0, 10.0, 500.0)]


def test_a_sender_that_stands_still_gives_up_when_it_goes_on() -> None:
    line = Line(Faults(lost=1.0))
    line.call()
    line.clock.stop("a")
    line.clock.watch_for("", 9_000.0, line.clock.go_on, "a")
    drain(line.clock)
    assert line.happened == [(9_000.0, "silence")]


def test_work_takes_its_time_and_stands_still_with_its_process() -> None:
    line = Line(script={("work", "a", "a", 2): Stroke("slow", 70.0)})
    for _ in range(2):
        line.wires.local(Call(lambda _: None, sender="a"), lambda _, what: line._note(what), "done")
    drain(line.clock)
    assert line.happened == [(WORK_MS, "done"), (70.0, "done")]
