"""Mutual TLS between instances, from a mounted directory of certificates.

The directory is a Kubernetes secret: `tls.crt` and `tls.key` (this instance), `ca.crt` (the authorities that
sign for its peers), `identity` (the URI that every peer's certificate must name: the graph). Kubernetes
replaces the files in place when the secret is renewed; they are looked at before every handshake, so a new
certificate or a new authority holds for the next connection, and connections that stand go on. Both sides
must show a certificate of an authority, with the identity among its names. Addresses of pods change, so they
are in no certificate; which instance of the graph a peer is, its greeting says.

Never: falls back to plain text, or to a certificate that cannot be read. While new files cannot be read (a
half-written renewal), the old ones stay, and the log says so.
"""

import asyncio
import hashlib
import logging
import ssl
from pathlib import Path

from hams_wire.errors import ResponsibleParty, WireError

log = logging.getLogger("hams.wire.tls")

CERTIFICATE = "tls.crt"
KEY = "tls.key"
AUTHORITY = "ca.crt"
IDENTITY = "identity"
ETCD_AUTHORITY = "etcd-ca.crt"
ETCD_CERTIFICATE = "etcd.crt"
ETCD_KEY = "etcd.key"
PROBE_TOKEN = "probe-token"
METRICS_TOKEN = "metrics-token"
"""One for all graphs, so only its digest lies here: a reader of one graph's Secret does not have it."""
DIGEST = "sha256:"


class BadCertificates(WireError):
    """The mounted certificates are missing or do not fit each other."""

    responsible = ResponsibleParty.OURS


class Stranger(WireError):
    """A peer has a certificate by an authority we trust, and it names somebody else."""


def read_text(path: Path) -> str:
    """What one of the mounted files says; it may not be empty. Raises BadCertificates."""
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadCertificates(f"{path}: {error}") from error
    if not text:
        raise BadCertificates(f"{path} is empty")
    return text


def digest_of(token: bytes) -> bytes:
    """What can be compared with a token and does not give it away: a token is random, and long enough that
    nobody finds it by trying."""
    return hashlib.sha256(token).digest()


def sealed(token: bytes) -> bytes:
    """A token as a file holds it that is only compared with."""
    return f"{DIGEST}{digest_of(token).hex()}".encode()


def read_digest(path: Path) -> bytes:
    """The digest of a token, of a file by `sealed`; of a controller before that the file holds the token
    itself. Raises BadCertificates."""
    text = read_text(path)
    if not text.startswith(DIGEST):
        return digest_of(text.encode())
    try:
        return bytes.fromhex(text.removeprefix(DIGEST))
    except ValueError as error:
        raise BadCertificates(f"{path}: {error}") from error


class Certificates:
    """The TLS contexts of one instance, renewed when their files change."""

    def __init__(self, directory: Path) -> None:
        """Raises BadCertificates."""
        self._directory = directory
        self._seen = self._fingerprint()
        self._server = self._load(ssl.PROTOCOL_TLS_SERVER)
        self._client = self._load(ssl.PROTOCOL_TLS_CLIENT)
        self.identity = read_text(directory / IDENTITY)

    def vouch(self, transport: asyncio.BaseTransport) -> None:
        """Whether the peer behind a connection just made is of our identity. Raises Stranger."""
        shown: dict[str, tuple[tuple[str, str], ...]] = transport.get_extra_info("peercert") or {}
        names = [name for kind, name in shown.get("subjectAltName", ()) if kind == "URI"]
        if self.identity not in names:
            raise Stranger(
                f"expected a certificate of {self.identity}, found one of {', '.join(names) or 'nobody'}"
            )

    def client(self) -> ssl.SSLContext:
        """The context for the next connection to a peer. Name a server (any) when using it."""
        self._refresh()
        return self._client

    def server(self) -> ssl.SSLContext:
        """A context to listen with, for as long as one likes: each handshake is made with the files of its
        moment."""
        context = self._load(ssl.PROTOCOL_TLS_SERVER)
        context.sni_callback = self._renew
        return context

    def _renew(
        self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext
    ) -> None:
        self._refresh()
        connection.context = self._server

    def _refresh(self) -> None:
        seen = self._fingerprint()
        if seen == self._seen:
            return
        try:
            self._server, self._client = (
                self._load(ssl.PROTOCOL_TLS_SERVER),
                self._load(ssl.PROTOCOL_TLS_CLIENT),
            )
        except BadCertificates as error:
            log.error("renewed certificates are not used: %s", error)
            return
        self._seen = seen
        log.info("certificates of %s renewed", self._directory)

    def _fingerprint(self) -> tuple[tuple[int, int, int], ...]:
        marks = []
        for name in (CERTIFICATE, KEY, AUTHORITY):
            try:
                status = (self._directory / name).stat()
            except OSError:
                marks.append((0, 0, 0))
            else:
                marks.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return tuple(marks)

    def _load(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        if protocol == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = (
                0  # no sessions are resumed: each connection is judged by the certificates of its moment
            )
        try:
            context.load_cert_chain(self._directory / CERTIFICATE, self._directory / KEY)
            context.load_verify_locations(self._directory / AUTHORITY)
        except OSError as error:  # ssl.SSLError is one
            raise BadCertificates(
                f"{self._directory} shall hold {CERTIFICATE}, {KEY} and {AUTHORITY} that fit each other: "
                f"{error}"
            ) from error
        return context
