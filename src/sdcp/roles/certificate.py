"""Whether our own certificate fits our settings (D9): else peers refuse every request, and only their logs say why.

Not here: whether it belongs to its key (`sdcp.http.tls`), and who peers are (`sdcp.http.identity`).
"""

from __future__ import annotations

from pathlib import Path

from cryptography import x509

from sdcp.errors import ConfigurationError
from sdcp.http.identity import Peer, TrustPolicy
from sdcp.roles.config import RoleSettings


def check_certificate(settings: RoleSettings) -> None:
    """Raise ConfigurationError unless the certificate of `[tls]` has our role and owns our base URI.

    The base URI is not looked for while it is unknown, with a port that is yet to be taken; its host is, where
    `match_host` lets it stand for the whole.
    """
    path, match_host = settings.tls.certificate, settings.tls.match_host
    ours = _ourselves(path, TrustPolicy(settings.tls.roles))
    if settings.role not in ours.roles:
        has = ", ".join(sorted(ours.roles)) or "no role"
        raise ConfigurationError(
            f"{path}: a {settings.name} needs the role {settings.role}; this certificate has {has}"
        )
    base_uri = settings.server.known_base_uri or (f"https://{settings.server.listen}" if match_host else None)
    if base_uri is not None and not ours.owns(base_uri, match_host):
        names = ", ".join(sorted(ours.uris | ours.dns | ours.ips))
        raise ConfigurationError(f"{path}: this certificate is not for our base URI {base_uri}; it names {names}")


def own_name(settings: RoleSettings) -> str:
    """The name by which peers know what is ours (`Peer.name`). Raises ConfigurationError."""
    return _ourselves(settings.tls.certificate, TrustPolicy(settings.tls.roles)).name


def _ourselves(path: Path, trust: TrustPolicy) -> Peer:
    """Read the first certificate of a PEM file as peers will."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return Peer.of({}, trust)
    except (OSError, ValueError) as fault:
        raise ConfigurationError(f"{path}: cannot be read as a certificate: {fault}") from None
    found = [("URI", uri) for uri in names.get_values_for_type(x509.UniformResourceIdentifier)]
    found += [("DNS", name) for name in names.get_values_for_type(x509.DNSName)]
    found += [("IP Address", str(address)) for address in names.get_values_for_type(x509.IPAddress)]
    return Peer.of({"subjectAltName": found}, trust)
