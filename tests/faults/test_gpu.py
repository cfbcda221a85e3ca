"""States on a GPU, with real processes. Needs a CUDA device."""

from pathlib import Path

import pytest

from tests.faults.harness import changed, run_graph

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.process,
    pytest.mark.etcd,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ON_A_GPU = (
    'entrypoint: "nonce.models:Tally", config: {stateBytes: 65536}',
    'entrypoint: "nonce.gpu:Tally", config: {stateBytes: 4194304}',
)


@pytest.mark.parametrize("process", ["both", "model"])
async def test_f1_f4_a_state_on_a_gpu_outlives_its_primaries_and_their_models(
    tmp_path: Path, process: str
) -> None:
    async with (
        run_graph("line.yaml", tmp_path, graphs=changed(tmp_path, ON_A_GPU)) as run,
        run.load(clients=8),
    ):
        for operator in ("first", "last", "first"):
            await run.answered(80)
            await run.kill(operator, "primary", process)
            await run.answered(80)
            await run.redundant()
    print(f"\n{len(run.replies)} replies, median {run.took_s(0.5):.4f} s, slowest {run.took_s(1.0):.3f} s")
    run.verify()
