"""F1, F3, F5, F9, F10, F23 with real processes: kill -9 of every kind of process under verified load.

What the kernel's OOM killer does to a proxy or a model (F32) is this very signal.
"""

import asyncio
import signal
from pathlib import Path

import pytest

from hams_wire import records
from tests.faults.harness import PATIENT, REDUNDANT_S, changed, run_graph

pytestmark = [pytest.mark.process, pytest.mark.etcd, pytest.mark.timeout(300)]

LEASE = "its lease has expired"


@pytest.mark.parametrize("process", ["both", "proxy", "model"])
async def test_f1_f3_a_primary_that_dies_loses_and_doubles_nothing(tmp_path: Path, process: str) -> None:
    async with run_graph("line.yaml", tmp_path) as run, run.load(clients=4):
        for operator in ("first", "last", "first"):
            await run.answered(40)
            await run.kill(operator, "primary", process)
            await run.answered(40)
            await run.redundant()
    run.verify()


@pytest.mark.parametrize("process", ["proxy", "model"])
async def test_f3_managers_know_at_once_and_wait_for_no_lease(tmp_path: Path, process: str) -> None:
    async with (
        run_graph("line.yaml", tmp_path, graphs=changed(tmp_path, PATIENT)) as run,
        run.load(clients=4),
    ):
        for operator, role in (("first", "primary"), ("stamp", "active")):
            await run.answered(20)
            target = await run.find(operator, role)
            before = await run.epochs()
            since = await run.moment()
            async with run.leases_unbroken(since, target.id):
                run.strike(target, process)
                await run.answered(20)
                assert await run.replaced_before_its_lease_ended(since, target.id)
            if operator in before:
                reason = (await run.failover(operator, before[operator] + 1)).reason
                assert reason.startswith(f"{target.id}: "), reason
                assert LEASE not in reason, reason
            await run.redundant()
    run.verify()


async def test_f5_backups_that_die_are_replaced_and_nothing_stops(tmp_path: Path) -> None:
    async with run_graph("line.yaml", tmp_path) as run, run.load(clients=4):
        for operator in ("first", "last"):
            await run.answered(40)
            await run.kill(operator, "backup")
            await run.answered(40)
            await run.redundant()
    run.verify()


async def test_f9_both_sides_of_a_fan_out_see_one_value(tmp_path: Path) -> None:
    async with run_graph("diamond.yaml", tmp_path) as run, run.load(clients=4):
        for operator in ("fan", "right", "fan"):
            await run.answered(40)
            await run.kill(operator, "active")
            await run.answered(40)
            await run.redundant()
    run.verify()


@pytest.mark.parametrize(
    "pair",
    [
        (("first", "primary"), ("last", "primary")),
        (("stamp", "active"), ("first", "primary")),
        (("F/0", "primary"), ("last", "primary")),
        (("manager", "manager"), ("first", "primary")),
        (("middle", "active"), ("last", "primary")),
    ],
    ids=lambda pair: "-and-".join(operator.replace("F/0", "frontend") for operator, _ in pair),
)
async def test_f10_neighbours_that_die_together_are_as_single_failures(
    tmp_path: Path, pair: tuple[tuple[str, str], ...]
) -> None:
    async with run_graph("line.yaml", tmp_path) as run, run.load(clients=4):
        await run.answered(60)
        targets = [await run.find(operator, role) for operator, role in pair]
        since = await run.moment()
        leading = [target.id for target in targets if target.role != "manager"]
        async with run.leases_unbroken(since, *leading):
            for target in targets:
                run.strike(target)
            await run.answered(60)
            for instance in leading:
                assert await run.replaced_before_its_lease_ended(since, instance), (
                    f"{instance} had to wait for a lease"
                )
        await run.redundant()
        await run.answered(20)
    run.verify()


async def test_who_takes_the_place_of_a_dead_one_gets_no_request_before_its_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    monkeypatch.setenv("HAMS_TEST_GATE", str(gate))
    async with run_graph("gated.yaml", tmp_path) as run, run.load(clients=4):
        await run.answered(40)
        target = await run.find("gated", "active")
        gate.unlink()
        run.strike(target)
        async with asyncio.timeout(REDUNDANT_S):
            while not any(
                entry.key.startswith(records.warming_key(run.supervisor.uid, ""))
                for entry in (await run.moment()).entries
            ):
                await run.answered(20)
        await run.answered(100)
        # while it loads: the next one is given nothing to answer for
        run.strike(await run.find("gated", "standby", whole=False), "model")
        await run.answered(100)
        gate.touch()
        await run.redundant()
        await run.answered(20)
    run.verify()


async def test_a_frontend_that_dies_answers_through_the_other_one(tmp_path: Path) -> None:
    async with run_graph("line.yaml", tmp_path) as run, run.load(clients=4):
        for _ in range(2):
            await run.answered(40)
            await run.kill("frontend", "frontend", "proxy")
            await run.answered(40)
            await run.redundant()
    run.verify()


async def test_f1_each_promoted_backup_dies_in_turn(tmp_path: Path) -> None:
    async with run_graph("line.yaml", tmp_path) as run, run.load(clients=4):
        for _ in range(4):
            await run.answered(20)
            await run.kill("first", "primary")
            await run.redundant()
    run.verify()


async def test_f23_a_primary_stopped_far_beyond_the_timeout_is_refused_when_it_resumes(
    tmp_path: Path,
) -> None:
    async with run_graph("line.yaml", tmp_path) as run, run.load(clients=4):
        await run.answered(40)
        target = await run.kill("first", "primary", "proxy", signal.SIGSTOP)
        await run.answered(40)
        run.strike(target, "proxy", signal.SIGCONT)
        await run.answered(40)
        await run.redundant()
    run.verify()
