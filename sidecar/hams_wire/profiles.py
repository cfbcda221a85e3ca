"""What an instance has learnt of its times, as it tells whoever may ask at its probes: JSON, times in ms.

For people only; `hams_schedule.stored` is the form in which instances share it.
"""

import math

import msgspec

from hams_protocol.ids import InstanceId
from hams_schedule.calibration import Calibration
from hams_schedule.profile import Profiles
from hams_schedule.summary import ClassSummary, summaries
from hams_wire.batch_times import batch_summary, class_number
from hams_wire.errors import UNDECODABLE
from hams_wire.records import MalformedRecord
from hams_wire.scheduling import PolicyQueue


class ClassReport(msgspec.Struct, frozen=True, rename="camel"):
    """One class of requests. `app`: its application, None of all together; `low`, `high`: its features are at
    least the one and below the other, None: without a bound. `samples`: those that are not forgotten.
    `number`: the label `class` of its metrics, None of all together."""

    app: str | None
    low: float | None
    high: float | None
    samples: float
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    number: int | None = None


class SizeReport(msgspec.Struct, frozen=True, rename="camel"):
    """Batches of so many rows: they take `base_ms`, and `slope` times what their longest member takes alone.
    `batches`: how many this was learnt from. Mean and quantiles are those of as many requests of one row, of
    any class as they come; None before classes are known."""

    rows: int
    batches: float
    base_ms: float
    slope: float
    mean_ms: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None


class BandReport(msgspec.Struct, frozen=True, rename="camel"):
    """Units whose predicted chance to be in time lay in one band: how many, the mean of these chances,
    and the share that was in time."""

    units: int
    predicted: float
    on_time: float


class CalibrationReport(msgspec.Struct, frozen=True, rename="camel"):
    """How good predictions were: mean times of the batches that were predicted, as predicted and as measured,
    the mean difference, and the shares of units that were to be in time, and were. None: there were none.
    `bands`: the same by the chance that was predicted, lowest first; those without units are left out."""

    batches: int
    predicted_ms: float | None
    measured_ms: float | None
    error_ms: float | None
    predicted_on_time: float | None
    on_time: float | None
    bands: tuple[BandReport, ...] = ()


class ProfileReport(msgspec.Struct, frozen=True, rename="camel"):
    """What one instance knows. `policy`: the one that the graph asks for; `failed`: why Fifo serves in its
    place, "" if it does not. `learnt`: the samples of this instance and of those that it has read; `resets`:
    classes forgotten because their times had changed; `ignored`: times that no clock can have measured.
    `decisions`: batches that `Distribution` has chosen, by how (`hams_schedule.decision.ChoiceKind`);
    `stale_plans`: those planned ahead and not run as planned; `newest_s`: how long ago this instance learnt
    from a batch of its own, None: it has not."""

    operator: str
    instance: InstanceId
    role: str
    policy: str
    failed: str
    learnt: int
    resets: int
    ignored: int
    classes: tuple[ClassReport, ...]
    sizes: tuple[SizeReport, ...]
    calibration: CalibrationReport
    decisions: dict[str, int] = {}
    stale_plans: int = 0
    newest_s: float | None = None


def report(
    operator: str, instance: InstanceId, role: str, policy: str, queue: PolicyQueue, now: float
) -> ProfileReport:
    """Knowledge of an instance with this queue at `now`, on the clock of the queue."""
    profiles = queue.profiles
    sizes = [_size(profiles, rows, sums.w) for rows, sums in sorted(profiles.times.recent.items())]
    return ProfileReport(
        operator,
        instance,
        role,
        policy,
        queue.failed,
        profiles.samples,
        profiles.resets,
        profiles.ignored,
        tuple([_class(item, class_number(profiles, item)) for item in summaries(profiles)]),
        tuple(sizes),
        _calibration(queue.calibration),
        queue.decisions,
        queue.stale_plans,
        None if queue.learnt_at is None else round(now - queue.learnt_at, 1),
    )


def encode_report(item: ProfileReport) -> bytes:
    """Bytes of a report."""
    return msgspec.json.encode(item)


def decode_report(data: bytes) -> ProfileReport:
    """The report in `data`. Raises MalformedRecord."""
    try:
        return msgspec.json.decode(data, type=ProfileReport)
    except UNDECODABLE as error:
        raise MalformedRecord(f"not what an instance has learnt: {error}") from None


def _class(item: ClassSummary, number: int | None) -> ClassReport:
    p50, p95, p99 = (_ms(quantile) for quantile in item.quantiles)
    low, high = (bound if math.isfinite(bound) else None for bound in (item.low, item.high))
    return ClassReport(item.app, low, high, round(item.samples, 1), _ms(item.mean), p50, p95, p99, number)


def _size(profiles: Profiles, rows: int, batches: float) -> SizeReport:
    base, slope = profiles.times.law(rows)
    learnt = (rows, round(batches, 1), _ms(base), round(slope, 4))
    summary = batch_summary(profiles, rows)
    if summary is None:
        return SizeReport(*learnt)
    return SizeReport(*learnt, _ms(summary.mean), *(_ms(quantile) for quantile in summary.quantiles))


def _calibration(sums: Calibration) -> CalibrationReport:
    batches, units = sums.batches, sums.units
    times = (sums.predicted_s, sums.measured_s, sums.error_s)
    predicted, measured, error = (_ms(total / batches) if batches else None for total in times)
    shares = (sums.expected_on_time, sums.on_time)
    expected, on_time = (round(total / units, 4) if units else None for total in shares)
    bands = [
        BandReport(band.units, round(band.expected / band.units, 4), round(band.on_time / band.units, 4))
        for band in sums.bands
        if band.units
    ]
    return CalibrationReport(batches, predicted, measured, error, expected, on_time, tuple(bands))


def _ms(seconds: float) -> float:
    return round(1000.0 * seconds, 3)
