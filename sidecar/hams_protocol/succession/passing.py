"""A request that a frontend of the predecessor passes on to the successor's: what becomes of an attempt."""

import enum


class Attempt(enum.Enum):
    """How an attempt ended."""

    ANSWERED = "the successor has answered"
    NOTHING_BEGUN = "nobody was reached, or who was does not serve yet, or has no room"
    UNKNOWN = "what became of it is not known"


class Next(enum.Enum):
    """What follows."""

    ANSWER = "the client is given the answer"
    AGAIN = "it is passed on again"
    TIME_OUT = "the client is told that the outcome is not known"


def after(attempt: Attempt, has_key: bool, left_s: float) -> Next:
    """A request is passed on again, while its client waits, if nothing was begun. One whose outcome is not
    known may have been executed: only its key keeps that from happening twice."""
    if attempt is Attempt.ANSWERED:
        return Next.ANSWER
    if left_s <= 0 or (attempt is Attempt.UNKNOWN and not has_key):
        return Next.TIME_OUT
    return Next.AGAIN
