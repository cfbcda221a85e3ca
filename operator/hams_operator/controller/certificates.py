"""Certificates: authorities, what they sign, and when either is replaced. Pure: texts in, texts out, the
clock is an argument.

An authority signs for one purpose: the webhook, the clients and servers of etcd, its members among
themselves, or the parts of one graph. Keys are on P-256 and exist as PEM texts in Secrets only. `rotated`
replaces an authority in three steps, none of which needs a restart anywhere: a new one is trusted beside the
old one for `authority_overlap_days` before it signs anything, so that everybody knows it by then; then it
signs; and the old one is trusted until all that it has signed has ended.
"""

import datetime
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hams_operator.controller import limits

certificate_days = 90
certificate_renew_days = 30
"""The webhook's certificate holds this long, and is replaced when less than the second is left."""

authority_days = 730
authority_renew_days = 180
"""The authority of a graph holds this long; so long before its end another one begins to take over."""

authority_overlap_days = 1
"""An authority is trusted for this long before it signs: by then every node has brought it to every pod, and
every process has seen it."""


_PEM = serialization.Encoding.PEM
_SKEW = datetime.timedelta(minutes=5)
"""Certificates hold from a little before they were made: clocks differ."""


@dataclass(frozen=True, slots=True)
class Pair:
    """PEM texts: authority, certificate, key."""

    authority: bytes
    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Authority:
    """PEM texts: its certificate and its key."""

    certificate: bytes
    key: bytes

    @property
    def _parsed(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.certificate)

    @property
    def made(self) -> datetime.datetime:
        """The time when it was made."""
        return self._parsed.not_valid_before_utc + _SKEW

    @property
    def ends(self) -> datetime.datetime:
        """The time when it ends."""
        return self._parsed.not_valid_after_utc


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a certificate: a common name ("" for none), host names, addresses and URIs; and whether
    the listening side shows it, the dialling side, or both."""

    name: str = ""
    hosts: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()
    serves: bool = True
    dials: bool = True


# -- authorities ---------------------------------------------------------------------------------------------


def fresh_authority(name: str, now: datetime.datetime, days: int) -> Authority:
    """A new one that signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_usage(sign=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate.public_bytes(_PEM), _text(key))


def rotated(held: tuple[Authority, ...], name: str, now: datetime.datetime) -> tuple[Authority, ...]:
    """The authorities to trust from now on, oldest first: one, or two while one takes over from the other
    (see the module)."""
    living = tuple(item for item in held if item.ends > now)
    if not living or living[-1].ends - now < datetime.timedelta(days=authority_renew_days):
        living = (*living, fresh_authority(name, now, authority_days))
    signs = signer(living, now)
    done = now - signs.made > datetime.timedelta(days=authority_overlap_days + limits.leaf_days)
    return living[living.index(signs) :] if done else living


def signer(held: tuple[Authority, ...], now: datetime.datetime) -> Authority:
    """The authority that signs: the newest that every process has had time to learn, else the oldest."""
    known = [item for item in held if now - item.made >= datetime.timedelta(days=authority_overlap_days)]
    return known[-1] if known else held[0]


def bundle(held: Iterable[Authority]) -> bytes:
    """The certificates of all of them."""
    return b"".join(item.certificate for item in held)


def authorities(certificates: bytes, keys: bytes) -> tuple[Authority, ...]:
    """As `bundle` and the keys in the same order were written. Raises ValueError if they do not fit each
    other."""
    pairs = tuple(Authority(*pair) for pair in zip(blocks(certificates), blocks(keys), strict=True))
    for item in pairs:
        if (
            x509.load_pem_x509_certificate(item.certificate).public_key()
            != serialization.load_pem_private_key(item.key, None).public_key()
        ):
            raise ValueError("an authority's certificate has another key than its own")
    return pairs


def blocks(text: bytes) -> list[bytes]:
    """The PEM blocks in a text."""
    texts: list[bytes] = []
    lines: list[bytes] = []
    for line in text.splitlines():
        lines.append(line)
        if line.startswith(b"-----END "):
            texts.append(b"\n".join(lines) + b"\n")
            lines = []
    return texts


# -- what they sign ------------------------------------------------------------------------------------------


def issue(authority: Authority, subject: Subject, now: datetime.datetime, days: int) -> tuple[bytes, bytes]:
    """A certificate and its key. It never outlives its authority."""
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    signing = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey), "made here"
    key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [x509.DNSName(host) for host in subject.hosts]
    names += [x509.UniformResourceIdentifier(uri) for uri in subject.uris]
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH] * subject.serves + [
        ExtendedKeyUsageOID.CLIENT_AUTH
    ] * subject.dials
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject.name))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(min(now + datetime.timedelta(days=days), issuer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False
        )
        .add_extension(_usage(sign=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=not subject.name)
    return builder.sign(signing, hashes.SHA256()).public_bytes(_PEM), _text(key)


def good(
    certificate: bytes,
    key: bytes,
    authority: Authority,
    subject: Subject,
    now: datetime.datetime,
    left_days: float,
) -> bool:
    """Whether a certificate is by this authority, for this subject, and holds for longer than `left_days`.
    What cannot be read does not."""
    try:
        parsed = x509.load_pem_x509_certificate(certificate)
        if parsed.public_key() != serialization.load_pem_private_key(key, None).public_key():
            return False
        parsed.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return _named(parsed) == subject and parsed.not_valid_after_utc - now > datetime.timedelta(days=left_days)


def fresh_pair(names: tuple[str, ...], now: datetime.datetime) -> Pair:
    """The webhook's: a fresh authority that lives as long as the certificate, and a certificate by it for a
    server under these DNS names."""
    authority = fresh_authority("hams-webhook-ca", now, certificate_days)
    return Pair(authority.certificate, *issue(authority, _webhook(names), now, certificate_days))


def holds(pair: Pair, names: tuple[str, ...], now: datetime.datetime) -> bool:
    """Whether a pair is for these names and does not end soon. What cannot be read does not."""
    return good(
        pair.certificate,
        pair.key,
        Authority(pair.authority, b""),
        _webhook(names),
        now,
        certificate_renew_days,
    )


def _webhook(names: tuple[str, ...]) -> Subject:
    return Subject(names[0][:64], names, dials=False)


def _named(certificate: x509.Certificate) -> Subject:
    """The subject that a certificate was made for."""
    common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    hosts: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()
    purposes: frozenset[x509.ObjectIdentifier] = frozenset()
    for extension in certificate.extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            hosts = tuple(extension.value.get_values_for_type(x509.DNSName))
            uris = tuple(extension.value.get_values_for_type(x509.UniformResourceIdentifier))
        elif isinstance(extension.value, x509.ExtendedKeyUsage):
            purposes = frozenset(extension.value)
    serves, dials = (
        purpose in purposes for purpose in (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
    )
    return Subject(str(common[0].value) if common else "", hosts, uris, serves, dials)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)] if common else [])


def _text(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


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
