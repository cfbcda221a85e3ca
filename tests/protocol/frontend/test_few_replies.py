"""A request without a key whose reply found no room is not executed again, whoever asks for it and however
late (section 5); and who waits no more is not answered."""

import pytest
from frontend_net import Net, graph, op

from hams_protocol import limits
from hams_protocol.frontend.log import ShardLog, copy_parts, log_of
from hams_protocol.frontend.state import ShardState
from hams_protocol.graph import FRONTEND, FrontendSpec, Mode
from hams_protocol.ids import RequestId
from hams_protocol.messages import Admit, ClientForwardAnswer, DoneEntry, Meta, ReplyEntry, Ticket

FEW = [{"replies_kept": 0}, {"replies_kept": 1}, {"replies_kept_bytes": 5}]
"""The last one: a reply that is larger than all that is kept."""


def is_answer(sender: str, target: str, message: object) -> bool:
    return isinstance(message, ClientForwardAnswer)


@pytest.mark.parametrize("few", FEW)
def test_an_answer_that_is_slow_is_no_reason_to_run_again(few: dict[str, int]):
    """Nothing has failed: the question whether it is held overtakes the answer."""
    net = Net(graph(op("p", FRONTEND), **few)).start()
    net.hold = is_answer
    handle = net.ask("F-2")
    net.run()
    net.advance(2 * limits.resend_after_s)
    net.let_go()
    net.advance(0.5)
    assert net.reply(handle) == ["p-1:1"]
    assert net.op("p").requests() == [RequestId(0, 0)]


@pytest.mark.parametrize("few", FEW)
@pytest.mark.parametrize("dies", [False, True])
def test_an_answer_that_is_lost_is_not_made_again(few: dict[str, int], dies: bool):
    net = Net(graph(op("p", FRONTEND), **few), ("F-1", "F-2", "F-3")).start()
    net.hold = is_answer
    handle = net.ask("F-3")
    net.run()
    net.held_back.clear()
    net.hold = lambda sender, target, message: False
    for _ in range(2):
        net.ask("F-1")
        net.run()  # replies of others take its room
    if dies:
        net.kill("F-1")
        net.fail_over(0, revoke="F-1")
    net.run()
    net.advance(2 * limits.resend_after_s)
    assert net.reply(handle) == 410
    assert net.op("p").requests() == [RequestId(0, n) for n in range(3)]


def asked(state: ShardState, n: int, settled: int = 0) -> None:
    state.apply(Admit(RequestId(0, n), None, "", Meta(), ticket=Ticket("F-2", n, settled)))
    state.apply(ReplyEntry(RequestId(0, n), (), None))
    state.apply(DoneEntry(RequestId(0, n)))


def test_a_copy_knows_of_them_too_in_the_same_order():
    spec = FrontendSpec(replies_kept=1)
    log = ShardLog(1, ShardState(0, spec))
    for n in range(4):
        asked(log.state, n)
    copy = log_of(copy_parts(0, log), spec)
    assert list(copy.state.unkept) == list(log.state.unkept) == [0, 1, 2]
    for state in (log.state, copy.state):
        asked(state, 4, settled=2)
        assert list(state.unkept) == [2, 3]
        assert [state.tickets.find("F-2", n) for n in range(5)] == [None, None, 2, 3, 4]


def test_of_too_many_the_oldest_are_met_by_silence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "tickets_unkept_max", 2)
    state = ShardState(0, FrontendSpec(replies_kept=0))
    for n in range(5):
        asked(state, n)
    assert list(state.unkept) == [3, 4]
    assert state.tickets.settled("F-2") == 3
    assert state.tickets.find("F-2", 2) is None


def test_who_waits_no_more_is_not_answered():
    net = Net(graph(op("p", FRONTEND))).start()
    net.op("p").auto = False
    for _ in range(100):
        net.ask("F-2", "k", budget=0.2)
        net.run()
        net.advance(0.21)
    net.log.clear()
    net.op("p").answer(RequestId(0, 0))
    net.run()
    assert len(net.sends(ClientForwardAnswer)) <= limits.waiters_unchecked_max


def test_a_key_that_was_given_up_is_told_so():
    """Mode None: nobody knows what became of it, and it is not executed again."""
    net = Net(graph(op("p", FRONTEND), mode=Mode.NONE, request_timeout_s=1.0)).start()
    net.op("p").auto = False
    net.ask("F-1", "k", budget=1.0)
    net.run()
    net.advance(2.5)
    net.op("p").auto = True
    again, fresh = net.ask("F-1", "k", budget=1.0), net.ask("F-1", "fresh", budget=1.0)
    net.run()
    assert (net.reply(again), net.reply(fresh)) == (410, ["p-1:1"])
