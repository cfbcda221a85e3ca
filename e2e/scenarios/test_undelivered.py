"""F1: a primary dies after its output left, before the state reached its backup."""

from e2e.cluster.commands import until
from e2e.scenarios.report import report
from e2e.scenarios.run import GraphRun

UNDELIVERED_S = 30.0
SLOW_S = 0.3
"""For a backup to say that it has a state that had come before it was deaf. Far less than it takes until its
primary goes on without it."""


def applied_by(run: GraphRun, instance: str, operator: str) -> int:
    """The newest version that a backup has applied."""
    return max(
        (
            int(line["version"])
            for line in run.lines("apply")
            if line["i"] == instance and line["op"] == operator
        ),
        default=-1,
    )


def goes_on_undelivered(run: GraphRun, backup: str) -> bool:
    """Whether `b` has executed on an output of `a` whose state the backup of `a` does not have."""
    applied = applied_by(run, backup, "a")
    outs = {line["out"] for line in run.lines("exec") if line["op"] == "a" and int(line["seq"]) > applied}
    return any(outs.intersection(line["in"]) for line in run.lines("exec") if line["op"] == "b")


def test_F1_a_primary_dies_with_a_state_that_its_backup_never_got(chain: GraphRun) -> None:
    """No client got a reply that stems from it, and who ran on with it downstream goes back."""
    primary, backup = chain.pod_of("a", "primary"), chain.pod_of("a", "backup")
    instance = chain.instance_of("a", "backup")
    before = {name: chain.epoch_of(name) for name in ("a", "b")}
    pods = chain.pods()
    with chain.load():
        with chain.cluster.deaf(pods[backup]["metadata"]["uid"], pods[primary]["status"]["podIP"]):
            chain.note(f"{backup} hears nothing of {primary}")
            until(
                lambda: goes_on_undelivered(chain, instance),
                UNDELIVERED_S,
                "an output that left before its state",
                0.05,
            )
            chain.stalled(SLOW_S)
            until(
                lambda: goes_on_undelivered(chain, instance),
                UNDELIVERED_S,
                "an output that left before its state",
                0.05,
            )
            chain.note(f"kill the processes of {primary}")
            # at once: after some seconds it goes on without its backup
            chain.cluster.kill_pods(pods[primary]["metadata"]["uid"])
            chain.moved("a", before["a"])
        chain.answered(50)
        chain.redundant()
    report(chain, "F1")
    assert not chain.failed()
    assert chain.epoch_of("b") > before["b"], "b has executed what never was"
