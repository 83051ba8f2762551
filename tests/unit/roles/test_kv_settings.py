"""`[kv]` of a verifier: what is wrong in it is told in one sentence before a model is loaded (D44)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sdcp.engines.bigram import write_bigram
from sdcp.errors import ConfigurationError
from sdcp.http.authority import issue
from sdcp.roles.config import VerifierSettings, load
from sdcp.roles.process import Context
from sdcp.roles.telemetry import Metrics
from sdcp.roles.verifier import make


def context(folder: Path, kv: str, model: str = "absent.safetensors") -> Context[VerifierSettings]:
    files = issue(folder, "verifier", "verifier")
    (folder / "verifier.toml").write_text(f"""[tls]
certificate = "verifier.pem"
key = "verifier.key"
ca = "ca.pem"

[model]
engine = "bigram"
path = "{model}"

[cache]
prefixes = ["https://127.0.0.1:7400"]

[kv]
{kv}
""")

    def report(what: str, fault: BaseException) -> None:
        raise AssertionError(what) from fault

    return Context(load(folder / "verifier.toml", VerifierSettings), files, report, Metrics())


@pytest.mark.decision("D44-group")
@pytest.mark.parametrize(
    ("secret", "said"),
    [
        (None, r"^\[kv\] group_key: .*secret: cannot be read: No such file or directory$"),
        (
            b"short",
            r"^\[kv\] group_key: .*secret: holds 5 octets; it takes at least 32 random ones, e\.g\. `head -c 32",
        ),
    ],
    ids=["absent", "short"],
)
async def test_a_key_that_cannot_be_used_is_named(tmp_path: Path, secret: bytes | None, said: str) -> None:
    if secret is not None:
        (tmp_path / "secret").write_bytes(secret)
    with pytest.raises(ConfigurationError, match=said):
        await make(context(tmp_path, 'group_key = "secret"'))


async def test_an_engine_that_has_no_kv_is_no_member_of_a_group(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(32))
    write_bigram(tmp_path / "model.safetensors", np.zeros((4, 4), np.float32))
    with pytest.raises(ConfigurationError, match=r"^\[kv\] group_key: the engine bigram has no KV to share; remove"):
        await make(context(tmp_path, 'group_key = "secret"', "model.safetensors"))
