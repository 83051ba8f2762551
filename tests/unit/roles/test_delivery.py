"""A front end loses and repeats no token, whatever fails between it and the verifier (6.7, D8, D30, D33, D34, D35)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp import errors
from sdcp.http.resources import decode_id
from sdcp.messages.contract import Action
from sdcp.messages.output import Output
from sdcp.messages.request import GenerationRequest, Location
from sdcp.roles.delivery import Account, Delivery, FrontEnd, Wanted
from sdcp.roles.peers import RefusedError, UnansweredError

SESSION = bytes(16)
R1, R2, V1, V2 = "https://r1", "https://r2", "https://v1", "https://v2"
WANTED = Wanted(prompt=(1, 2), max_new=9, stop=(7,), rule=1)
TOKENS = tuple(range(10, 19))
STALE = RefusedError(errors.StaleEpoch("moved"))
LOST = UnansweredError("no answer")


def output(start: int, end: int, epoch: int = 1, **members: Any) -> Output:
    return Output(
        **{"session": SESSION, "epoch": epoch, "from_": start, "tokens": TOKENS[start:end], "final": False, **members}
    )


def last(start: int, epoch: int = 1, finish: Action = Action.FINISH) -> Output:
    return output(start, 9, epoch, final=True, finish=finish)


def at(verifier: str, epoch: int = 1, **members: Any) -> Location:
    return Location(session=SESSION, epoch=epoch, verifier=verifier, **members)


class Peers:
    """Answers in turn what a test has written; keeps what was asked. A callable answers for itself."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str]] = []
        self.request: GenerationRequest | None = None
        self.told: list[tuple[str, str]] = []

    async def ask(self, method: str, url: str, kind: type, message: Any = None, **options: Any) -> Any:
        self.asked.append((method, url))
        self.request = message or self.request
        answer = self.answers.pop(0)
        if callable(answer):
            answer = await answer()
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, kind)
        return answer

    async def tell(self, method: str, url: str, *_: Any, **options: Any) -> None:
        self.told.append((method, url))


async def no_sleep(_: float) -> None:
    await asyncio.sleep(0)


async def read(peers: Peers, **options: Any) -> list[Delivery]:
    front_end = FrontEnd(peers, (R1, R2), bytes(32), sleep=no_sleep, **options)  # type: ignore[arg-type]
    try:
        return [delivery async for delivery in front_end.generate(WANTED)]
    finally:
        await front_end.settle()


def tokens_of(deliveries: list[Delivery]) -> tuple[int, ...]:
    return sum((delivery.tokens for delivery in deliveries), ())


@pytest.mark.requirement("S6.7-from-index", "S6.7-final")
@pytest.mark.decision("D33")
async def test_a_request_is_submitted_and_its_output_read_to_the_end() -> None:
    peers = Peers(at(V1), output(0, 3), output(3, 3), last(3))
    deliveries = await read(peers)
    assert tokens_of(deliveries) == TOKENS
    assert [delivery.finish for delivery in deliveries] == [None, None, Action.FINISH]
    outputs = f"{V1}/sessions/AAAAAAAAAAAAAAAAAAAAAA/output"
    assert peers.asked == [
        ("POST", f"{R1}/requests"),
        ("GET", f"{outputs}?from=0"),
        ("GET", f"{outputs}?from=3"),
        ("GET", f"{outputs}?from=3"),
    ]
    sent = peers.request
    assert sent is not None
    assert (sent.prompt, sent.max_new, sent.stop, sent.rule, sent.tokenizer) == ((1, 2), 9, (7,), 1, bytes(32))
    assert peers.told == []  # it ended by itself: nothing to withdraw


@pytest.mark.requirement("S6.7-stable-indices", "S6.7-epoch-carried")
@pytest.mark.decision("D30-stale-epoch")
@pytest.mark.parametrize("fault", [STALE, LOST, RefusedError(errors.UnknownResource("restarted"))])
async def test_after_a_failover_reading_goes_on_at_the_index_reached(fault: Exception) -> None:
    peers = Peers(at(V1), output(0, 3), fault, at(V2, 2), output(3, 6, 2), last(6, 2))
    deliveries = await read(peers)
    assert tokens_of(deliveries) == TOKENS
    assert [delivery.epoch for delivery in deliveries] == [1, 2, 2]
    assert peers.asked[3] == ("GET", f"{R1}/requests/{peers.asked[3][1].split('/')[-1].split('?')[0]}?epoch=1")
    assert peers.asked[4][1].startswith(f"{V2}/sessions/")
    assert peers.asked[4][1].endswith("?from=0")  # what was read is compared
    assert peers.asked[5][1].endswith("?from=6")


@pytest.mark.decision("D47-compared")
@pytest.mark.parametrize("again", [output(0, 0, 2), output(0, 2, 2), output(2, 2, 2), output(0, 6, 2, tokens=(9,) * 6)])
async def test_a_verifier_that_goes_on_without_tokens_that_were_read_is_not_believed(again: Output) -> None:
    peers = Peers(at(V1), output(0, 3), LOST, at(V2, 2), again)
    with pytest.raises(errors.InternalFault):
        await read(peers)
    assert [method for method, _ in peers.told] == ["DELETE"]


@pytest.mark.decision("D47-compared")
async def test_of_long_output_the_end_alone_is_compared() -> None:
    first, more = tuple(range(100)), tuple(range(36, 102))
    peers = Peers(
        at(V1),
        output(0, 0, tokens=first),
        LOST,
        at(V2, 2),
        output(36, 0, 2, tokens=more),
        output(102, 0, 2, final=True, finish=Action.FINISH),
    )
    assert tokens_of(await read(peers)) == tuple(range(102))
    assert [url.partition("?")[2] for _, url in peers.asked[4:]] == ["from=36", "from=102"]


@pytest.mark.decision("D47-session")
async def test_who_cannot_have_its_tokens_any_more_is_told_why_at_once() -> None:
    refusal = RefusedError(errors.InvalidContent("The commit log is damaged."))
    peers = Peers(at(V1), output(0, 3), LOST, refusal)
    with pytest.raises(errors.InvalidContent, match="damaged"):
        await read(peers)


@pytest.mark.requirement("S6.7-lower-epoch-discarded", "S6.9-older-output-discarded")
async def test_output_of_a_lower_epoch_than_one_seen_is_discarded() -> None:
    old = Output(session=SESSION, epoch=1, from_=3, tokens=(66, 66), final=True, finish=Action.FINISH)
    peers = Peers(at(V1, 2), output(0, 3, 2), old, at(V2, 2), last(3, 2))
    assert tokens_of(await read(peers)) == TOKENS


async def test_output_that_begins_earlier_or_later_than_asked_repeats_and_skips_nothing() -> None:
    peers = Peers(at(V1), output(0, 3), output(1, 5), output(7, 9), at(V1), last(5))
    assert tokens_of(await read(peers)) == TOKENS


async def test_while_there_is_no_news_the_verifier_is_asked_again() -> None:
    peers = Peers(at(V1), LOST, at(V1), LOST, LOST, output(0, 2), last(2))
    assert tokens_of(await read(peers)) == TOKENS


@pytest.mark.decision("D33-ended")
async def test_a_session_that_ended_at_a_verifier_that_is_gone_comes_from_the_router() -> None:
    ended = at(V1, ended=Action.FINISH)
    whole = at(V1, ended=Action.FINISH, tokens=TOKENS)
    peers = Peers(at(V1), output(0, 4), LOST, ended, LOST, whole)
    deliveries = await read(peers)
    assert tokens_of(deliveries) == TOKENS
    assert deliveries[-1].finish == Action.FINISH


@pytest.mark.decision("D35-without")
async def test_accounts_come_with_output_when_the_verifier_keeps_them() -> None:
    peers = Peers(at(V1), output(0, 3, passes=1, proposed=4, accepted=2), output(3, 6, passes=2), last(6))
    assert [delivery.account for delivery in await read(peers)] == [Account(1, 4, 2), None, None]


@pytest.mark.decision("D33")
async def test_another_router_is_asked_when_one_does_not_answer() -> None:
    peers = Peers(LOST, LOST, at(V1), last(0))
    assert tokens_of(await read(peers)) == TOKENS
    assert [url for method, url in peers.asked if method == "POST"] == [f"{R1}/requests"] * 2 + [f"{R2}/requests"]


async def test_a_refusal_is_told_as_it_is_and_nothing_withdrawn() -> None:
    refusal = errors.BadContract("P + max_new is over the context")
    peers = Peers(RefusedError(refusal))
    with pytest.raises(errors.BadContract) as raised:
        await read(peers)
    assert raised.value is refusal
    assert peers.told == []


async def test_when_nobody_answers_any_more_the_request_is_given_up_and_withdrawn() -> None:
    peers = Peers(at(V1), *[LOST] * 4)
    with pytest.raises(errors.Overloaded):
        await read(peers, patience_s=-1.0)
    assert [method for method, _ in peers.told] == ["DELETE"]


NOBODY = RefusedError(errors.UnknownResource("restarted"))


@pytest.mark.decision("D33")
async def test_a_session_that_stands_still_is_given_up_when_the_router_has_lost_the_request() -> None:
    """Its verifier goes on answering readers, with nothing: a client would wait for ever."""
    peers = Peers(at(V1), output(0, 3), output(3, 3), NOBODY)
    with pytest.raises(errors.Overloaded, match="router has lost the request"):
        await read(peers, unattended_s=-1.0)


@pytest.mark.decision("D33")
@pytest.mark.parametrize("router", [at(V1), LOST, RefusedError(errors.Overloaded("busy"))])
async def test_a_session_that_stands_still_is_waited_for_while_the_router_may_know_it(router: Any) -> None:
    peers = Peers(at(V1), output(0, 3), output(3, 3), router, last(3))
    assert tokens_of(await read(peers, unattended_s=-1.0)) == TOKENS


@pytest.mark.requirement("S6.9-older-output-discarded")
@pytest.mark.decision("D30")
async def test_a_session_that_moved_while_its_old_verifier_sits_idle_is_followed() -> None:
    """Taken for dead though it lives, it never learns of the fence and would answer with nothing for ever."""
    moved = Peers(at(V1), output(0, 3), output(3, 3), at(V2, 2), last(3, 2))
    assert tokens_of(await read(moved, unattended_s=-1.0)) == TOKENS
    ended = at(V1, 2, ended=Action.FINISH, tokens=TOKENS)
    over = Peers(at(V1), output(0, 3), output(3, 3), at(V1, 2, ended=Action.FINISH), ended)
    assert tokens_of(await read(over, unattended_s=-1.0)) == TOKENS


@pytest.mark.requirement("S6.9-fence-first")
@pytest.mark.decision("D33")
async def test_a_verifier_that_slept_through_its_fencing_keeps_no_reader() -> None:
    """It answers with nothing and its old epoch, for ever: it would notice the fence with an append alone."""
    peers = Peers(at(V1), output(0, 3), output(3, 3), at(V2, 2), output(3, 6, 2), last(6, 2))
    deliveries = await read(peers, unattended_s=-1.0)
    assert tokens_of(deliveries) == TOKENS
    assert peers.asked[3][1].startswith(f"{R1}/requests/")
    assert "?" not in peers.asked[3][1]  # nothing is wrong with the epoch that we know of
    assert peers.asked[4][1].startswith(f"{V2}/sessions/")


@pytest.mark.decision("D33")
async def test_what_ended_elsewhere_meanwhile_comes_from_the_router() -> None:
    ended, whole = at(V2, 2, ended=Action.FINISH), at(V2, 2, ended=Action.FINISH, tokens=TOKENS)
    peers = Peers(at(V1), output(0, 3), output(3, 3), ended, whole)
    deliveries = await read(peers, unattended_s=-1.0)
    assert tokens_of(deliveries) == TOKENS
    assert deliveries[-1].finish == Action.FINISH
    assert peers.asked[4][1].endswith("?epoch=2")


async def test_without_tokens_and_without_a_router_patience_ends_too() -> None:
    peers = Peers(at(V1), output(0, 0), LOST)
    with pytest.raises(errors.Overloaded, match="Neither"):
        await read(peers, unattended_s=-1.0, patience_s=-1.0)


@pytest.mark.decision("D34")
async def test_a_reader_that_stops_withdraws_its_request() -> None:
    peers = Peers(at(V1), output(0, 3))
    front_end = FrontEnd(peers, (R1,), None, sleep=no_sleep)  # type: ignore[arg-type]
    async with aclosing(front_end.generate(WANTED)) as deliveries:
        assert (await anext(deliveries)).tokens == TOKENS[:3]
    await front_end.settle()
    (told,) = peers.told
    assert told[0] == "DELETE"
    assert peers.request is not None
    assert decode_id(told[1].rpartition("/")[2]) == peers.request.request


@pytest.mark.decision("D34")
@pytest.mark.parametrize("before", [(), (at(V1),)])
async def test_a_reader_that_is_cancelled_withdraws_its_request(before: tuple[Location, ...]) -> None:
    reached = asyncio.Event()

    async def hang() -> None:
        reached.set()
        await asyncio.Event().wait()

    peers = Peers(*before, hang)
    front_end = FrontEnd(peers, (R1,), None)  # type: ignore[arg-type]
    reading = asyncio.ensure_future(anext(front_end.generate(WANTED)))
    await reached.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await front_end.settle()
    assert [method for method, _ in peers.told] == ["DELETE"]


STEPS = st.lists(st.tuples(st.sampled_from(["more", "lost", "stale", "old", "moved"]), st.integers(0, 3)), max_size=30)


@given(STEPS)
def test_every_token_comes_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    """6.7: whatever the verifiers and the network do, as long as indices are stable and epochs told."""
    world = _World(steps)
    peers = Peers(*[world.submitted], *[world.answer] * 200)
    assert tokens_of(asyncio.run(read(peers))) == TOKENS


class _World:
    """Verifiers that lose, move and lie about the past as told, and then serve to the end."""

    def __init__(self, steps: list[tuple[str, int]]) -> None:
        self.steps = steps
        self.epoch = 1
        self.index = 0
        self.relocating = False

    async def submitted(self) -> Any:
        return at(V1)

    async def answer(self) -> Any:
        if self.relocating:
            self.relocating = False
            return at(V2, self.epoch)
        kind, size = self.steps.pop(0) if self.steps else ("end", 0)
        return _ANSWERS[kind](self, size)

    def more(self, size: int) -> Output:
        start, self.index = self.index, min(self.index + size, 8)
        return output(start, self.index, self.epoch)

    def lost(self, _: int) -> Exception:
        self.relocating = True
        return LOST

    def old(self, size: int) -> Output:
        """Output of a lower epoch: to be discarded, and the router asked."""
        self.relocating = True
        return Output(session=SESSION, epoch=self.epoch - 1, from_=self.index, tokens=(99,) * size, final=True)

    def moved(self, _: int) -> Exception:
        self.epoch += 1
        self.relocating = True
        return STALE

    def end(self, _: int) -> Output:
        return last(self.index, self.epoch)


_ANSWERS: dict[str, Callable[[_World, int], Any]] = {
    "more": _World.more,
    "lost": _World.lost,
    "stale": _World.moved,
    "old": _World.old,
    "moved": _World.moved,
    "end": _World.end,
}


class Restarting(Peers):
    """A router that is away for a while, as far as withdrawals go."""

    def __init__(self, *answers: Any, faults: tuple[Exception, ...]) -> None:
        super().__init__(*answers)
        self._faults = list(faults)

    async def tell(self, method: str, url: str, *_: Any, **options: Any) -> None:
        await super().tell(method, url)
        if self._faults:
            raise self._faults.pop(0)


@pytest.mark.decision("D34", "D45")
@pytest.mark.parametrize(
    ("faults", "tries"),
    [
        ((LOST, RefusedError(errors.Overloaded("starting"))), 3),
        ((RefusedError(errors.UnknownResource("not here")),), 1),
        ((LOST,) * 9, 5),
    ],
)
async def test_a_router_that_is_just_starting_again_is_told_of_a_withdrawal(
    faults: tuple[Exception, ...], tries: int
) -> None:
    peers = Restarting(at(V1), output(0, 3), faults=faults)
    front_end = FrontEnd(peers, (R1,), None, sleep=no_sleep)  # type: ignore[arg-type]
    async with aclosing(front_end.generate(WANTED)) as deliveries:
        await anext(deliveries)
    await front_end.settle()
    assert len(peers.told) == tries


@pytest.mark.decision("D34", "D45")
async def test_a_router_that_did_not_answer_is_told_that_another_one_has_the_request() -> None:
    peers = Peers(LOST, LOST, at(V1), last(0))
    assert tokens_of(await read(peers)) == TOKENS
    ((method, target),) = peers.told
    assert (method, target.startswith(R1)) == ("DELETE", True)
