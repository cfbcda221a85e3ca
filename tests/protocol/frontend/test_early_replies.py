"""Replies that are logged before what they depend on is durable (protocol.md, section 5; ADR 0040): an entry
counts once it is committed and durable, and is void if an end cuts off what it depends on."""

from dataclasses import replace

import pytest
from frontend_net import PAIR, Net, P, graph, op

from hams_protocol import limits
from hams_protocol.deps import Dep
from hams_protocol.effects import NoteComplete, NoteReply
from hams_protocol.events import Received
from hams_protocol.frontend import FrontendMachine
from hams_protocol.graph import FRONTEND, Graph, Mode, RecoverySpec, ReplyTensor, WhenUnprotected
from hams_protocol.ids import RequestId
from hams_protocol.messages import (
    DoneEntry,
    Durable,
    Freeze,
    Kind,
    LogAck,
    LogAppend,
    LogCopy,
    ModelError,
    ReplyEntry,
    SlotAnswer,
    SlotQuery,
)
from hams_protocol.modes import ModePolicy

R0 = RequestId(0, 0)
EARLY = replace(ModePolicy.of(Mode.NON_STOP), reply_entry_early=True)


def early(g: Graph | None = None, frontends: tuple[str, ...] = PAIR) -> Net:
    """A net whose frontends log replies early, and whose states are durable once that is announced."""
    net = Net(g or graph(op("p", FRONTEND)), frontends, EARLY).start()
    for fake in net.ops.values():
        fake.durable = False
    return net


def replies_logged(net: Net) -> list[ReplyEntry]:
    """Entries of replies that were sent to followers, each once."""
    entries = [entry for _, _, message in net.sends(LogAppend) for entry in message.entries]
    return list(dict.fromkeys(entry for entry in entries if isinstance(entry, ReplyEntry)))


def appends(net: Net) -> list[tuple[str, ...]]:
    """What kinds of entries followers were sent together."""
    return [tuple(type(entry).__name__ for entry in item.entries) for _, _, item in net.sends(LogAppend)]


def end_epoch(net: Net, name: str, end: int, restarted: bool = False) -> None:
    """An operator's set goes on behind `end`; what its fake had answered beyond that is gone."""
    fake, old = net.op(name), net.topology.find(name)
    fake.outputs = {
        at: token
        for at, token in fake.outputs.items()
        if all(dep.op != name or dep.seq <= end for dep in token.deps)
    }
    fake.epoch, fake.seq = old.epoch + 1, end
    moved = replace(
        old,
        epoch=old.epoch + 1,
        ends=(*old.ends, (old.epoch, end)),
        restarted_in=old.epoch + 1 if restarted else old.restarted_in,
    )
    net.commit(net.topology.with_set(moved))
    net.run()


def lose_owner(net: Net, name: str = "F-1") -> None:
    net.kill(name)
    net.fail_over(0, revoke=name)
    net.run()


def with_done_held(net: Net) -> None:
    """No follower hears that a request is complete."""
    net.hold = lambda sender, target, message: (
        isinstance(message, LogAppend) and any(isinstance(entry, DoneEntry) for entry in message.entries)
    )


def test_no_mode_logs_replies_early_by_itself():
    assert not any(ModePolicy.of(mode).reply_entry_early for mode in Mode)


def test_the_entry_travels_while_its_vector_is_awaited():
    net = early()
    handle = net.ask("F-1")
    net.run()
    (entry,) = replies_logged(net)
    assert entry.deps == (Dep("p", 1, 1),)
    assert net.machines["F-2"].shards()[0].last == 2, "the follower holds it"

    assert net.reply(handle) is None
    assert net.notes(NoteReply) == []
    net.hold = lambda sender, target, message: True
    net.feed("F-1", Received("p-1", Durable((Dep("p", 1, 1),))))
    assert net.reply(handle) == ["p-1:1"], "without a further message"
    (note,) = net.notes(NoteReply)
    assert all(token.deps == () for token in note.tokens)


def test_what_is_durable_is_not_released_before_followers_hold_its_entry():
    net = early()
    net.hold = lambda sender, target, message: isinstance(message, LogAck) and message.last > 1
    handle = net.ask("F-1")
    net.run()
    net.op("p").announce(1)
    net.run()
    assert net.reply(handle) is None
    net.let_go()
    assert net.reply(handle) == ["p-1:1"]


def test_a_new_owner_releases_a_pending_reply_once_it_is_durable():
    net = early()
    handle = net.ask("F-2", "k")
    net.run()
    lose_owner(net)

    assert net.reply(handle) is None
    net.op("p").announce(1)
    net.run()
    assert net.reply(handle) == ["p-1:1"]
    assert len(replies_logged(net)) == 1
    net.advance(1.0)
    assert net.notes(NoteComplete) == [NoteComplete(R0)]


@pytest.mark.parametrize("dies", [False, True])
def test_a_reply_that_becomes_orphan_is_void_and_another_one_follows(dies):
    net = early()
    handle = net.ask("F-2", "k")
    net.run()
    if dies:
        lose_owner(net)
    end_epoch(net, "p", 0)
    net.op("p").answer(R0)
    net.run()

    assert net.reply(handle) is None
    assert [entry.deps for entry in replies_logged(net)][:1] == [(Dep("p", 1, 1),)]
    net.op("p").announce(1)
    net.advance(1.0)
    assert net.reply(handle) == ["p-1:1"]
    assert [item.values for item in net.notes(NoteReply)] == [("p-1:1",)]
    assert net.notes(NoteComplete) == [NoteComplete(R0)]


def test_a_new_owner_that_knows_the_end_does_not_tell_what_is_void():
    net = early()
    handle = net.ask("F-2", "k")
    net.run()
    net.op("p").auto = False
    net.kill("F-1")
    end_epoch(net, "p", 0)
    net.fail_over(0, revoke="F-1")
    net.run()

    assert net.reply(handle) is None
    net.op("p").answer(R0, value_id="another")
    net.op("p").announce(1)
    net.run()
    assert net.reply(handle) == ["another"]
    net.advance(1.0)
    assert net.machines["F-2"].shards()[0].stored_replies == 1


def test_what_was_told_is_told_by_the_next_owner_though_that_does_not_know_yet_that_it_counts():
    net = early(graph(op("p", FRONTEND), op("q", FRONTEND)))
    net.op("q").auto = False
    with_done_held(net)
    first = net.ask("F-1", "k", outputs=("p",))
    net.run()
    net.feed("F-1", Received("p-1", Durable((Dep("p", 1, 1),))))
    assert net.reply(first) == ["p-1:1"]
    ((at, token),) = net.op("p").outputs.items()
    net.op("p").outputs[at] = replace(token, value_id="executed again")
    net.kill("F-1")
    net.fail_over(0, revoke="F-1")
    again = net.ask("F-2", "k", outputs=("p",))
    net.run()
    assert net.reply(again) is None
    net.op("p").announce(1)
    net.run()

    assert net.reply(again) == ["p-1:1"]
    assert {item.values for item in net.notes(NoteReply)} == {("p-1:1",)}


def test_a_key_that_is_used_again_waits_for_a_pending_reply():
    net = early()
    handles = [net.ask("F-1", "k")]
    net.run()
    handles += [net.ask("F-1", "k"), net.ask("F-2", "k")]
    net.run()

    assert [net.reply(handle) for handle in handles] == [None] * 3
    net.op("p").announce(1)
    net.run()
    assert [net.reply(handle) for handle in handles] == [["p-1:1"]] * 3
    assert len(net.notes(NoteReply)) == 1


def test_a_reply_depends_on_the_skips_before_it_too():
    outputs = (ReplyTensor("out", (("x", "out"), ("y", "out"))),)
    net = early(graph(op("x", FRONTEND), op("y", FRONTEND), outputs=outputs))
    net.op("x").auto = False
    handle = net.ask("F-1")
    net.run()
    net.op("y").announce(1)
    net.run()
    net.op("x").answer(R0, Kind.SKIP)
    net.run()

    assert replies_logged(net)[0].deps == (Dep("x", 1, 1),)
    assert net.reply(handle) is None
    net.op("x").announce(1)
    net.run()
    assert net.reply(handle) == ["y-1:1"]


def test_an_alternative_that_was_skipped_and_is_not_any_more_makes_the_reply_void():
    outputs = (ReplyTensor("out", (("x", "out"), ("y", "out"))),)
    net = early(graph(op("x", FRONTEND), op("y", FRONTEND), outputs=outputs))
    net.op("x").auto = False
    handle = net.ask("F-1")
    net.run()
    net.op("x").answer(R0, Kind.SKIP)
    net.run()
    end_epoch(net, "x", 0)
    net.op("x").answer(R0)
    net.op("x").announce(1)
    net.run()
    assert net.reply(handle) == ["x-1:1"]


def test_a_new_owner_tells_a_slots_new_owner_of_pending_replies():
    net = early(graph(op("p", FRONTEND, stateful=False), op("q", FRONTEND), op("s", FRONTEND)))
    net.op("p").auto = net.op("q").auto = False
    net.ask("F-1", "k", outputs=("p",))
    net.run()
    net.op("p").answer(R0, deps=(Dep("s", 1, 1),))
    net.run()
    assert len(replies_logged(net)) == 1
    net.op("p").outputs.clear()
    lose_owner(net)
    net.deliver("p-2", "F-2", SlotQuery("p", 0, 2))
    (told,) = [message for _, _, message in net.sends(SlotAnswer, "F-2")]
    assert told.led == ("F/0", 2)
    assert [token.value_id for token in told.tokens] == ["p-1:1"]


def test_no_request_is_complete_before_its_reply_counts():
    """The entry of an error names no token. Those that come again say nothing of what it depends on."""

    net = early()
    net.op("p").auto = False
    handle = net.ask("F-2", "k")
    net.run()
    net.op("p").answer(R0, payload=P("x", defect="a dimension of -1"))
    net.run()
    ((at, token),) = net.op("p").outputs.items()
    net.op("p").outputs[at] = replace(token, deps=())
    lose_owner(net)
    net.advance(1.0)

    assert net.reply(handle) is None
    assert net.notes(NoteComplete) == []
    net.op("p").announce(1)
    net.advance(1.0)
    assert net.reply(handle) == ModelError("F", 'cannot read what "p" sent: a dimension of -1')
    assert net.notes(NoteComplete) == [NoteComplete(R0)]


def test_that_a_request_is_complete_goes_along_with_the_next_entry_or_after_a_while():
    net = early()
    net.ask("F-1")
    net.run()
    net.op("p").announce(1)
    net.run()

    assert appends(net)[-2:] == [("Admit",), ("ReplyEntry",)]
    net.ask("F-1")
    net.run()
    assert appends(net)[-2:] == [("DoneEntry", "Admit"), ("ReplyEntry",)]
    net.op("p").announce(2)
    net.advance(limits.completion_delay_s)
    assert ("DoneEntry",) in appends(net)
    assert net.notes(NoteComplete) == [NoteComplete(R0), NoteComplete(RequestId(0, 1))]


def test_a_full_shard_says_at_once_that_a_request_is_complete():
    net = early(graph(op("p", FRONTEND), max_in_flight=1))
    net.ask("F-1")
    net.run()
    net.op("p").announce(1)
    net.run()
    assert net.notes(NoteComplete) == [NoteComplete(R0)]


def test_a_new_owner_believes_that_a_request_is_complete_though_it_does_not_know_its_vector():
    net = early()
    net.hold = lambda sender, target, message: isinstance(message, LogAck) and message.last > 2
    handle = net.ask("F-2", "k")
    net.run()
    net.feed("F-1", Received("p-1", Durable((Dep("p", 1, 1),))))
    net.advance(limits.completion_delay_s)
    assert net.machines["F-2"].shards()[0].last == 3, "the DoneEntry"
    net.kill("F-1")
    net.fail_over(0, revoke="F-1")
    net.run()
    assert net.reply(handle) == ["p-1:1"]
    assert net.notes(NoteComplete) == [NoteComplete(R0)]


def joined(net: Net) -> list[LogCopy]:
    """A third frontend joins; the copy that it is sent."""
    net.machines["F-3"] = FrontendMachine(net.graph, "F-3", None, EARLY)
    net.members()
    net.join_all()
    net.advance(0.3)
    return [message for _, target, message in net.sends(LogCopy) if target == "F-3"]


def test_a_copy_holds_no_void_reply_and_vectors_without_what_is_long_past():
    def copied(end: int) -> list[ReplyEntry]:
        net = early(graph(op("p", FRONTEND), op("q", FRONTEND), replicas=3))
        net.op("q").auto = False
        net.ask("F-1", "k")
        net.run()
        net.op("q").answer(R0)
        net.run()
        net.op("p").auto = False
        end_epoch(net, "p", end)
        return [entry for part in joined(net) for entry in part.entries if isinstance(entry, ReplyEntry)]

    (entry,) = copied(1)
    assert entry.deps == (Dep("q", 1, 1),)
    assert [token.deps for token in entry.tokens] == [(), (Dep("q", 1, 1),)]
    assert copied(0) == []


def test_a_joiner_that_becomes_the_owner_judges_what_it_has_copied():
    net = early(graph(op("p", FRONTEND), replicas=3))
    handle = net.ask("F-2", "k")
    net.run()
    joined(net)
    net.kill("F-1")
    net.fail_over(0, revoke="F-1", to="F-3")
    net.run()
    assert net.reply(handle) is None
    net.op("p").announce(1)
    net.run()
    assert net.reply(handle) == ["p-1:1"]


def test_what_an_end_has_made_void_stays_void_though_that_state_is_lost_later():
    """Of what stems from before a loss nothing is undone. What was undone before the loss stays so."""

    net = early()
    handle = net.ask("F-2", "k")
    net.run()
    net.op("p").auto = False
    net.machines["F-2"].step(Received("F-1", LogAppend(0, 1, 3, (), 2)), net.now)
    net.cut |= {("F-1", name) for name in ("F-2", "p-1", "etcd")}
    end_epoch(net, "p", 0)
    end_epoch(net, "p", 0, restarted=True)
    lose_owner(net)

    assert net.reply(handle) is None


def test_under_block_nothing_is_released_that_only_the_owner_holds_by_now():
    blocks = RecoverySpec(when_unprotected=WhenUnprotected.BLOCK)
    net = early(graph(op("p", FRONTEND), recovery=blocks))
    handle = net.ask("F-1")
    net.run()
    net.kill("F-2")
    net.advance(1.0)
    assert net.topology.find("F/0").in_sync == ()
    net.op("p").announce(1)
    net.run()
    assert net.reply(handle) is None
    joined(net)
    assert net.topology.find("F/0").in_sync == ("F-3",)
    assert net.reply(handle) == ["p-1:1"]


def test_a_frozen_owner_releases_nothing_and_catches_up_once_that_has_ended():
    net = early()
    handle = net.ask("F-1")
    net.run()
    net.deliver("manager", "F-1", Freeze(1, net.topology.generation, "F/0", 1))
    net.op("p").announce(1)
    net.run()
    assert net.reply(handle) is None
    net.commit(net.topology)
    net.run()
    assert net.reply(handle) == ["p-1:1"]


def test_an_owner_that_does_not_log_early_judges_what_another_one_has_logged():
    """Two versions serve one graph: who reads an entry judges it, whatever it writes itself."""
    net = early()
    net.machines["F-2"] = FrontendMachine(net.graph, "F-2")
    net.members()
    net.commit(net.topology.with_set(replace(net.topology.find("F/0"), in_sync=(), joining=())))
    net.join_all()
    net.advance(0.3)
    handle = net.ask("F-2", "k")
    net.run()
    lose_owner(net)
    assert net.reply(handle) is None
    net.op("p").announce(1)
    net.advance(0.3)
    assert net.reply(handle) == ["p-1:1"]
    assert net.notes(NoteComplete) == [NoteComplete(R0)]


def test_an_error_token_counts_like_a_value():
    net = early()
    net.op("p").auto = False
    handle = net.ask("F-1")
    net.run()
    net.op("p").answer(R0, Kind.ERROR, error=ModelError("p", "boom"), payload=None)
    net.run()
    assert net.reply(handle) is None
    net.op("p").announce(1)
    net.run()
    assert net.reply(handle) == ModelError("p", "boom")


def test_a_late_notice_of_an_ended_epoch_settles_no_reply():
    net = early()
    handle = net.ask("F-1")
    net.run()
    net.op("p").auto = False
    end_epoch(net, "p", 0)
    net.feed("F-1", Received("p-1", Durable((Dep("p", 1, 1),))))
    net.run()
    assert net.reply(handle) is None
