"""`hams` as users run it: a process with a home of its own, whose every descendant can be found again."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

MODELS = """
import numpy as np
import hams_sdk


class Double(hams_sdk.Model):
    def run(self, batch):
        return {"x": batch["x"] * 2}


class Count(hams_sdk.Model):
    def initialize(self, config):
        self.count = np.zeros((), np.int64)
        return {"count": self.count}

    def run(self, batch, update):
        count = self.count + np.arange(1, len(batch["x"]) + 1)
        with update:
            self.count += len(batch["x"])
        return {"count": count}


class Broken(hams_sdk.Model):
    def initialize(self, config):
        raise ValueError("the weights are nowhere to be found")

    def run(self, batch):
        return {"x": batch["x"]}


class Spoilt(hams_sdk.Model):
    def initialize(self, config):
        import os
        if os.path.exists("spoilt"):
            raise ValueError("the weights have gone bad")

    def run(self, batch):
        return {"x": batch["x"]}


class Slow(hams_sdk.Model):
    def initialize(self, config):
        import threading
        threading.Event().wait()

    def run(self, batch):
        return {"x": batch["x"]}
"""

GRAPH = """
apiVersion: hams.dev/v1alpha1
kind: ServiceGraph
metadata: {{name: {name}}}
spec:
  frontend: {{replicas: 2, shards: 1}}
  managers: {{replicas: 2}}
  inputs: [{{name: x, datatype: FP32, shape: []}}]
  outputs: [{{name: count, from: count.count}}]
  operators:
  - name: double
    model: {{entrypoint: "models:{double}"}}
    inputs: [request.x]
    outputs: [{{name: x, datatype: FP32, shape: []}}]
  - name: count
    stateful: {{backups: 1}}
    model: {{entrypoint: "models:Count"}}
    inputs: [double.x]
    outputs: [{{name: count, datatype: INT64, shape: []}}]
"""


class Hams:
    """Runs `hams` commands with a HAMS_HOME below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.mark = f"HAMS_TEST_MARK={uuid.uuid4()}"
        self.environment = {
            **os.environ,
            "HAMS_HOME": str(self.home),
            self.mark.partition("=")[0]: self.mark.partition("=")[2],
        }
        self.program = [sys.executable, "-m", "hams_operator.cli.main"]

    def graph(self, name: str, double: str = "Double") -> Path:
        """A graph file in a folder of its own."""
        folder = self.folder / name
        folder.mkdir()
        (folder / "models.py").write_text(MODELS)
        (folder / "graph.yaml").write_text(GRAPH.format(name=name, double=double))
        return folder / "graph.yaml"

    def __call__(self, *arguments: object, timeout_s: float = 90) -> "subprocess.CompletedProcess[str]":
        """Run one command to its end."""
        return subprocess.run(
            [*self.program, *map(str, arguments)],
            env=self.environment,
            text=True,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )

    def ok(self, *arguments: object) -> str:
        """Run one command that must work; what it printed."""
        done = self(*arguments)
        assert done.returncode == 0, (
            f"hams {arguments}: {done.returncode}\n{done.stdout}{done.stderr}{self.logs()}"
        )
        return done.stdout

    def json(self, *arguments: object) -> Any:
        """Run one command that must work, with --output json."""
        return json.loads(self.ok(*arguments, "--output", "json"))

    def start(self, *arguments: object) -> "subprocess.Popen[str]":
        """Start one command."""
        return subprocess.Popen(
            [*self.program, *map(str, arguments)],
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def until(self, values: Callable[[], object], what: str, timeout_s: float = 60) -> None:
        """Wait for something to become true."""
        deadline = time.monotonic() + timeout_s
        while not values():
            assert time.monotonic() < deadline, f"never: {what}{self.logs()}"
            time.sleep(0.1)

    def settled(self, name: str) -> bool:
        """Whether a graph is ready and redundant now."""
        conditions = {
            item["type"]: item["status"] for item in self.json("status", "--graph", name)["conditions"]
        }
        return conditions["Ready"] == "True" == conditions["Redundant"]

    def processes(self) -> list[str]:
        """Command lines of everything that any command of this home started and that lives."""
        seen = []
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdecimal() and self.mark.encode() in (folder / "environ").read_bytes():
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    if command:  # zombies have none
                        seen.append(f"{folder.name}: {command}")
            except OSError:
                continue
        return seen

    def logs(self) -> str:
        """The supervisors' logs, for messages."""
        return "".join(
            f"\n--- {path}\n{path.read_text()[-3000:]}" for path in self.home.glob("*/logs/supervisor.log")
        )


@pytest.fixture
def hams(tmp_path: Path) -> Iterator[Hams]:
    """The command; whatever the test leaves running is ended."""
    made = Hams(tmp_path)
    yield made
    made("down", "--all")
    for line in made.processes():
        os.kill(int(line.partition(":")[0]), 9)
