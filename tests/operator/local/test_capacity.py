"""The CPU that a machine has for a graph, and what is said and done if it is too little."""

from pathlib import Path

import pytest

from hams_graph import load
from hams_operator.local import capacity
from hams_operator.local.capacity import delay_samples, suspect_after_raised_max_s

DIGITS = Path(__file__).parents[3] / "examples" / "digits" / "graph.yaml"


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))


def test_without_a_quota_the_cores_that_it_may_run_on_count(tmp_path: Path) -> None:
    assert capacity.cores(tmp_path / "cgroup", tmp_path) == 8


def test_a_quota_of_cgroup_v2_counts_wherever_above_it_stands(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/user/ours\n")
    for folder, text in (("user", "50000 100000"), ("user/ours", "max 100000")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "cpu.max").write_text(f"{text}\n")
    assert capacity.cores(tmp_path / "cgroup", tmp_path) == 0.5


def test_a_quota_of_cgroup_v1_counts_too(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("2:cpuacct:/x\n1:cpu:/ours\n0::/\n")
    (tmp_path / "cpu" / "ours").mkdir(parents=True)
    (tmp_path / "cpu" / "ours" / "cpu.cfs_quota_us").write_text("8000\n")
    (tmp_path / "cpu" / "ours" / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert capacity.cores(tmp_path / "cgroup", tmp_path) == 0.08


def test_the_least_memory_of_machine_and_control_groups_is_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:       8 kB\n")

    def left() -> int:
        return capacity.memory_available(tmp_path / "cgroup", tmp_path, tmp_path / "meminfo")

    assert left() == 8192
    (tmp_path / "cgroup").write_text("4:memory:/ours\n0::/user/ours\n")
    (tmp_path / "user" / "ours").mkdir(parents=True)
    (tmp_path / "user" / "memory.max").write_text("7000\n")
    (tmp_path / "user" / "memory.current").write_text("1000\n")
    (tmp_path / "user" / "ours" / "memory.max").write_text("max\n")
    (tmp_path / "user" / "ours" / "memory.current").write_text("1000\n")
    assert left() == 6000
    (tmp_path / "user" / "memory.stat").write_text("anon 300\ninactive_file 400\nactive_file 200\nx\n")
    assert left() == 6600, "files that were read go when memory is wanted"
    (tmp_path / "memory" / "ours").mkdir(parents=True)
    (tmp_path / "memory" / "ours" / "memory.limit_in_bytes").write_text("5000\n")
    (tmp_path / "memory" / "ours" / "memory.usage_in_bytes").write_text("6000\n")
    assert left() == 0
    stat = "inactive_file 1\ntotal_inactive_file 3000\ntotal_active_file 500\n"
    (tmp_path / "memory" / "ours" / "memory.stat").write_text(stat)
    assert left() == 2500


def test_a_graph_on_far_too_few_cores_is_told_so_and_on_enough_it_is_not() -> None:
    graph = load(DIGITS)
    assert capacity.too_few_cores(graph, 2.0) is None
    assert capacity.too_few_cores(graph, 1.0) is not None
    said = capacity.too_few_cores(graph, 0.08)
    assert said is not None
    assert f"digits is {capacity.processes_of(graph)} processes, and there are 0.08 cores for them" in said


def test_suspect_after_follows_the_delay_within_bounds() -> None:
    assert capacity.raised(0.15, 0.001) == 0.15
    assert capacity.raised(0.15, 0.2) == pytest.approx(0.8)
    assert capacity.raised(0.15, 60.0) == suspect_after_raised_max_s
    assert capacity.raised(20.0, 60.0) == 20.0, "never less than the graph asks for"


def test_the_delay_is_measured_by_short_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    late = iter([0.0, 0.3, *[0.001] * delay_samples])

    def sleep(span_s: float) -> None:
        clock[0] += span_s + next(late)

    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr("time.sleep", sleep)
    assert capacity.worst_delay_s() == pytest.approx(0.3)
