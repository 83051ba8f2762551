"""A certificate authority for development and tests: EC P-256, one directory, no revocation.

`init_authority` and `issue` may be repeated and may be cut short at any point: an authority that exists is kept, and
each file is replaced whole or not at all. The role of a certificate is written as the SAN `urn:sdcp:role:<role>` (D9).

Not for production: the authority's key lies unencrypted beside its certificate.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sdcp.errors import ConfigurationError
from sdcp.http.identity import ROLE_URN, ROLES, normalize_uri
from sdcp.http.tls import TlsFiles

CA_VALIDITY = timedelta(days=3650)
VALIDITY = timedelta(days=365)
_SKEW = timedelta(minutes=5)  # a peer's clock may be a little behind ours
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def init_authority(directory: Path | str) -> Path:
    """Make `ca.key` and `ca.pem` in `directory` unless they are there; return the path of `ca.pem`.

    Raises ConfigurationError when what is there is no authority, when its certificate has expired, and when nothing
    can be written there.
    """
    folder = Path(directory)
    key_file, certificate_file = folder / "ca.key", folder / "ca.pem"
    with _telling(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not key_file.exists():
            _write(key_file, _pem(ec.generate_private_key(ec.SECP256R1())), secret=True, keep_existing=True)
        key = _load_key(key_file)
        if not certificate_file.exists():  # also after a crash between the two files
            _write(certificate_file, _self_signed(key).public_bytes(serialization.Encoding.PEM), keep_existing=True)
    _load_certificate(certificate_file, key)
    return certificate_file


def issue(
    directory: Path | str,
    name: str,
    role: str | Iterable[str],
    uris: Iterable[str] = (),
    dns: Iterable[str] = (),
    ips: Iterable[str] = (),
) -> TlsFiles:
    """Write `<name>.pem` and `<name>.key` (mode 0600), good as server and as client, for 365 days
    or as long as the authority lasts.

    `role` may be several. Without `dns` and `ips` the certificate is for the loopback: localhost, 127.0.0.1, ::1.
    Raises ConfigurationError for a name, role, URI or address that cannot be, and when nothing can be written there.
    """
    folder = Path(directory)
    if not _NAME.fullmatch(name) or name == "ca":
        raise ConfigurationError(f"{name!r} cannot name a certificate: use letters, digits, '.', '_' and '-', not 'ca'")
    names = _alternative_names([role] if isinstance(role, str) else list(role), list(uris), list(dns), list(ips))
    init_authority(folder)
    ca_key = _load_key(folder / "ca.key")
    ca = _load_certificate(folder / "ca.pem", ca_key)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _leaf(name, names, key, ca, ca_key)
    files = TlsFiles.of(folder, name)
    with _telling(folder):
        _write(files.key, _pem(key), secret=True)
        _write(files.certificate, certificate.public_bytes(serialization.Encoding.PEM))
    return files


@contextmanager
def _telling(folder: Path) -> Iterator[None]:
    """Name the folder when the system refuses it: the file of the fault may be a temporary one."""
    try:
        yield
    except OSError as fault:
        raise ConfigurationError(f"{folder}: cannot be written: {fault.strerror or fault}") from None


def _alternative_names(
    roles: list[str], uris: list[str], dns: list[str], ips: list[str]
) -> x509.SubjectAlternativeName:
    if unknown := set(roles) - ROLES:
        raise ConfigurationError(f"unknown role {min(unknown)!r}; roles are {', '.join(sorted(ROLES))}")
    if not dns and not ips:
        dns, ips = ["localhost"], ["127.0.0.1", "::1"]
    try:
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(normalize_uri(uri)) for uri in uris]
        names += [x509.UniformResourceIdentifier(f"{ROLE_URN}{role}") for role in roles]
        names += [x509.DNSName(name.lower()) for name in dns]
        names += [x509.IPAddress(ip_address(address)) for address in ips]
    except ValueError as error:
        raise ConfigurationError(f"the certificate cannot bear that name: {error}") from None
    return x509.SubjectAlternativeName(names)


def _self_signed(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "SDCP development authority")])
    return (
        _builder(subject, subject, key.public_key(), CA_VALIDITY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )


def _leaf(
    name: str,
    names: x509.SubjectAlternativeName,
    key: ec.EllipticCurvePrivateKey,
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    both_sides = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    return (
        _builder(subject, ca.subject, key.public_key(), min(VALIDITY, ca.not_valid_after_utc - datetime.now(UTC)))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(both_sides, critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(names, critical=False)
        .sign(ca_key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, validity: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + validity)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(f"{path} is not the key of a development authority: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigurationError(f"{path} is not the key of a development authority: it is not an EC key")
    return key


def _load_certificate(path: Path, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} is not the certificate of a development authority: {error}") from None
    if certificate.public_key() != key.public_key():
        raise ConfigurationError(f"{path} does not belong to the key beside it; remove both to begin anew")
    if certificate.not_valid_after_utc <= datetime.now(UTC):
        raise ConfigurationError(f"{path} has expired; remove it and its key to begin anew")
    return certificate


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes, *, secret: bool = False, keep_existing: bool = False) -> None:
    """Put the whole file in place at once; with `keep_existing`, whoever comes second leaves the first one's file."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o600 if secret else 0o644)
        if not keep_existing:
            Path(temporary).replace(path)
            return
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            return
    finally:
        Path(temporary).unlink(missing_ok=True)
