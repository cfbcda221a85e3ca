"""States on a GPU: captured beside the next compute stage, put back exactly. Needs a CUDA device."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.sdk.capturing import CHUNK, Proxy, whole

import hams_sdk
from hams_sdk import cuda, sample
from hams_sdk import mirror as limits_of_a_mirror
from hams_sdk.engine import Engine, UnitInput
from hams_sdk.fingerprint import fingerprint
from hams_sdk.specs import OperatorSpec, TensorSpec
from hams_sdk.state import CaptureReport, State

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

X = TensorSpec("x", "FP32", (4,))
Y = TensorSpec("y", "FP32", (4,))


def image_of(capture: Callable[[Callable[[int], memoryview]], CaptureReport]) -> memoryview:
    memory = bytearray()

    def space(nbytes: int) -> memoryview:
        memory.extend(bytes(nbytes))
        return memoryview(memory)

    taken = capture(space)
    return memoryview(memory)[: taken.nbytes]


class Learner(hams_sdk.Model):
    """A module with momentum on a GPU; a batch may raise between `backward` and `step`."""

    def initialize(self, config: dict[str, Any]) -> Any:
        torch.manual_seed(1)
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 256), torch.nn.Linear(256, 4)).to("cuda")
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        return {"net": self.net, "optimizer": self.optimizer}

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> Any:
        x = batch.torch("x", "cuda")
        y = self.net(x)
        loss = ((y - 1) ** 2).sum()
        with update:
            loss.backward()
            if bool((x < 0).any()):
                raise ValueError("negative")
            self.optimizer.step()
            self.optimizer.zero_grad()
        return {"y": y.detach()}


def learner() -> Engine:
    made = Engine(Learner(), OperatorSpec("op", (X,), (Y,), frozenset(["reply"]), True, {}, {}))
    made.initialize()
    return made


def run(engine: Engine, *values: float) -> Any:
    units = [UnitInput(str(value), 1, [np.full((1, 4), value, np.float32)], {}) for value in values]
    return engine.run(units, lambda: None)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(33, 7, device="cuda"),
        lambda: torch.randn(8, 8, device="cuda", dtype=torch.bfloat16).t(),
        lambda: torch.randn(5, device="cuda", dtype=torch.float16)[::2],
        lambda: torch.arange(9, device="cuda", dtype=torch.int8),
        lambda: torch.tensor([True, False, True], device="cuda"),
        lambda: torch.randn(3, device="cuda", dtype=torch.complex64),
        lambda: torch.tensor(2.5, device="cuda", dtype=torch.float64),
        lambda: torch.empty(0, 3, device="cuda"),
        lambda: torch.randn(4, device="cuda", dtype=torch.float32).to(torch.float8_e4m3fn),
    ],
)
def test_a_tensor_on_a_gpu_comes_back_bit_for_bit(make: Callable[[], Any]) -> None:
    tensor, beside = make(), np.arange(3.0)
    expected = tensor.clone()
    state = State({"tensor": tensor, "beside": beside})
    image = image_of(state.capture)
    tensor.zero_()
    beside[:] = 0
    state.load(image)
    raw = [
        item.contiguous().reshape(-1).view(torch.uint8).cpu() for item in (tensor, expected) if item.numel()
    ]
    assert not raw or torch.equal(raw[0], raw[1])
    assert tensor.device.type == "cuda"
    assert beside.tolist() == [0, 1, 2]


def test_a_capture_waits_for_what_the_run_has_queued_and_not_for_what_comes_after() -> None:
    tensor = torch.zeros(1 << 22, device="cuda")
    state = State({"tensor": tensor})
    torch.cuda._sleep(200_000_000)  # the update is queued behind something slow
    tensor += 1
    mark = cuda.mark()
    image = image_of(lambda space: state.capture(space, mark))
    tensor += 1
    state.load(image)
    assert bool((tensor == 1).all())


def test_a_capture_goes_on_beside_the_next_compute_stage() -> None:
    tensor = torch.ones(1 << 20, device="cuda")
    state = State({"tensor": tensor})
    mark = cuda.mark()
    image_of(lambda space: state.capture(space, mark))  # pins its buffer
    done = torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)  # about a second of the next run, upon the model's stream
    done.record()
    image_of(lambda space: state.capture(space, mark))
    assert not done.query(), "the capture waited for the next run"
    torch.cuda.synchronize()


def test_an_optimizer_goes_on_from_a_loaded_state_as_if_nothing_had_happened() -> None:
    one, other = learner(), learner()
    for value in (1.0, 2.0):
        run(one, value)
    other.load(image_of(one.capture))
    for engine in (one, other):
        run(engine, 3.0)
    assert bytes(image_of(one.capture)) == bytes(image_of(other.capture))


def test_a_batch_that_raised_after_backward_leaves_nothing_behind_on_the_gpu() -> None:
    one, clean = learner(), learner()
    before = image_of(one.capture)
    failed = run(one, -1.0)
    assert failed.units is None
    assert failed.updated
    one.load(before)
    for engine in (one, clean):
        run(engine, 2.0)
    assert bytes(image_of(one.capture)) == bytes(image_of(clean.capture))


def test_a_warm_up_draws_nothing_from_the_generators_of_the_gpu() -> None:
    torch.cuda.manual_seed_all(3)
    generators = sample.Generators()
    before = fingerprint(object())
    torch.randn(5, device="cuda")
    assert fingerprint(object()) != before, "a model that draws there keeps state that it did not declare"
    generators.restore()
    assert fingerprint(object()) == before


def test_what_changed_on_the_device_laid_over_what_was_there_is_the_image() -> None:
    net = torch.nn.Linear(4, 256).to("cuda")
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    large = torch.zeros(50 * CHUNK, dtype=torch.uint8, device="cuda")
    halves = torch.ones(9, 9, device="cuda").half().t()
    holders = {"net": net, "optimizer": optimizer, "large": large, "halves": halves}
    proxy, other = Proxy(State(holders)), State(holders)
    for at in (0, 7 * CHUNK, 50 * CHUNK - 1, 3):
        assert proxy.capture() == whole(other)
        large[at] += 1
        optimizer.zero_grad()
        net(torch.ones(1, 4, device="cuda")).sum().backward()
        optimizer.step()
        assert proxy.capture() == whole(other)
        halves[0, 0] += 1
        large[at] += 1
        assert proxy.capture() == whole(other)
        large[at] += 1
        proxy.capture()
        assert 0 < proxy.copied <= 2 * CHUNK, "more crossed than was written"
        proxy.state.loaded()


def test_chunks_are_written_into_tensors_of_a_device() -> None:
    tensor = torch.zeros(50 * CHUNK, dtype=torch.uint8, device="cuda")
    proxy = Proxy(State({"tensor": tensor}))
    proxy.capture()
    tensor[3 * CHUNK : 9 * CHUNK] = 5
    tensor[-1] = 7
    expected = tensor.clone()
    proxy.capture()
    assert proxy.table is not None
    tensor.zero_()
    assert proxy.state.load_changed(proxy.table, proxy.changed)
    assert torch.equal(tensor, expected)


DTYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype)} - {torch.complex32}, key=str
)


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if "q" not in str(dtype)], ids=str)
def test_every_bit_pattern_of_every_datatype_crosses_and_is_compared(dtype: Any) -> None:
    try:
        torch.zeros(1, dtype=torch.uint8).new_zeros(16, device="cuda").view(dtype)
    except RuntimeError as error:
        pytest.skip(f"no tensor of it: {error}")
    # Every pair of bytes comes up: each half that there is, and so each of its NaNs.
    pattern = torch.arange(1 << 16, device="cuda").to(torch.int32).view(torch.uint8).reshape(-1, 4)[:, :2]
    raw = pattern.repeat_interleave(8, 0).reshape(-1).contiguous()
    proxy, other = Proxy(State({"tensor": raw.view(dtype)})), State({"tensor": raw.view(dtype)})
    for at in (0, 1, 777_777, 1_000_001):
        image = proxy.capture()
        assert image == whole(other)
        assert bytes(raw.cpu().numpy()) in image
        raw[at] += 1
        assert proxy.capture() == whole(other)
        raw[at] -= 1
        assert proxy.capture() == whole(other)


def test_where_a_device_lacks_memory_everything_crosses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_of_a_mirror, "DEVICE_SPARE", 1.0)
    tensor = torch.zeros(64 * CHUNK, dtype=torch.uint8, device="cuda")
    proxy, other = Proxy(State({"tensor": tensor})), State({"tensor": tensor})
    for at in range(4):
        tensor[at * CHUNK] = 1
        assert proxy.capture() == whole(other)
    assert proxy.compared >= tensor.nbytes
