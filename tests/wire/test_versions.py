"""Two neighbouring versions side by side: what one adds, the other does without, in everything that is
written for somebody else to read.

The rules are those of `peers/schema.py`: fields are added at the end, with a default. An older version is
played by leaving out what has its default, a newer one by adding what nobody here knows, at every depth.
"""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.wire import test_peers_codec  # registers how payloads, numbers and texts are drawn
from tests.wire.test_spec import graph

from hams_checkpoints.folder import CheckpointFolder
from hams_protocol.ids import RequestId
from hams_protocol.messages import Admit, Completion, LogAppend, Message, Meta, StateCopy
from hams_protocol.topology import ReplicaSet, Slot, SlotTable, Topology
from hams_wire import records
from hams_wire.peers import codec as codec_module
from hams_wire.peers import handshake
from hams_wire.peers.codec import CODES, Codec
from hams_wire.peers.errors import BadFrame
from hams_wire.peers.payload import HeapFactory, Room
from hams_wire.spec import decode_spec, encode_spec

codec = Codec(HeapFactory())
NEWS = {"of": "a newer version", "nested": [1, [2]]}


def plain(value: object, older: bool) -> object:
    """A message's body as arrays, as a neighbour would write it: without trailing defaults, or with fields
    that nobody here knows."""
    if isinstance(value, msgspec.Struct):
        fields = list(value.__struct_fields__)
        defaults = value.__struct_defaults__
        if older:
            while defaults and getattr(value, fields[-1]) in (defaults[-1], msgspec.UNSET):
                fields, defaults = fields[:-1], defaults[:-1]
        items = [plain(getattr(value, name), older) for name in fields]
        tag = value.__struct_config__.tag
        return ([] if tag is None else [tag]) + items + ([] if older else [NEWS, None])
    if isinstance(value, tuple):
        return [plain(item, older) for item in value]
    return value


def as_neighbour(message: Message, older: bool) -> Message:
    """The message, as one reads it here that a neighbour has written."""
    encoded = codec.encode(message)
    reader = codec_module._READERS[encoded.code]
    if not encoded.views:
        body = plain(reader.plain.decode(encoded.metadata), older)
        return codec.decode(encoded.code, msgspec.msgpack.encode(body))
    table, loaded = reader.loaded.decode(encoded.metadata)
    incoming = codec.begin(encoded.code, msgspec.msgpack.encode([table, plain(loaded, older)]))
    rooms: list[Room] = []
    for size, view in zip(incoming.sizes, encoded.views, strict=True):
        room = codec.factory.allocate(size)
        room.view[:] = view
        rooms.append(room)
    return codec.finish(incoming, rooms)


@pytest.mark.parametrize("older", [True, False], ids=["older", "newer"])
@pytest.mark.parametrize("cls", list(CODES), ids=lambda cls: cls.__name__)
def test_a_message_of_a_neighbouring_version_is_read_at_every_depth(cls: type, older: bool) -> None:
    """Log entries, records and copies are messages too, or parts of them. What is drawn has its defaults,
    which an older version does not send."""

    @settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.from_type(cls))
    def check(message: Message) -> None:
        assert as_neighbour(message, older) == message

    check()


def test_a_log_entry_that_an_older_version_wrote_takes_the_defaults_of_this_one() -> None:
    entry = Admit(RequestId(0, 1), "k", "d", Meta())
    message = LogAppend(0, 1, 1, (entry,))
    code, _ = CODES[LogAppend]
    short = [0, 1, 1, [[0, [0, 1], "k", "d", []]]]
    assert codec.decode(code, msgspec.msgpack.encode(short)) == message


def test_a_kind_of_message_that_only_a_newer_version_knows_is_named_and_refused() -> None:
    with pytest.raises(BadFrame, match="unknown message type 200"):
        codec.decode(200, msgspec.msgpack.encode([1]))


def test_a_kind_of_log_entry_that_only_a_newer_version_knows_is_refused() -> None:
    code, _ = CODES[LogAppend]
    with pytest.raises(BadFrame, match="value 9"):
        codec.decode(code, msgspec.msgpack.encode([0, 1, 1, [[9, [0, 1]]]]))


def test_a_greeting_of_a_newer_version_is_read() -> None:
    hello = handshake.Hello("g", "b", "a", "unix:/b", 1, 2)
    frame = msgspec.msgpack.encode(["g", "b", "a", "unix:/b", 1, 2, False, NEWS])
    assert handshake.read(handshake.Hello, 1, frame) == hello
    older = msgspec.msgpack.encode(["g", "b", "a", "unix:/b", 1, 2])
    assert handshake.read(handshake.Hello, 1, older) == hello


# ---- etcd ----

TOPOLOGY = Topology(
    3,
    (ReplicaSet("p", primary="p-1", epoch=2, in_sync=("p-2",), ends=((1, 7),)),),
    (SlotTable("q", (Slot(1, "q-1"),)),),
    ("p-0",),
)


def extended(value: object) -> object:
    """JSON of a newer version: every object has a field that nobody here knows."""
    if isinstance(value, dict):
        return {name: extended(item) for name, item in value.items()} | {"of-a-newer-version": NEWS}
    return [extended(item) for item in value] if isinstance(value, list) else value


def required(value: object, cls: type) -> object:
    """JSON of an older version: of each object only what has no default."""
    described = msgspec.inspect.type_info(cls).fields  # type: ignore[attr-defined]
    fields = {item.encode_name: item for item in described}
    assert isinstance(value, dict)
    return {name: item for name, item in value.items() if fields[name].required}


def test_a_topology_of_a_newer_version_is_read() -> None:
    written = json.loads(records.encode_topology(TOPOLOGY))
    assert records.decode_topology(json.dumps(extended(written)).encode()) == TOPOLOGY


@pytest.mark.parametrize("cls", [Topology, ReplicaSet, SlotTable, Slot], ids=lambda cls: cls.__name__)
def test_what_an_older_version_leaves_out_of_a_topology_takes_its_default(cls: type) -> None:
    whole = {
        Topology: TOPOLOGY,
        ReplicaSet: TOPOLOGY.sets[0],
        SlotTable: TOPOLOGY.tables[0],
        Slot: Slot(1, "q-1"),
    }[cls]
    older = required(json.loads(msgspec.json.encode(whole)), cls)
    decoded = msgspec.json.decode(json.dumps(older).encode(), type=cls)
    assert decoded == cls(**{name: getattr(whole, name) for name in older})  # type: ignore[attr-defined]


def test_a_spec_of_a_newer_version_is_read_and_an_older_one_takes_the_defaults() -> None:
    written = json.loads(encode_spec(graph()))
    newer = {"format": written["format"], "graph": extended(written["graph"])}
    assert decode_spec(json.dumps(newer).encode()).data == graph().data
    for operator in written["graph"]["operators"]:
        for name in list(operator):
            if name not in required(operator, type(graph().data.operators[0])):  # type: ignore[operator]
                del operator[name]
    decoded = decode_spec(json.dumps(written).encode()).data.operators[0]
    assert decoded.feedback is None
    assert decoded.name == "a"


def test_a_registration_of_either_neighbour_is_read() -> None:
    record = records.MemberRecord("q", "unix:/q")
    assert records.decode_member("q-1", b'{"of":"q","address":"unix:/q"}')[1] == record
    assert records.decode_member("q-1", b'{"of":"q","address":"unix:/q","new":[1]}')[1] == record


# ---- disk ----


@pytest.mark.parametrize("older", [True, False], ids=["older", "newer"])
def test_a_checkpoint_of_either_neighbour_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    copy = StateCopy("q", 1, 7, (), Completion(()), "c7")
    folder = CheckpointFolder(str(tmp_path), "g", "q")
    encode = codec.encode

    def as_written(message: Message) -> codec_module.Encoded:
        encoded = encode(message)
        body = plain(codec_module._READERS[encoded.code].plain.decode(encoded.metadata), older)
        encoded.metadata = msgspec.msgpack.encode(body)
        return encoded

    with monkeypatch.context() as patched:
        patched.setattr(codec, "encode", as_written)
        folder.write(copy, codec, "q-1", 2)
    assert folder.newest(codec) == copy


__all__ = ["test_peers_codec"]
