"""Replies where lost states are run again (section 9): they leave at once, and what they stem from stays in
the log until it is stored."""

from frontend_net import Net, graph, op

from hams_protocol.effects import NoteComplete
from hams_protocol.graph import FRONTEND, Mode
from hams_protocol.ids import RequestId, UnitId
from hams_protocol.messages import AskDeterminants, Determinant, Determinants, Kind, Ran

R0 = RequestId(0, 0)
MADE = Determinant("p", 1, 1, (Ran(UnitId(R0, ()), Kind.VALUE, None),))


def replied() -> Net:
    """A request has its reply, and the state behind it is not stored."""
    net = Net(graph(op("p", FRONTEND), mode=Mode.LINEAGE_STASH)).start()
    net.op("p").auto = net.op("p").durable = False
    handle = net.ask("F-1", "k")
    net.run()
    net.op("p").answer(R0, determinants=(MADE,))
    net.run()
    assert net.reply(handle) == ["p-1:1"]
    return net


def told(net: Net, by: str) -> list[Determinant]:
    net.deliver("p-2", by, AskDeterminants("p", 2, 0, 1))
    net.run()
    (sent,) = net.sends(Determinants, by)
    answer = sent[2]
    assert isinstance(answer, Determinants)
    assert answer.led is not None
    assert answer.led[0] == "F/0"
    return list(answer.items)


def test_a_reply_leaves_at_once_and_the_request_is_complete_when_its_state_is_stored():
    net = replied()
    assert not net.notes(NoteComplete)
    net.op("p").announce(1)
    net.run()
    assert net.notes(NoteComplete) == [NoteComplete(R0)]


def test_an_owner_tells_how_the_states_came_about_from_which_its_replies_stem():
    assert told(replied(), "F-1") == [MADE]


def test_a_shards_new_owner_tells_it_from_its_log():
    net = replied()
    net.op("p").outputs.clear()  # it dies with the owner
    net.kill("F-1")
    net.fail_over(0, revoke="F-1")
    net.run()
    assert told(net, "F-2") == [MADE]


def test_what_is_stored_nobody_asks_for():
    net = replied()
    net.op("p").announce(1)
    net.run()
    assert told(net, "F-1") == []


def test_who_knows_an_older_topology_only_asks_for_the_newer_one_and_tells_nothing():
    net = replied()
    net.deliver("p-2", "F-1", AskDeterminants("p", 2, 0, 99))
    net.run()
    assert not net.sends(Determinants, "F-1")
