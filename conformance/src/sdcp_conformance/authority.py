"""A certificate authority for one run: each party gets base URIs and a role as SANs (D9), good for both ends of TLS."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ROLE_URN = "urn:sdcp:role:"


@dataclass(frozen=True)
class Identity:
    """The PEM files of one party: its certificate, its key, and the authority that it trusts."""

    certificate: Path
    key: Path
    ca: Path

    def client_context(self) -> ssl.SSLContext:
        """TLS 1.3, `h2`, our certificate, the server's checked."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return self._load(context)

    def server_context(self) -> ssl.SSLContext:
        """TLS 1.3, `h2`, a certificate asked of every client."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        context.num_tickets = 0
        return self._load(context)

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(self.certificate, self.key)
        context.load_verify_locations(self.ca)
        return context


class Authority:
    """Writes into `folder`: `ca.pem`, and NAME.pem and NAME.key for each certificate."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "SDCP conformance authority")])
        self.ca = folder / f"{name}.pem"
        builder = self._builder(self._subject, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        certificate = builder.add_extension(_usage(signs=True), critical=True).sign(self._key, hashes.SHA256())
        self.ca.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self, name: str, roles: Sequence[str] = (), uris: Sequence[str] = (), dns: Sequence[str] = ("localhost",)
    ) -> Identity:
        """A certificate for the loopback with these roles and base URIs."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
        names += [x509.UniformResourceIdentifier(f"{ROLE_URN}{role}") for role in roles]
        names += [x509.DNSName(each) for each in dns]
        names += [x509.IPAddress(ip_address("127.0.0.1"))]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:60])])
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            self._builder(subject, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        files = Identity(self.folder / f"{name}.pem", self.folder / f"{name}.key", self.ca)
        files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        pem = serialization.PrivateFormat.PKCS8
        files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, pem, serialization.NoEncryption()))
        return files

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
