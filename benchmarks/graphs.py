"""Graphs that measurements need beyond the examples, made of `examples/chain`'s models; each is a file like
any user's."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MODELS = Path(__file__).resolve().parent.parent / "examples" / "chain" / "chain"

HEAD = """apiVersion: hams.dev/v1alpha1
kind: ServiceGraph
metadata: {{name: {name}}}
spec:
  mode: {mode}
  frontend: {{requestTimeout: 30s}}
  inputs:
  - {{name: x, datatype: FP32, shape: [-1]}}
  outputs:
{outputs}
  operators:
"""

COUNT = """  - name: {name}
    stateful: {{backups: {backups}, delta: "{delta}"}}
    model: {{entrypoint: "chain.models:{model}", config: {config}}}
    inputs: [{source}.x]
    outputs:
    - {{name: x, datatype: FP32, shape: [-1]}}
    - {{name: count, datatype: INT64, shape: []}}
    batch: {{maxRows: {max_rows}, maxDelay: 0, policy: {policy}}}
"""

PASS = """  - name: {name}
    model: {{entrypoint: "chain.models:Pass"}}
    inputs: [{source}.x]
    outputs:
    - {{name: x, datatype: FP32, shape: [-1]}}
    standby: {{hot: 1}}
    batch: {{maxRows: 64, maxDelay: 0, policy: {policy}}}
"""


def stateful(
    name: str,
    source: str,
    config: str = "{stateBytes: 4096}",
    backups: int = 1,
    model: str = "Count",
    max_rows: int = 64,
    delta: str = "Auto",
    policy: str = "Fifo",
) -> str:
    """One stateful operator."""
    return COUNT.format(
        name=name,
        source=source,
        config=config,
        backups=backups,
        model=model,
        max_rows=max_rows,
        delta=delta,
        policy=policy,
    )


def stateless(name: str, source: str, policy: str = "Fifo") -> str:
    """One stateless operator with a hot standby."""
    return PASS.format(name=name, source=source, policy=policy)


@contextmanager
def one_frontend(file: Path) -> Iterator[Path]:
    """A copy of a chain's graph file that asks for one frontend instead of two. Raises ValueError if the file
    says how many it wants."""
    head, spec, rest = file.read_text().partition("\nspec:\n")
    if not spec or "\n  frontend:" in f"\n{rest}":
        raise ValueError(f"{file}: expected a spec without `frontend`")
    with tempfile.TemporaryDirectory(prefix="hams-bench-") as folder:
        (Path(folder) / "chain").symlink_to(MODELS)
        path = Path(folder) / file.name
        path.write_text(f"{head}{spec}  frontend: {{replicas: 1}}\n{rest}")
        yield path


@contextmanager
def graph_file(
    name: str, operators: list[str], outputs: dict[str, str], mode: str = "NonStop"
) -> Iterator[Path]:
    """A graph file in a folder of its own, beside the models it names."""
    lines = "\n".join(f"  - {{name: {tensor}, from: {source}}}" for tensor, source in outputs.items())
    with tempfile.TemporaryDirectory(prefix="hams-bench-") as folder:
        (Path(folder) / "chain").symlink_to(MODELS)
        path = Path(folder) / "graph.yaml"
        path.write_text(HEAD.format(name=name, outputs=lines, mode=mode) + "".join(operators))
        yield path
