"""Proposals by themselves: one at a time, and an unknown outcome is read again, never repeated."""

import pytest

from hams_protocol.effects import Propose
from hams_protocol.events import CasSettled, CasUnknown, Event
from hams_protocol.topology import Topology
from hams_wire.proposals import ProposalQueue


class Etcd:
    """The calls of a process, in order. `then`: the proposals of its machine when it learns an outcome."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.proposals = ProposalQueue(self)
        self.then: list[Propose] = []

    def commit(self, proposal: Propose) -> None:
        self.asked.append(proposal.revision)

    def read_topology(self) -> None:
        self.asked.append("read")

    def feed(self, event: Event) -> None:
        self.asked.append(type(event).__name__)
        for proposal in self.then:
            self.proposals.propose(proposal)
        self.then = []


def proposal(revision: int) -> Propose:
    return Propose(revision, Topology(revision))


def test_the_next_one_is_sent_once_the_outcome_of_the_one_before_is_told() -> None:
    etcd = Etcd()
    for revision in (1, 2):
        etcd.proposals.propose(proposal(revision))
    assert etcd.asked == [1]
    etcd.proposals.answered(CasSettled(Topology(), 1, committed=False))
    etcd.proposals.answered(CasSettled(Topology(), 2, committed=True))
    assert etcd.asked == [1, "CasSettled", 2, "CasSettled"]
    assert len(etcd.proposals) == 0


@pytest.mark.parametrize("more", [0, 1])
def test_an_unknown_outcome_is_told_and_read_again_and_never_sent_again(more: int) -> None:
    etcd = Etcd()
    for revision in range(1 + more):
        etcd.proposals.propose(proposal(revision))
    etcd.proposals.answered(CasUnknown())
    assert etcd.asked == [0, "CasUnknown", *range(1, 1 + more), "read"]


def test_what_the_machine_proposes_when_it_is_told_is_sent_once() -> None:
    etcd = Etcd()
    etcd.proposals.propose(proposal(1))
    etcd.then = [proposal(2)]
    etcd.proposals.answered(CasSettled(Topology(), 1, committed=False))
    assert etcd.asked == [1, "CasSettled", 2]
