"""Memory is flat over any number of completed requests (I6, F41)."""

from collections.abc import Iterator

from frontend_net import Net, graph, op

from hams_protocol import limits
from hams_protocol.frontend.state import ExpiredKeys, key_hash
from hams_protocol.graph import FEEDBACK, FRONTEND
from hams_protocol.ids import RequestId
from hams_protocol.messages import Attempt, AttemptAck

ATOMS = (str, bytes, int, float, bool, type(None), type)
BOUNDED = (ExpiredKeys,)
"""Bounded by a limit of its own, and tested below."""


def size(machine: object) -> int:
    """How many objects hang on a machine: every container's items and every attribute, each once."""
    seen: set[int] = set()
    stack = [machine]
    count = 0
    while stack:
        item = stack.pop()
        if isinstance(item, (*ATOMS, *BOUNDED)) or id(item) in seen or callable(item):
            continue
        seen.add(id(item))
        count += 1
        stack.extend(children(item))
    return count


def children(item: object) -> Iterator[object]:
    if isinstance(item, dict):
        yield from item.keys()
        yield from item.values()
    elif hasattr(item, "__iter__"):
        yield from item
    yield from vars(item).values() if hasattr(item, "__dict__") else ()
    for cls in type(item).__mro__:
        for name in getattr(cls, "__slots__", ()):
            if hasattr(item, name):
                yield getattr(item, name)


def test_memory_is_flat_over_ten_thousand_requests():
    net = Net(graph(op("p", FRONTEND), op("q", FRONTEND, stateful=False), shards=2, replies_kept=50)).start()
    sizes: list[tuple[int, ...]] = []
    for number in range(10_000):
        name = "F-1" if number % 3 else "F-2"
        net.ask(name, f"k{number}" if number % 2 else None)
        net.run()
        if number % 100 == 99:
            net.advance(limits.resend_after_s + 0.05)
            net.log.clear()
            net.answers.clear()
            for item in net.ops.values():
                item.inbox.clear()
                item.held.clear()
                item.outputs.clear()
                item.completed.clear()
        if number % 1000 == 999:
            sizes.append(tuple(size(machine) for machine in net.machines.values()))
    # The first thousand fill the table of kept replies; hashes of expired keys are integers and bounded by
    # their own limit.
    assert max(sum(item) for item in sizes[1:]) <= sum(sizes[0]) * 1.05
    for machine in net.machines.values():
        assert machine.waiting_clients == 0
        assert all(shard.open_requests == 0 and shard.stored_replies <= 50 for shard in machine.shards())
        for holder in (*machine._owners.values(), *machine._followers.values()):
            assert holder.log is not None
            assert holder.log.retained_entries == 0
        assert len(machine._outbox) == 0


def test_one_request_that_does_not_complete_bounds_what_lies_above_it(monkeypatch):
    monkeypatch.setattr(limits, "completion_sparse_max", 20)
    net = Net(graph(op("p", FRONTEND))).start()
    net.op("p").auto = False
    net.ask("F-1")
    net.run()
    net.op("p").auto = True
    answers = []
    for _ in range(25):
        handle = net.ask("F-1")
        net.run()
        answers.append(net.reply(handle))
    assert answers[20:] == [429] * 5
    assert answers[19] != 429


def test_words_on_suspects_are_forgotten_with_their_requests():
    net = Net(graph(op("p", FRONTEND))).start()
    for n in range(5):
        net.op("p").auto = False
        net.ask("F-1")
        net.run()
        request = RequestId(0, n)
        # of a token that is yet to be made
        net.deliver("p-1", "F-1", Attempt("p", FEEDBACK, request, (), 1, 2 * n + 1))
        net.op("p").answer(request)
        net.run()
        # said again: its acknowledgement was lost
        net.deliver("p-1", "F-1", Attempt("F", "p", request, (), 1, 2 * n + 2))
    net.run()
    assert len(net.sends(AttemptAck, "F-1")) == 10
    assert net.machines["F-1"]._outbox._foretold == {}


def test_expired_keys_keep_their_order_and_their_bound(monkeypatch):
    monkeypatch.setattr(limits, "keys_expired_max", 5)
    keys = ExpiredKeys()
    for i in range(12):
        keys.add(f"k{i}")
        keys.add("k0" if i < 5 else f"k{i}")  # known already: neither newer nor twice
    assert keys.hashes() == tuple(key_hash(f"k{i}") for i in range(7, 12))
    assert [f"k{i}" in keys for i in (6, 7, 11, 12)] == [False, True, True, False]
    copied = ExpiredKeys()
    copied.restore(keys.hashes())
    copied.add("new")
    assert copied.hashes() == (*keys.hashes()[1:], key_hash("new"))
