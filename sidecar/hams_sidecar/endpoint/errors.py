"""What the endpoint refuses, and why: the client erred, or there is no room.

    EndpointError
    ├── RequestRefused      the client's request, with an HTTP status; nothing was begun
    └── StartFailed         the operator's: a port is taken, a host is unknown

Invariant: the message is for the client and names what was expected and what was found; it never shows the inside of the process.
"""


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
