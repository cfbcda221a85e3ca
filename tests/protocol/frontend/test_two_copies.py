"""A slow joiner that asks twice has two copies on their way; the first must not be followed."""

from frontend_net import Net, graph, op

from hams_protocol import limits
from hams_protocol.graph import FRONTEND
from hams_protocol.messages import LogCopy


def test_two_copies_under_way_and_the_first_is_acknowledged() -> None:
    net = Net(graph(op("p", FRONTEND))).start(in_sync=False)
    net.hold = lambda sender, target, message: isinstance(message, LogCopy)
    net.ask("F-1", "a")
    net.run()
    net.join_all()
    net.run()
    for key in "bcd":
        net.ask("F-1", key)
    net.run()
    # the joiner is slow: it asks again, and a second copy is on its way
    net.advance(limits.copy_ask_after_s + 0.1)
    for key in "efg":
        net.ask("F-1", key)
    net.run()
    net.let_go()
    net.advance(1.0)
    net.advance(1.0)
