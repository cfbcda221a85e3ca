"""The clients that may ask: bearers of one of the tokens in a folder, if the graph asks for tokens at all
(`frontend.tokenSecret`).

Each file is one token, as Kubernetes mounts a Secret: so each client can have its own, and lose it without
the others. The folder is looked at again when a second has passed: a token that is added or taken away needs
no restart. Connections that were let in stay open; their next request is asked again.

A process without a file descriptor left goes on with the tokens that it read last. One that has read none yet
does not know who may come in, and says so (503).

Never: lets anybody in because the folder cannot be read, or is empty; tells by its timing how much of a token
was right.
"""

import asyncio
import errno
import hmac
import logging
from collections.abc import Iterable
from pathlib import Path

from hams_wire.tls import digest_of

key_scope_chars = 16
"""Characters of a token's digest in front of the keys that were sent with it: 64 bits."""

tokens_max = 1000
"""Tokens of clients that are looked at; each request is compared with all of them."""

tokens_check_s = 1.0
"""Between two looks at the folder with the tokens."""

log = logging.getLogger(__name__)

UNASKED_PATHS = frozenset((b"/v2/health/live", b"/v2/health/ready"))
"""What load balancers and kubelets ask; the answer is yes or no."""

METRICS_PATH = b"/metrics"

UNASKED_METHODS = (
    "/grpc.health.v1.Health/",
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerReady",
)
"""Methods over gRPC that load balancers and kubelets ask."""

EXPECTED = "expected a token of this graph: Authorization: Bearer TOKEN"

_SCHEME = b"bearer "


def scope_of(authorization: bytes) -> str:
    """A token's scope of idempotency keys (`hams_protocol.keys`): the beginning of a digest, which does not
    give the token away."""
    return digest_of(authorization[len(_SCHEME) :].strip()).hex()[:key_scope_chars]


class TokensUnread(Exception):
    """Ours, retryable: who may come in is not known, as no file descriptor is left to read it."""


class Tokens:
    """`metrics`: the digest of a token that lets in to metrics only (empty: there is none)."""

    def __init__(self, folder: Path, metrics: bytes = b"") -> None:
        self._folder = folder
        self._metrics = metrics
        self._known: tuple[bytes, ...] | None = None
        """As they were read last; None: not yet."""
        self._checked_at = -tokens_check_s

    def admit(self, path: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether an HTTP request may come in. `path`: without query; names of headers in lower case. Raises
        TokensUnread."""
        if path in UNASKED_PATHS:
            return True
        given = [value for name, value in headers if name == b"authorization"]
        return len(given) == 1 and self._bears(given[0], path == METRICS_PATH)

    def admit_call(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
        """Whether a gRPC call may come in. Raises TokensUnread."""
        if method.startswith(UNASKED_METHODS):
            return True
        given = [
            value.encode() if isinstance(value, str) else value
            for name, value in metadata
            if name == "authorization"
        ]
        return len(given) == 1 and self._bears(given[0], metrics=False)

    def scope(self, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """The scope of the idempotency keys of a request that was let in."""
        return scope_of(b"".join(value for name, value in headers if name == b"authorization"))

    def scope_of_call(self, metadata: Iterable[tuple[str, str | bytes]]) -> str:
        """The scope of the idempotency keys of a gRPC call that was let in."""
        given = [value for name, value in metadata if name == "authorization"]
        return scope_of(b"".join(value.encode() if isinstance(value, str) else value for value in given))

    def _bears(self, given: bytes, metrics: bool) -> bool:
        if given[: len(_SCHEME)].lower() != _SCHEME:
            return False
        digest = digest_of(given[len(_SCHEME) :].strip())
        right = [hmac.compare_digest(digest, known) for known in self._tokens()]
        if metrics and self._metrics:
            right.append(hmac.compare_digest(digest, self._metrics))
        return any(right)

    def _tokens(self) -> tuple[bytes, ...]:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._checked_at >= tokens_check_s:
            self._checked_at = now_s
            try:
                self._known = self._read()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    # It tells nothing of the tokens, and a client may have brought it about.
                    log.error("tokens of clients cannot be read, those read last count: %s", error)
                else:
                    log.error("tokens of clients cannot be read, so nobody is let in: %s", error)
                    self._known = ()
        if self._known is None:
            raise TokensUnread("tokens of clients cannot be read at present; nothing was begun")
        return self._known

    def _read(self) -> tuple[bytes, ...]:
        """Digests of the tokens in the folder. Raises OSError."""
        tokens = [
            path.read_bytes().strip()
            for path in sorted(self._folder.iterdir())
            if not path.name.startswith("..")
        ]
        return tuple(digest_of(token) for token in tokens[:tokens_max] if token)
