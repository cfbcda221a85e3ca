"""What every fuzzer here draws from: values at the bounds of what somebody on the way can hold, and how many
cases are run."""

import os
from random import Random

CASES = int(os.environ.get("HAMS_FUZZ_CASES", "0"))
"""How many cases each fuzzer runs: `HAMS_FUZZ_CASES=100000 pytest tests/fuzz` is the long form
(`make fuzz`)."""


def cases(short: int) -> range:
    """Seeds of the cases: `short` of them in the suite."""
    return range(CASES or short)


INTEGERS = (
    *(-1, 0, 1, 2, 7, 64, 255, 256),
    *(
        sign * (1 << bits) + off
        for bits in (15, 16, 31, 32, 53, 63, 64)
        for sign in (1, -1)
        for off in (-1, 0, 1)
    ),
    10**400,
    -(10**400),
)

FLOATS = (0.0, -0.0, 1e-320, 1e308, float("inf"), float("-inf"), float("nan"), 2.0**53 + 2, -1.5)

TEXTS = ("", "x", "F", "0", "-1", "\0", "é", "\U0001f600", "a" * 300, "../..", "null", "1e400", "tcp:[::1]:0")


def nested(depth: int, rng: Random) -> object:
    """Lists, or objects, one within the other."""
    value: object = rng.choice((None, 1, "x"))
    kind = rng.random() < 0.5
    for _ in range(depth):
        value = [value] if kind else {"x": value}
    return value


def scalar(rng: Random) -> object:
    """Something that is not what stood there."""
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(INTEGERS)
    if kind < 0.6:
        return rng.choice(FLOATS)
    if kind < 0.85:
        return rng.choice(TEXTS)
    return rng.choice((None, True, False))


def mutated(value: object, rng: Random, most: int = 3, deep: tuple[int, ...] = (1, 5, 70)) -> object:
    """A copy of JSON-like data with up to `most` places changed: another scalar, another type, one more, one
    less, twice, nested."""
    root = [_copy(value)]
    for _ in range(rng.randint(1, most)):
        places: list[tuple[list[object] | dict[str, object], int | str]] = []
        _collect(root, places)
        holder, at = rng.choice(places)
        what = rng.random()
        if what < 0.55:
            holder[at] = scalar(rng)  # type: ignore[index,call-overload]
        elif what < 0.7:
            holder[at] = nested(rng.choice(deep), rng)  # type: ignore[index,call-overload]
        elif what < 0.8 and holder is not root:
            del holder[at]  # type: ignore[arg-type]
        elif what < 0.9 and isinstance(holder, list) and holder is not root:
            holder.insert(int(at), _copy(holder[int(at)]))
        elif isinstance(holder, dict):
            holder[str(rng.choice(TEXTS))] = scalar(rng)
        else:
            other, key = rng.choice(places[-50:])
            holder[at] = _copy(other[key])  # type: ignore[index,call-overload]
    return root[0]


def _copy(value: object) -> object:
    if isinstance(value, dict):
        return {name: _copy(item) for name, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list | tuple) else value


def _collect(value: object, places: list[tuple[list[object] | dict[str, object], int | str]]) -> None:
    waiting = [value]
    while waiting:
        result = waiting.pop()
        items = (
            enumerate(result)
            if isinstance(result, list)
            else result.items()
            if isinstance(result, dict)
            else ()
        )
        for at, item in items:
            places.append((result, at))  # type: ignore[arg-type]
            waiting.append(item)
