"""`hams up --check`: every model is proved to fit its operator before anything is started.

It is `hams-model check` for each operator, in processes of their own: the SDK and the models are no part of
this one.
"""

import concurrent.futures
import hashlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from hams_graph.document import read_text
from hams_graph.resource import KIND
from hams_operator.cli.output import complain
from hams_operator.local.home import GraphHome
from hams_protocol.graph import Graph, Operator

model_check_s = 120.0
"""One check of a model by `hams up --check`; one that takes longer is given up, and the graph is started all
the same."""

model_checks_at_once = 2
"""Checks beside each other: each may load a deep-learning library."""

sources_digested_max = 1000
"""Python files beside a graph whose change has its models checked again."""


UNKNOWN = 3
"""Exit status of `hams-model check` for a model that raised on made-up data: a warning, as real requests may
be served."""


def check_models(graph: Graph, file: Path) -> None:
    """Check each model of `graph`, which was read from `file`. Raises CommandError with the reports of those
    that do not fit.

    Models that fit are checked again only when the graph, a Python file beside it or the interpreter has
    changed.
    """
    passed = GraphHome(graph.data.name).folder / "checked"
    subject = _subject(graph, file)
    if passed.exists() and passed.read_text(encoding="utf-8") == subject:
        return
    sys.stderr.write(f"checking the models of {graph.data.name} (--no-check leaves that out) ...\n")
    with tempfile.TemporaryDirectory(prefix="hams-up-check-") as folder:
        # As JSON, since the interpreter of a model may have no YAML.
        copy = Path(folder) / "graph.json"
        copy.write_text(json.dumps(read_text(file.read_text(encoding="utf-8"), KIND).root), encoding="utf-8")
        with concurrent.futures.ThreadPoolExecutor(model_checks_at_once) as pool:
            done = list(pool.map(lambda op: _check(op, copy, file), graph.data.operators))
    wrong = []
    fit = True
    for op, (status, report) in zip(graph.data.operators, done, strict=True):
        if status != 0:
            fit = False
            sys.stderr.write(report)
        if status not in (0, UNKNOWN):
            wrong.append(op.name)
    if wrong:
        complain(
            f"{', '.join(wrong)}: no fitting model; nothing was started (--no-check starts it all the same)"
        )
    if fit:
        passed.parent.mkdir(parents=True, exist_ok=True)
        passed.write_text(subject, encoding="utf-8")


def _subject(graph: Graph, file: Path) -> str:
    """A digest of what a check depends on, as far as it lies in the folder of the graph file."""
    digest = hashlib.sha256(f"{sys.version}\0{sys.executable}\0{graph.data}".encode())
    sources = itertools.islice(file.resolve().parent.rglob("*.py"), sources_digested_max)
    for source in sorted(sources):
        digest.update(f"\0{source}\0".encode() + source.read_bytes())
    return digest.hexdigest()


def _check(op: Operator, graph: Path, file: Path) -> tuple[int, str]:
    """Exit status and report of one check. `graph`: what is read of `file`."""
    folder = file.resolve().parent
    command = [op.model.python or sys.executable, "-m", "hams_sdk", "check", op.model.entrypoint]
    command += ["--graph", str(graph), "--operator", op.name, "--path", str(folder)]
    environment = {"OMP_NUM_THREADS": "1", **os.environ, **dict(op.model.env)}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=model_check_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return UNKNOWN, f"{op.name}: its check was given up after {model_check_s:.0f} s\n"
    except OSError as error:
        return 1, f"{op.name}: {command[0]}: {error.strerror}\n"
    return done.returncode, done.stdout.replace(str(graph), str(file))
