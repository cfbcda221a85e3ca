"""The demonstration: what it proves, and that it would say so if it could not."""

import pytest

from hams_operator.cli.demo import Replies


def replies(labels: list[int]) -> Replies:
    """What a graph answers that is asked about zeros, one after another."""
    found = Replies()
    for number, label in enumerate(labels, 1):
        found.truth.append(0)
        found.label.append(label)
        found.seen.append(number)
        found.quality.append(sum(item == 0 for item in labels[max(0, number - 256) : number]) / min(number, 256))
    return found


def test_counts_and_accuracies_that_follow_from_the_replies_are_right_in_any_order():
    found = replies([0, 1, 0, 0] * 100)
    assert found.off() == ""
    for column in (found.truth, found.label, found.seen, found.quality):
        column.reverse()
    assert found.off() == ""


def test_a_count_twice_a_gap_and_a_wrong_accuracy_are_found():
    twice = replies([0, 0, 0])
    twice.seen[2] = 2
    assert "each once" in twice.off()
    forgotten = replies([0, 0, 0])
    forgotten.seen[2] = 4
    assert "each once" in forgotten.off()
    wrong = replies([0, 1, 0])
    wrong.label[1] = 0
    assert wrong.off() == "row 2: the replies give an accuracy of 1.0000, the graph said 0.5000"


@pytest.mark.process
@pytest.mark.etcd
@pytest.mark.timeout(240)
def test_the_demo_finds_nothing_off_and_leaves_nothing(hams):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    found = hams.json("demo", "--duration", "8s")
    assert found["good"]
    assert [item["what"] for item in found["findings"]] == [
        *("started", "killed", "answered", "remembered", "correct", "gap", "recovered", "history"),
    ]
    assert hams.processes() == []
