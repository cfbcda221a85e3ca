"""A load of what differs leaves what a load of the whole image leaves. Where it cannot, it writes nothing."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hams_sdk
from hams_sdk import Keyed, Opaque
from hams_sdk.chunks import Table, address_of, count
from hams_sdk.engine import Engine
from hams_sdk.errors import ContractBroken, StateFault
from hams_sdk.memory import Regions
from hams_sdk.specs import OperatorSpec, TensorSpec
from hams_sdk.state import State

torch = pytest.importorskip("torch")
CHUNK = 1024
X = TensorSpec("x", "FP32", (2,))


class Rows(hams_sdk.Model):
    """Has a state."""

    def initialize(self, config: dict[str, Any]) -> Any:
        return {"rows": np.zeros(9)}

    def run(self, batch: hams_sdk.Batch) -> Any:
        return {"x": batch["x"]}


class Image:
    """An image in this process, and its table."""

    def __init__(self, state: State, number: int = 1) -> None:
        self.memory = bytearray()

        def space(nbytes: int) -> memoryview:
            self.memory.extend(bytes(nbytes))
            return memoryview(self.memory)

        state.capture(space)
        at, nbytes = address_of(memoryview(self.memory)), len(self.memory)
        places = [at + index * CHUNK for index in range(count(nbytes, CHUNK))]
        self.table = Table(number, nbytes, CHUNK, places)

    def differs_from(self, other: "Image") -> list[int]:
        pairs = [(at, min(at + CHUNK, len(self.memory))) for at in range(0, len(self.memory), CHUNK)]
        return [index for index, (at, end) in enumerate(pairs) if self.memory[at:end] != other.memory[at:end]]


def arrays(seed: int) -> tuple[dict[str, Any], Callable[[], None]]:
    numbers = np.random.default_rng(seed)
    table, point = numbers.random((90, 33)), np.array(3)
    odd = np.zeros(4999, dtype=np.int8)

    def step() -> None:
        table[seed % 90] += 1
        point[...] += 1
        odd[numbers.integers(0, 4999, 3)] += 1

    return {"table": table, "point": point, "odd": odd}, step


def trained(seed: int) -> tuple[dict[str, Any], Callable[[], None]]:
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(40, 60), torch.nn.BatchNorm1d(60), torch.nn.Linear(60, 3))
    optimizer = torch.optim.Adam(net[2].parameters())  # the first layer stays what it is

    def step() -> None:
        optimizer.zero_grad()
        net(torch.randn(8, 40)).sum().backward()
        optimizer.step()

    step()  # the optimizer's own tensors are there from now on
    return {"net": net, "optimizer": optimizer, "tensor": torch.arange(700.0)}, step


@pytest.mark.parametrize("make", [arrays, trained])
@pytest.mark.parametrize("seed", range(4))
def test_what_differs_is_what_a_whole_load_would_leave(make: Any, seed: int) -> None:
    holders, step = make(seed)
    state = State(holders)
    before = Image(state)
    for _ in range(random.Random(seed).randint(1, 3)):
        step()
    after = Image(state)
    state.load(memoryview(before.memory))
    changed = after.differs_from(before)
    assert 0 < len(changed) < len(after.table.addresses)
    assert state.load_changed(after.table, changed)
    assert bytes(Image(state).memory) == bytes(after.memory)
    step()
    there = Image(state)
    state.load(memoryview(after.memory))
    assert bytes(there.memory) != bytes(Image(state).memory), "the state is alive"


def test_gradients_are_no_part_of_it() -> None:
    holders, step = trained(1)
    state = State(holders)
    before = Image(state)
    step()
    assert state.load_changed(before.table, Image(state).differs_from(before))
    assert all(item.grad is None for item in holders["net"].parameters())


class Derived(torch.nn.Module):
    """Keeps what it derives from its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2000))
        self.sum = 2000.0
        self.register_load_state_dict_post_hook(lambda module, _: module.derive())

    def derive(self) -> None:
        self.sum = float(self.weight.sum())


class Copies:
    """Shows copies of what it works with."""

    def __init__(self) -> None:
        self.content = np.zeros(5000)

    def state_dict(self) -> Any:
        return {"it": self.content.copy()}

    def load_state_dict(self, content: Any) -> None:
        self.content = content["it"]


class Heard(np.ndarray):
    """An array that may hear of writes."""


class Restoring(torch.optim.SGD):
    """An optimizer that does something of its own when it is loaded."""

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)


def keyed() -> Keyed:
    rows = Keyed(row=np.dtype("f8"), keys=int, max_keys=500)
    for key in range(400):
        rows[key] = float(key)
    return rows


def shows_copies() -> Any:
    module = torch.nn.Linear(9, 9)
    own = module.state_dict
    module.state_dict = lambda: {name: value.clone() for name, value in own().items()}  # type: ignore
    return module


def one_rate_for_two() -> Any:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(9))]} for _ in range(2)]
    return torch.optim.Adam(groups, lr=torch.tensor(0.01))


def learn(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()


@pytest.mark.parametrize(
    ("holder", "write"),
    [
        (Derived(), lambda holder: holder.weight.data.add_(1)),
        (Copies(), lambda holder: holder.content.__iadd__(1)),
        (shows_copies(), lambda holder: holder.weight.data.add_(1)),
        (keyed(), lambda holder: holder.__setitem__(7, 0.5)),
        (np.zeros((70, 70))[:, ::2], lambda holder: holder.__iadd__(1)),
        (np.zeros(900).view(Heard), lambda holder: holder.__iadd__(1)),
        (torch.zeros(900).as_subclass(type("Own", (torch.Tensor,), {})), lambda holder: holder.add_(1)),
        (torch.optim.Adam([torch.nn.Parameter(torch.zeros(9))]), learn),
        (Restoring([torch.nn.Parameter(torch.zeros(9))], momentum=0.9), learn),
        (one_rate_for_two(), lambda holder: holder.param_groups[0]["lr"].fill_(0.5)),
        (Opaque(lambda: b"x", lambda _: None), lambda _: None),
    ],
    ids=[
        "hooks",
        "copies",
        "copies of a module",
        "keyed",
        "strides",
        "array of its own kind",
        "tensor of its own kind",
        "what was not there",
        "sets itself",
        "one tensor twice",
        "opaque",
    ],
)
def test_what_has_to_be_loaded_whole_is_left_alone(holder: Any, write: Callable[[Any], object]) -> None:
    state = State({"it": holder, "beside": np.zeros(2000)})
    before = Image(state)
    state.open(True)
    write(holder)
    now = Image(state)
    assert not state.load_changed(before.table, range(len(before.table.addresses)))
    assert bytes(Image(state).memory) == bytes(now.memory), "nothing was written"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_an_optimizer_whose_tensors_a_load_casts_gets_no_bytes_of_another_type(dtype: Any) -> None:
    def made() -> tuple[dict[str, Any], Callable[[], None]]:
        torch.manual_seed(3)
        net = torch.nn.Linear(30, 30).to(dtype)
        optimizer = torch.optim.NAdam(net.parameters())

        def step() -> None:
            optimizer.zero_grad()
            net(torch.randn(4, 30).to(dtype)).square().sum().backward()
            optimizer.step()

        step()
        return {"net": net, "optimizer": optimizer}, step

    holders, step = made()
    first = Image(State(holders))
    step()
    second = Image(State(holders))
    state = State(made()[0])
    state.load(memoryview(first.memory))
    assert not state.load_changed(second.table, second.differs_from(first))


def test_what_cannot_be_captured_is_loaded() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(9))], lr=0.5)
    state = State({"optimizer": optimizer})
    before = Image(state)
    optimizer.param_groups[0]["lr"] = object()
    assert not state.load_changed(before.table, range(len(before.table.addresses)))
    state.load(memoryview(before.memory))
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_load_that_does_not_fit_the_table_before_is_refused_by_a_sentence() -> None:
    class OneRegion(Regions):
        def __init__(self) -> None:
            self._memory = bytearray(8 * CHUNK)
            self._writable = [memoryview(self._memory)]

    regions, base = OneRegion(), Table(1, 3 * CHUNK + 5, CHUNK, [10, 20, 30, 40])
    table = regions.laid_over(base, 2, 3 * CHUNK + 5, [1], [(0, 64, CHUNK)])
    assert (table.addresses[0], table.addresses[2:], table.number) == (10, [30, 40], 2)
    for nbytes, changed, places in (
        (3 * CHUNK + 5, [1, 2], [(0, 0, CHUNK)]),
        (3 * CHUNK + 5, [4], [(0, 0, CHUNK)]),
        (3 * CHUNK + 5, [3], [(0, 0, CHUNK)]),
        (3 * CHUNK + 9, [0], [(0, 0, CHUNK)]),
        (5 * CHUNK, [3], [(0, 0, CHUNK)]),
    ):
        with pytest.raises(ContractBroken):
            regions.laid_over(base, 2, nbytes, changed, places)


def test_a_load_over_another_table_than_the_newest_is_refused_by_a_sentence() -> None:
    made = Engine(Rows(), OperatorSpec("op", (X,), (X,), frozenset(["reply"]), True, {}, None))
    made.initialize()
    memory = bytearray(1 << 20)
    made.capture_since(0, 3, CHUNK, lambda nbytes: memoryview(memory)[:nbytes])
    assert made.table(3).number == 3
    with pytest.raises(StateFault, match="over table 4"):
        made.table(4)
