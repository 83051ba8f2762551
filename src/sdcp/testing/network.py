"""A fake network: requests and answers that luck loses, delays and repeats.

Words: a *call* is one request, open until its sender has heard an answer, or silence. A sender that gave up hears
nothing of that call any more, but its request may arrive all the same, then or much later.

It does no I/O and knows no time, no connection, no limit, no HTTP status line and no certificate: an answer is the
machine's own `Reply` or `Refuse`, a store's is an input. With `encoded` every message travels as bytes of CBOR, as it
would on the wire. Without luck nothing is ever lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from sdcp.machines.effects import Refuse, Reply
from sdcp.messages.fields import Message
from sdcp.testing.agenda import Agenda


@dataclass(frozen=True, slots=True)
class Silence:
    """No answer: whether the request was carried out is unknown."""


SILENCE: Final = Silence()

Answer = Any
"""A Reply, a Refuse, SILENCE, or an input in answer to an effect that only a store or an engine carries out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Chances, from 0 to 1, of what happens to one call.

    lost: the request never arrives. late: its sender may give up before the answer comes. twice: it arrives two times.
    unanswered: it is carried out, and the answer is lost. slow: it, its answer or the work takes its time, where there
    is a clock.
    """

    lost: float = 0.0
    late: float = 0.0
    twice: float = 0.0
    unanswered: float = 0.0
    slow: float = 0.0


SOUND: Final = Faults()


@dataclass(slots=True, eq=False)
class Call:
    """One request. `hear` takes its answer, once; `cancel` tells the receiver that nobody waits any more.

    `sender` and `receiver` name the two parties; "" is nobody in particular, whom nothing befalls.
    """

    hear: Callable[[Answer], None]
    open: bool = True
    cancel: Callable[[], None] | None = None
    sender: str = ""
    receiver: str = ""


class Network:
    """Carries calls through an agenda."""

    def __init__(self, agenda: Agenda, luck: Random | None, faults: Faults = SOUND, *, encoded: bool = False) -> None:
        self.faults = faults
        self._agenda = agenda
        self._luck = luck
        self._encoded = encoded

    def send(self, call: Call, arrive: Callable[[Call], None], to: str = "") -> None:
        """Let a request travel: `arrive(call)` is called none, one or two times."""
        call.receiver = to
        faults = self.faults
        if self._chance(faults.lost):
            self._agenda.add(self.give_up, call)
            return
        for _ in range(2 if self._chance(faults.twice) else 1):
            self._agenda.add(arrive, call)
        if self._chance(faults.late):
            self._agenda.add(self.give_up, call)

    def local(self, call: Call, act: Callable[..., None], *arguments: Any) -> None:
        """Let something be done by the sender itself, in its turn: no network is involved."""
        self._agenda.add(act, call, *arguments)

    def answer(self, call: Call, answer: Answer) -> None:
        """Let an answer travel back."""
        self._agenda.add(self.settle, call, SILENCE if self._chance(self.faults.unanswered) else answer)

    def give_up(self, call: Call) -> None:
        """The sender waits no longer; a receiver that still has the request learns it some time."""
        self.settle(call, SILENCE)
        if call.cancel is not None:
            self._agenda.add(call.cancel)

    def settle(self, call: Call, answer: Answer) -> None:
        """Tell the sender, unless it has heard already or waits no longer."""
        if call.open:
            call.open = False
            call.hear(self._carried(answer))

    def carried(self, message: Any) -> Any:
        """A message as it comes out at the other end."""
        return type(message).decode(message.encode()) if self._encoded and isinstance(message, Message) else message

    def _carried(self, answer: Answer) -> Answer:
        if not self._encoded:
            return answer
        match answer:
            case Reply():
                return replace(answer, message=self.carried(answer.message))
            case Refuse():
                return replace(answer, state=self.carried(answer.state))
        return answer

    def _chance(self, chance: float) -> bool:
        return bool(chance) and self._luck is not None and self._luck.random() < chance
