"""What one request costs in messages, where nothing fails: three stateful operators in a row, a backup each,
one client."""

from collections import Counter
from random import Random

import pytest

from hams_protocol.effects import Answer, Send
from hams_protocol.events import ClientRequest
from hams_protocol.graph import FRONTEND, BatchPolicy, SchedulePolicy, WhenUnprotected
from hams_protocol.messages import AskDurable, Completion, Durable, LogAppend, Meta, RecordAck, StateRecord
from hams_protocol.modes import try_by_receipt
from hams_sim import limits
from hams_sim.checks import converged
from hams_sim.model import Behaviour
from hams_sim.node import MANAGER
from hams_sim.payload import SimPayload
from hams_sim.shapes import SHAPES, Sizes, Vertex, build
from hams_sim.world import World

REQUESTS = 40
HOP_S = 0.0001
"""What a message takes on its way."""


def chain_of_three(monkeypatch, policy: SchedulePolicy, early_replies: bool = False) -> World:
    chain = [Vertex("a", (FRONTEND,), True), Vertex("b", ("a",), True), Vertex("c", ("b",), True, reply=True)]
    monkeypatch.setitem(SHAPES, "three", lambda rng: chain)
    sizes = Sizes(
        backups=1, shards=2, frontends=2, managers=3, unprotected=WhenUnprotected.CONTINUE, standbys=0
    )
    graph, _ = build("three", Random("economy"), sizes)
    behaviours = {}
    for op in graph.data.operators:
        object.__setattr__(op, "window", 4)
        object.__setattr__(op, "batch", BatchPolicy(8, 0.0, policy))
        model = behaviours[op.name] = Behaviour(Random("economy"))
        model.compute_s = model.update_s = 0.00005
        model.capture_s = 0.0001
    world = World(graph, "economy", behaviours)
    world.early_replies = early_replies
    world.network.base, world.network.jitter = HOP_S, 0.0
    for of in (MANAGER, MANAGER, MANAGER, FRONTEND, FRONTEND, "a", "a", "b", "b", "c", "c"):
        world.spawn(of)
    while not converged(world):
        world.run(world.now + 0.05)
    return world


def messages_per_request(
    monkeypatch, policy: SchedulePolicy = SchedulePolicy.FIFO, world: World | None = None
) -> dict[type, float]:
    world = world or chain_of_three(monkeypatch, policy)
    frontend = next(node for node in world.nodes.values() if node.of == FRONTEND)
    counts: Counter[type] = Counter()
    answered: list[float] = []
    world.performers[Answer] = lambda node, effect: answered.append(world.now)
    for number in range(2 * REQUESTS):
        if number == REQUESTS:  # by now everything is as it stays
            counts.clear()
            world.trace = lambda now, node, event, effects: counts.update(
                type(item.message) for item in effects if type(item) is Send
            )
        answered.clear()
        world.feed(
            frontend,
            ClientRequest(
                10_000 + number, None, str(number), Meta(), SimPayload("", None, number, ()), None, ("x",)
            ),
        )
        while not answered:
            world.run(world.now + HOP_S / 10)
    return {kind: count / REQUESTS for kind, count in counts.items()}


def test_a_version_costs_one_record_its_acknowledgements_and_notices_to_who_holds_something_back(monkeypatch):
    cost = messages_per_request(monkeypatch)
    assert cost[StateRecord] == 3
    assert cost[RecordAck] <= 5, (
        "the first operator's backup waits for nothing; the others say first that they have it, then that "
        "it is applied"
    )
    assert cost[Durable] <= 6, "the backups of c and b, the backup of c, and each time the owner of the shard"
    assert cost.get(AskDurable, 0) == 0


def test_by_receipt_a_version_costs_one_record_one_acknowledgement_and_one_notice(monkeypatch):
    try_by_receipt(True)
    try:
        cost = messages_per_request(monkeypatch)
    finally:
        try_by_receipt(False)
    assert (cost[StateRecord], cost[RecordAck], cost[Durable]) == (3, 3, 3)
    assert cost.get(AskDurable, 0) == 0, "tokens bring what a primary has to know"


def test_how_long_the_rest_of_the_path_takes_is_told_without_a_message_of_its_own(monkeypatch):
    plain = messages_per_request(monkeypatch)
    scheduled = messages_per_request(monkeypatch, SchedulePolicy.DISTRIBUTION)
    assert scheduled.keys() == plain.keys()
    assert scheduled[Completion] == pytest.approx(plain[Completion], rel=0.05), "as often as time passes"
    assert scheduled[StateRecord] == plain[StateRecord]


def test_each_operator_learns_how_long_the_rest_of_the_path_takes(monkeypatch):
    world = chain_of_three(monkeypatch, SchedulePolicy.DISTRIBUTION)
    messages_per_request(monkeypatch, world=world)
    rests = {}
    for node in world.nodes.values():
        if node.of in ("a", "b", "c") and node.machine.primary is not None:
            rests[node.of] = node.machine.queue.profiles.rest.median_of_all()
    assert rests["a"] > rests["b"] > rests["c"] > 0.0
    assert rests["a"] < 0.02, "of a request that takes some milliseconds"


def test_a_reply_that_is_logged_early_comes_two_hops_earlier_for_no_further_message(monkeypatch):
    monkeypatch.setattr(limits, "turns_share", 0.0)
    costs, took_s = [], []
    for early in (False, True):
        world = chain_of_three(monkeypatch, SchedulePolicy.FIFO, early)
        began = world.now
        costs.append(messages_per_request(monkeypatch, world=world))
        took_s.append((world.now - began) / (2 * REQUESTS))
    assert costs[1][LogAppend] == pytest.approx(costs[0][LogAppend], abs=0.1)
    assert sum(costs[1].values()) == pytest.approx(sum(costs[0].values()), rel=0.02)
    assert took_s[0] - took_s[1] >= 2 * HOP_S
