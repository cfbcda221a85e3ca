"""When the chunks of a state were born, and what of it a follower lacks (protocol.md, section 2).

A chunk's bytes never change; it is *born* in the version whose capture first had them at its place. What a
follower lacks that holds version s are the chunks born after s. Laid over those of s they make the newer
version, which shares the rest with it.

Law: if a chunk of version v was born in b, then every version from b to v of the same history has its bytes
at that place. A birth that is told too late only ships more; so whoever does not know it says the newest.
"""

from collections.abc import Container, Sequence


def born_after(births: Sequence[int], version: int) -> list[int] | None:
    """The places of chunks younger than `version`; None: that is all of them, and the state travels whole."""
    places = [place for place, born in enumerate(births) if born > version]
    return None if len(places) == len(births) else places


def laid_over(births: Sequence[int], changed: Container[int], number: int, version: int) -> list[int] | None:
    """The births of the `number` chunks of `version`, of which those at `changed` are laid over a base with
    `births`. None if that leaves a place without a chunk."""
    result = list(births[:number])
    for place in range(number):
        if place in changed:
            result[place : place + 1] = [version]
        elif place >= len(result):
            return None
    return result
