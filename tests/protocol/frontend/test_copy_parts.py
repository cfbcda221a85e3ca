"""The copy of a log goes out part by part, as its joiner says that it has them: what a connection has no room
for is lost (section 5)."""

from dataclasses import replace

import pytest
from frontend_net import Net, graph, op
from test_set import named_again, roles

from hams_protocol import limits
from hams_protocol.events import TopologyLearnt
from hams_protocol.frontend.log import copy_parts
from hams_protocol.graph import FRONTEND
from hams_protocol.messages import AskCopy, LogAck, LogCopy

KEPT = 6


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request is a part of its own, and two of them may be on their way."""
    monkeypatch.setattr(limits, "copy_part_entries_max", 1)
    monkeypatch.setattr(limits, "copy_window_bytes_max", 20)


def is_part(sender: str, target: str, message: object) -> bool:
    return isinstance(message, LogCopy)


def alone() -> Net:
    """F-1 keeps replies, and has an open request."""
    net = Net(graph(op("p", FRONTEND))).start(in_sync=False)
    for number in range(KEPT):
        net.ask("F-1", f"k{number}")
    net.run()
    net.op("p").auto = False
    net.ask("F-1", "open")
    net.run()
    return net


def joining() -> Net:
    """F-2 asks that one for a copy, whose parts are held back."""
    net = alone()
    net.hold = is_part
    net.join_all()
    net.run()
    return net


def parts(net: Net) -> list[int]:
    return [message.part for _, _, message in net.sends(LogCopy)]


def let_one_go(net: Net) -> None:
    """The oldest part that is held back arrives, and what it leads to."""
    sender, target, message = net.held_back.pop(0)
    net.deliver(sender, target, message)
    net.run()


def complete(net: Net) -> bool:
    """Whether F-2 holds all that F-1 does, and is in sync."""
    net.hold = lambda sender, target, message: False
    net.let_go()
    net.advance(limits.copy_ask_after_s + 0.5)
    assert net.stopped == {}
    one, other = net.machines["F-1"].shards()[0], net.machines["F-2"].shards()[0]
    return roles(net) == ("F-1", ("F-2",), ()) and (one.last, one.open_requests) == (
        other.last,
        other.open_requests,
    )


def test_no_more_than_the_window_is_on_its_way():
    net = joining()
    assert parts(net) == [0, 1]
    for arrived in range(1, KEPT - 1):
        let_one_go(net)
        assert parts(net) == list(range(arrived + 2))
    assert complete(net)
    assert parts(net) == list(range(KEPT + 2)), "nothing went out twice"


def test_a_part_larger_than_the_window_goes_out_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "copy_window_bytes_max", 1)
    net = joining()
    assert parts(net) == [0]
    assert complete(net)


def test_what_has_come_is_not_sent_again():
    net = joining()
    let_one_go(net)
    let_one_go(net)
    net.held_back.clear()
    assert complete(net)
    assert parts(net).count(0) == parts(net).count(1) == 1
    assert parts(net).count(2) == parts(net).count(3) == 2


def test_requests_go_on_meanwhile_and_the_joiner_gets_them_too():
    net = joining()
    net.op("p").auto = True
    for number in range(5):
        net.ask("F-1", f"later{number}")
        let_one_go(net)
    assert complete(net)


def test_a_joiner_that_is_named_anew_begins_anew():
    """What followed on the copy of before is gone by now."""
    net = joining()
    let_one_go(net)
    named_again(net, learnt=("F-1",))
    net.op("p").auto = True
    for number in range(3):
        net.ask("F-1", f"later{number}")
    net.run()
    net.held_back.clear()
    assert complete(net)
    assert parts(net).count(0) == 2


def test_parts_of_two_copies_are_not_mixed():
    """Another copy up to the same index is cut otherwise; what is left of the first one comes between."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "copy_part_entries_max", 1)
        patch.setattr(limits, "copy_window_bytes_max", 20)
        net = joining()
        patch.setattr(limits, "copy_part_entries_max", 4)
        named_again(net, learnt=())
        net.run()
        first, second, new = net.held_back
        assert len({message.index for _, _, message in (first, second, new)}) == 1
        net.held_back[:] = [new, second]
        let_one_go(net)
        let_one_go(net)
        assert net.sends(AskCopy, "F-2")[-1][2].parts == 1
        net.held_back.clear()
        assert complete(net)


def test_too_far_behind_it_begins_anew(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "joiner_lag_entries_max", 5)
    net = joining()
    let_one_go(net)
    net.op("p").auto = True
    for number in range(4):
        net.ask("F-1", f"later{number}")
    net.run()
    assert complete(net)
    assert parts(net).count(0) == 2


def test_a_copy_is_not_kept_for_who_has_it_or_has_gone():
    net = joining()
    copies = net.machines["F-1"]._owners[0].replication._copies
    assert set(copies) == {"F-2"}
    assert complete(net)
    assert not net.machines["F-1"]._owners[0].replication._copies


def test_an_idle_owner_keeps_no_copy_for_a_joiner_that_is_dropped():
    net = joining()
    net.commit(net.topology.with_set(replace(net.topology.find("F/0"), joining=())))
    net.run()
    assert not net.machines["F-1"]._owners[0].replication._copies


def test_parts_without_payloads_count_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "copy_window_bytes_max", 16 << 20)
    assert len(parts(joining())) == limits.copy_window_parts_max < KEPT


# -- neighbouring versions -----------------------------------------------------------------------------------


def test_a_joiner_of_the_version_before_gets_all_parts_at_once():
    """It says of no part that it has it, and asks again only after a while without one."""
    net = alone()
    deliver, asked_at = net.deliver, [-limits.copy_ask_after_s]

    def as_before(sender: str, target: str, message: object) -> None:
        if isinstance(message, AskCopy) and message.known < 0:
            if net.now < asked_at[-1] + limits.copy_ask_after_s:
                return
            asked_at.append(net.now)
            message = replace(message, copy=0, parts=-1)
        deliver(sender, target, message)

    net.deliver = as_before
    net.join_all()
    net.advance(limits.copy_ask_after_s / 2)
    assert roles(net) == ("F-1", ("F-2",), ())


def test_an_owner_of_the_version_before_is_not_asked_for_each_part_and_its_copies_are_not_mixed():
    net = joining()
    net.held_back.clear()
    asks = len(net.sends(AskCopy, "F-2"))
    copied = [replace(part, copy=0) for part in copy_parts(0, net.machines["F-1"]._owners[0].log)]
    follower = net.machines["F-2"]._followers[0]
    for part in copied[:-1]:
        net.deliver("F-1", "F-2", part)
    net.deliver("F-1", "F-2", replace(copied[1], index=copied[1].index + 3))
    assert {part.index for part in follower._parts.values()} == {copied[1].index + 3}
    assert len(net.sends(AskCopy, "F-2")) == asks


# -- joiners that hold a log already -------------------------------------------------------------------------


def said_nothing() -> Net:
    """F-2 has its copy, and is dropped and named again before F-1 hears of that, or F-2 of the drop."""
    net = alone()
    net.op("p").auto = True
    net.hold = lambda sender, target, message: (
        sender == "F-2" and isinstance(message, (AskCopy, LogAck)) and getattr(message, "known", 0) >= 0
    )
    net.join_all()
    net.run()
    assert net.machines["F-2"].shards()[0].last == net.machines["F-1"].shards()[0].last
    net.held_back.clear()
    net.cut |= {("F-2", "etcd"), ("F-1", "F-2"), ("F-2", "F-1")}
    for joining in ((), ("F-2",)):
        net.commit(net.topology.with_set(replace(net.topology.find("F/0"), joining=joining)))
    net.hold = lambda sender, target, message: False
    for number in range(KEPT):
        net.ask("F-1", f"later{number}")
    net.run()
    net.cut.clear()
    net.feed("F-2", TopologyLearnt(net.topology, net.revision))
    net.revive_link("F-1", "F-2")
    return net


def test_a_joiner_with_a_log_from_which_nothing_follows_holds_nobody_up_and_gets_a_copy():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "copy_part_entries_max", 1)
        patch.setattr(limits, "copy_window_bytes_max", 20)
        net = said_nothing()
        net.run()
        during = net.ask("F-1", "during")
        net.run()
        assert net.reply(during) is not None
        assert complete(net)
        assert parts(net).count(0) == 2, "its first copy, and one more"


def test_a_joiner_whose_last_part_lies_unread_while_the_owner_goes_ahead_gets_another_copy(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(limits, "joiner_lag_entries_max", 5)
    net = alone()
    net.op("p").auto = True
    net.hold = lambda sender, target, message: isinstance(message, LogCopy) and message.last
    net.join_all()
    net.run()
    for number in range(KEPT):
        net.ask("F-1", f"later{number}")
    net.run()
    net.let_go()
    during = net.ask("F-1", "during")
    net.run()
    assert net.reply(during) is not None
    assert complete(net)


@pytest.mark.parametrize("lag", [3, 4, 5, 6])
def test_a_copy_that_nothing_follows_any_more_is_not_sent_again(lag: int, monkeypatch: pytest.MonkeyPatch):
    """Its last part lies unread; then no client asks any more, so nothing but the joiner's ask moves on."""
    monkeypatch.setattr(limits, "joiner_lag_entries_max", lag)
    net = alone()
    net.op("p").auto = True
    net.hold = lambda sender, target, message: isinstance(message, LogCopy) and message.last
    net.join_all()
    net.run()
    net.ask("F-1", "later")
    net.ask("F-1", "even later")
    net.run()
    assert complete(net)
