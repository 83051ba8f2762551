"""What every refusal looks like from outside (RFC 9457, Table 2, D1 to D3): written down, not taken from the code."""

from __future__ import annotations

import json
import re
from typing import Any

from sdcp.http.client import Answer

TYPE_PREFIX = "https://iana.org/assignments/http-problem-types#"

TABLE_2 = {
    "sdcp-stale-epoch": (409, "Epoch is not current"),
    "sdcp-stale-base": (409, "Proposal does not extend the committed prefix"),
    "sdcp-q-unavailable": (409, "Draft probabilities required by the rule are unavailable"),
    "sdcp-bad-contract": (422, "Contract invalid or not supported"),
    "sdcp-limit": (422, "Proposal violates m_cap or m_max"),
    "sdcp-session-closed": (410, "Session has finished or failed"),
    "sdcp-bad-proposal": (422, "Proposal inconsistent with its draft distributions"),
    "sdcp-not-assigned": (403, "Drafter is not assigned to the session"),
}


def check_refused(answer: Answer, kind: str | int, says: str = "") -> dict[str, Any]:
    """Check that `answer` is this refusal: a suffix of Table 2, or a status with about:blank (D3). Returns the problem.

    `says`: a pattern that the detail must contain.
    """
    status, title = TABLE_2[kind] if isinstance(kind, str) else (kind, None)
    assert answer.status == status, (answer.status, answer.body)
    assert answer.headers["content-type"] == "application/problem+json"
    problem = json.loads(answer.body)
    assert problem["type"] == (TYPE_PREFIX + kind if isinstance(kind, str) else "about:blank"), problem
    assert problem["status"] == status
    assert problem["title"] == title if title is not None else problem["title"]
    assert len(problem["detail"].split()) >= 4, f"the detail is no sentence: {problem['detail']!r}"
    assert re.search(says, problem["detail"]), problem["detail"]
    assert ("session-state" in problem) == (kind == "sdcp-stale-base"), problem
    if status == 503:
        assert int(answer.headers["retry-after"]) >= 1
    if status == 405:
        assert answer.headers["allow"]
    return problem
