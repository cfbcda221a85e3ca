"""Mutual TLS between instances, from a mounted directory of certificates.

The directory is a Kubernetes TLS secret: `tls.crt` and `tls.key` (this instance), `ca.crt` (who may talk to it). Kubernetes replaces the
files in place when the secret is renewed; they are looked at before every handshake, so a new certificate or a new authority holds for
the next connection, and connections that stand go on. Both sides must show a certificate of the authority. Names are not compared: the
addresses of pods change, and the greeting names graph and instance.

Never: falls back to plain text, or to a certificate that cannot be read. While new files cannot be read (a half-written renewal), the old
ones stay, and the log says so.
"""

import logging
import ssl
from pathlib import Path

from hams_wire.errors import Guilty, WireError

log = logging.getLogger("hams.wire.tls")

CERTIFICATE = "tls.crt"
KEY = "tls.key"
AUTHORITY = "ca.crt"


class BadCertificates(WireError):
    """The mounted certificates are missing or do not fit each other."""

    guilty = Guilty.OURS


class Certificates:
    """The TLS contexts of one instance, renewed when their files change."""

    def __init__(self, directory: Path) -> None:
        """Raises BadCertificates."""
        self._directory = directory
        self._seen = self._fingerprint()
        self._server = self._load(ssl.PROTOCOL_TLS_SERVER)
        self._client = self._load(ssl.PROTOCOL_TLS_CLIENT)

    def client(self) -> ssl.SSLContext:
        """The context for the next connection to a peer. Name a server (any) when using it."""
        self._refresh()
        return self._client

    def server(self) -> ssl.SSLContext:
        """A context to listen with, for as long as one likes: each handshake is made with the files of its moment."""
        context = self._load(ssl.PROTOCOL_TLS_SERVER)
        context.sni_callback = self._renew
        return context

    def _renew(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        self._refresh()
        connection.context = self._server

    def _refresh(self) -> None:
        seen = self._fingerprint()
        if seen == self._seen:
            return
        try:
            self._server, self._client = self._load(ssl.PROTOCOL_TLS_SERVER), self._load(ssl.PROTOCOL_TLS_CLIENT)
        except BadCertificates as error:
            log.error("renewed certificates are not used: %s", error)
            return
        self._seen = seen
        log.info("certificates of %s renewed", self._directory)

    def _fingerprint(self) -> tuple[tuple[int, int, int], ...]:
        found = []
        for name in (CERTIFICATE, KEY, AUTHORITY):
            try:
                status = (self._directory / name).stat()
            except OSError:
                found.append((0, 0, 0))
            else:
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return tuple(found)

    def _load(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(self._directory / CERTIFICATE, self._directory / KEY)
            context.load_verify_locations(self._directory / AUTHORITY)
        except OSError as error:  # ssl.SSLError is one
            raise BadCertificates(f"{self._directory} shall hold {CERTIFICATE}, {KEY} and {AUTHORITY} that fit each other: {error}") from error
        return context
