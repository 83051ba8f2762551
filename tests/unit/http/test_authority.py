"""The development authority (D9)."""

import stat
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from sdcp.errors import ConfigurationError
from sdcp.http import authority
from sdcp.http.authority import init_authority, issue


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_an_existing_authority_is_kept(tmp_path: Path) -> None:
    first = init_authority(tmp_path).read_bytes()
    assert init_authority(tmp_path).read_bytes() == first


def test_a_certificate_lost_between_the_two_files_is_made_for_the_same_key(tmp_path: Path) -> None:
    old = load(init_authority(tmp_path))
    (tmp_path / "ca.pem").unlink()
    assert load(init_authority(tmp_path)).public_key() == old.public_key()


def test_what_a_certificate_says(tmp_path: Path) -> None:
    files = issue(tmp_path, "v", ["verifier", "front-end"], ["HTTPS://Host:443"], ["Host"], ["::1"])
    names = load(files.certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [
        "https://host/",
        "urn:sdcp:role:verifier",
        "urn:sdcp:role:front-end",
    ]
    assert names.get_values_for_type(x509.DNSName) == ["host"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["::1"]
    load(files.certificate).verify_directly_issued_by(load(files.ca))
    assert isinstance(load(files.certificate).public_key(), ec.EllipticCurvePublicKey)


def test_the_loopback_is_the_default_host(tmp_path: Path) -> None:
    names = load(issue(tmp_path, "v", "verifier").certificate).extensions
    san = names.get_extension_for_class(x509.SubjectAlternativeName).value
    assert san.get_values_for_type(x509.DNSName) == ["localhost"]
    assert {str(ip) for ip in san.get_values_for_type(x509.IPAddress)} == {"127.0.0.1", "::1"}


def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    files = issue(tmp_path, "v", "verifier")
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "ca.key").stat().st_mode) == 0o600


def test_issuing_again_replaces_and_leaves_nothing_behind(tmp_path: Path) -> None:
    before = load(issue(tmp_path, "v", "verifier").certificate)
    after = load(issue(tmp_path, "v", "drafter").certificate)
    assert before.serial_number != after.serial_number
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca.key", "ca.pem", "v.key", "v.pem"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ca", "router"), "cannot name"),
        (("../x", "router"), "cannot name"),
        (("x", "king"), "unknown role"),
        (("x", "router", ["no uri"]), "not a URI"),
        (("x", "router", [], [], ["300.0.0.1"]), "cannot bear"),
    ],
)
def test_what_cannot_be_issued(tmp_path: Path, arguments: tuple, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        issue(tmp_path, *arguments)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_or_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "certs"):
        with pytest.raises(ConfigurationError, match=r"cannot be written: (File exists|Not a directory)"):
            init_authority(folder)
    (tmp_path / "certs" / "v.key").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="cannot be written: Is a directory"):
        issue(tmp_path / "certs", "v", "verifier")


def test_an_expired_authority_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authority, "CA_VALIDITY", timedelta(seconds=-1))
    with pytest.raises(ConfigurationError, match="has expired"):
        init_authority(tmp_path)


def test_a_certificate_does_not_outlive_its_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authority, "CA_VALIDITY", timedelta(days=2))
    files = issue(tmp_path, "v", "verifier")
    assert load(files.certificate).not_valid_after_utc <= load(files.ca).not_valid_after_utc


@pytest.mark.parametrize("name", ["ca.key", "ca.pem"])
def test_files_that_are_no_authority_are_not_overwritten(tmp_path: Path, name: str) -> None:
    init_authority(tmp_path)
    (tmp_path / name).write_text("hello")
    with pytest.raises(ConfigurationError, match="development authority"):
        issue(tmp_path, "v", "verifier")
    assert (tmp_path / name).read_text() == "hello"


def test_a_certificate_of_another_authority_is_noticed(tmp_path: Path) -> None:
    init_authority(tmp_path / "a")
    init_authority(tmp_path / "b")
    (tmp_path / "a" / "ca.pem").write_bytes((tmp_path / "b" / "ca.pem").read_bytes())
    with pytest.raises(ConfigurationError, match="does not belong to the key"):
        init_authority(tmp_path / "a")
