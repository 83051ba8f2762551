"""How a router session goes on from its manifest, in a router that knows nothing else of it (D45). Part of `router`.

What the manifest says may be old: its last records were perhaps never written. Fencing is right whatever happened
since (D19), so it is what is done, but for a session that had both a verifier and a drafter: that one is taken to run
as it did, and a reminder (D37) finds out. A verifier that is gone, or has lost it, or was fenced, leads to the fence.
"""

from __future__ import annotations

from abc import abstractmethod

from sdcp.errors import SessionClosed
from sdcp.machines.manifest import Manifest
from sdcp.machines.router_drafting import Drafting
from sdcp.machines.router_opening import Opening
from sdcp.machines.router_policies import Change, Changing
from sdcp.machines.router_steps import Effects, Point, Step
from sdcp.messages.manifest import AssignedRecord, EndRecord, OpenedRecord
from sdcp.messages.request import Location
from sdcp.messages.round import Assignment
from sdcp.messages.session import SessionOpen


class TakingUp(Opening, Changing, Drafting):
    """Put the session where its manifest says that it was."""

    @abstractmethod
    def _remind(self) -> Effects:
        """Tell verifier and drafter once more what they were told before (D37)."""

    def take_up(self, told: Manifest) -> Effects:
        """Go on; nothing was handed in before."""
        for policy, round_ in told.accepted:
            self._profiles.accept(policy, round_)
        if told.sent is not None:  # a verifier may have it, and the front end was not told
            self._changes.append(Change(None, told.sent.sampling, told.sent.from_round, exact=False))
        if told.opened is not None:
            self._take_up_open(told.opened)
        if told.end is not None:
            self._take_up_end(told.end)
            return []
        self._may_commit = True
        if told.withdrawn:
            return self._give_up()
        return self._fence() if told.assigned is None else self._take_up_drafter(told.assigned)

    def _take_up_open(self, opened: OpenedRecord) -> None:
        self.epoch, self.verifier = opened.serving, opened.verifier
        self._prompt = opened.prompt or self._prompt_tokens
        self._locating.moved(Location(session=self.session, epoch=opened.serving, verifier=opened.verifier))
        resume = opened.resume
        self._open = SessionOpen(
            session=self.session,
            epoch=opened.serving,
            contract=self.contract,
            prompt=self._prompt,
            commit_log=self._log,
            resume=resume,
        )
        if resume is not None:
            self._point = Point(resume.round, resume.committed, resume.digest, resume.committed_tokens)

    def _take_up_drafter(self, assigned: AssignedRecord) -> Effects:
        self._prompt = assigned.prompt or self._prompt_tokens
        self._point = Point(assigned.after, assigned.committed, assigned.digest, assigned.committed_tokens)
        self.drafter = assigned.drafter
        self._proposers = [(assigned.after, assigned.drafter)]
        self._put = self._put_kept = Assignment(
            session=self.session,
            epoch=self.epoch,
            contract=self.contract,
            verifier=self._verifier_uri,
            drafter=assigned.drafter,
            prompt=self._prompt,
            round=assigned.after,
            sampling=assigned.sampling,
            committed=assigned.committed,
            digest=assigned.digest,
            committed_tokens=assigned.committed_tokens,
            m_init=assigned.m_init,
        )
        self._rest(Step.RUNNING)
        return self._remind()

    def _take_up_end(self, end: EndRecord) -> None:
        self.ended, self._committed = end.ended, end.committed
        self._locating.ended(end.ended)
        if self._locating.location is None:
            self.failure = SessionClosed("The request ended before a verifier took it.")
        self._changes.clear()
        self._rest(Step.ENDED)
