"""All interleavings of those who contend for one commit log, against any log store (6.3 step 8, 6.8, 6.9, D27).

A *step* is one operation of one contender on the log with one fate, or the arrival of an append that was late:

    answered   the store does it, and the answer comes
    unheard    the store does it, and the answer is lost: the contender tries again as its machine does
    late       no answer comes and nothing is done, but the append is still on its way and may arrive at any moment
    restart    the contender's process dies and begins anew; the append that it had sent is late

What a contender does with an answer is its own affair and is no step: its next operation is one, and that comes at
every later moment too. A verdict that leaves later than its answer is covered by this: it is checked at every moment
from its answer on.

`explore` tries all sequences of steps up to a depth. Two sequences are followed further as one only when they have led
to the same state: equal machines to their last field, equal octets and entity tag of the log, equal late appends. The
store is never a model of itself: a log's state is the history of all that was asked of it, refusals too, and a store
carries out that history from its beginning (`LogStore`).

What must hold in every state is in `sdcp.testing.log_checks`. From every last state on answers are lost no more, and
then a router fences, its verifier goes on, and all others stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from sdcp.errors import ProblemError
from sdcp.machines.effects import AppendLog, ReadLog
from sdcp.machines.inputs import LogAppended, LogRead
from sdcp.messages.session import SessionOpen
from sdcp.testing.checks import Broken
from sdcp.testing.contenders import DRAWN, FIRST_OPEN, REF, Key, Router, Verifier, router, verifier
from sdcp.testing.log_checks import Plain, check_step, check_verifier, read_plainly
from sdcp.testing.log_stores import Answer, LogStore
from sdcp.wire import cbor

Contender = Verifier | Router
MOST_OPERATIONS = 24
"""So many of its operations, one after another and all answered, bring every contender to an end of what it does."""


# ---- worlds ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """A moment: the log, the contenders, the appends that are late; how it came about."""

    place: Any
    contenders: tuple[Contender, ...]
    late: tuple[AppendLog, ...] = ()
    before: World | None = None
    step: tuple[str, AppendLog | ReadLog | None, str] = ("", None, "")
    """Whose it was, what it was, what came of it."""

    @property
    def story(self) -> str:
        """The steps that led here."""
        steps, world = [], self
        while world.before is not None:
            who, effect, fate = world.step
            steps.append(" ".join(filter(None, (who, _said(effect), fate))))
            world = world.before
        return "; ".join(reversed(steps)) or "the beginning"


@dataclass(slots=True)
class Coverage:
    """What an exploration has been through.

    `interleavings`: sequences of steps, of which `full` have the whole length. `states`: how many moments differ, in
    layers by length. `logs`: contents of the log. Then in how many states some verifier has released a verdict, has
    met a fence, a later one than the first has released one, and the log has a void record.
    """

    interleavings: int = 0
    full: int = 0
    states: int = 0
    logs: int = 0
    released: int = 0
    fenced: int = 0
    resumed: int = 0
    void: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """Who contends at first: a verifier of epoch 1, which has opened, and the routers. `spread` as in `contenders`.

    `restarts`: how often each verifier may die. `reads_back`: False for verifiers that trust any store, against 6.8.
    `blind`: the first verifier is of another make, with a `BlindLog`.
    """

    routers: int = 1
    restarts: int = 0
    spread: int = DRAWN
    reads_back: bool = True
    blind: bool = False


# ---- the exploration -------------------------------------------------------------------------------------------------


def explore(store: LogStore, depth: int, cast: Cast | None = None) -> Coverage:
    """Try every sequence of at most `depth` steps; Broken, with the story, when something does not hold."""
    return _Exploration(store, cast or Cast()).run(depth)


@dataclass(slots=True)
class _Reached:
    """A world, and in how many ways it is reached."""

    world: World
    ways: int


class _Exploration:
    def __init__(self, store: LogStore, cast: Cast) -> None:
        self.store = store
        self.cast = cast
        self.coverage = Coverage()
        self._contenders: dict[Key, Contender] = {}
        self._turns: dict[tuple[int, Any], Contender] = {}
        self._logs: set[bytes] = set()
        self._rested: set[Any] = set()
        self._checked: set[tuple[int, int]] = set()
        self._plainly = cache(partial(read_plainly, enforced=store.enforces_fences))

    def run(self, depth: int) -> Coverage:
        begin = self._begin()
        layer = {self._key(begin): _Reached(begin, 1)}
        for _ in range(depth):
            layer = self._next(layer)
            self.coverage.full = sum(reached.ways for reached in layer.values())
            self.coverage.interleavings += self.coverage.full
            self.coverage.states += len(layer)
        # What is late never arrives from now on, so worlds that differ in nothing else come to rest alike.
        for world in {self._key(reached.world)[:-1]: reached.world for reached in layer.values()}.values():
            self._come_to_rest(world)
        self.coverage.logs = len(self._logs)
        return self.coverage

    def _next(self, layer: dict[Key, _Reached]) -> dict[Key, _Reached]:
        worlds = [reached.world for reached in layer.values()]
        self.store.prepare([(world.place, effect) for world in worlds for effect in _appends(world)])
        following: dict[Key, _Reached] = {}
        for reached in layer.values():
            for after in self._steps(reached.world):
                known = following.get(key := self._key(after))
                if known is None:
                    self._check(after)
                    self._count(after)
                    following[key] = _Reached(after, reached.ways)
                else:
                    known.ways += reached.ways
        return following

    def _begin(self) -> World:
        place = self.store.begin()
        first = replace(self._verifier(FIRST_OPEN, ()), blind=self.cast.blind).answered(
            self.store.read(place, ReadLog(REF, 0))
        )
        contenders: list[Contender] = [first, *(router() for _ in range(self.cast.routers))]
        return World(place, tuple(map(self._known, contenders)))

    def _verifier(self, message: SessionOpen, tokens: tuple[int, ...]) -> Verifier:
        fences = self.store.enforces_fences or not self.cast.reads_back
        return verifier(message, tokens, self.cast.spread, enforces_fences=fences)

    def _key(self, world: World) -> Key:
        return (world.place.octets, world.place.etag, tuple(map(id, world.contenders)), world.late)

    def _known(self, contender: Contender) -> Contender:
        return self._contenders.setdefault(contender.key, contender)

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _steps(self, world: World) -> Iterator[World]:
        for index, contender in enumerate(world.contenders):
            if contender.wants is not None:
                yield from self._operations(world, index, contender.wants)
            if isinstance(contender, Verifier) and contender.life < self.cast.restarts:
                yield self._restart(world, index, contender)
        for index, effect in enumerate(world.late):
            if effect not in world.late[:index]:
                _, place = self._append(world, effect)
                late = (*world.late[:index], *world.late[index + 1 :])
                yield World(place, world.contenders, late, world, ("", effect, "arrives"))

    def _operations(self, world: World, index: int, effect: AppendLog | ReadLog) -> Iterator[World]:
        name = _name(world, index)
        yield self.answered(world, index)
        unheard = self._turn(world.contenders[index], None)
        if isinstance(effect, AppendLog):
            _, place = self._append(world, effect)
            yield self._with(world, index, unheard, place, step=(name, effect, "unheard"))
            yield self._with(world, index, unheard, world.place, late=effect, step=(name, effect, "late"))
        else:
            yield self._with(world, index, unheard, world.place, step=(name, effect, "unheard"))

    def answered(self, world: World, index: int) -> World:
        """What comes of a world in which a contender's operation is done and answered."""
        contender = world.contenders[index]
        effect = contender.wants
        assert effect is not None
        answer: Answer | LogRead
        if isinstance(effect, AppendLog):
            answer, place = self._append(world, effect)
        else:
            answer, place = self.store.read(world.place, effect), world.place
        step = (_name(world, index), effect, type(answer).__name__)
        return self._with(world, index, self._turn(contender, answer), place, step=step)

    def _append(self, world: World, effect: AppendLog) -> tuple[Answer, Any]:
        """Have an append done: it is taken whole where it was meant to be, or leaves the log as it was (6.8)."""
        was = world.place
        answer, place = self.store.append(was, effect)
        if isinstance(answer, LogAppended):
            right = effect.etag == was.etag != place.etag and place.octets == was.octets + effect.data
        else:
            right = (place.octets, place.etag) == (was.octets, was.etag)
        if not right:
            raise Broken(f"{_said(effect)} and {type(answer).__name__} do not go together, after: {world.story}")
        return answer, place

    def _restart(self, world: World, index: int, contender: Verifier) -> World:
        late = contender.wants if isinstance(contender.wants, AppendLog) else None
        step = (_name(world, index), None, "restarts")
        return self._with(world, index, self._known(contender.restarted()), world.place, late=late, step=step)

    def _turn(self, contender: Contender, answer: Any) -> Contender:
        """What a contender becomes; machines are deterministic, so each is asked once."""
        known = self._turns.get((id(contender), answer))
        if known is None:
            try:
                after = contender.unanswered() if answer is None else contender.answered(answer)
            except ProblemError as fault:
                raise Broken(f"{type(contender).__name__} cannot go on: {fault.detail}") from fault
            known = self._turns[id(contender), answer] = self._known(after)
        return known

    def _with(
        self,
        world: World,
        index: int,
        contender: Contender,
        place: Any,
        *,
        step: tuple[str, AppendLog | ReadLog | None, str],
        late: AppendLog | None = None,
    ) -> World:
        contenders = [*world.contenders[:index], contender, *world.contenders[index + 1 :]]
        was = world.contenders[index]
        if isinstance(contender, Router) and isinstance(was, Router) and contender.fenced != was.fenced:
            assert contender.opens is not None
            contenders.append(self._known(self._verifier(contender.opens, contender.tokens)))
        waiting = world.late if late is None else tuple(sorted((*world.late, late), key=_order))
        return World(place, tuple(contenders), waiting, world, step)

    # ---- what must hold ----------------------------------------------------------------------------------------------

    def _check(self, world: World) -> None:
        assert world.before is not None
        try:
            log = self._plainly(world.place.octets)
            self._check_contenders(log, world.contenders)
            for was, now in zip(world.before.contenders, world.contenders, strict=False):
                if was is not now:
                    check_step(log, was, now)
        except Broken as broken:
            raise Broken(f"{broken}, after: {world.story}") from None
        self._logs.add(world.place.octets)

    def _check_contenders(self, log: Plain, contenders: tuple[Contender, ...]) -> None:
        for each in contenders:
            if isinstance(each, Verifier) and (pair := (id(log), id(each))) not in self._checked:
                check_verifier(log, each, restarts=bool(self.cast.restarts))
                self._checked.add(pair)

    def _count(self, world: World) -> None:
        coverage, log = self.coverage, self._plainly(world.place.octets)
        verifiers = [each for each in world.contenders if isinstance(each, Verifier)]
        coverage.released += any(each.released for each in verifiers)
        coverage.fenced += any(each.over == "Fenced" for each in verifiers)
        coverage.resumed += any(each.released for each in verifiers if each.epoch > 1)
        coverage.void += log.void > 0

    def _come_to_rest(self, world: World) -> None:
        """From here on every answer comes: then a router fences, its verifier goes on, and all others stop."""
        passed: set[Any] = set()
        first_router = next(i for i, each in enumerate(world.contenders) if isinstance(each, Router))
        calm = self._until(world, first_router, lambda now, was: now.fenced != was.fenced, passed)
        newest = len(calm.contenders) - 1 if calm else 0
        calm = calm and self._until(calm, newest, lambda now, was: len(now.released) > len(was.released), passed)
        for index in range(newest):
            if calm and isinstance(calm.contenders[index], Verifier):
                calm = self._until(calm, index, lambda now, _: now.over, passed)
        self._rested |= passed

    def _until(self, world: World, index: int, enough: Callable[[Any, Any], object], passed: set[Any]) -> World | None:
        """Let one contender go on until it has done enough. None: from here on it is known to end well."""
        was = world.contenders[index]
        for _ in range(MOST_OPERATIONS):
            if enough(world.contenders[index], was):
                return world
            mark = (index, id(was), *self._key(world)[:-1])
            if mark in self._rested:
                return None
            passed.add(mark)
            if world.contenders[index].wants is None:
                break
            world = self.answered(world, index)
            self._check(world)
        raise Broken(f"{_name(world, index)} gets nowhere, after: {world.story}")


def _appends(world: World) -> Iterator[AppendLog]:
    yield from world.late
    for contender in world.contenders:
        if isinstance(contender.wants, AppendLog):
            yield contender.wants


def _order(effect: AppendLog) -> tuple[bytes, str]:
    return effect.data, effect.etag or ""


def _name(world: World, index: int) -> str:
    contender = world.contenders[index]
    return f"verifier {contender.epoch}" if isinstance(contender, Verifier) else f"router {index}"


def _said(effect: AppendLog | ReadLog | None) -> str:
    if effect is None:
        return ""
    if isinstance(effect, ReadLog):
        return f"reads from {effect.start}"
    record = cbor.decode(effect.data)
    assert isinstance(record, dict)
    what = f"round {record['round']}" if "round" in record else "fence"
    return f"append of {what} of epoch {record['epoch']} at {effect.etag}"
