"""A second router with a certificate of its own, which lies about a session that another router has: see `lying`.

It overhears what the honest router says, and knows the log. What the answers must be is checked where the message can
have no right to be taken, whatever happens meanwhile: `REFUSED` says which, and a `Broken` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol

from sdcp.machines.effects import AppendLog, Reply
from sdcp.machines.inputs import LogAppended
from sdcp.messages.contract import Sampling
from sdcp.messages.record import FenceRecord
from sdcp.messages.round import Assignment
from sdcp.messages.session import Policy, Resume, SessionOpen
from sdcp.testing.checks import Broken
from sdcp.testing.lying import Script
from sdcp.testing.network import Answer, Call

FAR = 1000
"""So many epochs lie beyond all that a world comes to."""

REFUSED = frozenset(("put_contract", "put_epoch", "open_point", "open_epoch", "policy"))
"""What no verifier may take, whatever it knows by then."""


class World(Protocol):
    """What a second router sees of a world: `sdcp.testing.pair.Pair` is one."""

    watch: Any
    store: Any
    network: Any
    router: Any
    verifiers: Mapping[str, Any]
    drafters: Mapping[str, Any]


class LyingRouter:
    """The second router. `opens` and `puts`: what the honest one has said to verifiers."""

    def __init__(self, script: Script, session: bytes, prompt: tuple[int, ...], log: str) -> None:
        self.script = script
        self.session = session
        self.prompt = prompt
        self.log = log
        self.opens: list[SessionOpen] = []
        self.puts: list[Assignment] = []

    def lie(self, world: World, name: str) -> None:
        """Tell one lie."""
        LIES[name](self, world)

    # ---- saying ------------------------------------------------------------------------------------------------------

    def say(
        self, world: World, name: str, arrive: Callable[[Call], None], then: Callable[[], None] | None = None
    ) -> None:
        """Send a request; `then` follows an answer that is no refusal."""

        def hear(answer: Answer) -> None:
            if isinstance(answer, Reply | LogAppended):
                if name in REFUSED:
                    raise Broken(f"a verifier has taken the lie {name!r}")
                if then is not None:
                    then()

        world.network.send(Call(hear), arrive)

    def to_verifier(self, world: World, name: str, message: Any, how: str) -> None:
        """Send a message to the verifier of the session, or to some other."""
        luck, current = self.script.luck, world.router.machine.verifier
        uri = current if current is not None and luck.random() < 0.7 else luck.choice([*world.verifiers])
        self.say(world, name, getattr(world.verifiers[uri], how)(message))

    # ---- what it knows -----------------------------------------------------------------------------------------------

    def assignment(self, world: World, drafter: str | None = None) -> Assignment:
        """Return an assignment that is right in all but, perhaps, the drafter."""
        watch, luck = world.watch, self.script.luck
        tokens = tuple(watch.tokens)
        return Assignment(
            session=self.session,
            epoch=world.router.machine.epoch,
            contract=watch.contract,
            verifier=world.router.machine.verifier or luck.choice([*world.verifiers]),
            drafter=drafter or luck.choice([*world.drafters, "https://drafter-9.test/"]),
            prompt=self.prompt,
            round=len(watch.records),
            committed=len(tokens),
            digest=watch.digests[-1],
            committed_tokens=world.store.put_tokens(tokens) if tokens else None,
            m_init=luck.randint(0, 9),
        )

    def resumption(self, world: World, epoch: int) -> SessionOpen:
        """Return an open that is right for an epoch whose fence is in the log."""
        watch = world.watch
        tokens = tuple(watch.tokens)
        resume = Resume(
            round=len(watch.records),
            committed=len(tokens),
            digest=watch.digests[-1],
            committed_tokens=world.store.put_tokens(tokens),
        )
        return SessionOpen(
            session=self.session,
            epoch=epoch,
            contract=watch.contract,
            prompt=self.prompt,
            commit_log=self.log,
            resume=resume,
        )

    def next_epoch(self, world: World) -> int:
        """Return an epoch above all that were used."""
        highest: int = max(world.watch.fence, world.router.machine.epoch)
        return highest + 1

    def append_fence(self, world: World, epoch: int, then: Callable[[], None] | None = None) -> None:
        """Append a fence behind what the log holds now."""
        store = world.store
        log = store.logs.get(self.log)
        effect = AppendLog(self.log, FenceRecord(epoch=epoch).encode(), log.etag if log else None)
        self.say(world, "fence", lambda call: world.network.answer(call, store.append(effect)), then)


# ---- lies ------------------------------------------------------------------------------------------------------------


def _put_drafter(router: LyingRouter, world: World) -> None:
    router.to_verifier(world, "put_drafter", router.assignment(world), "assigns")


def _put_again(router: LyingRouter, world: World) -> None:
    if router.puts:
        router.to_verifier(world, "put_again", router.script.luck.choice(router.puts), "assigns")


def _put_point(router: LyingRouter, world: World) -> None:
    luck, right = router.script.luck, router.assignment(world)
    round, committed = max(0, right.round + luck.randint(-2, 2)), max(0, right.committed + luck.randint(-2, 2))
    message = replace(right, round=round, committed=committed, digest=luck.randbytes(32))
    router.to_verifier(world, "put_point", message, "assigns")


def _put_contract(router: LyingRouter, world: World) -> None:
    right = router.assignment(world)
    message = replace(right, contract=replace(right.contract, max_new=right.contract.max_new + 1))
    router.to_verifier(world, "put_contract", message, "assigns")


def _put_epoch(router: LyingRouter, world: World) -> None:
    message = replace(router.assignment(world), epoch=router.script.luck.choice((0, FAR)))
    router.to_verifier(world, "put_epoch", message, "assigns")


def _open_content(router: LyingRouter, world: World) -> None:
    """Not before something is committed: until then a router says what the session is about."""
    if not world.watch.tokens:
        return
    contract, luck = world.watch.contract, router.script.luck
    right = replace(router.resumption(world, world.router.machine.epoch), resume=None, epoch=1)
    other = luck.choice(
        (
            replace(right, prompt=(*router.prompt, 1)),
            replace(right, contract=replace(contract, max_new=contract.max_new + 1)),
            replace(router.resumption(world, world.router.machine.epoch), prompt=(*router.prompt, 1)),
        )
    )
    router.to_verifier(world, "open_content", other, "opens")


def _open_point(router: LyingRouter, world: World) -> None:
    luck = router.script.luck
    right = router.resumption(world, luck.choice((router.next_epoch(world), world.router.machine.epoch)))
    assert right.resume is not None
    wrong = replace(right.resume, round=right.resume.round + luck.randint(0, 1), digest=luck.randbytes(32))
    router.to_verifier(world, "open_point", replace(right, resume=wrong), "opens")


def _open_epoch(router: LyingRouter, world: World) -> None:
    router.to_verifier(world, "open_epoch", router.resumption(world, FAR), "opens")


def _open_again(router: LyingRouter, world: World) -> None:
    if router.opens:
        router.to_verifier(world, "open_again", router.script.luck.choice(router.opens), "opens")


def _take_over(router: LyingRouter, world: World) -> None:
    """Do as the router of the session would, while it goes on: the honest one has to take it back."""
    if not world.watch.tokens or world.router.machine.ended is not None:
        return
    epoch = router.next_epoch(world)
    router.append_fence(world, epoch, lambda: _take(router, world, epoch))


def _take(router: LyingRouter, world: World, epoch: int) -> None:
    uri = router.script.luck.choice([*world.verifiers])
    verifier = world.verifiers[uri]
    put = replace(router.assignment(world), epoch=epoch, verifier=uri)

    def assign() -> None:
        router.say(world, "take_over", verifier.assigns(put))
        if put.drafter in world.drafters:
            router.say(world, "take_over", world.drafters[put.drafter].assigned(put))

    router.say(world, "take_over", verifier.opens(router.resumption(world, epoch)), assign)


def _fence(router: LyingRouter, world: World) -> None:
    epoch = router.next_epoch(world) + router.script.luck.choice((-3, -2, -1, 0, 2))
    router.append_fence(world, max(0, epoch))


def _policy(router: LyingRouter, world: World) -> None:
    message = Policy(session=router.session, from_round=0, sampling=Sampling(temperature_milli=0))
    router.to_verifier(world, "policy", message, "updates")


def _assign(router: LyingRouter, world: World) -> None:
    luck, right = router.script.luck, router.assignment(world)
    wrong = luck.choice(
        (
            right,
            replace(right, epoch=luck.choice((0, FAR))),
            replace(right, contract=replace(right.contract, max_new=right.contract.max_new + 1)),
            replace(right, digest=luck.randbytes(32)),
            replace(right, m_init=FAR),
        )
    )
    for uri in luck.sample([*world.drafters], min(2, len(world.drafters))):
        router.say(world, "assign", world.drafters[uri].assigned(replace(wrong, drafter=uri)))


LIES: Mapping[str, Callable[[LyingRouter, World], None]] = MappingProxyType(
    {
        "put_drafter": _put_drafter,
        "put_again": _put_again,
        "put_point": _put_point,
        "put_contract": _put_contract,
        "put_epoch": _put_epoch,
        "open_content": _open_content,
        "open_point": _open_point,
        "open_epoch": _open_epoch,
        "open_again": _open_again,
        "take_over": _take_over,
        "fence": _fence,
        "policy": _policy,
        "assign": _assign,
    }
)
