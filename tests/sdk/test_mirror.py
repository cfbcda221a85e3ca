"""What is compared on a device: exactly what differs crosses to the host. Here the host itself is the device;
test_cuda.py has the same on a GPU."""

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sdk.capturing import CHUNK, Proxy, whole

import hams_sdk
from hams_sdk import cuda
from hams_sdk.datatypes import is_tensor
from hams_sdk.errors import StateFault
from hams_sdk.mirror import Mirror
from hams_sdk.state import State

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module", autouse=True)
def a_host_that_is_a_device() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "device_of", lambda leaf: leaf.device if is_tensor(leaf) else None)
        yield


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30))
def test_what_changed_laid_over_what_was_there_is_the_image(seed: int) -> None:
    random = Random(seed)
    large = torch.zeros(random.randrange(1, 20 * CHUNK), dtype=torch.uint8)
    strided = torch.zeros(random.randrange(1, 90), 64)[:, ::2]
    scalar = torch.zeros((), dtype=torch.float64)
    array = np.zeros(random.randrange(1, 3 * CHUNK), dtype=np.uint8)
    text = bytearray(random.randrange(2 * CHUNK))
    holders = {
        "text": hams_sdk.Opaque(lambda: bytes(text), lambda data: None),
        "large": large,
        "array": array,
        "strided": strided,
        "none": torch.empty(0, 3),
        "scalar": scalar,
    }
    proxy = Proxy(State(holders))
    writes: list[Callable[[], Any]] = [
        lambda: large[random.randrange(len(large))].add_(1),
        lambda: strided[random.randrange(len(strided)), random.randrange(32)].add_(1),
        lambda: scalar.add_(1),
        lambda: large.add_(1),
        lambda: array.__setitem__(random.randrange(len(array)), random.randrange(256)),
        lambda: text.__setitem__(slice(None), random.randbytes(random.randrange(2 * CHUNK))),
        proxy.state.loaded,
    ]
    for _ in range(8):
        assert proxy.capture() == whole(State(holders))
        for _ in range(random.randrange(4)):
            random.choice(writes)()


def test_nothing_crosses_but_the_chunk_that_was_written() -> None:
    tensor = torch.zeros(64 * CHUNK, dtype=torch.uint8)
    beside = torch.zeros(64 * CHUNK, dtype=torch.uint8)
    proxy = Proxy(State({"tensor": tensor, "beside": beside}))
    proxy.capture()
    proxy.capture()  # makes the buffers, and compares on the host
    tensor[37 * CHUNK + 5] = 1
    proxy.capture()
    # A leaf begins within a chunk of the image, so one byte of it lies in one chunk.
    assert (proxy.copied, proxy.compared) == (CHUNK, proxy.compared)
    assert proxy.compared < tensor.nbytes, "the host compared what the device had compared"
    proxy.capture()
    assert proxy.copied == 0


def test_what_is_compared_with_is_what_was_settled() -> None:
    tensor = torch.zeros(8 * CHUNK, dtype=torch.uint8)
    placed = [tensor], [(CHUNK, 9 * CHUNK)]
    mirror = Mirror(tensor.device)
    assert mirror.take(*placed, (), CHUNK) is None, "nothing was there before"
    mirror.settle()
    tensor[0] = 1
    assert mirror.take(*placed, (), CHUNK) == [(CHUNK, 2 * CHUNK)]
    assert mirror.take(*placed, (), CHUNK) is None, "the last one was given up"
    mirror.settle()
    assert mirror.take(*placed, (), CHUNK) == []
    mirror.settle()
    mirror.forget()
    assert mirror.take(*placed, (), CHUNK) is None, "it was told to forget"


def test_leaves_that_moved_are_not_compared_with_others() -> None:
    one, other = (torch.full((8 * CHUNK,), value, dtype=torch.uint8) for value in (1, 2))
    mirror = Mirror(one.device)
    mirror.take([one], [(0, 8 * CHUNK)], (), CHUNK)
    mirror.settle()
    moved = [(0, 8 * CHUNK), (8 * CHUNK, 16 * CHUNK)]
    assert mirror.take([other, one], moved, (), CHUNK) is None
    assert bytes(mirror.bytes_of(8 * CHUNK, 16 * CHUNK)) == bytes([1]) * 8 * CHUNK


def test_a_chunk_of_another_size_is_compared_on_the_host() -> None:
    tensor = torch.zeros(CHUNK, dtype=torch.uint8)
    mirror = Mirror(tensor.device)
    for _ in range(2):
        assert mirror.take([tensor], [(0, CHUNK)], (), 1000) is None
        mirror.settle()


def test_without_room_on_the_device_the_host_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mirror, "_has_room", lambda self, nbytes: False)
    tensor = torch.zeros(64 * CHUNK, dtype=torch.uint8)
    proxy = Proxy(State({"tensor": tensor}))
    for _ in range(3):
        proxy.capture()
        assert proxy.capture() == whole(State({"tensor": tensor}))
        assert proxy.compared >= tensor.nbytes
        tensor[7] += 1


def test_a_constant_that_changed_on_a_device_is_noticed() -> None:
    constant, counter = torch.zeros(64 * CHUNK, dtype=torch.uint8), torch.zeros(1)
    proxy = Proxy(State({"constant": hams_sdk.constant(constant), "counter": counter}))
    for _ in range(3):
        proxy.capture()
        counter += 1
    constant[-1] = 1
    with pytest.raises(StateFault, match='"constant" was declared constant'):
        proxy.capture()


def test_leaves_of_a_device_lie_together() -> None:
    state = State({"one": torch.ones(3), "array": np.ones(3), "other": torch.ones(3)})
    plan, _ = state._planned()
    assert [plan.paths[index] for index in plan.order] == ["array", "one", "other"]


def test_a_chunk_number_is_that_of_the_image() -> None:
    tensor = torch.zeros(3 * CHUNK, dtype=torch.uint8)
    proxy = Proxy(State({"array": np.zeros(5 * CHUNK + 8, np.uint8), "tensor": tensor}))
    for at in (0, CHUNK, 3 * CHUNK - 1):
        proxy.capture()
        before = proxy.table
        tensor[at] += 1
        proxy.capture()
        assert before is not None
        assert proxy.table is not None
        places = zip(before.addresses, proxy.table.addresses, strict=True)
        changed = [index for index, (old, new) in enumerate(places) if old != new]
        assert changed == [(len(proxy.table.whole()) - tensor.nbytes + at) // CHUNK]


def test_a_constant_that_changed_before_anything_was_compared_is_noticed() -> None:
    constant = torch.zeros(64 * CHUNK, dtype=torch.uint8)
    proxy = Proxy(State({"constant": hams_sdk.constant(constant)}))
    proxy.capture()
    constant[30 * CHUNK] = 1
    for _ in range(2):  # it goes on being noticed
        with pytest.raises(StateFault, match='"constant" was declared constant'):
            proxy.capture()


def test_a_device_without_memory_ends_no_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.zeros(64 * CHUNK, dtype=torch.uint8)
    proxy = Proxy(State({"tensor": tensor}))
    for _ in range(3):
        proxy.capture()

    def fails(self: Mirror, chunk_nbytes: int) -> Any:
        raise torch.cuda.OutOfMemoryError("out of memory")

    monkeypatch.setattr(Mirror, "_written", fails)
    for at in (5, 9 * CHUNK):
        tensor[at] += 1
        assert proxy.capture() == whole(State({"tensor": tensor}))
        assert proxy.copied <= 2 * CHUNK
        assert proxy.compared >= tensor.nbytes, "the host compares"


def test_where_the_model_lacked_memory_nothing_is_kept() -> None:
    tensor = torch.zeros(64 * CHUNK, dtype=torch.uint8)
    proxy = Proxy(State({"tensor": tensor}))
    for _ in range(3):
        proxy.capture()
    (mirror,) = proxy.state._staging._mirrors.values()
    assert mirror._buffers
    proxy.state.release_devices()
    for at in (5, 9 * CHUNK):
        tensor[at] += 1
        assert proxy.capture() == whole(State({"tensor": tensor}))
        assert not mirror._buffers


def test_a_mirror_that_found_no_memory_on_the_host_takes_its_old_leaves_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensor = torch.zeros(8 * CHUNK, dtype=torch.uint8)
    larger = torch.zeros(64 * CHUNK, dtype=torch.uint8)
    mirror = Mirror(tensor.device)
    for _ in range(2):
        mirror.take([tensor], [(CHUNK, 9 * CHUNK)], (), CHUNK)
        mirror.settle()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("cannot pin")))
        with pytest.raises(RuntimeError, match="cannot pin"):
            mirror.take([larger], [(0, 64 * CHUNK)], (), CHUNK)
    tensor[7 * CHUNK] = 3
    assert mirror.take([tensor], [(CHUNK, 9 * CHUNK)], (), CHUNK) is None
    assert mirror.bytes_of(8 * CHUNK, 8 * CHUNK + 1)[0] == 3


def test_a_pytorch_that_copies_one_by_one_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "_foreach_copy_")
    one, other = torch.zeros(9 * CHUNK, dtype=torch.uint8), torch.zeros(3)
    proxy = Proxy(State({"one": one, "other": other}))
    for at in (0, 5 * CHUNK):
        proxy.capture()
        one[at] += 1
        other += 1
        assert proxy.capture() == whole(State({"one": one, "other": other}))


@pytest.mark.parametrize("compares", [False, True])
def test_a_failure_within_leaves_no_half_of_a_layout(monkeypatch: pytest.MonkeyPatch, compares: bool) -> None:
    tensor, larger = (torch.full((size * CHUNK,), 7, dtype=torch.uint8) for size in (8, 64))
    mirror = Mirror(tensor.device)
    for _ in range(2 if compares else 0):
        mirror.take([tensor], [(0, 8 * CHUNK)], (), CHUNK)
        mirror.settle()

    def fails(self: Mirror, *_: object) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Mirror, "_views_of", fails)
        with pytest.raises(MemoryError):
            mirror.take([larger], [(0, 64 * CHUNK)], (), CHUNK)
    mirror.take([larger], [(0, 64 * CHUNK)], ())
    assert bytes(mirror.bytes_of(0, 64 * CHUNK)) == bytes([7]) * 64 * CHUNK


def test_a_state_that_grows_is_compared_in_the_same_memory() -> None:
    one = torch.zeros(64 * CHUNK, dtype=torch.uint8)
    mirror = Mirror(one.device)
    mirror.take([one], [(0, 64 * CHUNK)], (), CHUNK)
    room = mirror._room[0].data_ptr()
    other = torch.ones(CHUNK, dtype=torch.uint8)
    spans = [(0, 64 * CHUNK), (64 * CHUNK, 65 * CHUNK)]
    for expected in (None, []):
        assert mirror.take([one, other], spans, (), CHUNK) == expected
        mirror.settle()
    assert mirror._room[0].data_ptr() == room
