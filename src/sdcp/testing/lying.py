"""How peers of a world lie: a drafter, a second router with a certificate of its own, and the cache.

The threat model (1.3, 6.8; section 9 of the draft is not in our copy). Of every lie here this is claimed, at each step:
what is committed stays, and greedy output is plain decoding; rounds are consecutive, each begun by a proposal that the
drafter of the latest assignment made and that passes 6.3; no verdict before its record. That is all that a drafter can
touch: what it says decides how many tokens a round has, and, by rows that are not those it sampled from, the law of
the output under rule 2, which 6.4 states for exact rows alone. So rule 2 is held to everything but the law.

A router with a certificate is believed in what is its to say: who drafts, who verifies (behind a fence), with which
profile, and, until something is committed, what the session is about. So it can stop a session for as long as it goes
on; once it stops, the honest router gets the session on again. A fence of the highest epoch there is ends it for good.

A cache may forget, deny, delay and show an earlier state together with that state's entity tag: conditional appends
make all of it harmless. Altered objects fall to digests and to the checks of rows; what is lost is stored anew. But an
altered prompt may have the request refused (422) before anything is committed, which is not told here, and it is not
claimed that a session goes on whose log is garbled (`garble`). Nothing at all is claimed of a cache that invents
records, takes acknowledged ones back, or shows one state with the entity tag of another: the log is what is committed,
and carries no signature. `Liars` has no such lie.

Here are the chances alone. The lies stand in `lying_drafter`, `lying_router` and `lying_store`, what is checked of them
in `lying_watch`, and `lying_troupe` puts them on the stage.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from random import Random
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Liars:
    """Chances, from 0 to 1, of each lie; 0 throughout is honesty.

    A drafter, for each proposal that it has to make, beside it or in its place:
    base, digest, epoch, round: another one. changed: an earlier round with other tokens. twice: the round again, with
    other tokens. ahead: the rounds that follow, as if all were accepted. deaf: the next round after what it said last,
    whatever the verdict was. over: more tokens than the limit. foreign: a token not below V. rowless: no rows.
    borrowed: rows of another round. misnamed: another drafter's name. spoiled: rows that are no distribution, or of
    another size. unlike: good rows, but others than those sampled from.
    A drafter at any time, before each step: uncalled: it proposes what would be right, assigned or not.

    A second router, before each step:
    put_drafter: PUT drafter for some other drafter. put_again: an earlier one of the honest router. put_point: with
    another round, length, digest. put_contract, put_epoch: with another contract or epoch. open_content, open_point,
    open_epoch: an open with other contents, another point to resume from, or another epoch, all without a fence.
    open_again: the honest router's last open, at any verifier. take_over: a fence, and an open behind it. fence: a
    fence of any epoch near by. policy: one that comes too late. assign: POST assignments to any drafter.

    The cache:
    old: a read of a log shows an earlier state. garble: it ends within a record. unsaid: an append is carried out and
    not answered. evict: rows go although they are leased, before a step; evict_tokens: prompt or committed tokens do.
    altered: an object is read as another.
    """

    base: float = 0.0
    digest: float = 0.0
    epoch: float = 0.0
    round: float = 0.0
    changed: float = 0.0
    twice: float = 0.0
    ahead: float = 0.0
    deaf: float = 0.0
    over: float = 0.0
    foreign: float = 0.0
    rowless: float = 0.0
    borrowed: float = 0.0
    misnamed: float = 0.0
    spoiled: float = 0.0
    unlike: float = 0.0
    uncalled: float = 0.0
    put_drafter: float = 0.0
    put_again: float = 0.0
    put_point: float = 0.0
    put_contract: float = 0.0
    put_epoch: float = 0.0
    open_content: float = 0.0
    open_point: float = 0.0
    open_epoch: float = 0.0
    open_again: float = 0.0
    take_over: float = 0.0
    fence: float = 0.0
    policy: float = 0.0
    assign: float = 0.0
    old: float = 0.0
    garble: float = 0.0
    unsaid: float = 0.0
    evict: float = 0.0
    evict_tokens: float = 0.0
    altered: float = 0.0


HONEST: Final = Liars()

SAID_IN_PLACE: Final = (
    *("base", "digest", "epoch", "round", "changed", "twice", "ahead", "deaf", "over", "foreign"),
    *("rowless", "borrowed", "misnamed"),
)
"""Lies of a drafter in a proposal."""

SAID_BY_ROUTER: Final = (
    *("put_drafter", "put_again", "put_point", "put_contract", "put_epoch", "open_content", "open_point"),
    *("open_epoch", "open_again", "take_over", "fence", "policy", "assign"),
)
"""Lies of a second router."""

STEPWISE: Final = frozenset((*SAID_BY_ROUTER, "uncalled", "evict", "evict_tokens"))
"""Lies that need no occasion: a step is one."""

FATAL: Final = frozenset(("garble",))
"""Lies after which a session may rightly end, or stand still, before its output is whole."""


class Script:
    """Who lies when: `liars` may change at any time, and HONEST from now on is honesty from now on."""

    def __init__(self, liars: Liars, luck: Random | None) -> None:
        self.luck = luck or Random(0)
        self.liars = liars if luck is not None else HONEST

    @property
    def liars(self) -> Liars:
        """The chances now."""
        return self._liars

    @liars.setter
    def liars(self, liars: Liars) -> None:
        self._liars = liars
        self.honest = liars == HONEST
        self.stepwise = [(name, chance) for name in sorted(STEPWISE) if (chance := getattr(liars, name))]

    def lies(self, name: str) -> bool:
        """Whether somebody lies in this way now."""
        chance: float = getattr(self._liars, name)
        return bool(chance) and self.luck.random() < chance


def some_liars(luck: Random, *, fatal: bool = False) -> Liars:
    """Return liars of about a third of the kinds; `fatal`: also those after which no progress is promised."""
    names = [field.name for field in fields(Liars) if fatal or field.name not in FATAL]
    chances = {name: _some_chance(name, luck) for name in names if luck.random() < 0.3}
    return Liars(**chances)


def _some_chance(name: str, luck: Random) -> float:
    return luck.choice((0.003, 0.02)) if name in STEPWISE else luck.choice((0.05, 0.3))
