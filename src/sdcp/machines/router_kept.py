"""A router session that keeps a manifest: what must be durable first, and what has to wait for it (D45). Sans-IO.

Around a `RouterSession`, which says what to keep; here its effects wait for the records before them:

- Nothing goes to a verifier before the request is durable, so that a session which somebody may serve can be found.
- No front end is told where its session is served, what became of its change of the profile or its withdrawal, or that
  the session has ended, and no change is sent, before the manifest says so.
- Nothing else waits: who verifies and who drafts is kept when it is so. If such a record is lost, what the manifest
  says is old, and going on from it is safe all the same (`router_taking_up`).
- Before a fence, and before a repeated PUT drafter, one looks whether another life of a router has taken the session:
  those are what an old life does by itself when it wakes up, and what would disturb the new one.

A life that finds the records of another lets the session go: no effect of it is carried out any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sdcp.machines.effects import AppendLog, Keep, LetGo, Refuse, Reply, SendDrafter, SendOpen, SendPolicy
from sdcp.machines.inputs import ManifestAnswered, TakenUp, TimerFired
from sdcp.machines.manifest import Manifest
from sdcp.machines.manifest_log import TIMER, ManifestLog
from sdcp.machines.router import RouterSession
from sdcp.messages.manifest import ManifestRecord

Effects = list[Any]

_WAITING = (Reply, Refuse, SendOpen, SendPolicy)


class KeptSession:
    """`session` with its manifest in `log`: `handle` takes one input and returns what has to happen, in order."""

    def __init__(
        self, session: RouterSession, log: ManifestLog, first: Iterable[ManifestRecord], told: Manifest | None = None
    ) -> None:
        """`first`: the records to begin with. `told`: what the manifest said, if the session is taken up from it."""
        session.keeps = True
        self.session = session
        self._log = log
        self._told = told
        self._early: list[object] = []  # inputs that came before the session was taken up
        self._held: list[Any] = []
        for record in first:
            log.write(record)

    @property
    def lost(self) -> bool:
        """Whether another life of a router has the session."""
        return self._log.lost

    def handle(self, event: object) -> Effects:
        """Take one of `sdcp.machines.inputs`; what is of no concern now changes nothing."""
        if self.lost:
            return []
        if isinstance(event, ManifestAnswered):
            return self._answered(event.answer) if event.answers is self._log.awaited else []
        if isinstance(event, TimerFired) and event.name == TIMER:
            return self._answered(event)
        if self._told is not None:
            self._early.append(event)
            return self._log.go()
        return self._through(self.session.handle(event)) + self._log.go()

    def _answered(self, answer: object) -> Effects:
        effects = self._log.handle(answer)
        if self.lost:
            self._held.clear()
            return [LetGo()]
        return effects + self._settled() if self._log.settled else effects

    def _settled(self) -> Effects:
        """Everything is durable: let go out what has waited for it, and is still wanted."""
        held, self._held = self._held, []
        released = [each for each in held if isinstance(each, Reply | Refuse | AppendLog) or self.session.awaits(each)]
        if self._told is None:
            return released
        told, early = self._told, self._early
        self._told, self._early = None, []
        effects = self._through(self.session.take_up(told))
        for event in early:
            if not isinstance(event, TakenUp):
                effects += self._through(self.session.handle(event))
        return effects + self._log.go()

    def _through(self, effects: Effects) -> Effects:
        """Return those that may go out now; keep what is to be kept, and hold the others."""
        out: Effects = []
        for effect in effects:
            if isinstance(effect, Keep):
                self._log.write(effect.record)
                continue
            looks = self._wants_look(effect)
            if looks:
                self._log.look()
            waits = (looks or isinstance(effect, _WAITING)) and not self._log.settled
            (self._held if waits else out).append(effect)
        return out

    def _wants_look(self, effect: object) -> bool:
        if isinstance(effect, SendDrafter):
            return self.session.repeats(effect.message)
        return isinstance(effect, AppendLog)
