"""Our own certificate against our own settings (D9)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sdcp.errors import ConfigurationError
from sdcp.http.authority import issue
from sdcp.http.tls import TlsFiles
from sdcp.roles.certificate import check_certificate
from sdcp.roles.config import GatewaySettings, RoleSettings, RouterSettings
from sdcp.roles.config_docs import ROLES

pytestmark = pytest.mark.decision("D9")

BASE = "https://127.0.0.1:7402"


def settings(files: TlsFiles, kind: type[RoleSettings] = RouterSettings, **server: Any) -> RoleSettings:
    """Those parts of a role's settings that the certificate has to do with."""
    tls = {"certificate": files.certificate, "key": files.key, "ca": files.ca}
    for key in ("roles", "match_host"):
        if key in server:
            tls[key] = server.pop(key)
    sections = {
        "cache": {"prefixes": ["https://c"]},
        "model": {"engine": "bigram"},
        "routers": {"base_uris": ["https://r"]},
        "store": {"directory": "store"},
    }
    used = {name: section for name, section in sections.items() if name in kind.model_fields}
    return kind.model_validate({"server": server, "tls": tls, **used})


@pytest.mark.parametrize("kind", ROLES.values())
def test_a_certificate_with_role_and_base_uri_will_do(tmp_path: Path, kind: type[RoleSettings]) -> None:
    files = issue(tmp_path, "one", kind.role, [BASE])
    check_certificate(settings(files, kind, base_uri=BASE))
    check_certificate(settings(files, kind, listen="127.0.0.1:7402"))
    check_certificate(settings(files, kind, base_uri=f"{BASE}/"))


def test_one_for_another_base_uri_is_named(tmp_path: Path) -> None:
    files = issue(tmp_path, "one", "router", ["https://127.0.0.1:7499"])
    servers: list[dict[str, Any]] = [{"base_uri": BASE}, {"listen": "127.0.0.1:7402"}]
    for server in servers:
        with pytest.raises(ConfigurationError, match=f"one.pem: .* not for our base URI {BASE}; it names .*7499"):
            check_certificate(settings(files, **server))


def test_a_port_that_is_yet_to_be_taken_is_in_no_certificate(tmp_path: Path) -> None:
    check_certificate(settings(issue(tmp_path, "one", "router"), listen="127.0.0.1:0"))


@pytest.mark.decision("D9-host")
def test_with_match_host_the_host_is_enough(tmp_path: Path) -> None:
    files = issue(tmp_path, "one", "router", dns=["r.example"])
    check_certificate(settings(files, base_uri="https://r.example:7402", match_host=True))
    servers: list[dict[str, Any]] = [{"base_uri": BASE}, {"listen": "127.0.0.1:0"}]
    for server in servers:
        with pytest.raises(ConfigurationError, match="not for our base URI"):
            check_certificate(settings(files, match_host=True, **server))


def test_without_its_role_a_process_does_not_start(tmp_path: Path) -> None:
    files = issue(tmp_path, "one", ["drafter", "router"], [BASE])
    with pytest.raises(ConfigurationError, match=r"a gateway needs the role front-end; .* has drafter, router"):
        check_certificate(settings(files, GatewaySettings, base_uri=BASE))


@pytest.mark.decision("D9-policy")
def test_roles_are_those_of_the_trust_policy(tmp_path: Path) -> None:
    files = issue(tmp_path, "one", "router", [BASE, "spiffe://cluster/r"])
    check_certificate(settings(files, base_uri=BASE, roles={"spiffe://cluster/r": "router"}))
    with pytest.raises(ConfigurationError, match="a router needs the role router; this certificate has no role"):
        check_certificate(settings(files, base_uri=BASE, roles={"spiffe://cluster/v": "verifier"}))


def test_what_is_no_certificate_is_named(tmp_path: Path) -> None:
    files = issue(tmp_path, "one", "router", [BASE])
    files.certificate.write_text("no certificate")
    with pytest.raises(ConfigurationError, match=r"one\.pem: cannot be read as a certificate"):
        check_certificate(settings(files, base_uri=BASE))
