"""A profile as bytes, for whoever takes a role over or starts again: JSON, deflated, `profile_bytes_max` at
most.

What is read comes from outside: torn, foreign, huge or hostile bytes are refused with `ProfileRefused`, and
nothing of them is believed. Loss is harmless.
"""

import json
import math
import zlib
from contextlib import suppress
from typing import Final

from hams_schedule.classes import REST
from hams_schedule.limits import (
    app_id_characters_max,
    apps_max,
    buckets_max,
    classes_max,
    grid_cells,
    merge_samples_max,
    profile_bytes_max,
    profile_inflated_bytes_max,
    rows_max,
    sizes_max,
    time_max_s,
    time_min_s,
)
from hams_schedule.profile import ClassProfile, Profiles
from hams_schedule.shapes import Grid
from hams_schedule.times import Sums

FORMAT: Final = 1
FOREIGN_SAMPLES: Final = 20.0
"""Weight of a class whose profile was learnt on another model, configuration or machine."""
WEIGHT_MAX: Final = 1e9
"""A larger count of samples is nonsense."""
ROUNDING: Final = 1.0 + 1e-6
"""By how much a sum may be off."""


class ProfileRefused(ValueError):
    """Stored bytes are no profile: theirs, whoever wrote them. The text says what was expected and found."""


class ProfileParts:
    """What is stored of a profile: its laws, those with most samples first, and the rest of it."""

    __slots__ = ("laws", "rest")

    def __init__(self, rest: dict[str, object], laws: list[tuple[str, list[list[float]]]]) -> None:
        self.rest = rest
        self.laws = laws


def dump(profiles: Profiles, identity: str) -> bytes:
    """The profile, deflated. `identity` names what it holds for: model, configuration, machine."""
    return packed(parts_of(profiles, identity))


def packed(parts: ProfileParts) -> bytes:
    """The parts of a profile, deflated: it changes nothing, so that any thread may do it.

    Classes with the fewest samples are left out if it would be more than `profile_bytes_max`.
    """
    laws = parts.laws
    while True:
        text = json.dumps({**parts.rest, "laws": dict(laws)}, separators=(",", ":"))
        data = zlib.compress(text.encode(), 9)
        if len(data) <= profile_bytes_max:
            return data
        laws = laws[: len(laws) // 2]


def document_of(data: bytes) -> dict[str, object]:
    """The JSON object that stored bytes hold, for a file that people can read. Raises ProfileRefused."""
    return _inflated(data)


def stored_bytes(document: object) -> bytes:
    """Such an object as stored bytes; `load` says whether it is a profile. Raises ProfileRefused."""
    try:
        return zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 9)
    except RecursionError:
        raise ProfileRefused("expected a JSON object, found one that is nested too deeply") from None


def load(data: bytes, identity: str) -> Profiles:
    """The profile in `data`. One of another identity is a prior: its classes and sizes weigh
    `FOREIGN_SAMPLES` each.

    Raises ProfileRefused.
    """
    parts = _inflated(data)
    if parts.get("format") != FORMAT:
        raise ProfileRefused(f"expected a profile of format {FORMAT}, found {_shown(parts.get('format'))}")
    profiles = Profiles()
    low, high = _numbers(parts.get("grid"), "grid", 2)
    if not time_min_s <= low < high <= 100.0 * time_max_s:
        raise ProfileRefused(f"grid: expected {time_min_s:g} <= low < high, found {low} and {high}")
    profiles.grid = Grid(low, high)
    _read_apps(profiles, parts.get("apps"))
    weight = None if parts.get("identity") == identity else FOREIGN_SAMPLES
    _read_laws(profiles, parts.get("laws"), weight)
    _read_sizes(profiles, parts.get("sizes"), weight)
    profiles.settle()
    return profiles


def merge(profiles: Profiles, other: Profiles) -> None:
    """Add what `other` knows: classes of the same applications and buckets, `merge_samples_max` of each at
    most.

    Applications that are not known here are taken over while there is room, those cut elsewhere are left
    out.
    """
    if other.grid is None:
        return
    if profiles.grid is None:
        profiles.grid = Grid(other.grid.low, other.grid.high)
    for name, theirs in other.classes.apps.items():
        ours = profiles.classes.apps.get(name)
        if ours is None:
            ours = profiles.classes.adopt(name, theirs.edges)
        if ours is not None and ours.edges == theirs.edges:
            for bucket in range(buckets_max):
                _add_law(
                    profiles, other, ours.slot * buckets_max + bucket, theirs.slot * buckets_max + bucket
                )
    _add_law(profiles, other, REST, REST)
    for rows, sums in other.times.recent.items():
        share = min(1.0, merge_samples_max / sums.w) if sums.w > 0.0 else 0.0
        profiles.times.recent.setdefault(rows, Sums()).absorb(sums, share)
    profiles.settle()


def _add_law(profiles: Profiles, other: Profiles, ours: int, theirs: int) -> None:
    law = other.laws.get(theirs)
    if law is None or other.grid is None or profiles.grid is None:
        return
    counts = profiles.grid.move(law.counts(), other.grid)
    total = sum(counts)
    if not total > 0.0:
        return
    share = min(1.0, merge_samples_max / total)
    mine = profiles.laws.setdefault(ours, ClassProfile())
    mine.recent = [one + share * more for one, more in zip(mine.recent, counts, strict=True)]
    profiles.samples += int(share * total)


def parts_of(profiles: Profiles, identity: str) -> ProfileParts:
    """A copy of what is stored of a profile."""
    grid = profiles.grid or Grid(1e-4, 1e2)
    laws = sorted(profiles.laws.items(), key=_samples_of, reverse=True)[:classes_max]
    rest: dict[str, object] = {
        "format": FORMAT,
        "identity": identity,
        "grid": [grid.low, grid.high],
        "apps": {name: [app.slot, *app.edges] for name, app in profiles.classes.apps.items()},
        "sizes": {
            str(rows): [sums.w, sums.wx, sums.wy, sums.wxx, sums.wxy]
            for rows, sums in profiles.times.recent.items()
        },
    }
    return ProfileParts(rest, [(str(cls), _cells(law)) for cls, law in laws])


def _cells(law: ClassProfile) -> list[list[float]]:
    """Cell and count, where there is one."""
    return [[cell, round(count, 2)] for cell, count in enumerate(law.counts()) if count >= 0.005]


def _inflated(data: bytes) -> dict[str, object]:
    if len(data) > profile_bytes_max:
        raise ProfileRefused(f"expected {profile_bytes_max} bytes at most, found {len(data)}")
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(data, profile_inflated_bytes_max)
        document = None if reader.unconsumed_tail else json.loads(text)
    except (zlib.error, ValueError, RecursionError) as error:
        raise ProfileRefused(f"expected deflated JSON, found {type(error).__name__}") from None
    if not reader.eof or not isinstance(document, dict):
        raise ProfileRefused(f"expected one JSON object of {profile_inflated_bytes_max} bytes at most")
    return document


def _read_apps(profiles: Profiles, value: object) -> None:
    slots: set[int] = set()
    for name, parts in _mapping(value, "apps", apps_max).items():
        numbers = _numbers(parts, "apps", None)
        slot = int(numbers[0]) if numbers and numbers[0].is_integer() else -1
        edges = numbers[1:]
        if len(name) > app_id_characters_max or not 0 <= slot < apps_max or slot in slots:
            raise ProfileRefused(f"apps: expected slots below {apps_max}, each once, found {_shown(parts)}")
        if len(edges) >= buckets_max or edges != sorted(set(edges)):
            raise ProfileRefused(f"apps: expected ascending edges, {buckets_max - 1} at most")
        slots.add(slot)
        profiles.classes.place(name, slot, edges)


def _read_laws(profiles: Profiles, value: object, weight: float | None) -> None:
    for key, pairs in _mapping(value, "laws", classes_max).items():
        cls = _whole(key, "laws", REST)
        if not isinstance(pairs, list) or len(pairs) > grid_cells:
            raise ProfileRefused(f"laws: expected {grid_cells} pairs at most")
        counts = [0.0] * grid_cells
        for pair in pairs:
            cell, count = _numbers(pair, "laws", 2)
            if not (0 <= cell < grid_cells and cell.is_integer() and 0.0 <= count <= WEIGHT_MAX):
                raise ProfileRefused(f"laws: expected a cell and a count, found {_shown(pair)}")
            counts[int(cell)] += count
        total = sum(counts)
        if total > 0.0:
            scale = 1.0 if weight is None else min(1.0, weight / total)
            law = ClassProfile()
            law.recent = [scale * count for count in counts]
            profiles.laws[cls] = law
            profiles.samples += int(scale * total)


def _read_sizes(profiles: Profiles, value: object, weight: float | None) -> None:
    for key, parts in _mapping(value, "sizes", sizes_max).items():
        rows = _whole(key, "sizes", min(rows_max, sizes_max))
        numbers = _numbers(parts, "sizes", 5)
        if any(number < 0.0 for number in numbers) or numbers[0] > WEIGHT_MAX or not _are_times(*numbers):
            raise ProfileRefused(
                f"sizes: expected sums of times up to {time_max_s:g} s, found {_shown(parts)}"
            )
        w = numbers[0]
        if w > 0.0:
            sums, theirs = Sums(), Sums()
            theirs.w, theirs.wx, theirs.wy, theirs.wxx, theirs.wxy = numbers
            sums.absorb(theirs, 1.0 if weight is None else min(1.0, weight / w))
            profiles.times.recent[rows] = sums


def _are_times(w: float, wx: float, wy: float, wxx: float, wxy: float) -> bool:
    """Whether these can be the weighted sums of times x, y, x^2 and xy: then no fit of them is endless."""
    return (
        w * time_min_s <= wx <= w * time_max_s
        and wy <= w * time_max_s
        and wxx <= w * time_max_s**2
        and wx * wx <= w * wxx * ROUNDING
        and wxy <= time_max_s * wx * ROUNDING
    )


def _mapping(value: object, where: str, items_max: int) -> dict[str, object]:
    if not isinstance(value, dict) or len(value) > items_max:
        raise ProfileRefused(f"{where}: expected an object of {items_max} members at most")
    return value


def _numbers(value: object, where: str, count: int | None) -> list[float]:
    if not isinstance(value, list) or (count is not None and len(value) != count):
        raise ProfileRefused(f"{where}: expected a list of {count or 'some'} numbers, found {_shown(value)}")
    numbers: list[float] = []
    for item in value:
        number = math.nan
        if not isinstance(item, bool) and isinstance(item, (int, float)):
            with suppress(OverflowError):  # an integer that no float holds
                number = float(item)
        if not math.isfinite(number):
            raise ProfileRefused(f"{where}: expected finite numbers, found {_shown(item)}")
        numbers.append(number)
    return numbers


def _whole(text: str, where: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and int(text) <= most):
        raise ProfileRefused(f"{where}: expected a number up to {most}, found {_shown(text)}")
    return int(text)


def _shown(value: object) -> str:
    return repr(value)[:40]


def _samples_of(item: tuple[int, ClassProfile]) -> float:
    return sum(item[1].counts())
