"""Installs the wheels of `dist` as a stranger does, and runs a graph from them:
`python3 tools/check_wheels.py`.

A fresh environment outside the checkout, a fresh HOME, the newest versions that the bounds allow and no lock.
Then `hams init`, `up`, a request, a kill, another request that must know of the first, `down`, and nothing is
left. If there is a wheel with machine code, pip must choose it, it must run on its machine code, and the pure
one does the same after it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
COMMAND_S = 120.0
"""No command of this check takes longer; an installation takes what the index takes."""


class Failed(Exception):
    """What went wrong."""


class Stranger:
    """A person with an empty home and an environment of his own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "venv" / "bin"
        names = ("PATH", "LANG", "PIP_CERT", "PIP_INDEX_URL", "PIP_FIND_LINKS", "SSL_CERT_FILE")
        environment = {name: os.environ[name] for name in names if name in os.environ}
        self.environment = {
            **environment,
            "HOME": str(folder / "home"),
            "PATH": f"{self.bin}:{environment['PATH']}",
        }
        (folder / "home").mkdir()

    def run(self, *words: str | Path, timeout_s: float | None = COMMAND_S) -> str:
        """One command that must work; what it printed. Raises Failed."""
        print(
            f"$ {' '.join(Path(word).name if word == words[0] else str(word) for word in words)}", flush=True
        )
        try:
            done = subprocess.run(
                list(map(str, words)),
                cwd=self.folder,
                env=self.environment,
                text=True,
                capture_output=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"{words[0]} took longer than {timeout_s:g} s") from None
        if done.returncode:
            raise Failed(f"exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def pip(self, *words: str | Path) -> None:
        """Install. Raises Failed."""
        self.run(
            self.bin / "python",
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "--quiet",
            *words,
            timeout_s=None,
        )

    def hams(self, *words: str) -> str:
        """One command of ours. Raises Failed."""
        return self.run(self.bin / "hams", *words)


def count(url: str, key: str) -> list[int]:
    """What the graph answers to three rows: which numbers they have."""
    tensor = {"name": "value", "datatype": "FP32", "shape": [3], "data": [1, 2, 3]}
    request = urllib.request.Request(
        f"{url}/v2/models/hello/infer", json.dumps({"inputs": [tensor]}).encode(), {"Idempotency-Key": key}
    )
    with urllib.request.urlopen(request, timeout=COMMAND_S) as response:
        outputs = {item["name"]: item["data"] for item in json.load(response)["outputs"]}
    return list(outputs["count"])


def expect(what: str, value: object, wanted: object) -> None:
    """Raises Failed."""
    if value != wanted:
        raise Failed(f"{what}: expected {wanted}, found {value}")
    print(f"  {what}: {value}", flush=True)


def try_out(person: Stranger) -> None:
    """A first graph from start to end. Raises Failed."""
    shutil.rmtree(person.folder / "hello", ignore_errors=True)
    person.hams("init", "hello")
    try:
        person.hams("up", "hello/graph.yaml", "--detach")
        url = json.loads(person.hams("status", "--output", "json"))["url"]
        expect("the first request", count(url, "one"), [1, 2, 3])
        person.hams("kill", "mean")
        expect("after the kill", count(url, "two"), [4, 5, 6])
        expect("the first request again", count(url, "one"), [1, 2, 3])
    finally:
        person.hams("down", "--all")
    left = [path.name for path in (person.folder / "home").glob(".local/state/hams/*/run.json")]
    expect("runs left", left, [])


def core_of(person: Stranger) -> str:
    """Which form of the core an interpreter of the environment imports."""
    code = "import hams_protocol.graph as core; print(core.__file__)"
    return (
        "machine code" if person.run(person.bin / "python", "-c", code).strip().endswith(".so") else "sources"
    )


def check(folder: Path) -> None:
    """Everything, in this folder. Raises Failed."""
    (pure,) = DIST.glob("hams-*-none-any.whl")
    compiled = any(path != pure for path in DIST.glob("hams-*.whl"))
    person = Stranger(folder)
    person.run(sys.executable, "-P", "-m", "venv", folder / "venv")  # -P: tools/venv.py is another one
    person.pip("hams[local]", "--find-links", DIST)  # as docs/install-pip.md says
    version = re.search(r"hams-([^-]+)-", pure.name)
    expect("the version", person.hams("--version").split()[1], version[1] if version else "")
    expect("the core", core_of(person), "machine code" if compiled else "sources")
    try_out(person)
    if compiled:
        person.pip("--force-reinstall", "--no-deps", pure)
        expect("the core", core_of(person), "sources")
        try_out(person)
    else:
        print("check-wheels: no wheel with machine code was checked, as none was built")


def main() -> int:
    """Returns 0; 1 and what went wrong."""
    with tempfile.TemporaryDirectory(prefix="hams-wheels-") as folder:
        try:
            check(Path(folder))
        except Failed as error:
            print(f"check-wheels: {error}", file=sys.stderr)
            return 1
    print("check-wheels: the wheels install and run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
