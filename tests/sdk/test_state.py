"""States survive the way out and back exactly, or are refused by name."""

import collections
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hams_sdk
from hams_sdk import tree
from hams_sdk.errors import StateFault
from hams_sdk.state import State, leaf_digests, read_header

SDK = Path(__file__).resolve().parents[2] / "model-sdk"


def captured(state: State, fill: int = 0) -> memoryview:
    memory = bytearray()

    def space(nbytes: int) -> memoryview:
        memory.extend(bytes([fill]) * nbytes)
        return memoryview(memory)

    state.capture(space)
    return memoryview(memory)


class Holder:
    """Anything with `state_dict` and `load_state_dict`, keeping what it is given."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def state_dict(self) -> Any:
        return self.content

    def load_state_dict(self, content: Any) -> None:
        self.content = content


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
keys = st.text() | st.integers() | st.tuples(st.integers(), st.text())
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.dictionaries(keys, inner).map(collections.OrderedDict)
        | st.frozensets(st.integers())
        | st.builds(collections.deque, st.lists(inner), st.none() | st.integers(0, 3))
    ),
    max_leaves=20,
)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and math.isnan(left):
        return isinstance(right, float) and math.isnan(right)
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(item, right[key]) for key, item in left.items())
    if isinstance(left, collections.deque) and left.maxlen != right.maxlen:
        return False
    if isinstance(left, list | tuple | collections.deque):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


@settings(deadline=None)
@given(trees)
def test_any_tree_comes_back_as_it_was(content: Any) -> None:
    holder = Holder(content)
    state = State({"it": holder})
    image = captured(state)
    holder.content = "other"
    state.load(image)
    assert same(holder.content, content)


def test_arrays_come_back_into_the_same_objects_and_holders_get_their_own() -> None:
    array = np.arange(6, dtype=np.float64).reshape(2, 3)[:, ::2]
    holder = Holder(
        {
            "inner": np.array(["ab", "c"]),
            "zero": np.zeros((0, 3), np.int8),
            "scalar": np.float32(2.5),
            "text": np.array(["ab", ""])[1],
            "point": np.array(7),
        }
    )
    state = State({"array": array, "holder": holder})
    image = captured(state)
    array[:] = 0
    holder.content = {"inner": None}
    state.load(image)
    assert array.tolist() == [[0, 2], [3, 5]]
    assert holder.content["inner"].tolist() == ["ab", "c"]
    assert holder.content["zero"].shape == (0, 3)
    assert type(holder.content["scalar"]) is np.float32
    assert holder.content["text"] == ""
    assert holder.content["point"] == 7
    holder.content["inner"][0] = "zz"  # its own memory: the image is as it was
    state.load(image)
    assert holder.content["inner"][0] == "ab"


def test_equal_states_are_equal_images_wherever_they_are_written() -> None:
    state = State({"a": np.arange(5, dtype=np.int8), "b": hams_sdk.Opaque(lambda: b"xyz", lambda _: None)})
    assert bytes(captured(state, fill=0)) == bytes(captured(state, fill=255))


def test_the_digests_of_an_image_tell_which_parts_differ() -> None:
    value = [b"one"]
    array = np.zeros(3)
    state = State({"a": array, "b": hams_sdk.Opaque(lambda: value[0], lambda _: None)})
    before = leaf_digests(captured(state))
    value[0] = b"two"
    after = leaf_digests(captured(state))
    assert {path for path in before if before[path] != after[path]} == {"b (data)"}


@pytest.mark.parametrize(
    ("holders", "message"),
    [
        ([1], "initialize returned a list, expected a dict of state or None"),
        ({"n": 3}, 'state "n" is a int: expected a tensor'),
        ({"a": np.array([object()])}, "use hams_sdk.Opaque"),
        ({"h": Holder({"x": [object()]})}, 'state "h/x/0" holds a builtins.object'),
        ({"a": np.ma.zeros(3)}, 'state "a" is a masked array'),
        ({"h": Holder({"x": np.ma.zeros(3)})}, 'state "h/x" is a masked array'),
        ({3: np.zeros(1)}, "names of state are strings, got 3"),
    ],
)
def test_state_that_cannot_be_captured_is_refused_at_the_start(holders: Any, message: str) -> None:
    with pytest.raises(StateFault) as caught:
        State(holders)
    assert message in str(caught.value)


def test_a_read_only_array_is_no_state() -> None:
    array = np.zeros(1)
    array.flags.writeable = False
    with pytest.raises(StateFault, match="could not be restored in place"):
        State({"a": array})


def test_a_tree_nested_too_deep_is_refused() -> None:
    content: list[Any] = []
    for _ in range(100):
        content = [content]
    with pytest.raises(StateFault, match="nested deeper than 64 levels"):
        State({"h": Holder(content)})


def test_layouts_that_differ_are_named() -> None:
    ours = State({"a": np.zeros(3), "gone": np.zeros(1)})
    theirs = State({"a": np.zeros(4, np.float32), "new": np.zeros(2)})
    with pytest.raises(StateFault) as caught:
        ours.load(captured(theirs))
    assert str(caught.value) == (
        "state layout mismatch: a: image has <f4 [4], this model <f8 [3]; new: image has <f8 [2], this "
        "model none; "
        "gone: image has none, this model <f8 [1]"
    )


@pytest.mark.parametrize("data", [b"", b"short", b"x" * 100, b"HAMSST01" + b"\xff" * 8 + b"x" * 100])
def test_garbage_is_no_image(data: bytes) -> None:
    with pytest.raises(StateFault):
        read_header(memoryview(bytearray(data)))


def forged(image: memoryview, change: Any) -> memoryview:
    """The image with another header; its leaves stay where they are."""
    header, start = read_header(image)
    change(header)
    text = json.dumps(header).encode()
    text = text.ljust(len(text) + -(16 + len(text)) % 64)
    return memoryview(bytes(image[:8]) + len(text).to_bytes(8, "little") + text + bytes(image[start:]))


def two() -> dict[str, Any]:
    return {"a": np.arange(3.0), "b": np.arange(4.0)}


SPOILT: dict[str, Any] = {
    "the second holder's leaf is of another shape": lambda header: header["leaves"][1].__setitem__(2, [2]),
    "the second holder's leaf is of another type": lambda header: header["leaves"][1].__setitem__(1, "<i8"),
    "the second holder's leaf is no array's": lambda header: header["leaves"][1].__setitem__(1, "bytes"),
    "the second holder's leaf lies outside": lambda header: header["leaves"][1].__setitem__(3, 1 << 40),
    "the second holder's leaf is before the image": lambda header: header["leaves"][1].__setitem__(3, -64),
    "the second holder's tree names a leaf that is none": lambda header: header["trees"].__setitem__(
        "b", {"leaf": 9}
    ),
    "the second holder's tree is a number": lambda header: header["trees"].__setitem__("b", 7),
    "the second holder's tree is missing": lambda header: header["trees"].pop("b"),
    "the trees are a list": lambda header: header.__setitem__("trees", []),
    "the leaves are missing": lambda header: header.pop("leaves"),
    "a dimension of 400 digits": lambda header: header["leaves"][1].__setitem__(2, [10**400]),
}


@pytest.mark.parametrize("change", SPOILT.values(), ids=SPOILT.keys())
def test_an_image_that_fits_one_holder_and_not_the_next_writes_neither(change: Any) -> None:
    image = captured(State(two()))
    holders = {name: value + 100 for name, value in two().items()}
    before = {name: value.copy() for name, value in holders.items()}
    state = State(holders)
    with pytest.raises(StateFault):
        state.load(forged(image, change))
    for name, value in holders.items():
        assert np.array_equal(value, before[name]), name


def test_opaque_that_does_not_give_bytes_is_named() -> None:
    text = hams_sdk.Opaque(lambda: "text", lambda _: None)  # type: ignore[arg-type, return-value]
    state = State({"o": text})
    with pytest.raises(StateFault, match=r"Opaque.get returned a str, expected bytes"):
        captured(state)


def test_torch_state_of_every_kind_comes_back_in_place() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(7)
    tensors = {
        "plain": torch.arange(6.0).reshape(2, 3).t(),
        "half": torch.tensor([1.5, -2], dtype=torch.bfloat16),
        "flags": torch.tensor([True, False]),
        "grad": torch.ones(2, requires_grad=True),
        "empty": torch.zeros(0, 4),
        "point": torch.tensor(3, dtype=torch.int64),
        "complex": torch.tensor([1 + 2j]),
    }
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    state = State({**tensors, "net": net, "opt": optimizer})
    optimizer_state_before = captured(state)

    def learn() -> None:
        optimizer.zero_grad()
        loss = net(torch.arange(6.0).reshape(2, 3)) * torch.arange(1.0, 7.0).reshape(2, 3)
        loss.sum().backward()
        optimizer.step()

    learn()
    image = captured(state)
    assert len(image) > len(optimizer_state_before)
    before = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.zero_()
    learn()
    learn()
    places = [parameter.data_ptr() for parameter in net.parameters()]
    state.load(image)
    assert bytes(captured(state)) == bytes(image)
    assert all(torch.equal(tensor.detach(), before[name]) for name, tensor in tensors.items())
    assert [parameter.data_ptr() for parameter in net.parameters()] == places
    image[:] = bytes(len(image))  # nothing refers to the image any more
    assert all(parameter.abs().sum() > 0 for parameter in net.parameters())
    assert all(entry["momentum_buffer"].abs().sum() > 0 for entry in optimizer.state.values())


def test_a_module_that_keeps_what_it_is_given_gets_its_own() -> None:
    torch = pytest.importorskip("torch")

    module = torch.nn.Module()
    module.register_buffer("kept", torch.ones(3))
    module.load_state_dict = lambda content: setattr(module, "kept", content["kept"])
    state = State({"m": module})
    image = captured(state)
    state.load(image)
    image[:] = bytes(len(image))
    assert module.kept.tolist() == [1, 1, 1]


def test_the_sdk_itself_imports_neither_torch_nor_anything_of_the_house() -> None:
    code = "import sys, hams_sdk.serve; print(*{name.partition('.')[0] for name in sys.modules})"
    text = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(SDK)}
    )
    loaded = set(text.stdout.split())
    assert "hams_sdk" in loaded
    assert not loaded & {
        "torch",
        "yaml",
        "msgspec",
        "asyncio",
        "hams_protocol",
        "hams_wire",
        "hams_sidecar",
        "hams_operator",
    }


def test_unknown_tags_of_a_later_format_are_refused() -> None:
    with pytest.raises(StateFault, match="unknown tag 'novel'"):
        tree.decode({"novel": 1}, lambda _: None)


def test_what_is_loaded_in_place_may_not_change_its_shape() -> None:
    """It could be captured, and no other model could ever load it."""
    array = np.zeros((3, 4), np.float32)
    state = State({"table": array})
    captured(state)
    array.resize((6, 4), refcheck=False)
    with pytest.raises(StateFault, match=r'"table": expected <f4 \[3, 4\].*found <f4 \[6, 4\].*Opaque'):
        captured(state)


def test_a_module_may_not_change_its_shapes_unless_it_loads_them_itself() -> None:
    torch = pytest.importorskip("torch")

    class Grows(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(3, 2)
            self.norm = torch.nn.BatchNorm1d(2)

        def grow(self) -> None:
            self.embedding = torch.nn.Embedding(5, 2)

    class Resizes(Grows):
        def load_state_dict(self, given: Any, *arguments: Any, **more: Any) -> Any:
            self.embedding = torch.nn.Embedding(*given["embedding.weight"].shape)
            return super().load_state_dict(given, *arguments, **more)

    net = Grows()
    state = State({"net": net})
    captured(state)
    net.grow()
    with pytest.raises(StateFault, match=r"embedding.weight.*torch.float32 \[3, 2\].*\[5, 2\]"):
        captured(state)
    net = Resizes()
    state = State({"net": net})
    net.grow()
    taken = captured(state)
    fresh = Resizes()
    State({"net": fresh}).load(taken)
    assert torch.equal(fresh.embedding.weight, net.embedding.weight)


def test_a_module_may_not_get_a_tensor_that_a_fresh_one_has_not() -> None:
    """It could be captured, and every backup would refuse it as unexpected."""
    torch = pytest.importorskip("torch")

    class Caches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)
            self.register_buffer("cache", None)

    net = Caches()
    state = State({"net": net, "net2": torch.nn.Linear(2, 2)})
    captured(state)
    net.cache = torch.zeros(3)
    with pytest.raises(StateFault, match=r'"net/cache": expected none.*found torch.float32 \[3\]'):
        captured(state)


def test_an_optimizer_may_not_get_a_group_that_a_fresh_one_has_not() -> None:
    """It could be captured, and every backup would refuse it."""
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD([net.weight], lr=0.1, momentum=0.9)
    state = State({"net": net, "opt": optimizer})
    optimizer.param_groups[0]["lr"] = 0.01
    captured(state)
    optimizer.add_param_group({"params": [net.bias]})
    with pytest.raises(StateFault, match=r'"opt": expected .*groups of \[1\].*found \[1, 1\]'):
        captured(state)


def test_what_a_holder_of_ones_own_gives_may_grow() -> None:
    class Buffer:
        def __init__(self) -> None:
            self.rows = np.zeros((0, 2), np.float32)

        def state_dict(self) -> dict[str, Any]:
            return {"rows": self.rows}

        def load_state_dict(self, given: dict[str, Any]) -> None:
            self.rows = given["rows"]

    buffer = Buffer()
    state = State({"buffer": buffer})
    buffer.rows = np.ones((4, 2), np.float32)
    fresh = Buffer()
    State({"buffer": fresh}).load(captured(state))
    assert fresh.rows.tolist() == [[1, 1]] * 4


@pytest.mark.parametrize("nested", [False, True])
def test_nothing_of_a_module_with_a_state_dict_of_its_own_lies_in_what_was_loaded(nested: bool):
    """What it keeps would change with the next request that uses the memory, and change that."""
    torch = pytest.importorskip("torch")

    class WithCounts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)
            self.counts = {"seen": torch.zeros(4)} if nested else np.zeros(4, np.float32)

        def state_dict(self, *args: Any, **options: Any) -> Any:
            return {**super().state_dict(*args, **options), "counts": self.counts}

        def load_state_dict(self, content: Any, *args: Any, **options: Any) -> Any:
            content = dict(content)
            self.counts = content.pop("counts")
            return super().load_state_dict(content, *args, **options)

    model = WithCounts()
    state = State({"model": model})
    image = captured(state)
    state.load(image)
    kept = model.counts["seen"] if nested else model.counts
    before = bytes(image)
    kept[:] = 7
    assert bytes(image) == before
    image[:] = b"\xff" * len(image)
    assert kept.tolist() == [7.0] * 4


@pytest.mark.parametrize("nested", [False, True])
def test_a_module_is_told_that_its_own_version_wrote_what_it_loads(nested: bool) -> None:
    """One of two versions of a class may read the other's entries in another way."""
    torch = pytest.importorskip("torch")

    class Scaled(torch.nn.Module):
        _version = 2

        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(3))

        def _load_from_state_dict(self, given: Any, prefix: str, written_by: Any, *rest: Any) -> None:
            if written_by.get("version", 1) < 2:
                given[prefix + "scale"] = given[prefix + "scale"].exp()  # version 1 had the logarithm
            super()._load_from_state_dict(given, prefix, written_by, *rest)

    class Keeps:
        def __init__(self, net: Any) -> None:
            self.net = net

        def state_dict(self) -> Any:
            return {"nets": [self.net.state_dict()]}

        def load_state_dict(self, given: Any) -> None:
            self.net.load_state_dict(given["nets"][0])

    def state_of(net: Any) -> State:
        return State({"net": Keeps(net) if nested else net})

    nets = [torch.nn.Sequential(Scaled(), torch.nn.BatchNorm1d(3)) for _ in range(2)]
    state_of(nets[1]).load(captured(state_of(nets[0])))
    assert nets[1][0].scale.tolist() == [1, 1, 1]
