"""Settings of the whole suite: property tests are derandomized, so that a run says the same thing twice.

`HYPOTHESIS_PROFILE=explore pytest` looks for new examples; `brief` is for runs that only ask which lines are reached.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.unit.stores.s3_process import CREDENTIALS, S3Process

# No deadlines: these machines are shared, and a slow example is no fault of the code.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("brief", parent=settings.get_profile("steady"), max_examples=10)
settings.register_profile("explore", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as sdcp.engines.registry does, for tests that import torch first
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Process]:
    """A server that speaks S3, and credentials for it in the environment. A bucket is for one test."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        process = S3Process(tmp_path_factory.mktemp("s3") / "log")
        yield process
        process.stop()
