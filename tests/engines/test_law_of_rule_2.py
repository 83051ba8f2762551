"""The law of rule 2 by enumeration, through what the transformers engine does with the logits of a pass (6.4)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sdcp.engines.rounds import judge
from sdcp.engines.transformers import _Rows
from sdcp.messages.contract import Sampling
from sdcp.ports import VerifyJob
from sdcp.rules.acceptance import Outcome
from sdcp.rules.draws import Luck
from tests.property.exact_law import Judge, log_table
from tests.property.test_law_of_rule_2 import FEW_PROFILES, ROOTS, check_law


def tensor_judge(profile: Sampling) -> Judge:
    logits = torch.from_numpy(log_table([[root * root for root in row] for row in ROOTS]).astype(np.float32))

    def decide(last: int, tokens: tuple[int, ...], q: np.ndarray, luck: Luck, room: int) -> Outcome:
        job = VerifyJob(b"law", [last], 1, tokens, 2, profile, luck.values, q, room)
        result = judge(job, _Rows(logits[[last, *tokens]]))
        return Outcome(result.accepted, result.additional)

    return decide


@pytest.mark.requirement("S6.4-speculative-output")
@pytest.mark.parametrize("profile", FEW_PROFILES, ids=str)
def test_logits_on_a_device_keep_the_law(profile: Sampling) -> None:
    check_law(tensor_judge(profile), profile)
