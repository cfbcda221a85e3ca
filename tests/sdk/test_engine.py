"""A model in this process: what it may not be, and the run before it is ready."""

import random
from typing import Any

import numpy as np
import pytest

import hams_sdk
from hams_sdk.engine import Engine, UnitInput
from hams_sdk.errors import Abandoned, ModelFault, StateFault
from hams_sdk.sample import row_of
from hams_sdk.specs import OperatorSpec, TensorSpec
from hams_sdk.state import State

X = TensorSpec("x", "FP32", (2,))
Y = TensorSpec("y", "FP32", (2,))


def engine(model: hams_sdk.Model, *, stateful: bool = True, warm_up: dict[str, Any] | None = None) -> Engine:
    made = Engine(model, OperatorSpec("op", (X,), (Y,), frozenset(["reply"]), stateful, {}, warm_up))
    made.initialize()
    return made


class Sum(hams_sdk.Model):
    """Adds what it sees; what it returns can be replaced."""

    returned: Any = None

    def initialize(self, config: dict[str, Any]) -> Any:
        self.total = np.zeros(2, np.float32)
        self.runs = 0
        return {"total": self.total}

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        self.runs += 1
        random.random()
        with update:
            self.total += batch["x"].sum(axis=0)
        return {"y": batch["x"]} if self.returned is None else self.returned


class Nothing(hams_sdk.Model):
    """`initialize` ends without a return."""

    def initialize(self, config: dict[str, Any]) -> Any:
        self.total = 0.0

    def run(self, batch: hams_sdk.Batch) -> Any:
        return {"y": batch["x"]}


class Empty(hams_sdk.Model):
    """Says that it has no state."""

    def initialize(self, config: dict[str, Any]) -> Any:
        return {}

    def run(self, batch: hams_sdk.Batch) -> Any:
        return {"y": batch["x"]}


def test_a_stateful_model_whose_initialize_returns_nothing_is_refused_and_an_empty_dict_is_not() -> None:
    with pytest.raises(StateFault, match="is stateful, but initialize returned None: return a dict"):
        engine(Nothing())
    engine(Empty())
    engine(Nothing(), stateful=False)


def test_the_error_of_a_unit_is_bounded() -> None:
    """A frame that is too large ends the process, and a retry would end the next one."""

    class Wordy(Empty):
        def run(self, batch: hams_sdk.Batch) -> Any:
            batch.fail(batch.units[0], "no " * 6_000_000)

    made = engine(Wordy())
    result = made.run([UnitInput("one", 1, [np.zeros((1, 2), np.float32)], {})], lambda: None)
    assert result.units is not None
    assert result.units[0].error == ("no " * 667)[:2000]


def test_a_warm_up_leaves_no_trace_in_state_and_generators() -> None:
    model = Sum()
    made = engine(model, warm_up={})
    drawn = random.getstate()
    assert made.warm_up() is None
    assert model.runs == 1
    assert model.total.tolist() == [0, 0]
    assert random.getstate() == drawn


def test_a_warm_up_that_is_switched_off_does_not_run_the_model() -> None:
    model = Sum()
    assert engine(model, warm_up=None).warm_up() is None
    assert model.runs == 0


@pytest.mark.parametrize(
    "wrong",
    [{}, {"z": np.zeros((1, 2), np.float32)}, {"y": np.zeros((1, 2))}, {"y": np.zeros((1, 3), np.float32)}],
)
def test_outputs_that_are_not_as_declared_end_the_start(wrong: Any) -> None:
    model = Sum()
    model.returned = wrong
    with pytest.raises(ModelFault, match=r"warm-up, before any request: .*expected"):
        engine(model, warm_up={}).warm_up()
    assert model.total.tolist() == [0, 0]


def test_what_a_model_raises_counts_only_on_a_row_of_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    class Picky(Sum):
        def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
            if batch["x"][0, 0] != 7:
                raise ValueError("not a seven")
            return super().run(batch, update)

    assert "made-up row raised ValueError: not a seven" in str(engine(Picky(), warm_up={}).warm_up())
    assert engine(Picky(), warm_up={"x": [7, 1]}).warm_up() is None
    with pytest.raises(ModelFault, match=r"the row of model.warmUp: ValueError: not a seven"):
        engine(Picky(), warm_up={"x": [6, 1]}).warm_up()


def test_a_state_too_large_to_be_copied_is_not_warmed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hams_sdk.engine.WARM_UP_STATE_NBYTES_MAX", 16)
    model = Sum()
    assert "no warm-up: undoing it takes a copy of the state" in str(engine(model, warm_up={}).warm_up())
    assert model.runs == 0


def test_a_given_row_is_read_as_declared_and_refused_otherwise() -> None:
    inputs = (
        TensorSpec("n", "INT64", ()),
        TensorSpec("text", "BYTES", (2,)),
        TensorSpec("b", "BF16", (-1,)),
        TensorSpec("maybe", "FP32", (), optional=True),
    )
    spec = OperatorSpec("op", inputs, (Y,))
    number, text, half, absent = row_of(spec, {"n": 3, "text": ["a", "ä"], "b": [1.0, -2.0]})
    assert number is not None
    assert number.tolist() == [3]
    assert text is not None
    assert text.tolist() == [[b"a", b"\xc3\xa4"]]
    assert half is not None
    assert half.tolist() == [[0x3F80, 0xC000]]
    assert absent is None
    good: dict[str, Any] = {"n": 3, "text": ["a", "b"], "b": [1.0]}
    for name, value, says in [
        ("n", 1.5, "expected INT64"),
        ("n", [1], r"found shape \[1\]"),
        ("n", 2**64, "expected INT64"),
        ("text", ["a", 1], "as text"),
        ("text", [["a"], ["b", "c"]], "expected BYTES"),
        ("b", "x", "expected BF16"),
        ("z", 1, 'no input "z"'),
    ]:
        with pytest.raises(ModelFault, match=says):
            row_of(spec, {**good, name: value})
    with pytest.raises(ModelFault, match='input "text" is missing'):
        row_of(spec, {"n": 3, "b": [1.0]})


class Accumulates(hams_sdk.Model):
    """Learns from gradients that it zeroes after each step."""

    fails = False

    def initialize(self, config: dict[str, Any]) -> Any:
        import torch

        self.net = torch.nn.Linear(2, 2, bias=False)
        self.free = torch.zeros(2, requires_grad=True)
        self.opt = torch.optim.SGD([*self.net.parameters(), self.free], lr=0.1)
        return {"net": self.net, "opt": self.opt}

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        out = self.net(batch.torch("x")) + self.free
        out.square().mean().backward()
        if self.fails:
            raise RuntimeError("after backward")
        with update:
            self.opt.step()
            self.opt.zero_grad()
        return {"y": out}


def test_a_batch_that_raised_after_backward_teaches_nothing() -> None:
    pytest.importorskip("torch")
    model = Accumulates()
    made = engine(model)
    batch = [UnitInput("0/1", 1, [np.ones((1, 2), np.float32)], {})]
    model.fails = True
    result = made.run(batch, lambda: None)
    assert not result.updated, "nothing would be loaded to undo it"
    assert model.net.weight.grad is None
    assert model.free.grad is None


def test_a_loaded_state_has_no_gradients() -> None:
    torch = pytest.importorskip("torch")
    plain = torch.ones(2, requires_grad=True)
    net = torch.nn.Linear(2, 2)
    state = State({"net": net, "plain": plain})
    memory = bytearray()

    def space(nbytes: int) -> memoryview:
        memory.extend(bytes(nbytes))
        return memoryview(memory)

    state.capture(space)
    (net(plain).sum()).backward()
    assert plain.grad is not None
    state.load(memoryview(memory))
    assert plain.grad is None
    assert net.weight.grad is None


def test_a_run_says_how_long_it_took_without_its_wait_to_be_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock moves only where somebody is said to work, or to wait."""
    now = [100.0]
    monkeypatch.setattr("hams_sdk.engine.time.perf_counter", lambda: now[0])

    def goes_on(seconds: float) -> None:
        now[0] += seconds

    class Slow(Sum):
        def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
            goes_on(3.0)
            with update:
                goes_on(20.0)
            goes_on(1.0)
            if self.returned is not None:
                raise ValueError("no")
            return {"y": batch["x"]}

    def turned_away() -> None:
        goes_on(500.0)
        raise Abandoned

    made = engine(Slow())
    units = [UnitInput("r", 1, [np.ones((1, 2), np.float32)], {})]
    done = made.run(units, lambda: goes_on(500.0))
    assert (done.seconds, done.update_s) == (pytest.approx(4.0), pytest.approx(20.0))
    abandoned = made.run(units, turned_away)
    assert (abandoned.abandoned, abandoned.seconds, abandoned.update_s) == (True, pytest.approx(3.0), 0.0)
    made.model.returned = "an error"  # type: ignore[attr-defined]
    failed = made.run(units, lambda: goes_on(500.0))
    assert (failed.units, failed.seconds, failed.update_s) == (None, pytest.approx(4.0), pytest.approx(20.0))
