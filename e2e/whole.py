"""`make e2e`: what the cluster needs, images, the cluster, the scenarios, and everything gone again. Says how
long each part took.

`--short` runs the few scenarios of SHORT, the most telling first. `--limit S` ends it all after so many
seconds: what had no time is said to have NOT RUN, never to have passed. `--where-possible` does the same,
instead of failing, on a machine on which no cluster can be made. The outcome in one line is in
`out/e2e/outcome` too, for whoever started this.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as Xml
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster import machine
from e2e.cluster.choice import chosen
from e2e.cluster.cluster import Cluster
from e2e.cluster.commands import CommandFailed
from e2e.cluster.layout import ROOT
from e2e.cluster.machine import NotPossible
from e2e.scenarios.install import OldImages, check_images

OUT = ROOT / "out" / "e2e"
SHORT = (
    "test_F12_a_pod_is_deleted_by_force[primary]",
    "test_F30_the_api_server_is_away_and_a_primary_dies",
    "test_F14_pods_are_deleted_at_random",
    "test_F15_a_node_is_drained",
    "test_F16_F17_a_node_is_cut_off_and_returns",
    "test_F11_a_pod_is_deleted_gracefully[primary]",
    "test_the_example_digits_is_applied",
    "test_F1_a_primary_dies_with_a_state_that_its_backup_never_got",
    "test_F13_a_lost_state_begins_again_where_the_policy_says_so",
    "test_an_operator_is_added_under_load_and_the_counts_go_on",
)
"""What CI runs, in this order: what has no time is said to have NOT RUN, so the last ones are those that may
miss."""
SCENARIO_SHORT_S = 420
LEAVE_S = 60
"""For a run that is told to end: its graph and its cluster go first."""


class NoTime(RuntimeError):
    """The limit is reached; says at what."""


class Stages:
    """How long each part took, and how much time is left for all."""

    def __init__(self, limit_s: float | None) -> None:
        self._began = time.monotonic()
        self.end = None if limit_s is None else self._began + limit_s
        self._lines: list[str] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """One part."""
        print(f"=== e2e: {name}", flush=True)
        began = time.monotonic()
        try:
            yield
        finally:
            self._lines.append(f"{time.monotonic() - began:6.0f} s  {name}")

    def left_s(self) -> float | None:
        """None: for ever."""
        return None if self.end is None else max(0.0, self.end - time.monotonic())

    def table(self) -> str:
        """All of them."""
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        return "\n".join(
            [
                *self._lines,
                f"{time.monotonic() - self._began:6.0f} s  all; load average at the end {load} on "
                f"{os.cpu_count()} cores",
            ]
        )


class Child:
    """A program in a process group of its own, so that it ends with everything that it started."""

    def __init__(self, *words: str, environment: dict[str, str] | None = None) -> None:
        self.name = " ".join(words[2:] or words)
        self._process = subprocess.Popen(words, cwd=ROOT, env=environment, start_new_session=True)

    def wait(self, left_s: float | None) -> int:
        """Its exit code. Raises NoTime; it runs on then."""
        try:
            return self._process.wait(left_s)
        except subprocess.TimeoutExpired:
            raise NoTime(self.name) from None

    def stop(self) -> None:
        """Ask it to end, then end it."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(LEAVE_S)
            except subprocess.TimeoutExpired:
                print(f"e2e: {self.name} did not end within {LEAVE_S} s", file=sys.stderr)
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait()


def build(stages: Stages, own: bool, registry: str, builder: str) -> None:
    """Images, and beside them the programs of the cluster: one waits for the network while the other
    computes.

    Raises NoTime, NotPossible, CommandFailed.
    """
    children = [
        Child(
            sys.executable,
            "-m",
            "images.build",
            "--builder",
            builder,
            "--registry",
            registry,
            "--example",
            "chain",
            "--thin",
            "digits",
        )
    ]
    if own:
        children.append(Child(sys.executable, "-m", "e2e.cluster", "build"))
    try:
        for child in children:
            status = child.wait(stages.left_s())
            if status == machine.IMPOSSIBLE:
                raise NotPossible(f"{child.name}: this machine cannot, see above")
            if status:
                raise CommandFailed(f"{child.name}: exit code {status}, see above")
    finally:
        for child in children:
            child.stop()


def scenarios(stages: Stages, short: bool, words: list[str]) -> int:
    """pytest's exit code. Raises NoTime after it has been ended."""
    environment = dict(os.environ)
    if stages.end is not None:
        # the clock is the machine's, not the process's
        environment["HAMS_E2E_END"] = str(stages.end - LEAVE_S)
    options = [] if not short else [f"e2e/scenarios/{_file_of(name)}::{name}" for name in SHORT]
    limit = ["--timeout", str(SCENARIO_SHORT_S)] if short else []
    common = ["-m", "pytest", "-p", "no:cacheprovider", *limit, f"--junitxml={OUT / 'scenarios.xml'}"]
    child = Child(sys.executable, *common, *(options or ["e2e/scenarios"]), *words, environment=environment)
    try:
        left = stages.left_s()
        return child.wait(left)
    finally:
        child.stop()


def _file_of(test: str) -> str:
    """The file of a scenario by its name."""
    name = test.partition("[")[0]
    for path in sorted((ROOT / "e2e" / "scenarios").glob("test_*.py")):
        if f"def {name}(" in path.read_text():
            return path.name
    raise LookupError(f"no scenario {name}")


def outcome(file: Path, wanted: int) -> str:
    """What pytest noted, in a line; `wanted`: how many scenarios there should have been, 0 if nobody
    knows."""
    passed, failed, silent = 0, [], []
    if file.exists():
        for case in Xml.parse(file).getroot().iter("testcase"):
            kinds = {child.tag for child in case}
            if kinds & {"failure", "error"}:
                failed.append(str(case.get("name")))
            elif "skipped" in kinds:
                silent.append(str(case.get("name")))
            else:
                passed += 1
    unseen = max(0, wanted - passed - len(failed) - len(silent))
    parts = [f"{passed} scenarios passed"]
    parts += [f"{len(failed)} FAILED: {', '.join(failed)}"] if failed else []
    parts += [f"{len(silent)} NOT RUN: {', '.join(silent)}"] if silent else []
    parts += [f"{unseen} NOT RUN for want of time"] if unseen else []
    return "; ".join(parts)


def run(options: argparse.Namespace, stages: Stages, cluster: Cluster, rest: list[str]) -> tuple[int, str]:
    """Exit code and outcome. Raises NotPossible, CommandFailed, OldImages."""
    if cluster.recorded:
        with stages.stage("what the machine has to give"):
            machine.prepare()
            machine.check_go()
    before = bool(cluster.running())
    try:
        if os.environ.get("CLUSTER") != "existing":
            with stages.stage("images, Kubernetes, helm"):
                build(stages, cluster.recorded, options.registry, options.builder)
    except NoTime as error:
        return 0, f"NOT RUN: the {options.limit} s were over while this still ran: {error}"
    if before:
        check_images(cluster)
    result = OUT / "scenarios.xml"
    result.unlink(missing_ok=True)
    status = 0
    try:
        with stages.stage("cluster and scenarios"):
            status = scenarios(stages, options.short, rest)
    except NoTime:
        print(f"e2e: the {options.limit} s are over", file=sys.stderr)
    finally:
        if not before and cluster.running():
            with stages.stage("end of the cluster"):
                cluster.down()
    said = outcome(result, len(SHORT) if options.short else 0)
    return (1 if status or "FAILED" in said else 0), said


def interrupted(number: int, frame: object) -> None:
    """End what was started, as Ctrl-C does. Once: `timeout` tells the whole group, and make tells its child
    again."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main(words: list[str]) -> int:
    """Returns 0; 1 when something failed, or nothing could be run and that was not allowed for."""
    parser = argparse.ArgumentParser(
        prog="python -m e2e.whole", description="Scenarios of the fault catalogue on a cluster made for them."
    )
    parser.add_argument("--short", action="store_true", help="the few scenarios that CI runs")
    parser.add_argument("--limit", type=float, metavar="S", help="end after so many seconds")
    parser.add_argument(
        "--where-possible", action="store_true", help="no failure where no cluster can be made"
    )
    parser.add_argument("--registry", default="hams.local")
    parser.add_argument("--builder", default="auto")
    options, rest = parser.parse_known_args(words)
    signal.signal(signal.SIGTERM, interrupted)
    stages = Stages(options.limit)
    OUT.mkdir(parents=True, exist_ok=True)
    try:
        status, said = run(options, stages, chosen(), rest)
    except NotPossible as error:
        status, said = (0 if options.where_possible else 1), f"NOT RUN: {error}"
    except (CommandFailed, OldImages) as error:
        status, said = 1, f"FAILED: {error}"
    except KeyboardInterrupt:
        status, said = 130, "NOT RUN to its end: interrupted"
    (OUT / "outcome").write_text(said.splitlines()[0] + "\n")
    print(f"=== e2e: how long it took\n{stages.table()}\n=== e2e: {said}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
