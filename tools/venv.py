"""Makes `.venv` from the lock file: one step at a time, once, and never two at the same time.

Runs on a bare Python 3.11 (standard library only), because it is the first thing that runs on a fresh machine.

A step that is done leaves a stamp in `.venv` which holds the digest of what it was made from. A stamp with the same digest means there is
nothing to do, whatever the file times say. A lock on `.venv.lock` keeps two `make` runs from installing into one another.

Usage: `python3 tools/venv.py core` (what check, sim and bench need) or `python3 tools/venv.py torch` (the deep-learning libraries besides).
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCK = ROOT / "requirements.lock"
SOURCES = [ROOT / "pyproject.toml", ROOT / "model-sdk" / "pyproject.toml", LOCK, Path(__file__).resolve()]
PYTHON_MIN = (3, 11)

# The build backend goes in first, so that the editable installs need no isolated build environment and stay within the lock.
STEPS = {
    "core": [["hatchling", "editables"], ["--no-build-isolation", "-e", "./model-sdk", "-e", ".[dev]"]],
    "torch": [["--no-build-isolation", "-e", "./model-sdk[torch]", "-e", ".[dev,examples]"]],
}


def digest(step: str) -> str:
    """What `step` is made from, as one hash: the interpreter, both projects, the lock file and this file."""
    parts = [step.encode(), sys.version.encode(), str(ROOT).encode()] + [path.read_bytes() for path in SOURCES]
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def stamp_of(step: str) -> Path:
    """Where `step` notes that it is done; the Makefile depends on these files."""
    return VENV / f".{step}"


def make_venv() -> None:
    """Creates `.venv` if its interpreter is missing or does not start; raises CalledProcessError if this Python cannot make one."""
    python = VENV / "bin" / "python"
    if python.exists() and subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0:
        return
    if VENV.exists():
        shutil.rmtree(VENV)
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)


def install(step: str) -> None:
    """Runs the pip calls of `step` under the lock file's versions; raises CalledProcessError when one fails."""
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--progress-bar", "off"]
    for arguments in STEPS[step]:
        subprocess.run([*pip, "--constraint", str(LOCK), *arguments], check=True, cwd=ROOT)


def main(argv: list[str]) -> int:
    """Makes the steps named in `argv`; returns 0 when each is done, 1 when one failed, 2 on a wrong call."""
    if not argv or any(step not in STEPS for step in argv):
        print(f"usage: tools/venv.py STEP...; steps: {', '.join(STEPS)}; found: {argv}", file=sys.stderr)
        return 2
    if sys.version_info < PYTHON_MIN:
        needed, found = ".".join(map(str, PYTHON_MIN)), sys.version.split()[0]
        print(f"setup: HAMS needs Python {needed} or newer; {sys.executable} is {found}. Name another one: make setup PYTHON=...", file=sys.stderr)
        return 1
    with open(ROOT / ".venv.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            for step in argv:
                wanted, stamp = digest(step), stamp_of(step)
                if stamp.exists() and stamp.read_text() == wanted:
                    stamp.touch()
                    continue
                started = time.monotonic()
                print(f"setup: installing {step} into .venv (versions from {LOCK.name})", flush=True)
                make_venv()
                install(step)
                stamp.write_text(wanted)
                print(f"setup: {step} done in {time.monotonic() - started:.0f} s", flush=True)
        except subprocess.CalledProcessError as error:
            print(f"setup: this command failed with exit code {error.returncode}: {' '.join(map(str, error.cmd))}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
