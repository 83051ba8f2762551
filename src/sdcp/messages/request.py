"""What a front end asks of a router: our own resource, since the draft leaves client-facing interfaces out (1.4, D33).

A *request* is what a client wants generated; the router makes a session of it. Its *location* is the verifier that
serves the session now and the epoch it does so under; both change when the router fails the session over (6.9).

Not here: what travels between the front end and the verifier, which is `GET output` (6.7) alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from sdcp.messages.contract import ACTION, HASH32, SESSION_ID, Action, Sampling
from sdcp.messages.fields import TEXT, TOKENS, Message, member, octets, uint

REQUEST_ID = octets(16)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest(Message):
    """POST requests: tokens in, limits and profile; the router adds what its configuration says to make a contract.

    `request` is 128 random bits by which a repeat is recognized. `target` and `tokenizer`, when present, bind the
    request to one model; a router that serves one model only needs neither.
    """

    request: bytes = member(REQUEST_ID)
    prompt: tuple[int, ...] = member(TOKENS)
    max_new: int = member(uint())
    stop: tuple[int, ...] = member(TOKENS)
    rule: int = member(uint())
    sampling: Sampling | None = member(Sampling.as_member(), optional=True)
    tokenizer: bytes | None = member(HASH32, optional=True)
    target: bytes | None = member(HASH32, optional=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Location(Message):
    """The answer to POST requests and GET requests/{id}: where the output of the session is to be had.

    `ended` is 4 or 5 once the session has ended. `tokens`, all committed output, comes only with `ended`, when the
    front end has said that it cannot have them from the verifier any more.
    """

    session: bytes = member(SESSION_ID)
    epoch: int = member(uint())
    verifier: str = member(TEXT)
    ended: Action | None = member(ACTION, optional=True)
    tokens: tuple[int, ...] | None = member(TOKENS, optional=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileChange(Message):
    """POST requests/{id}/policy: a profile from `from_round`, or from the next round that can have it (6.6)."""

    sampling: Sampling = member(Sampling.as_member())
    from_round: int | None = member(uint(), optional=True)
