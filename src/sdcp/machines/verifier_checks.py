"""What a proposal must pass to become a round: 6.3 steps 1 to 5, in the order of D12, as far as no rows are needed.

Each function raises the ProblemError of its step. Between steps 2 and 4 the session itself answers with stored verdicts
(step 3), ended sessions (410) and D13. Not here: the rows, which the shell fetches and checks (D25).
"""

from __future__ import annotations

from dataclasses import replace

from sdcp.errors import BadProposal, Limit, NotAssigned, StaleBase, StaleEpoch
from sdcp.machines.inputs import Identity
from sdcp.machines.verifier_committed import Committed
from sdcp.messages.round import Proposal
from sdcp.rules.acceptance import RULES
from sdcp.wire.rows import check_tokens


def check_proposer(proposal: Proposal, client: Identity, drafter: str | None) -> None:
    """Step 1: the client is the drafter of the latest assignment, and says so (D9). Raises NotAssigned."""
    if drafter is None:
        raise NotAssigned("No drafter is assigned to the session yet.")
    if not client.owns(drafter) or not client.owns(proposal.drafter):
        raise NotAssigned("The client is not the drafter named in the latest assignment of the session.")


def check_epoch(given: int, epoch: int) -> None:
    """Step 2, fencing. Raises StaleEpoch."""
    if given != epoch:
        raise StaleEpoch(f"The session's epoch is {epoch}, not {given}.")


def check_extends(proposal: Proposal, committed: Committed) -> None:
    """Step 4: base, digest and round go on from the committed prefix (4.2). Raises StaleBase."""
    if (proposal.base, proposal.base_digest) != (committed.history.committed, committed.digest):
        raise StaleBase("The proposal does not extend the committed prefix; resynchronize from session-state.")
    if proposal.round != committed.round + 1:
        raise StaleBase(f"The next round is {committed.round + 1}, not {proposal.round}.")


def check_content(proposal: Proposal, committed: Committed, vocabulary: int) -> None:
    """Limit (6.2, D16), tokens (D5), and whether rows were given at all (6.4). Raises Limit or BadProposal."""
    if len(proposal.tokens) > committed.m_cap:
        raise Limit(f"The proposal has {len(proposal.tokens)} tokens; at most {committed.m_cap} are allowed now.")
    check_tokens(proposal.tokens, vocabulary)
    if RULES[committed.contract.rule].needs_rows and proposal.q_rows is None:
        raise BadProposal(f"Rule {committed.contract.rule} needs the member 'q_rows'.")


def is_identical(proposal: Proposal, other: Proposal) -> bool:
    """Tell whether two proposals are equal in every member but `status` (D12)."""
    return replace(proposal, status=other.status) == other
