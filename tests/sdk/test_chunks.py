"""A capture against the one before: exactly the chunks that differ are copied, and they make the image."""

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sdk.capturing import CHUNK, Proxy, whole

import hams_sdk
from hams_sdk.chunks import DENSE_AGAIN, DENSE_CAPTURES
from hams_sdk.errors import StateFault
from hams_sdk.state import CONSTANT_AGAIN, State, read_header


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30))
def test_what_changed_laid_over_what_was_there_is_the_image(seed: int) -> None:
    random = Random(seed)
    large = np.zeros(random.randrange(1, 20 * CHUNK), dtype=np.uint8)
    strided = np.zeros((random.randrange(1, 90), 64), dtype=np.float32)[:, ::2]
    small = np.zeros(random.randrange(1, 40), dtype=np.int64)
    text = bytearray(random.randrange(2 * CHUNK))
    holders = {
        "text": hams_sdk.Opaque(lambda: bytes(text), lambda data: None),
        "large": large,
        "strided": strided,
        "small": small,
    }
    state = State(holders)
    proxy = Proxy(state)
    for _ in range(8):
        assert proxy.capture() == whole(state)
        for _ in range(random.randrange(4)):
            what = random.randrange(5)
            if what == 0:
                large[random.randrange(len(large))] ^= 1
            elif what == 1:
                strided[random.randrange(len(strided)), random.randrange(32)] += 1
            elif what == 2:
                small[random.randrange(len(small))] += 1
            elif what == 3:
                text[:] = random.randbytes(random.randrange(2 * CHUNK))
            else:
                large[:] = random.randrange(256)


def test_only_the_chunk_that_was_written_is_copied() -> None:
    array = np.zeros(64 * CHUNK, dtype=np.uint8)
    proxy = Proxy(State({"array": array}))
    proxy.capture()
    array[37 * CHUNK + 5] = 1
    proxy.capture()
    assert proxy.copied == CHUNK
    proxy.capture()
    assert proxy.copied == 0
    assert proxy.compared >= array.nbytes


def test_a_write_that_moves_no_counter_is_seen() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(16 * CHUNK)
    norm = torch.nn.BatchNorm1d(CHUNK)
    state = State({"tensor": tensor, "norm": norm})
    proxy = Proxy(state)
    proxy.capture()
    tensor.data[5] = 1.0
    assert proxy.capture() == whole(state)
    tensor.numpy()[900] = 2.0
    assert proxy.capture() == whole(state)
    assert 0 < proxy.copied <= 2 * CHUNK
    norm(torch.ones(4, CHUNK))
    assert proxy.capture() == whole(state)


def test_nan_and_the_sign_of_zero_are_bytes() -> None:
    array = np.zeros(8 * CHUNK, dtype=np.float64)
    state = State({"array": array})
    proxy = Proxy(state)
    array[:] = np.nan
    proxy.capture()
    proxy.capture()
    assert proxy.copied == 0, "NaN that did not change"
    array[3] = 0.0
    proxy.capture()
    array[3] = -0.0
    assert proxy.capture() == whole(state)
    assert proxy.copied


def test_a_dense_leaf_is_copied_uncompared_and_tried_again() -> None:
    dense = np.zeros(32 * CHUNK, dtype=np.int32)
    state = State({"dense": dense})
    proxy = Proxy(state)
    proxy.capture()
    for version in range(1, DENSE_CAPTURES + 1):
        dense += 1
        assert proxy.capture() == whole(state)
        assert proxy.compared, version
    for version in range(DENSE_AGAIN):  # from here on nothing is written, and it is copied all the same
        assert proxy.capture() == whole(state)
        if not proxy.copied:
            assert version == DENSE_AGAIN - 1
    assert not proxy.copied, "it was compared, and is compared from now on"
    dense[0] = -1
    assert proxy.capture() == whole(state)
    assert proxy.copied <= 2 * CHUNK


def test_a_number_that_becomes_longer_moves_nothing() -> None:
    class Counter:
        def __init__(self) -> None:
            self.steps = 9
            self.weights = np.zeros(32 * CHUNK, dtype=np.uint8)

        def state_dict(self) -> dict[str, Any]:
            return {"steps": self.steps, "weights": self.weights}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise NotImplementedError

    counter = Counter()
    proxy = Proxy(State({"counter": counter}))
    proxy.capture()
    counter.steps = 10
    proxy.capture()
    assert proxy.copied == CHUNK, "the header"


def test_what_is_constant_is_compared_by_nobody_but_now_and_then() -> None:
    weights, small = np.zeros(64 * CHUNK, dtype=np.uint8), np.zeros(4, dtype=np.int64)
    state = State({"weights": hams_sdk.constant(weights), "small": small})
    proxy = Proxy(state)
    assert proxy.capture() == whole(state)
    for version in range(CONSTANT_AGAIN - 2):
        small[0] = version
        assert proxy.capture() == whole(state)
        assert proxy.compared < 4 * CHUNK
    weights[5 * CHUNK] = 1
    proxy.capture()
    with pytest.raises(StateFault, match=r'"weights" was declared constant .* and has changed'):
        proxy.capture()


def test_a_constant_that_moves_is_compared_where_it_is_now() -> None:
    class Growing:
        text = ""

        def state_dict(self) -> dict[str, Any]:
            return {"text": self.text}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise NotImplementedError

    growing, weights = Growing(), np.arange(16 * CHUNK, dtype=np.uint32)
    state = State({"growing": growing, "weights": hams_sdk.constant(weights)})
    proxy = Proxy(state)
    for length in (0, 5000, 5001, 0):
        growing.text = "x" * length
        assert proxy.capture() == whole(state)


def test_a_constant_is_compared_again_after_a_load() -> None:
    weights = np.zeros(8 * CHUNK, dtype=np.uint8)
    state = State({"weights": hams_sdk.constant(weights)})
    proxy = Proxy(state)
    for _ in range(3):
        proxy.capture()
    state.load(memoryview(bytearray(whole(state))))
    state.loaded()
    weights[3] = 1
    assert proxy.capture() == whole(state)


class Shown:
    """A holder that shows what it is told to."""

    def __init__(self, shown: Any) -> None:
        self.shown = shown

    def state_dict(self) -> Any:
        return self.shown

    def load_state_dict(self, shown: Any) -> None:
        self.shown = shown


@pytest.mark.parametrize(("key", "other"), [(b"abc", b"abd"), (np.int64(3), np.int64(7))])
def test_a_key_that_is_a_leaf_itself_changes_the_head(key: Any, other: Any) -> None:
    holder = Shown({key: np.zeros(3)})
    proxy = Proxy(State({"holder": holder}))
    proxy.capture()
    holder.shown = {other: np.zeros(3)}
    image = proxy.capture()
    assert image == whole(proxy.state)
    leaves = read_header(memoryview(image))[0]["leaves"]
    assert [path for path, *_ in leaves] == ["holder (key)", f"holder/{other}"]


def test_a_constant_that_lies_where_another_lay_is_compared() -> None:
    one, other = np.full(5 * CHUNK, 1, np.uint8), np.full(5 * CHUNK, 2, np.uint8)
    filler, holder = Shown({}), Shown({1: one, "1": other})
    proxy = Proxy(State({"filler": filler, "constants": hams_sdk.constant(holder)}))
    proxy.capture()
    before = len(whole(proxy.state))
    filler.shown = {"x" * (5 * CHUNK): 0}  # the header grows by as much as a constant is long
    image = proxy.capture()
    assert len(image) - before >= 5 * CHUNK
    assert image == whole(proxy.state)


def test_a_constant_behind_a_mapping_that_grows_is_compared_all_the_same() -> None:
    keyed = hams_sdk.Keyed(row=np.dtype((np.float32, (4,))), keys=int, max_keys=100_000)
    keyed._per_slab = 64
    constant = np.zeros(64 * CHUNK, np.uint8)
    proxy = Proxy(State({"k": keyed, "c": hams_sdk.constant(constant)}))
    for key in range(66):
        proxy.state.open(True)
        keyed[key] = np.ones(4, np.float32)
        if key in (0, 62):
            proxy.capture()
    constant[30 * CHUNK] = 1  # as the mapping takes another slab: the header stays as long as it was

    def many_captures() -> None:
        for _ in range(CONSTANT_AGAIN):
            proxy.capture()

    with pytest.raises(StateFault, match="declared constant"):
        many_captures()


def test_a_tensor_that_wraps_another_is_captured_by_what_it_says() -> None:
    """It has no memory of its own: where that is, is 0."""
    torch = pytest.importorskip("torch")

    class Wraps(torch.Tensor):
        @staticmethod
        def __new__(cls, inner: Any) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        def __init__(self, inner: Any) -> None:
            self.held = inner

        @classmethod
        def __torch_dispatch__(cls, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            inner = torch.utils._pytree.tree_map(lambda item: getattr(item, "held", item), args)
            value = call(*inner, **(kwargs or {}))
            return cls(value) if call is torch.ops.aten.detach.default else value

    wraps = Wraps(torch.zeros(8 * CHUNK))
    state = State({"wraps": wraps})
    proxy = Proxy(state)
    for at in range(3):
        assert proxy.capture() == whole(state)
        wraps.held[at] = 1.0
    image = bytearray(whole(state))
    wraps.held.zero_()
    state.load(memoryview(image))
    assert wraps.held.nonzero().reshape(-1).tolist() == [0, 1, 2]
