"""What an instance has learnt of its times, as it tells whoever may ask at its probes: JSON, times in ms.

For people only; `hams_schedule.stored` is the form in which instances share it.
"""

import math

import msgspec

from hams_protocol.ids import InstanceId
from hams_schedule.calibration import Calibration
from hams_schedule.summary import ClassSummary, summaries
from hams_wire.errors import UNDECODABLE
from hams_wire.records import MalformedRecord
from hams_wire.scheduling import PolicyQueue


class ClassReport(msgspec.Struct, frozen=True, rename="camel"):
    """One class of requests. `app`: its application, None of all together; `low`, `high`: its features are at
    least the one and below the other, None: without a bound. `samples`: those that are not forgotten."""

    app: str | None
    low: float | None
    high: float | None
    samples: float
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


class SizeReport(msgspec.Struct, frozen=True, rename="camel"):
    """Batches of so many rows: they take `base_ms`, and `slope` times what their longest member takes alone.
    `batches`: how many this was learnt from."""

    rows: int
    batches: float
    base_ms: float
    slope: float


class CalibrationReport(msgspec.Struct, frozen=True, rename="camel"):
    """How good predictions were: mean times of the batches that were predicted, as predicted and as measured,
    the mean difference, and the shares of units that were to be in time, and were. None: there were none."""

    batches: int
    predicted_ms: float | None
    measured_ms: float | None
    error_ms: float | None
    predicted_on_time: float | None
    on_time: float | None


class ProfileReport(msgspec.Struct, frozen=True, rename="camel"):
    """What one instance knows. `policy`: the one that the graph asks for; `failed`: why Fifo serves in its
    place, "" if it does not. `learnt`: the samples of this instance and of those that it has read; `resets`:
    classes forgotten because their times had changed; `ignored`: times that no clock can have measured."""

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


def report(operator: str, instance: InstanceId, role: str, policy: str, queue: PolicyQueue) -> ProfileReport:
    """What an instance with this queue knows now."""
    profiles = queue.profiles
    sizes = []
    for rows, sums in sorted(profiles.times.recent.items()):
        base, slope = profiles.times.law(rows)
        sizes.append(SizeReport(rows, round(sums.w, 1), _ms(base), round(slope, 4)))
    return ProfileReport(
        operator,
        instance,
        role,
        policy,
        queue.failed,
        profiles.samples,
        profiles.resets,
        profiles.ignored,
        tuple([_class(item) for item in summaries(profiles)]),
        tuple(sizes),
        _calibration(queue.calibration),
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


def _class(item: ClassSummary) -> ClassReport:
    p50, p95, p99 = (_ms(quantile) for quantile in item.quantiles)
    low, high = (bound if math.isfinite(bound) else None for bound in (item.low, item.high))
    return ClassReport(item.app, low, high, round(item.samples, 1), _ms(item.mean), p50, p95, p99)


def _calibration(sums: Calibration) -> CalibrationReport:
    batches, units = sums.batches, sums.units
    times = (sums.predicted_s, sums.measured_s, sums.error_s)
    predicted, measured, error = (_ms(total / batches) if batches else None for total in times)
    shares = (sums.expected_on_time, sums.on_time)
    expected, on_time = (round(total / units, 4) if units else None for total in shares)
    return CalibrationReport(batches, predicted, measured, error, expected, on_time)


def _ms(seconds: float) -> float:
    return round(1000.0 * seconds, 3)
