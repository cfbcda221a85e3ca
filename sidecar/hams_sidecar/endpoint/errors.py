"""What the endpoint refuses, and why: the client erred, or there is no room.

    EndpointError
    ├── RequestRefused      the client's request, with an HTTP status; nothing was begun
    └── StartFailed         the operator's: a port is taken, a host is unknown

Invariant: the message is for the client and names what was expected and what was found; it never shows the
inside of the process.
"""

shown_chars_max = 120
"""Of what a client sent, shown to it in an error: a mistake of megabytes is not sent back."""


class EndpointError(Exception):
    """Root of the endpoint's errors."""


class RequestRefused(EndpointError):
    """A request that is answered with `status` and `message` and never reaches the graph."""

    def __init__(self, message: str, *, status: int = 400, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.retry_after_s = retry_after_s

    @property
    def retryable(self) -> bool:
        """Whether the same request can succeed later."""
        return self.status in (408, 429, 503)


class StartFailed(EndpointError, OSError):
    """The endpoint cannot listen where it was told to."""


def shown(value: object) -> str:
    """What a client sent, as an error shows it: bounded, as is the work to show it (an integer of thousands
    of digits is not printed)."""
    if isinstance(value, (list, tuple)):
        ends = len(value) > _items_shown_max
        text = "[" + ", ".join(map(shown, value[:_items_shown_max])) + (", ...]" if ends else "]")
    elif isinstance(value, int) and value.bit_length() > _bits_shown_max:
        text = f"a number of {value.bit_length()} bits"
    elif isinstance(value, str):
        text = repr(value[:shown_chars_max])
    else:
        text = repr(value)
    return text if len(text) <= shown_chars_max else text[:shown_chars_max] + "..."


_items_shown_max = 10
_bits_shown_max = 128
