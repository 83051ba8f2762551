"""How a front end has a request generated, and reads the output: no token lost or repeated (6.7, 6.9, D33, D35).

Words: a *delivery* is what one answer of `GET output` brings that was not known before. Indices are stable, so after
any failure the reader goes on at the index it has reached, at whatever verifier the router names; output of a lower
epoch than one seen is discarded (6.7), and that of a higher one has to begin with what was read before: else its commit
log has lost records, and what follows is another text (D47). A reader that stops early withdraws its request, so that
nobody generates for nobody (D34).

Not here: text, and the API that clients speak (`sdcp.roles.openai_app`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from sdcp.errors import InternalFault, Overloaded
from sdcp.http.identity import ROUTER, VERIFIER
from sdcp.http.resources import encode_id, url
from sdcp.messages.contract import Action, Sampling
from sdcp.messages.output import Output
from sdcp.messages.request import GenerationRequest, Location
from sdcp.roles.peers import Peers, RefusedError, UnansweredError

logger = logging.getLogger("sdcp.roles")

SUBMIT_S = 150.0  # the router answers when a verifier has computed the prompt
WAIT_S = 5  # of one long poll: a verifier that vanished without a word is noticed that soon
GRACE_S = 3.0
PAUSE_S = 0.1
WITHDRAW_PAUSES_S = (0.5, 1.0, 2.0, 4.0)  # between tries to withdraw a request
STILL_S = 4.0  # without a token, before the router is asked whether the verifier still is the right one
COMPARED = 64  # tokens that a verifier of a higher epoch is asked for once more
UNATTENDED_S = 15.0  # without a token, before a request that the router has lost is given up


@dataclass(frozen=True, slots=True)
class Account:
    """What speculation did for a session so far (D35): rounds committed, tokens proposed and accepted."""

    passes: int
    proposed: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """New tokens, in order. `finish` is set with the last ones: 4 or 5. `account` None: the verifier keeps none."""

    tokens: tuple[int, ...]
    epoch: int
    finish: Action | None = None
    account: Account | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be generated: prompt tokens, limits and profile."""

    prompt: tuple[int, ...]
    max_new: int
    stop: tuple[int, ...]
    rule: int
    sampling: Sampling | None = None


class FrontEnd:
    """Requests to routers, in the order given; `tokenizer` binds them to verifiers of that tokenizer.

    `patience_s`: how long output may fail to come from anywhere before a request is given up. `unattended_s`: the same
    when the router has lost the request, so that nobody will give the session another drafter or verifier.
    """

    def __init__(
        self,
        peers: Peers,
        routers: Sequence[str],
        tokenizer: bytes | None,
        *,
        patience_s: float = 120.0,
        unattended_s: float = UNATTENDED_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._peers = peers
        self._routers = tuple(routers)
        self._tokenizer = tokenizer
        self._patience_s = patience_s
        self._unattended_s = unattended_s
        self._sleep = sleep
        self._tasks: set[asyncio.Task[None]] = set()

    async def generate(self, wanted: Wanted) -> AsyncGenerator[Delivery]:
        """Submit, then yield deliveries to the end. Closing the generator early withdraws the request.

        Raises the ProblemError with which the request was refused, Overloaded when nobody answers any more, or
        InternalFault when tokens that were yielded have been lost.
        """
        request = GenerationRequest(
            request=secrets.token_bytes(16),
            prompt=wanted.prompt,
            max_new=wanted.max_new,
            stop=wanted.stop,
            rule=wanted.rule,
            sampling=wanted.sampling,
            tokenizer=self._tokenizer,
        )
        router = ""  # that has the request, as far as we know
        over = False
        try:
            for router in self._routers:
                location = await self._submit(router, request)
                if location is not None:
                    break
                self._spawn(self._withdraw(router, request.request))  # it may have taken it, and go on with it (D45)
                router = ""
            else:
                raise Overloaded("No router answers; try again later.")
            reading = _Reading(
                self._peers, router, request.request, location, self._patience_s, self._unattended_s, self._sleep
            )
            async with aclosing(reading.deliveries()) as deliveries:
                async for delivery in deliveries:
                    over = delivery.finish is not None
                    yield delivery
        except RefusedError as refusal:
            over = True
            raise refusal.error from None
        finally:
            if router and not over:
                self._spawn(self._withdraw(router, request.request))

    async def settle(self) -> None:
        """Wait until withdrawals under way have been sent."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _submit(self, router: str, request: GenerationRequest) -> Location | None:
        """Submit, once more without an answer: a repeat is recognized by its identifier (D33). Raises RefusedError."""
        for _ in range(2):
            try:
                return await self._peers.ask(
                    "POST", url(router, "requests"), Location, request, role=ROUTER, deadline_s=SUBMIT_S
                )
            except UnansweredError as fault:
                logger.warning("the router %s does not answer: %s", router, fault)
        return None

    async def _withdraw(self, router: str, request: bytes) -> None:
        """Withdraw it, for some seconds: a router that is just starting again would take the session up (D45)."""
        target = url(router, "requests/{id}", encode_id(request))
        for pause_s in (*WITHDRAW_PAUSES_S, None):
            try:
                await self._peers.tell("DELETE", target, role=ROUTER, deadline_s=10.0)
                return
            except RefusedError as refusal:
                fault: Exception = refusal
                if refusal.error.status != 503:
                    break
            except UnansweredError as silence:
                fault = silence
            if pause_s is not None:
                await self._sleep(pause_s)
        logger.info("a request could not be withdrawn: %s", fault)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Of its own, because whoever reads may have been cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Reading:
    """The output of one request, from index 0 to its end."""

    def __init__(
        self,
        peers: Peers,
        router: str,
        request: bytes,
        location: Location,
        patience_s: float,
        unattended_s: float,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._peers = peers
        self._router = router
        self._request = request
        self._location = location
        self._epoch = self._compared = location.epoch  # seen; and of which what was read is known to be a part
        self._index = 0
        self._latest: deque[int] = deque(maxlen=COMPARED)
        self._patience_s = patience_s
        self._unattended_s = unattended_s
        self._sleep = sleep
        self._heard = self._progress = 0.0  # when somebody looked after us last; when a token came last

    async def deliveries(self) -> AsyncGenerator[Delivery]:
        """Yield what is new until the session has ended. Raises Overloaded when patience is over."""
        loop = asyncio.get_running_loop()
        self._heard = self._progress = loop.time()
        while True:
            output = await self._read()
            delivery = self._new(output) if output is not None else await self._relocate()
            if delivery is not None and (delivery.tokens or delivery.finish is not None):
                self._heard = self._progress = loop.time()
            else:
                delivery = await self._look_around(served=delivery is not None) or delivery
            if delivery is not None:
                yield delivery
                if delivery.finish is not None:
                    return

    async def _look_around(self, *, served: bool) -> Delivery | None:
        """Nothing new has come. Raises Overloaded when nothing will.

        An answer without tokens is no sign that the session goes on: one that waits for a drafter answers its readers
        for ever, and so does a verifier that was fenced while it slept, since it notices with its next append alone.
        `served`: a verifier answers; then all is well as long as the router sends us to the same one.
        """
        now = asyncio.get_running_loop().time()
        still_s = now - self._progress
        if still_s > min(STILL_S, self._unattended_s):
            try:
                location = await self._ask_router("", wait_s=0)
            except RefusedError as refusal:
                if refusal.error.status == 404 and still_s > self._unattended_s:
                    lost = "The router has lost the request, and no token comes any more; it is given up."
                    raise Overloaded(lost) from None
            except UnansweredError:
                pass
            else:
                self._heard = now if served else self._heard
                self._follow(location)
                if location.ended is not None:
                    return await self._relocate()
        if now - self._heard > self._patience_s:
            raise Overloaded("Neither the verifier nor the router can say how the request stands; it is given up.")
        return None

    def _follow(self, location: Location) -> None:
        if location.epoch >= self._epoch:
            self._location, self._epoch = location, location.epoch

    async def _ask_router(self, query: str, *, wait_s: int) -> Location:
        """Where is the request served? Raises RefusedError or UnansweredError."""
        return await self._peers.ask(
            "GET",
            url(self._router, "requests/{id}", encode_id(self._request)) + query,
            Location,
            role=ROUTER,
            headers=(("prefer", f"wait={wait_s}"),),
            deadline_s=wait_s + GRACE_S,
        )

    async def _read(self) -> Output | None:
        """Ask the verifier for what follows; None: it has nothing for us any more. Raises InternalFault."""
        anew = self._epoch > self._compared
        start, wait_s = (self._index - len(self._latest), 0) if anew else (self._index, WAIT_S)
        path = url(self._location.verifier, "sessions/{id}/output", encode_id(self._location.session))
        try:
            output = await self._peers.ask(
                "GET",
                f"{path}?from={start}",
                Output,
                role=VERIFIER,
                headers=(("prefer", f"wait={wait_s}"),),
                deadline_s=wait_s + GRACE_S,
            )
        except (RefusedError, UnansweredError):
            return None
        usable = output.session == self._location.session and output.epoch >= self._epoch
        if not usable or output.from_ > self._index:
            return None
        if anew:
            self._compare(output)
        return output

    def _compare(self, output: Output) -> None:
        """What was committed in an earlier epoch is in every later one (6.9), unless its record was lost."""
        known = min(self._index - output.from_, len(self._latest))
        at = self._index - output.from_ - known
        if known and output.tokens[at : at + known] != tuple(self._latest)[-known:]:
            raise InternalFault("Tokens that were read are not in the commit log any more; the request is given up.")
        self._compared = output.epoch

    def _new(self, output: Output) -> Delivery:
        self._epoch = output.epoch
        tokens = output.tokens[self._index - output.from_ :]
        self._index += len(tokens)
        self._latest += tokens
        account = None
        if output.passes is not None and output.proposed is not None and output.accepted is not None:
            account = Account(output.passes, output.proposed, output.accepted)
        finish = (output.finish or Action.FAIL) if output.final else None
        return Delivery(tokens, output.epoch, finish, account)

    async def _relocate(self) -> Delivery | None:
        """Ask the router who serves us now (D30, D33); a session that has ended may come with all its tokens.

        Raises RefusedError where these are lost.
        """
        try:
            location = await self._ask_router(f"?epoch={self._epoch}", wait_s=WAIT_S)
        except RefusedError as refusal:
            if refusal.error.status == 422:  # the commit log is damaged or gone (D47)
                raise
            await self._sleep(PAUSE_S)
            return None
        except UnansweredError:
            await self._sleep(PAUSE_S)
            return None
        if location.ended is not None and location.tokens is not None:
            tokens = location.tokens[self._index :]
            self._index += len(tokens)
            return Delivery(tokens, location.epoch, location.ended)
        self._follow(location)
        await self._sleep(PAUSE_S)
        return None
