"""Settings files: names, defaults, relative paths, and complaints that name the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdcp.errors import ConfigurationError
from sdcp.roles.config import CacheSettings, DrafterSettings, GatewaySettings, RouterSettings, VerifierSettings, load
from sdcp.roles.config_docs import ROLES, describe

TLS = '[tls]\ncertificate = "v.pem"\nkey = "/keys/v.key"\nca = "ca.pem"\n'
VERIFIER = TLS + '[model]\nengine = "bigram"\npath = "m.safetensors"\n[cache]\nprefixes = ["https://127.0.0.1:1/"]\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "role.toml"
    path.write_text(text)
    return path


def test_relative_paths_are_taken_from_the_files_folder(tmp_path: Path) -> None:
    settings = load(write(tmp_path, VERIFIER), VerifierSettings)
    assert settings.tls.certificate == tmp_path / "v.pem"
    assert settings.tls.key == Path("/keys/v.key")
    assert settings.model.path == tmp_path / "m.safetensors"
    assert settings.cache.prefixes == ("https://127.0.0.1:1",)


def test_no_port_but_loopback_by_default(tmp_path: Path) -> None:
    assert load(write(tmp_path, VERIFIER), VerifierSettings).server.listen == "127.0.0.1:0"
    gateway = TLS + '[model]\nengine = "bigram"\n[routers]\nbase_uris = ["https://r"]\n'
    assert load(write(tmp_path, gateway), GatewaySettings).api.listen.startswith("127.0.0.1:")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (VERIFIER + "[server]\nlisten = 7", r"\[server\] listen"),
        (VERIFIER + '[server]\nlisten = "localhost"', r"\[server\] listen: must be HOST:PORT"),
        (VERIFIER + '[server]\nlisen = "x"', r"\[server\] lisen: unknown key"),
        (VERIFIER + "[sever]\n", r"\[sever\]: unknown key"),
        (VERIFIER + '[routers]\nbase_uris = ["http://r"]', r"must be an https URI"),
        (VERIFIER + "[limits]\nwait_ms = -1", r"\[limits\] wait_ms"),
        (TLS, r"\[model\]: is missing"),
        (VERIFIER.replace("ca = ", "authority = "), r"\[tls\] (ca: is missing|authority: unknown key)"),
        ("not toml", "is not TOML"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        load(write(tmp_path, text), VerifierSettings)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml: cannot be read"):
        load(tmp_path / "none.toml", CacheSettings)


def test_the_same_names_for_every_role() -> None:
    for settings in (VerifierSettings, DrafterSettings, RouterSettings, CacheSettings, GatewaySettings):
        assert {"server", "tls", "limits"} <= settings.model_fields.keys()


def test_the_configuration_page_is_up_to_date() -> None:
    page = Path(__file__).parents[3] / "docs" / "configuration.md"
    assert page.read_text() == describe("all"), "run `sdcp config > docs/configuration.md`"


def test_every_key_says_what_it_means() -> None:
    for role in ROLES:
        assert "None |" not in describe(role)
    with pytest.raises(ConfigurationError, match="unknown role"):
        describe("nobody")
