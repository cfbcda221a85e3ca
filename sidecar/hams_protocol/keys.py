"""Idempotency keys and whose they are: `SCOPE` + SCOPE_END + the client's own key, or that alone where
clients need no credential.

A scope stands for a credential, so that clients with different ones cannot meet in a key, by chance or on
purpose. SCOPE_END is no character of a client's own key: nobody can send a key of another's scope. Entries
that were logged before a graph told its clients apart have no scope; they answer for every scope, as a retry
of theirs must not be executed again (ADR 0023). So the shard is chosen by the client's own part.
"""

SCOPE_END = "\x1f"


def scoped(scope: str, key: str) -> str:
    """A client's key within its scope; "": clients are not told apart."""
    return f"{scope}{SCOPE_END}{key}" if scope else key


def own_part(key: str) -> str:
    """The key as its client has sent it."""
    return key.rpartition(SCOPE_END)[2]


def known_as(key: str) -> tuple[str, ...]:
    """What to look a key up as, best first."""
    own = own_part(key)
    return (key,) if own == key else (key, own)
