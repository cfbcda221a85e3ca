"""What RFC 9110 and 9112 ask of a request's head beyond what the parser checks: pure, no I/O.

The parser refuses malformed lines and lengths that contradict each other. It lets pass what makes a server
and a proxy in front of it read one request differently: fields that may stand once and stand twice, codings
that nobody here takes off, versions that are none.
"""

import re
from collections.abc import Sequence

from hams_protocol.frozen import frozen

_ONCE = frozenset(
    (
        b"host",
        b"content-length",
        b"transfer-encoding",
        b"content-encoding",
        b"idempotency-key",
        b"hams-deadline-ms",
        b"inference-header-content-length",
    )
)
"""Fields of which one value alone means something here (Authorization: see `tokens`)."""

_VERSIONS = ("1.1", "1.0")
_HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]*")


@frozen
class RequestHead:
    """What the fields say of the body: it is `chunked`, or has this `length`. Or the `status` and `message`
    of a refusal (`status` 0: the head is in order)."""

    length: int = 0
    chunked: bool = False
    status: int = 0
    message: str = ""


def read_head(version: str, fields: Sequence[tuple[bytes, bytes]]) -> RequestHead:
    """Check the fields of a head, names in small letters."""
    if version not in _VERSIONS:
        return RequestHead(status=505, message=f"expected HTTP/1.1 or HTTP/1.0, got HTTP/{version}")
    headers: dict[bytes, bytes] = {}
    for name, value in fields:
        if name in _ONCE:
            if name in headers:
                return RequestHead(
                    status=400, message=f"expected the header {name.decode('ascii')} once, got it twice"
                )
            headers[name] = value
    host = headers.get(b"host")
    if host is None and version == "1.1":
        return RequestHead(status=400, message="expected a header host (RFC 9112, 3.2), got none")
    if host is not None and _HOST.fullmatch(host) is None:
        return RequestHead(status=400, message="expected a host, and a port perhaps, in the header host")
    coding = headers.get(b"transfer-encoding")
    if coding is not None and version == "1.0":
        return RequestHead(status=400, message="expected no transfer-encoding in HTTP/1.0 (RFC 9112, 6.1)")
    if coding is not None and coding.strip().lower() != b"chunked":
        return RequestHead(status=501, message="expected no transfer coding but chunked")
    length = headers.get(b"content-length")
    return RequestHead(length=0 if length is None else int(length), chunked=coding is not None)
