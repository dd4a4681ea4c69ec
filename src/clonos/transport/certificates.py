"""The certificates of one job, made where its driver runs.

The authority is only in the driver's memory, and nobody outside the job trusts it: its certificates
are worthless elsewhere and later. So no revocation list is needed. Certificates must not expire,
either: a task may be recovered, with new handshakes, after a year.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

from clonos.errors import TlsUnavailable
from clonos.transport.tls import Identity

if TYPE_CHECKING:
    from cryptography.x509 import CertificateBuilder

SKEW: Final = timedelta(days=1)
"""How far the executors' clocks may be behind the driver's."""
LIFE: Final = timedelta(days=3650)
NAME_BYTES: Final = 64
"""X.509 allows no longer name."""


class Authority:
    """Signs the certificates of one job's processes.

    Raises
    ------
    TlsUnavailable
        The package that makes certificates is not installed here.

    Examples
    --------
    >>> Authority("job-1").issue("slot-3")
    Identity('slot-3', ...)
    """

    def __init__(self, job_id: str) -> None:
        try:
            from cryptography import x509
            from cryptography.hazmat.primitives.asymmetric import ec
        except ImportError as error:
            raise TlsUnavailable(
                "streams that leave this machine are encrypted, and the certificates for that "
                f"cannot be made: {error}",
                remedy='pip install ".[tls]" in a clone of clonos, where the driver runs '
                "(executors need nothing), or pass tls=False if that network is trusted",
            ) from error
        name = job_id.encode()[:NAME_BYTES].decode(errors="ignore")
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        own = self._builder(self._name, self._key.public_key(), signs=True)
        self._certificate = _pem(self._signed(own.add_extension(constraints, critical=True)))

    def issue(self, name: str) -> Identity:
        """Return a new key with a certificate for `name`."""
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = (
            self._builder(subject, key.public_key(), signs=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        )
        encoded = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return Identity(name, self._certificate, _pem(self._signed(builder)), encoded)

    def _builder(self, subject: Any, public_key: Any, *, signs: bool) -> CertificateBuilder:
        from cryptography import x509

        now = datetime.now(timezone.utc)
        usage = x509.KeyUsage(
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
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - SKEW)
            .not_valid_after(now + LIFE)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(issuer_key, critical=False)
        )

    def _signed(self, builder: CertificateBuilder) -> Any:
        from cryptography.hazmat.primitives import hashes

        return builder.sign(self._key, hashes.SHA256())


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    encoded: bytes = certificate.public_bytes(serialization.Encoding.PEM)
    return encoded
