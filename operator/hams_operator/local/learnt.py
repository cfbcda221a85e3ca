"""What a local run has learnt of its operators' times, from one run to the next: the etcd of a run ends with
it, so what is stored there (`hams_sidecar.profile_store`) is kept in the graph's folder meanwhile.

A hint: whatever goes wrong with it, the run goes on without.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from hams_operator.local.metrics import Source, ask_process
from hams_schedule.limits import profile_bytes_max
from hams_wire import records
from hams_wire.coordination.port import Coordination, Write
from hams_wire.errors import CoordinationError
from hams_wire.limits import etcd_transaction_items_max
from hams_wire.profiles import ProfileReport, decode_report

log = logging.getLogger("hams.supervisor")

learnt_etcd_s = 2.0
"""The end of a run waits no longer than this for what was learnt."""

SUFFIX = ".profile"


async def profiles_of(sources: Iterable[Source], operators: Collection[str]) -> tuple[ProfileReport, ...]:
    """What the living instances of these operators say that they have learnt; one that does not answer in
    time is left out."""
    asked = [source for source in sources if source.process == "proxy" and source.operator in operators]
    pages = await asyncio.gather(*(ask_process(source.socket, "/profile") for source in asked))
    reports: list[ProfileReport] = []
    for page in filter(None, pages):
        try:
            reports.append(decode_report(page.encode()))
        except records.MalformedRecord as error:
            log.warning("%s", error)
    return tuple(sorted(reports, key=lambda item: (item.operator, item.instance)))


async def forget(coordination: Coordination, graph_uid: str, operators: Collection[str]) -> None:
    """Have all instances of these operators forget what they have learnt. Raises CoordinationError; again
    does no harm."""
    forgotten = records.PROFILE_FORGOTTEN
    writes = tuple(Write(records.profile_key(graph_uid, operator), forgotten) for operator in operators)
    for first in range(0, len(writes), etcd_transaction_items_max):
        await coordination.transact((), writes[first : first + etcd_transaction_items_max])


async def stored(coordination: Coordination, graph_uid: str) -> dict[str, bytes]:
    """What is stored of each operator, empty what was forgotten. Raises CoordinationError."""
    prefix = records.profile_key(graph_uid, "")
    snapshot = await coordination.get_prefix(prefix)
    return {
        entry.key.removeprefix(prefix): entry.value.removeprefix(records.PROFILE_GIVEN)
        for entry in snapshot.entries
    }


async def give(coordination: Coordination, graph_uid: str, operator: str, data: bytes) -> None:
    """Have all instances of an operator know this profile in place of what they have learnt. Raises
    CoordinationError; again does no harm."""
    value = records.PROFILE_GIVEN + data
    await coordination.transact((), (Write(records.profile_key(graph_uid, operator), value),))


async def bring(coordination: Coordination, graph_uid: str, folder: Path, operators: Collection[str]) -> None:
    """Have etcd hold what the run before has learnt of these operators."""
    for operator, data in _read(folder, operators).items():
        try:
            await coordination.transact((), (Write(records.profile_key(graph_uid, operator), data),))
        except CoordinationError as error:
            log.info("what the run before has learnt of %s is not used: %s", operator, error)


async def save(coordination: Coordination, graph_uid: str, folder: Path, operators: Collection[str]) -> None:
    """Keep what this run has learnt; what was forgotten is removed, and what is of other operators."""
    try:
        async with asyncio.timeout(learnt_etcd_s):
            values = await stored(coordination, graph_uid)
    except (CoordinationError, TimeoutError) as error:
        log.info("what this run has learnt is not kept: %s", str(error) or "etcd does not answer")
        return
    try:
        _write(folder, operators, values)
    except OSError as error:
        log.info("what this run has learnt is not kept: %s", error)


def between_runs(folder: Path) -> dict[str, bytes]:
    """What the last run has left for the next one, by operator. Raises OSError."""
    names = sorted(path.stem for path in folder.glob(f"*{SUFFIX}"))
    return _read(folder, names)


def leave(folder: Path, profiles: Mapping[str, bytes]) -> None:
    """Have the next run begin with these profiles, beside what others there are. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for operator, data in profiles.items():
        fresh = folder / f"{operator}{SUFFIX}.new"
        fresh.write_bytes(data)
        fresh.rename(folder / f"{operator}{SUFFIX}")


def _read(folder: Path, operators: Collection[str]) -> dict[str, bytes]:
    values: dict[str, bytes] = {}
    for operator in operators:
        try:
            with (folder / f"{operator}{SUFFIX}").open("rb") as file:
                values[operator] = file.read(profile_bytes_max)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.info("what the run before has learnt of %s is not used: %s", operator, error)
    return values


def _write(folder: Path, operators: Collection[str], values: dict[str, bytes]) -> None:
    """Raises OSError."""
    folder.mkdir(exist_ok=True)
    for path in folder.glob(f"*{SUFFIX}*"):
        if path.stem not in operators or not values.get(path.stem, b"x"):
            path.unlink()
    leave(folder, {operator: values[operator] for operator in operators if values.get(operator)})
