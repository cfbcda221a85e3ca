"""Messages of a peer that name what this graph does not have: none that is let in ends the instance by a name
it does not know."""

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any
from unittest import mock

import pytest

from hams_protocol.deps import Dep
from hams_protocol.events import Received, TopologyLearnt
from hams_protocol.frontend import FrontendMachine
from hams_protocol.graph import FRONTEND
from hams_protocol.ids import RequestId
from hams_protocol.intake import Names
from hams_protocol.messages import Deliver, Freeze, LogAppend, Message, SlotQuery, TopologyNews
from hams_protocol.recovery import ManagerMachine
from hams_protocol.stateful import StatefulMachine
from hams_protocol.stateless import StatelessMachine
from hams_protocol.topology import ReplicaSet, Topology
from hams_wire.peers.codec import CODES
from tests.fuzz import test_peer_frames
from tests.fuzz.boundaries import INTEGERS, cases
from tests.protocol.kit import active_of, graph, op, primary_of, rset, table, topo, value

GRAPH = graph(op("s", FRONTEND, to=("p",)), op("p", "s", stateful=True), shards=2)
TOPOLOGY = topo(
    3, rset("F/0", "F-1", "F-2"), rset("F/1", "F-2", "F-1"), rset("p", "p-1", "p-2"), table("s", ("s-1", 1))
)
BEGINNING = topo(1, rset("F/0", "F-1"), rset("F/1", "F-2"), rset("p", "p-1", "p-2"), table("s", ("s-1", 1)))
"""A frontend that is named in sync later must have a log; it leads its shard from the beginning."""
WORDS = ("s", "p", "F", "F!", "F*", "F/0", "F/1", "F/9", "z", "p-1", "p-2", "s-1", "F-1", "F-2", "")
NUMBERS = tuple(number for number in INTEGERS if -(1 << 63) <= number < 1 << 64)
KINDS = tuple(CODES)


def machines() -> dict[str, Any]:
    """One of each kind, in the middle of its life."""
    frontend = FrontendMachine(GRAPH, "F-1")
    manager = ManagerMachine(GRAPH, "m-1")
    for generation, learnt in ((0, Topology()), (1, BEGINNING)):
        frontend.step(TopologyLearnt(learnt, generation), 0.0)
    manager.step(TopologyLearnt(TOPOLOGY, 3), 0.0)
    return {
        "p": primary_of(GRAPH, "p", TOPOLOGY).machine,
        "s": active_of(GRAPH, "s", "s-1", TOPOLOGY).machine,
        FRONTEND: frontend,
        "manager": manager,
    }


def newcomers() -> dict[str, Any]:
    """The same, before they know any roles."""
    values: dict[str, Any] = {
        "p": StatefulMachine(GRAPH, "p", "p-2"),
        "s": StatelessMachine(GRAPH, "s", "s-1"),
        FRONTEND: FrontendMachine(GRAPH, "F-1"),
        "manager": ManagerMachine(GRAPH, "m-1"),
    }
    for machine in values.values():
        machine.step(TopologyLearnt(Topology(), 0), 0.0)
    return values


def test_each_machine_of_the_fuzzer_lives() -> None:
    """One that has stopped takes every message, and proves nothing."""
    for made in (machines, newcomers):
        for of, machine in made().items():
            known = machine.knowledge.topology
            machine.step(TopologyLearnt(replace(known, generation=known.generation + 1), 9), 1.0)
            assert machine.knowledge.topology.generation == known.generation + 1, f"{of} of {made.__name__}"


def message(rng: Random) -> Message:
    """A random message whose texts are names, of this graph and of none."""
    with (
        mock.patch.object(test_peer_frames, "TEXTS", WORDS),
        mock.patch.object(test_peer_frames, "WRITABLE", NUMBERS),
    ):
        result: Message = test_peer_frames.sample(rng.choice(KINDS), rng)
        return result


@pytest.mark.timeout(3600)
def test_F36_no_message_that_is_let_in_ends_a_machine() -> None:
    names = {of: Names(GRAPH, of) for of in machines()}
    seen: Counter[bool] = Counter()
    for seed in cases(1000):
        rng = Random(seed)
        result = message(rng)
        for made in (machines, newcomers):
            for of, machine in made().items():
                let_in = not names[of].unknown(result)
                seen[let_in] += 1
                if let_in:
                    sender = rng.choice(("p-2", "F-2", "s-1", "m-2", "nobody"))
                    machine.step(Received(sender, result), 1.0)
    assert min(seen[True], seen[False]) > 500, "both happen"


TOKEN = value("s", RequestId(0, 1), "v")


def news(replica_set: ReplicaSet) -> TopologyNews:
    """A topology of this one set."""
    return TopologyNews(Topology(1, (replica_set,)), 1)


@pytest.mark.parametrize(
    ("of", "sent", "named"),
    [
        ("p", Deliver("p", 1, TOKEN), ""),
        ("p", Deliver("q", 1, TOKEN), 'a Deliver names "q" as its target, which is not here'),
        ("p", Deliver("p", 1, replace(TOKEN, source="z")), 'a Deliver names the edge from "z" to "p"'),
        ("p", Deliver("p", 1, replace(TOKEN, request=RequestId(2, 1))), "a Deliver names shard 2 of 2"),
        ("p", Deliver("p", 1, replace(TOKEN, lane=("x",))), 'a Deliver names lane x of "s"'),
        ("p", Deliver("p", 1, replace(TOKEN, deps=(Dep("z", 1, 1),))), 'a Deliver names the state "z"'),
        (
            "p",
            Deliver("p", 1, replace(TOKEN, deps=(Dep("p", -1, 1),))),
            'a Deliver names epoch -1 of "p"',
        ),
        (FRONTEND, Deliver(FRONTEND, 1, replace(TOKEN, source="p")), ""),
        (FRONTEND, Deliver("p", 1, TOKEN), 'a Deliver names "p" as its target, which is not here'),
        (FRONTEND, LogAppend(-1, 1, 0, ()), "a LogAppend names shard -1 of 2"),
        ("p", SlotQuery("s", 1, 1), 'a SlotQuery names slot 1 of "s"'),
        ("p", Freeze(1, 1, "F/7", 1), 'a Freeze names the state "F/7"'),
        (
            FRONTEND,
            news(ReplicaSet("F/1", 1, "F-1", in_sync=("F-2",), joining=("F-2",))),
            'a TopologyNews names "F-2" twice in the replica set "F/1"',
        ),
        (
            "p",
            news(ReplicaSet("p", 1, "p-1", keepers=("p-1",))),
            'a TopologyNews names "p-1" twice in the replica set "p"',
        ),
        ("p", news(ReplicaSet("p", 1, "p-1", in_sync=("p-2",), joining=("p-3",), keepers=("s-1",))), ""),
    ],
)
def test_what_is_named_and_not_there_is_told(of: str, sent: Message, named: str) -> None:
    assert Names(GRAPH, of).unknown(sent) == named


def test_an_epoch_before_the_first_ends_no_newcomer() -> None:
    """Who knows no roles yet has no ends to look such an epoch up in."""
    sent = Deliver("p", 0, replace(TOKEN, deps=(Dep("p", -1, 1),)))
    codec = test_peer_frames.CODEC
    encoded = codec.encode(replace(sent, token=replace(sent.token, payload=None)))
    arrived = codec.decode(encoded.code, encoded.metadata)
    names = Names(GRAPH, "p")
    if not names.unknown(arrived):
        newcomers()["p"].step(Received("s-1", arrived), 1.0)
