"""The Session Contract and what it is made of (4.1, D6)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from sdcp.errors import BadContract
from sdcp.messages.fields import TOKENS, Kind, Message, Plain, array, member, octets, uint

HASH32 = octets(32)
SESSION_ID = octets(16)


class Action(IntEnum):
    """The control action of a round (6.5.2)."""

    CONTINUE = 0
    REDUCE = 1
    SWITCH = 2
    SELF_DECODE = 3
    FINISH = 4
    FAIL = 5


def _action(value: Plain) -> Action:
    """An unknown action value means fail (5.2, D4)."""
    if type(value) is not int or value < 0:
        raise ValueError("an unsigned integer")
    return Action(value) if value <= Action.FAIL else Action.FAIL


def _ladder(value: Plain) -> Action:
    if type(value) is not int or value not in (1, 2, 3, 5):
        raise ValueError("1 (reduce), 2 (switch), 3 (self_decode) or 5 (fail)")
    return Action(value)


ACTION = Kind(_action, int)
LADDER = Kind(_ladder, int)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling(Message):
    """The sampling profile: temperature in thousandths, top-k, top-p in thousandths, seed (4.1, D22)."""

    temperature_milli: int | None = member(uint(), optional=True)
    top_k: int | None = member(uint(), optional=True)
    top_p_milli: int | None = member(uint(0, 1000), optional=True)
    seed: int | None = member(uint(), optional=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractSampling(Sampling):
    """The sampling map inside a contract, where unknown keys are refused too (D6)."""

    closed: ClassVar[bool] = True
    fault = BadContract
    spoken = "The contract's 'sampling'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract(Message):
    """What a session is bound to for its whole life (4.1). Every fault is `sdcp-bad-contract` (D6)."""

    closed: ClassVar[bool] = True
    fault = BadContract

    target: bytes = member(HASH32)
    tokenizer: bytes = member(HASH32)
    drafters: tuple[bytes, ...] | None = member(array(HASH32, least=1), optional=True)
    rule: int = member(uint())
    sampling: Sampling | None = member(ContractSampling.as_member(), optional=True)
    m_max: int = member(uint(1, 64))  # 0 is refused: D6
    max_new: int = member(uint())
    stop: tuple[int, ...] = member(TOKENS)
    low_rounds: int = member(uint(1))
    low_ratio: int | None = member(uint(0, 100), optional=True)
    fallback: tuple[Action, ...] = member(array(LADDER, least=1))
    self_load: int | None = member(uint(0, 100), optional=True)
    self_max: int | None = member(uint(), optional=True)
    scope: bytes | None = member(octets(16), optional=True)

    @property
    def profile(self) -> Sampling:
        """The sampling profile at creation; an absent one is the default profile (D22)."""
        return self.sampling or Sampling()
