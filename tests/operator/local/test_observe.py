"""What a look at a local run means."""

import io

import msgspec
import pytest
from rich.console import Console

from hams_graph import load_text
from hams_operator.cli.table import table
from hams_operator.graph_status import Condition, GraphStatus, InstanceStatus, OnTime, PolicyReplaced, awaited
from hams_operator.local.observe import losses_of, on_time_of, replaced_in, serving_of, timeliness_in
from hams_protocol.messages import Health, ProbeAnswer, RoleReport
from hams_protocol.topology import ReplicaSet, Topology
from hams_protocol.wholeness import NOT_ASKED_FOR, READY, REDUNDANT
from hams_wire import records
from hams_wire.coordination.port import KeyValue, Snapshot


@pytest.mark.parametrize(
    ("ready", "redundant", "reason", "waits_for"),
    [
        ("True", "True", "InSync", None),
        ("True", "False", NOT_ASKED_FOR, None),
        ("True", "False", "Degraded", REDUNDANT),
        ("False", "False", NOT_ASKED_FOR, READY),
        ("False", "True", "InSync", READY),
        ("Unknown", "False", "Degraded", READY),
    ],
)
def test_a_wait_ends_with_all_that_a_graph_asks_for(
    ready: str, redundant: str, reason: str, waits_for: str | None
) -> None:
    condition = awaited([Condition(READY, ready, "", ""), Condition(REDUNDANT, redundant, reason, "")])
    assert (condition and condition.type) == waits_for


def answer(*roles: RoleReport, health: Health = Health.HEALTHY) -> ProbeAnswer:
    return ProbeAnswer(1, health, 1, roles)


def test_an_instance_serves_only_the_epoch_that_the_topology_says() -> None:
    topology = Topology(sets=(ReplicaSet("count", 3, "a"),))
    answers = {
        "a": answer(RoleReport("count", "primary", 3, 0, True)),
        "late": answer(RoleReport("count", "primary", 2, 0, True)),
        "loading": answer(RoleReport("count", "primary", 3, 0, False)),
        "backup": answer(RoleReport("count", "backup", 3, 0, True)),
        "has not heard of its role": answer(),
    }
    serving = serving_of(topology, answers, "")
    assert [name for name in answers if serving.serves(name, "count")] == ["a"]
    assert serving.takes_part("backup")
    assert not serving.takes_part("silent")
    assert not serving.serves("silent", "count")


def test_a_standby_is_warm_once_it_is_ready() -> None:
    answers = {
        "w": answer(RoleReport("pass", "standby", 0, 0, True)),
        "cold": answer(RoleReport("pass", "standby", 0, 0, False)),
        "other": answer(RoleReport("count", "standby", 0, 0, True)),
    }
    assert serving_of(Topology(), answers, "").warm("pass") == 1


def entry(name: str, value: bytes) -> KeyValue:
    return KeyValue(f"/hams/v1/u/{name}", value, 1, 1)


def test_what_instances_tell_of_deadlines_is_read_and_what_is_no_record_is_passed_over() -> None:
    reported = records.TimelinessRecord("b", 60.0, 97, 2, 1, "Distribution", "it raised X")
    snapshot = Snapshot(
        3,
        (
            entry("timeliness/b-1", records.encode_timeliness(reported)),
            entry("timeliness/b-2", b"nonsense"),
            entry("timeliness/c-1", records.encode_timeliness(records.TimelinessRecord("c", 60.0))),
            entry("topology", b"{}"),
        ),
    )
    read = timeliness_in(snapshot, "/hams/v1/u/")
    assert set(read) == {"b-1", "c-1"}
    assert on_time_of((read["b-1"],)) == OnTime(0.97, 60.0, 100, 1)
    assert on_time_of((read["b-1"], read["c-1"])) == OnTime(0.97, 60.0, 100, 1)
    assert on_time_of((read["c-1"],)) is None
    (replaced,) = replaced_in(read)
    assert replaced.sentence() == "Fifo serves b in place of Distribution, which failed on b-1: it raised X"


def test_the_table_says_who_was_on_time_over_which_window_and_whose_policy_was_replaced() -> None:
    def instance(name: str, operator: str | None, on_time: OnTime | None) -> InstanceStatus:
        return InstanceStatus(
            name, operator, "active" if operator else "frontend", False, 1, 2, 3, 4, on_time
        )

    def shown(status: GraphStatus) -> str:
        terminal = Console(width=120, file=io.StringIO(), record=True)
        terminal.print(table(status))
        return terminal.export_text()

    instances = (instance("b-1", "b", OnTime(0.9999, 60.0, 9999, 0)), instance("c-1", "c", None))
    status = GraphStatus("g", "http://h:1", "h:2", 1, (), instances)
    lines = [line.split() for line in shown(status).splitlines() if line]
    assert ["b", "active", "1", "2", "99.9", "%", "b-1", "3", "4"] in lines
    assert ["c", "active", "1", "2", "-", "c-1", "3", "4"] in lines
    assert "ON TIME: answered within the deadline, of what was due in the last 60 s" in shown(status)
    assert "ON TIME:" not in shown(msgspec.structs.replace(status, instances=instances[1:]))
    replaced = PolicyReplaced("b", "b-1", "Deadline", "a batch has two batch keys")
    assert "Fifo serves b in place of Deadline, which failed on b-1: a batch has two" in shown(
        msgspec.structs.replace(status, replaced=(replaced,))
    )


@pytest.mark.parametrize(("mode", "said"), [("NonStop", [("count", 2, 7)]), ("LineageStash", [])])
def test_a_state_that_began_again_is_a_loss_but_where_it_is_run_again(
    mode: str, said: list[tuple[str, int, int]]
) -> None:
    graph = load_text(f"""
apiVersion: hams.dev/v1alpha1
kind: ServiceGraph
metadata: {{name: test}}
spec:
  mode: {mode}
  inputs: [{{name: x, datatype: FP32, shape: [4]}}]
  outputs: [{{name: y, from: count.y}}]
  operators:
  - name: count
    stateful: {{checkpoint: {{every: 1s, dir: /c}}}}
    model: {{entrypoint: "m:Count"}}
    inputs: [request.x]
    outputs: [{{name: y, datatype: FP32, shape: [4]}}]
""")
    again = ReplicaSet("count", 2, "c2", ends=((1, 7),), restarted_in=2)
    losses = losses_of(graph, Topology(sets=(again,)))
    assert [(item.operator, item.epoch, item.version) for item in losses] == said
