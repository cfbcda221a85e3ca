"""F6, F7, F8 with real processes: a state that does not reach its backup while what depends on it runs on
downstream."""

from pathlib import Path

import pytest

from tests.faults.harness import PATIENT, GraphRun, changed, run_on_hosts
from tests.faults.hosts import Hosts, available

pytestmark = [
    pytest.mark.process,
    pytest.mark.etcd,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not available(), reason="network namespaces need root"),
]


async def undelivered(run: GraphRun, hosts: Hosts, hurt: tuple[str, ...] = ()) -> None:
    """`first` executes what its backup does not get, `last` executes on it; then the primary of `first` dies,
    and who else is named."""
    target, backup = await run.find("first", "primary"), await run.find("first", "backup")
    also = [await run.find("last", role) for role in hurt]
    with hosts.cuts((target.id, backup.id)):
        for _ in range(2):  # who has answered since has read what had come before the cut
            while not await answers(run, backup.id):
                await run.stalled(0.01)
        # what came before the cut may be applied after it
        while not tainted(run, applied_by(run, backup.id)):
            await run.stalled(0.01)
        for victim in (target, *also):
            run.strike(victim)
        await run.answered(40)


async def answers(run: GraphRun, instance: str) -> bool:
    """Whether it says how far it is when it is asked now."""
    return any(item.id == instance and item.version is not None for item in (await run.view()).instances)


def applied_by(run: GraphRun, backup: str) -> int:
    """The newest version of `first` that its backup has applied."""
    return max(line["version"] for line in run.lines("apply", backup) if line["op"] == "first")


def tainted(run: GraphRun, applied: int) -> bool:
    """Whether `last` has executed on something that `first` did after version `applied`."""
    outs = {line["out"] for line in run.lines("exec", "first") if line["seq"] > applied}
    middle = {line["out"] for line in run.lines("exec", "middle") if outs.intersection(line["in"])}
    return any(middle.intersection(line["in"]) for line in run.lines("exec", "last"))


async def test_f6_f8_downstream_of_an_undelivered_state_takes_the_new_values(tmp_path: Path) -> None:
    async with run_on_hosts("line.yaml", tmp_path, graphs=changed(tmp_path, PATIENT)) as (run, hosts):
        async with run.load(clients=4):
            await run.answered(40)
            before = await run.epochs()
            await undelivered(run, hosts)
            await run.redundant()
            after = await run.epochs()
            assert (after["first"], after["last"]) == (before["first"] + 1, before["last"] + 1), (
                "what depends on it fails over too"
            )
        outs: dict[str, set[str]] = {}
        for line in run.lines("exec", "middle"):
            outs.setdefault(line["req"], set()).add(line["out"])
        assert any(len(values) > 1 for values in outs.values()), (
            "the stateless one between them got another value and took it"
        )
    run.verify()


async def test_f7_without_a_backup_the_downstream_primary_rolls_back(tmp_path: Path) -> None:
    async with (
        run_on_hosts("line.yaml", tmp_path, graphs=changed(tmp_path, PATIENT)) as (run, hosts),
        run.load(clients=4),
    ):
        await run.answered(40)
        before = await run.epochs()
        primary = await run.find("last", "primary")
        await undelivered(run, hosts, hurt=("backup",))
        await run.redundant()
        after = await run.epochs()
        assert after["first"] == before["first"] + 1
        # two, if the backup was put in its place before its own death was seen
        assert after["last"] in (before["last"] + 1, before["last"] + 2)
        assert (await run.find("last", "primary")).id == primary.id, "from its retained record"
    run.verify()
