"""Between the port's types and etcd's messages. Pure."""

from collections.abc import Iterable, Sequence

from hams_wire.coordination import etcd_pb2 as pb
from hams_wire.coordination.port import Compare, Delete, Deleted, KeyValue, Operation, Put, Write


def key_bytes(key: str) -> bytes:
    """A key as etcd stores it; keys that are not UTF-8 survive the way there and back."""
    return key.encode("utf-8", "surrogateescape")


def entry_of(value: pb.KeyValue) -> KeyValue:
    """One key as etcd reports it."""
    return KeyValue(_text(value.key), value.value, value.mod_revision, value.create_revision, value.lease)


def changes_of(events: Iterable[pb.Event]) -> list[Put | Deleted]:
    """Events of a watch, in etcd's order."""
    return [
        Put(entry_of(event.kv))
        if event.type == pb.Event.PUT
        else Deleted(_text(event.kv.key), event.kv.mod_revision)
        for event in events
    ]


def range_of(prefix: str) -> tuple[bytes, bytes]:
    """First key and end (exclusive) of all keys that begin with `prefix`, in etcd's notation."""
    start = key_bytes(prefix)
    stem = start.rstrip(b"\xff")
    if not stem:
        return start or b"\x00", b"\x00"
    return start, stem[:-1] + bytes((stem[-1] + 1,))


def transaction(compares: Sequence[Compare], operations: Sequence[Operation]) -> pb.TxnRequest:
    """All operations if all comparisons hold; otherwise the compared keys are read."""
    return pb.TxnRequest(
        compare=[
            pb.Compare(
                result=pb.Compare.EQUAL,
                target=pb.Compare.MOD,
                key=key_bytes(item.key),
                mod_revision=item.mod_revision,
            )
            for item in compares
        ],
        success=[_request(operation) for operation in operations],
        failure=[pb.RequestOp(request_range=pb.RangeRequest(key=key_bytes(item.key))) for item in compares],
    )


def found_instead(response: pb.TxnResponse) -> list[KeyValue | None]:
    """What the compared keys of a failed transaction hold."""
    return [
        entry_of(item.response_range.kvs[0]) if item.response_range.kvs else None
        for item in response.responses
    ]


def _request(operation: Operation) -> pb.RequestOp:
    match operation:
        case Write(key, value, lease):
            return pb.RequestOp(request_put=pb.PutRequest(key=key_bytes(key), value=value, lease=lease))
        case Delete(key):
            return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key_bytes(key)))


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")
