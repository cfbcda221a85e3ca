"""Digests of payloads and replies (history.md, rule 6)."""

import hashlib
import struct

from hypothesis import given
from hypothesis import strategies as st

from hams_sidecar.inference import Tensor, payload_digest, tensors_digest

A = Tensor("a", "FP32", (1, 2), b"12345678")
B = Tensor("b", "BYTES", (1,), b"\x01\x00\x00\x00x")


def test_the_digest_is_over_length_prefixed_parts_sorted_by_name() -> None:
    def part(data: bytes) -> bytes:
        return struct.pack("<Q", len(data)) + data

    expected = b""
    for tensor in (A, B):
        shape = b"".join(struct.pack("<q", dim) for dim in tensor.shape)
        expected += (
            part(tensor.name.encode())
            + part(tensor.datatype.encode())
            + part(shape)
            + part(bytes(tensor.data))
        )
    assert tensors_digest([B, A]) == hashlib.sha256(expected).hexdigest()[:16]
    assert payload_digest([A, B], {}, None) == tensors_digest([A, B])


@given(st.permutations(["a", "b", "c"]), st.permutations(["x", "y"]))
def test_order_makes_no_difference(names: list[str], outputs: list[str]) -> None:
    data = payload_digest([A, B], {name: name for name in names}, outputs)
    assert data == payload_digest([B, A], {name: name for name in ("c", "b", "a")}, ["x", "y"])


def test_every_part_of_the_payload_makes_a_difference() -> None:
    payloads = [
        payload_digest([A], {}, None),
        payload_digest([Tensor("a", "FP32", (2, 1), b"12345678")], {}, None),
        payload_digest([Tensor("a", "INT32", (1, 2), b"12345678")], {}, None),
        payload_digest([Tensor("a", "FP32", (1, 2), b"12345679")], {}, None),
        payload_digest([A, B], {}, None),
        payload_digest([A], {"k": 1}, None),
        payload_digest([A], {"k": True}, None),
        payload_digest([A], {"k": 1.0}, None),
        payload_digest([A], {"k": "1"}, None),
        payload_digest([A], {}, ["x"]),
        payload_digest([A], {}, ["x", "y"]),
    ]
    assert len(set(payloads)) == len(payloads)


def test_a_view_has_the_digest_of_its_bytes() -> None:
    whole = b"..12345678"
    assert tensors_digest([Tensor("a", "FP32", (1, 2), memoryview(whole)[2:])]) == tensors_digest([A])
