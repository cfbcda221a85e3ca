"""The webhook's certificate: an authority of its own that lives as long as the certificate, kept in a Secret that all replicas share.

The API server trusts whom the `caBundle` of the ValidatingWebhookConfiguration names. A renewal writes both authorities there first, the old and
the new, so that no question fails while replicas change over.
"""

import datetime
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hams_operator import limits


@dataclass(frozen=True, slots=True)
class Pair:
    """PEM texts: authority, certificate, key."""

    authority: bytes
    certificate: bytes
    key: bytes


def fresh_pair(names: tuple[str, ...], now: datetime.datetime) -> Pair:
    """A fresh authority, and a certificate by it for a server under these DNS names."""
    begin, end = now - datetime.timedelta(minutes=5), now + datetime.timedelta(days=limits.certificate_days)
    ours, theirs = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hams-webhook-ca")])
    authority = (
        x509.CertificateBuilder()
        .subject_name(issuer)
        .issuer_name(issuer)
        .public_key(ours.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ours.public_key()), critical=False)
        .add_extension(_usage(sign=True), critical=True)
        .sign(ours, hashes.SHA256())
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])]))
        .issuer_name(issuer)
        .public_key(theirs.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ours.public_key()), critical=False)
        .add_extension(_usage(sign=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(ours, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    key = theirs.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Pair(authority.public_bytes(encoding), certificate.public_bytes(encoding), key)


def _usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign,
        crl_sign=sign,
        encipher_only=False,
        decipher_only=False,
    )


def holds(pair: Pair, names: tuple[str, ...], now: datetime.datetime) -> bool:
    """Whether a pair is for these names and does not end soon. What cannot be read does not."""
    try:
        found = x509.load_pem_x509_certificate(pair.certificate)
        serialization.load_pem_private_key(pair.key, None)
        there = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    except (ValueError, TypeError, x509.ExtensionNotFound):
        return False
    left = found.not_valid_after_utc - now
    return set(names) <= set(there) and left > datetime.timedelta(days=limits.certificate_renew_days)
