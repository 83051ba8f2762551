"""Settings files: names, defaults, relative paths, and complaints that name the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdcp.errors import ConfigurationError
from sdcp.roles.config import (
    CacheSettings,
    DrafterSettings,
    GatewaySettings,
    RouterSettings,
    Server,
    VerifierSettings,
    load,
)
from sdcp.roles.config_docs import ROLES, describe, example

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
        ("", r"\[tls\], \[model\], \[cache\]: missing; `sdcp config verifier` shows what it needs"),
        (VERIFIER.replace("ca = ", "authority = "), r"\[tls\] authority: unknown key.*; \[tls\] ca: missing"),
        (VERIFIER + '[server]\nlisten = "0.0.0.0:7402"', r"\[server\]: listen = 0.0.0.0:7402 is every address"),
        (VERIFIER + '[server]\nlisten = "[::]:7402"', r"\[server\]: listen = \[::\]:7402 is every address"),
        (
            VERIFIER.replace("https://127", "http://127"),
            r"\[cache.prefixes\] 0: must be the URI of a cache, which begins",
        ),
        (VERIFIER + 'logs = "logs"', r"\[cache\] logs: must be the URI of a cache"),
        ("not toml", "is not TOML"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        load(write(tmp_path, text), VerifierSettings)
    assert "\n" not in str(caught.value)


@pytest.mark.decision("D42-schemes", "D42-several")
def test_caches_of_any_scheme_and_one_for_logs(tmp_path: Path) -> None:
    uris = ("https://a", "file:///b", "memory:/c", "s3://bucket/d?region=e", "valkey://f/0?prefix=g")
    text = VERIFIER.replace('["https://127.0.0.1:1/"]', str(list(uris)).replace("'", '"')) + 'logs = "s3://bucket/h/"\n'
    cache = load(write(tmp_path, text), VerifierSettings).cache
    assert (cache.prefixes, cache.logs) == (uris, "s3://bucket/h")
    assert load(write(tmp_path, VERIFIER), VerifierSettings).cache.logs is None


@pytest.mark.parametrize("role", ROLES)
def test_each_role_s_example_is_a_settings_file(tmp_path: Path, role: str) -> None:
    settings = load(write(tmp_path, example(role)), ROLES[role])
    assert settings.server.known_base_uri == settings.server.base_uri
    assert f"```toml\n{example(role)}```" in describe(role)


@pytest.mark.parametrize(
    ("listen", "known"), [("127.0.0.1:0", None), ("127.0.0.1:7402", "https://127.0.0.1:7402"), ("[::1]:0", None)]
)
def test_the_base_uri_is_known_unless_the_port_is_yet_to_be_taken(listen: str, known: str | None) -> None:
    assert Server(listen=listen).known_base_uri == known
    assert Server(listen="0.0.0.0:0", base_uri="https://v.example/").known_base_uri == "https://v.example"


@pytest.mark.decision("D16")
def test_a_limit_to_start_with_is_not_above_the_highest(tmp_path: Path) -> None:
    router = example("router")
    with pytest.raises(ConfigurationError, match=r"\[contract\]: m_init = 9 is above m_max = 8"):
        load(write(tmp_path, router + "[contract]\nm_init = 9"), RouterSettings)
    assert load(write(tmp_path, router + "[contract]\nm_max = 2"), RouterSettings).contract.m_max == 2


def test_a_gateway_needs_a_router_to_ask(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"\[routers\] base_uris"):
        load(write(tmp_path, TLS + "[model]\n[routers]\nbase_uris = []"), GatewaySettings)


@pytest.mark.parametrize(
    ("role", "key"),
    [
        ("router", "[limits]\nstatus_ttl_ms = 100"),
        ("cache", "[limits]\nstatus_ttl_ms = 100"),
        ("gateway", "[limits]\nstatus_ttl_ms = 100"),
    ],
)
def test_a_key_without_effect_is_refused(tmp_path: Path, role: str, key: str) -> None:
    with pytest.raises(ConfigurationError, match=r"status_ttl_ms: unknown key"):
        load(write(tmp_path, f"{example(role)}\n{key}"), ROLES[role])


def test_only_what_the_file_sets_goes_to_the_engine(tmp_path: Path) -> None:
    assert load(write(tmp_path, VERIFIER), VerifierSettings).model.options() == {}
    set_ = VERIFIER.replace("[cache]", "capacity = 3\n[cache]")
    assert load(write(tmp_path, set_), VerifierSettings).model.options() == {"capacity": 3}


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
