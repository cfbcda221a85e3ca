"""Makes `.venv` from the lock file: one step at a time, once, and never two at the same time.

Runs on a bare Python 3.11 (standard library only), because it is the first thing that runs on a fresh
machine.

A step that is done leaves a stamp in `.venv` which holds the digest of what it was made from. A stamp with
the same digest means there is nothing to do, whatever the file times say. A lock on `.venv.lock` keeps two
`make` runs from installing into one another.

Where the lock was resolved for (CPython 3.11 on Linux x86_64), a step takes exactly the files whose digests
it holds, and our own two projects after them, without any dependency. Elsewhere pip resolves anew, within the
lock's versions.

Usage: `python3 tools/venv.py core` (what check, sim and bench need) or `python3 tools/venv.py torch` (the
deep-learning libraries besides). With TORCH_INDEX=URL in the environment PyTorch comes from that index, such
as one of its builds for processors only.
"""

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import lock

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCK = ROOT / "requirements.lock"
HERE = Path(__file__).resolve()
SOURCES = [
    ROOT / "pyproject.toml",
    ROOT / "model-sdk" / "pyproject.toml",
    LOCK,
    HERE,
    HERE.with_name("lock.py"),
]
PYTHON_MIN = (3, 11)
SAID_MB_MIN = 20.0
"""A file this large is told while it is fetched, also where there is no terminal."""

# The build backend goes in first, so that the editable installs need no isolated build environment and stay
# within the lock.
OWN = ["--no-build-isolation", "-e", "./model-sdk", "-e", "."]
RESOLVED = {
    "core": [["hatchling", "editables"], ["--no-build-isolation", "-e", "./model-sdk", "-e", ".[dev]"]],
    "torch": [["--no-build-isolation", "-e", "./model-sdk[torch]", "-e", ".[dev,examples]"]],
}
"""What pip resolves where the lock's digests are of another platform's files."""
ABOUT = {
    "core": "the runtime and its tools: about 200 MB to fetch, 1 GB on disk",
    "torch": "PyTorch and scikit-learn: several GB to fetch, 5.3 GB on disk",
}
GPU = re.compile(r"^(nvidia-|cuda-|triton$)")
"""What PyTorch needs for GPUs only."""


def digest(step: str) -> str:
    """What `step` is made from, as one hash: the interpreter, both projects, the lock file, this tool, where
    PyTorch is from."""
    parts = [step.encode(), sys.version.encode(), str(ROOT).encode()] + [
        path.read_bytes() for path in SOURCES
    ]
    parts.append(os.environ.get("TORCH_INDEX", "").encode() if step == "torch" else b"")
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def stamp_of(step: str) -> Path:
    """Where `step` notes that it is done; the Makefile depends on these files."""
    return VENV / f".{step}"


def make_venv() -> None:
    """Creates `.venv` if its interpreter is missing or does not start; raises CalledProcessError if this
    Python cannot make one."""
    python = VENV / "bin" / "python"
    if (
        python.exists()
        and subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode
        == 0
    ):
        return
    if VENV.exists():
        shutil.rmtree(VENV)
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)


def is_the_locks() -> bool:
    """Whether the lock was resolved for this interpreter and machine."""
    return (
        sys.implementation.name == "cpython"
        and sys.version_info[:2] == (3, 11)
        and sys.platform == "linux"
        and platform.machine() == "x86_64"
    )


def calls(step: str, hashed: bool, torch_index: str = "") -> list[tuple[list[str], str]]:
    """The installations of a step, one after another: pip's arguments, and the text of the file FILE among
    them."""
    if not hashed:
        return [(["--constraint", "FILE", *arguments], lock.constraints()) for arguments in RESOLVED[step]]
    exact = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--requirement", "FILE"]
    packages = list(lock.entries(lock.section(step)))
    commands: list[tuple[list[str], str]] = []
    if step == "torch" and torch_index:
        version = next(item.version for item in packages if item.name == "torch")
        packages = [item for item in packages if item.name != "torch" and not GPU.match(item.name)]
        commands.append((["--no-deps", "--index-url", torch_index, f"torch=={version}"], ""))
    commands.append((exact, "".join(item.text for item in packages)))
    if step == "core":
        commands.append((["--no-deps", "--no-index", *OWN], ""))
    return commands


class Progress:
    """Says what pip is about: one line that changes on a terminal, and lines for what is large elsewhere.

    `packages`: how many there will be; 0: pip finds out.
    """

    def __init__(self, step: str, packages: int) -> None:
        self._step = step
        self._packages = packages
        self._seen = 0
        self._fetched_mb = 0.0
        self._live = sys.stdout.isatty()

    def line(self, text: str) -> None:
        """One line of pip's output."""
        words = text.split()
        if text.startswith(("Collecting", "Requirement already satisfied")):
            self._seen += 1
            self._tell(words[1] if words[0] == "Collecting" else words[3], False)
        elif words[:1] == ["Downloading"] or words[:2] == ["Using", "cached"]:
            size = re.search(r"\(([0-9.]+) (kB|MB|GB)\)", text)
            if size and not words[-3].endswith(".metadata"):
                amount = float(size[1]) * {"kB": 0.001, "MB": 1.0, "GB": 1000.0}[size[2]]
                self._fetched_mb += amount if words[0] == "Downloading" else 0.0
                name = words[-3].rpartition("/")[2].partition("-")[0]
                self._tell(f"{name}, {amount:.0f} MB", amount >= SAID_MB_MIN)
        elif text.startswith("Installing collected packages"):
            self._tell("unpacking", self._fetched_mb >= SAID_MB_MIN)

    def end(self) -> None:
        """Leave the line that changes."""
        if self._live:
            print("\r\033[K", end="", flush=True)

    def _tell(self, what: str, large: bool) -> None:
        seen = f"{self._seen} of {self._packages}" if self._packages else str(self._seen)
        text = f"setup: {self._step}: {seen} packages, {self._fetched_mb:.0f} MB fetched: {what}"
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\033[K{text[:width]}", end="", flush=True)
        elif large:
            print(text, flush=True)


def pip(arguments: list[str], text: str, progress: Progress) -> None:
    """One installation. Raises CalledProcessError, and pip has said why."""
    words = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install"]
    words += ["--progress-bar", "off", "--no-input"]
    file = VENV / "wanted.txt"
    file.write_text(text)
    words += [str(file) if word == "FILE" else word for word in arguments]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            progress.line(line.strip())
    progress.end()
    file.unlink()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words)


def install(step: str) -> None:
    """Everything of a step. Raises CalledProcessError."""
    hashed = is_the_locks()
    if not hashed:
        print(
            "setup: this is not CPython 3.11 on Linux x86_64: versions are the lock's, digests are not "
            "compared"
        )
    for arguments, text in calls(step, hashed, os.environ.get("TORCH_INDEX", "")):
        pip(arguments, text, Progress(step, len(list(lock.entries(text)))))
    if hashed and not os.environ.get("TORCH_INDEX"):
        check = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "check"]
        subprocess.run(check, check=True, stdout=subprocess.DEVNULL)


def size_mb(folder: Path) -> float:
    """What a folder takes on the disk."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*")) / 1e6


def main(argv: list[str]) -> int:
    """Makes the steps named in `argv`; returns 0 when each is done, 1 when one failed, 2 on a wrong call."""
    if not argv or any(step not in RESOLVED for step in argv):
        print(f"usage: tools/venv.py STEP...; steps: {', '.join(RESOLVED)}; found: {argv}", file=sys.stderr)
        return 2
    if sys.version_info < PYTHON_MIN:
        needed, version = ".".join(map(str, PYTHON_MIN)), sys.version.split()[0]
        print(
            f"setup: HAMS needs Python {needed} or newer; {sys.executable} is {version}. Name another one: "
            "make setup PYTHON=...",
            file=sys.stderr,
        )
        return 1
    with open(ROOT / ".venv.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        try:
            for step in argv:
                wanted, stamp = digest(step), stamp_of(step)
                if stamp.exists() and stamp.read_text() == wanted:
                    stamp.touch()
                    continue
                started = time.monotonic()
                about = ABOUT[step]
                if step == "torch" and "TORCH_INDEX" in os.environ:
                    about = "scikit-learn, and PyTorch from TORCH_INDEX, without what is for GPUs"
                print(f"setup: {step} into .venv ({about}; versions from {LOCK.name})", flush=True)
                make_venv()
                install(step)
                stamp.write_text(wanted)
                took = f"{time.monotonic() - started:.0f} s"
                print(f"setup: {step} done in {took}; .venv has {size_mb(VENV):.0f} MB", flush=True)
        except subprocess.CalledProcessError as error:
            print(
                f"setup: this command failed with exit code {error.returncode}: "
                f"{' '.join(map(str, error.cmd))}",
                file=sys.stderr,
            )
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
