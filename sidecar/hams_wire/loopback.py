"""Whether a host, as a URL or a header names it, is this machine: what tells a caller from here from a web
page from elsewhere."""

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback address, `localhost` or a name below it (RFC 6761, 6.3). Any other name is
    not, even if it leads here: the owner of the name may have it lead anywhere."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost" or host.endswith(".localhost")


def origin_is_loopback(origin: str) -> bool:
    """Whether the value of a header Origin (RFC 6454, section 7) names this machine. `null` does not."""
    try:
        return is_loopback(urlsplit(origin).hostname or "")
    except ValueError:  # brackets that do not close
        return False
