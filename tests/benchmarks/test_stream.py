"""The stream that benchmarks measure is the one that proxies use."""

from benchmarks.stream import Factory, token

from hams_protocol.messages import StateRecord
from hams_wire.peers.codec import Codec


def test_what_is_sent_can_be_read_by_a_peer() -> None:
    factory = Factory()
    codec = Codec(factory)
    codec.prove(token(1, factory.make(4096)))
    codec.prove(StateRecord("rank", 1, 1, 0, (), (), "c", factory.make(1 << 20)))
