"""A drafter that lies in its proposals and in its rows: see `lying` for what it can say, and what that can change.

An honest machine drives it, so that it has something to lie about; it hears the answers to what is honest alone. What
it says in place of an honest proposal goes out by itself, and the machine takes its own for unanswered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from sdcp.errors import StaleBase
from sdcp.machines.drafter_rounds import Patience
from sdcp.machines.effects import Refuse, SendProposal
from sdcp.machines.inputs import ProposalUnanswered
from sdcp.messages.round import Proposal, Verdict
from sdcp.ports import Drafter
from sdcp.rules.digest import extend_all
from sdcp.testing.checks import Broken
from sdcp.testing.drafting import DrafterInstance
from sdcp.testing.driven import Driven, Perform
from sdcp.testing.lying import SAID_IN_PLACE, Script
from sdcp.testing.network import SILENCE, Answer, Call
from sdcp.testing.surroundings import Client, Surroundings
from sdcp.testing.verifying import VerifierInstance
from sdcp.wire.rows import encode_rows

Hear = Callable[[Answer], None]
FAR = 1000
"""So many epochs and rounds lie beyond all that a world comes to."""

REMEMBERED = 32
"""So many of its proposals a liar remembers."""


class LyingDrafter(DrafterInstance):
    """A DrafterInstance. `verdicts`: those that have left a verifier, by epoch and round; `width` is V."""

    def __init__(
        self,
        script: Script,
        verdicts: Mapping[tuple[int, int], Verdict],
        uri: str,
        engine: Drafter,
        around: Surroundings,
        verifiers: Callable[[str], VerifierInstance],
        patience: Patience,
    ) -> None:
        self.script = script
        self.width = engine.vocabulary
        self.said: deque[Proposal] = deque(maxlen=REMEMBERED)
        self._verdicts = verdicts
        self._twins = bool(script.liars.open_again or script.liars.take_over)  # one epoch at two verifiers
        self.cache = around.store
        self._network = around.network
        self._at = verifiers
        super().__init__(uri, engine, around, verifiers, patience)

    def say(self, verifier: str, proposal: Proposal, hear: Hear | None = None) -> None:
        """Send a proposal, whatever it says, under the certificate of this drafter."""
        call = Call(hear or (lambda _: None))
        self._network.send(call, self._at(verifier).proposes(proposal, Client(self.uri)))

    def _performers(self, held: Driven) -> dict[type, Perform]:
        performers = super()._performers(held)
        honestly = performers[SendProposal]
        performers[SendProposal] = lambda effect: self._propose(held, effect, honestly)
        return performers

    def _propose(self, held: Driven, effect: SendProposal, honestly: Perform) -> None:
        proposal, script = effect.message, self.script
        self._spoil(proposal)
        lies = [lie for name in SAID_IN_PLACE if script.lies(name) for lie in LIES[name](self, proposal)]
        self.said.append(proposal)
        for lie in lies:
            self.say(effect.verifier, lie, self._wants_verdict(lie))
        if lies and script.luck.random() < 0.5:
            held.send(
                lambda call: self._network.answer(call, SILENCE), lambda _: ProposalUnanswered(effect.message.round)
            )
        else:
            honestly(effect)

    def _wants_verdict(self, repeat: Proposal) -> Hear:
        """A round that has a verdict has it for whatever is said of that round (6.3 step 3)."""
        known = not self._twins and (repeat.epoch, repeat.round) in self._verdicts

        def hear(answer: Answer) -> None:
            if known and isinstance(answer, Refuse) and isinstance(answer.error, StaleBase):
                raise Broken(f"the verdict of round {repeat.round} is withheld (6.3 step 3)")

        return hear

    def _spoil(self, proposal: Proposal) -> None:
        """Write other rows in place of those that the proposal names."""
        objects, ref, luck = self.cache.objects, proposal.q_rows, self.script.luck
        if ref not in objects or len(objects[ref]) != 4 * self.width * len(proposal.tokens):
            return
        for name, ways in (("spoiled", SPOILS), ("unlike", UNLIKE)):
            if self.script.lies(name):
                rows = np.frombuffer(objects[ref], "<f4").reshape(-1, self.width).copy()
                objects[ref] = luck.choice(ways)(rows, luck.randrange(len(rows)), proposal.tokens)
                return

    def rows_for(self, tokens: tuple[int, ...]) -> str:
        """Write rows that give all to the tokens they are for; those not below V get none."""
        rows = np.zeros((len(tokens), self.width), np.float32)
        for row, token in zip(rows, tokens, strict=True):
            row[token % self.width] = 1.0
        return self.cache.put(encode_rows(rows))

    def other_tokens(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Return as many tokens, the first of them another."""
        first = (tokens[0] + 1 + self.script.luck.randrange(self.width - 1)) % self.width
        return first, *tokens[1:]


# ---- lies in a proposal ----------------------------------------------------------------------------------------------


def _base(drafter: LyingDrafter, proposal: Proposal) -> list[Proposal]:
    """Another base: with the digest as it is, or, for an earlier base, with the digest that belongs to it."""
    luck = drafter.script.luck
    earlier = [each for each in drafter.said if each.base < proposal.base]
    if earlier and luck.random() < 0.5:
        fork = luck.choice(earlier)
        return [replace(proposal, base=fork.base, base_digest=fork.base_digest)]
    return [replace(proposal, base=max(0, proposal.base + luck.choice((-1, 1, FAR))))]


def _digest(drafter: LyingDrafter, proposal: Proposal) -> list[Proposal]:
    return [replace(proposal, base_digest=drafter.script.luck.randbytes(32))]


def _epoch(drafter: LyingDrafter, proposal: Proposal) -> list[Proposal]:
    epoch = proposal.epoch
    return [replace(proposal, epoch=drafter.script.luck.choice((0, max(0, epoch - 1), epoch + 1, FAR)))]


def _round(drafter: LyingDrafter, proposal: Proposal) -> list[Proposal]:
    luck = drafter.script.luck
    return [replace(proposal, round=luck.choice((0, luck.randrange(proposal.round), proposal.round + 1, FAR)))]


def _changed(drafter: LyingDrafter, proposal: Proposal) -> list[Proposal]:
    """What was said for a round already is said again, with other tokens."""
    earlier = drafter.script.luck.choice([*drafter.said, proposal])
    return [_retold(drafter, earlier, drafter.other_tokens(earlier.tokens))]


def _twice(drafter: LyingDrafter, proposal: Proposal) -> list[Proposal]:
    others = [drafter.other_tokens(proposal.tokens) for _ in range(drafter.script.luck.randint(1, 3))]
    return [_retold(drafter, proposal, tokens) for tokens in others]


def _ahead(drafter: LyingDrafter, proposal: Proposal) -> list[Proposal]:
    """The next rounds, as if every token were accepted, and the additional one were known."""
    said, rounds = proposal, list[Proposal]()
    for _ in range(drafter.script.luck.randint(1, 3)):
        said = _after(drafter, said)
        rounds.append(said)
    return rounds


def _deaf(drafter: LyingDrafter, proposal: Proposal) -> list[Proposal]:
    return [replace(_after(drafter, drafter.said[-1]), epoch=proposal.epoch)] if drafter.said else []


def _over(drafter: LyingDrafter, proposal: Proposal) -> list[Proposal]:
    more = drafter.script.luck.choice((1, 64))
    return [_retold(drafter, proposal, proposal.tokens * (1 + more))]


def _foreign(drafter: LyingDrafter, proposal: Proposal) -> list[Proposal]:
    token = drafter.script.luck.choice((drafter.width, (1 << 32) - 1, 1 << 32, (1 << 64) - 1))
    return [_retold(drafter, proposal, (*proposal.tokens[:-1], token))]


def _rowless(drafter: LyingDrafter, proposal: Proposal) -> list[Proposal]:
    return [replace(proposal, q_rows=None)]


def _borrowed(drafter: LyingDrafter, proposal: Proposal) -> list[Proposal]:
    return [replace(proposal, q_rows=drafter.script.luck.choice([*drafter.said, proposal]).q_rows)]


def _misnamed(drafter: LyingDrafter, proposal: Proposal) -> list[Proposal]:
    number = drafter.script.luck.randint(1, 9)
    other = f"https://drafter-{number}.test/"
    return [replace(proposal, drafter=other)] if other != drafter.uri else []


def _after(drafter: LyingDrafter, said: Proposal) -> Proposal:
    """Return a proposal for the round after `said`, over its own tokens and one more."""
    own = (*said.tokens, drafter.script.luck.randrange(drafter.width))
    digest = extend_all(said.base_digest, [token % drafter.width for token in own])
    after = replace(said, round=said.round + 1, base=said.base + len(own), base_digest=digest)
    return _retold(drafter, after, drafter.other_tokens(said.tokens))


def _retold(drafter: LyingDrafter, proposal: Proposal, tokens: tuple[int, ...]) -> Proposal:
    """Return the proposal with other tokens, and rows for them if it had any."""
    rows = None if proposal.q_rows is None else drafter.rows_for(tokens)
    return replace(proposal, tokens=tokens, q_rows=rows)


Lie = Callable[[LyingDrafter, Proposal], list[Proposal]]
LIES: Mapping[str, Lie] = MappingProxyType(
    {
        "base": _base,
        "digest": _digest,
        "epoch": _epoch,
        "round": _round,
        "changed": _changed,
        "twice": _twice,
        "ahead": _ahead,
        "deaf": _deaf,
        "over": _over,
        "foreign": _foreign,
        "rowless": _rowless,
        "borrowed": _borrowed,
        "misnamed": _misnamed,
    }
)

# ---- lies in rows ----------------------------------------------------------------------------------------------------

Rows = NDArray[np.float32]
Spoil = Callable[[Rows, int, tuple[int, ...]], bytes]
"""Take rows [M, V], the place of one, and the M tokens; return the octets of other rows."""


def _impossible(rows: Rows, place: int, tokens: tuple[int, ...]) -> bytes:
    """Zero probability for the very token that was proposed."""
    token, width = tokens[place], rows.shape[1]
    rows[place] = 1 / (width - 1)
    rows[place, token] = 0
    return encode_rows(rows)


def _with(value: float) -> Spoil:
    def spoil(rows: Rows, place: int, _: tuple[int, ...]) -> bytes:
        rows[place, place % rows.shape[1]] = value
        return encode_rows(rows)

    return spoil


def _scaled(rows: Rows, place: int, _: tuple[int, ...]) -> bytes:
    rows[place] *= 1.01
    return encode_rows(rows)


def _flat(rows: Rows, place: int, _: tuple[int, ...]) -> bytes:
    rows[place] = 1 / rows.shape[1]
    return encode_rows(rows)


def _sure(rows: Rows, place: int, tokens: tuple[int, ...]) -> bytes:
    rows[place] = 0
    rows[place, tokens[place]] = 1
    return encode_rows(rows)


SPOILS: tuple[Spoil, ...] = (
    _impossible,
    _scaled,
    _with(float("nan")),
    _with(float("inf")),
    _with(-0.5),
    lambda rows, *_: encode_rows(rows)[:-4],
    lambda rows, *_: encode_rows(rows[1:]),
    lambda rows, *_: encode_rows(rows) * 2,
)
UNLIKE: tuple[Spoil, ...] = (_flat, _sure)
