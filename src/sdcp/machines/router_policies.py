"""How a change of the sampling profile comes to the verifier and to the drafter (6.6, D21). Part of `router`.

A change without a round of its own takes effect as soon as the verifier lets it: rounds go on while it travels, so one
that comes too late is sent again for a later round, the distance doubling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sdcp.errors import Overloaded, ProblemError, SessionClosed
from sdcp.machines import inputs
from sdcp.machines.effects import Refuse, Reply, SendOpen, SendPolicy
from sdcp.machines.profiles import Profiles
from sdcp.machines.router_steps import Effects, Patience, Step, Stepping
from sdcp.messages.contract import Contract, Sampling
from sdcp.messages.manifest import ACCEPTED, DROPPED, SENT, PolicyRecord
from sdcp.messages.session import Policy, SessionState

MOST_AHEAD = 64  # rounds by which a change is put off at most

MOST_WAITING = 64  # changes of a session that no verifier has answered yet


@dataclass(frozen=True, slots=True)
class Change:
    """`exact`: from `from_round` or not at all; else there or later. `again`: a verifier had accepted it before."""

    request: int | None
    sampling: Sampling
    from_round: int
    exact: bool
    again: bool = False
    ahead: int = 1


class Changing(Stepping):
    """Send policies one after another, the drafter told at the end."""

    def __init__(
        self,
        session: bytes,
        contract: Contract,
        prompt: Sequence[int],
        commit_log: str,
        patience: Patience | None = None,
    ) -> None:
        super().__init__(session, contract, prompt, commit_log, patience)
        self._profiles = Profiles()
        self._changes: list[Change] = []

    @property
    def _current_sampling(self) -> Sampling | None:
        return self._profiles.latest

    def _changed(self, event: inputs.ProfileChanged) -> Effects:
        if self._step is Step.ENDED:
            return [Refuse(event.request, _over())]
        if len(self._changes) >= MOST_WAITING:
            return [Refuse(event.request, Overloaded("Too many changes of the profile are on their way; try later."))]
        exact = event.from_round is not None
        self._changes.append(Change(event.request, event.sampling, event.from_round or 0, exact))
        waiting = self._step is Step.CHOOSING_DRAFTER and self._pausing
        return self._send_policy() if waiting or self._step is Step.RUNNING else []

    def _send_policy(self) -> Effects:
        change = self._changes[0]
        from_round = change.from_round if change.exact else max(change.from_round, self._point.round + change.ahead)
        policy = Policy(session=self.session, from_round=from_round, sampling=change.sampling)
        kept = [] if change.again else self._keep_policy(SENT, policy, self._point.round)
        return kept + self._ask(Step.UPDATING, SendPolicy(self._verifier_uri, policy))

    def _keep_policy(self, stage: str, policy: Policy, round_: int) -> Effects:
        sampling, from_round = policy.sampling, policy.from_round
        return self._keep(PolicyRecord(stage=stage, after=round_, from_round=from_round, sampling=sampling))

    def _policy_taken(self, state: SessionState) -> Effects:
        policy, change = self._awaited.message, self._changes.pop(0)
        self._profiles.accept(policy, state.round)
        reply = [] if change.request is None else [Reply(change.request, policy)]
        return self._keep_policy(ACCEPTED, policy, state.round) + reply + self._policies_done()

    def _policies_done(self) -> Effects:
        if self._changes or self._wanted is not None or self._put is None:
            return self._next()
        # The drafter is told by the assignment alone, without PUT: it takes only `sampling` from it (D21).
        return self._send_assignment(Step.TELLING)

    def _policy_refused(self, error: ProblemError) -> Effects:
        change = self._changes[0]
        if error.status == 409 and not change.exact and change.ahead < MOST_AHEAD and self._open is not None:
            # The open again, word for word, answers with the current round and does nothing (D19).
            return self._ask(Step.REFRESHING, SendOpen(self._verifier_uri, self._open))
        self._changes.pop(0)
        refusal = [] if change.request is None else [Refuse(change.request, error)]
        return self._keep_policy(DROPPED, self._awaited.message, self._point.round) + refusal + self._policies_done()

    def _policy_unanswered(self) -> None:
        """It may be in force: a repeat for the same round could be refused for having been accepted."""
        self._changes[0] = replace(self._changes[0], exact=False)

    def _refreshed(self, state: SessionState) -> Effects:
        change = self._changes[0]
        ahead = change.ahead * 2
        self._changes[0] = replace(change, ahead=ahead, from_round=max(change.from_round, state.round + ahead))
        return self._send_policy()

    def _resumed(self) -> None:
        """A new verifier is told first what was in force, then what is pending, then what is new (D21)."""
        again = [
            Change(None, policy.sampling, policy.from_round, exact=False, again=True)
            for policy in self._profiles.after(self.session, self._point.round)
        ]
        self._changes = again + [change for change in self._changes if not change.again]

    def _requester_gone(self, request: int) -> None:
        self._changes = [
            replace(change, request=None) if change.request == request else change for change in self._changes
        ]

    def _drop_changes(self) -> Effects:
        requests = [change.request for change in self._changes if change.request is not None]
        self._changes.clear()
        return [Refuse(request, _over()) for request in requests]


def _over() -> SessionClosed:
    return SessionClosed("The session has ended; its output and its profile stay as they are.")
