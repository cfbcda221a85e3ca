"""The wheels that Dockerfiles take, in `out/wheels/IMAGE`: versions of requirements.lock, for CPython 3.11 on
Linux x86_64, whatever runs here.

Only this step needs a package index; builds of images need no network. An image whose wheels are made from
the same files is left alone.

Usage: `python images/wheels.py IMAGE...`, with the Python of `.venv`.
"""

import hashlib
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "sidecar"))

sys.path.insert(0, str(ROOT / "tools"))

import lock  # noqa: E402

import hams_compiled  # noqa: E402

OUT = ROOT / "out" / "wheels"
LOCK = ROOT / "requirements.lock"
TARGET = [
    "--python-version",
    "3.11",
    "--implementation",
    "cp",
    "--platform",
    "manylinux_2_28_x86_64",
    "--platform",
    "manylinux2014_x86_64",
]
TARGET += ["--platform", "manylinux_2_17_x86_64", "--only-binary", ":all:"]

PYTHON = "cpython-311"
ACTIVATION = Path(sysconfig.get_path("purelib")) / "hams_compiled.pth"
"""What makes an interpreter look for a compilation when it starts; `make compile` has put it there."""
COMPILED = ("sidecar",)
"""Images whose processes spend their time in the core."""

OWN = {"sidecar": (".", "frontend"), "controller": (".", "operator"), "model": ("./model-sdk", "")}
"""Project and extra of each image."""
EXAMPLES: dict[str, tuple[str, ...]] = {
    "chain": (),
    "digits": ("torch", "scikit-learn"),
    "next-word": (),
    "reading": (),
    "semantic-cache": ("scikit-learn",),
    "stocks": ("scikit-learn",),
}
"""What an example's models import besides NumPy."""


def pip(*words: str | Path) -> None:
    """Raises CalledProcessError."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--quiet",
        *(str(word) for word in words),
    ]
    subprocess.run(command, check=True, cwd=ROOT)


class NotLocked(Exception):
    """The index served a file whose digest is not in the lock; the text says which."""


def download(folder: Path, *wanted: str) -> None:
    """Fetch wheels of the lock's versions for the images' Python, and compare each with the lock before
    anything is installed. Our own wheels, which were built here, are left out. Raises CalledProcessError,
    NotLocked."""
    note = folder / "constraints.txt"
    note.write_text(lock.constraints())
    pip("download", *TARGET, "--constraint", note, "--dest", folder, *wanted)
    note.unlink()
    known = {item.name: item.digests for item in lock.entries(LOCK.read_text(encoding="utf-8"))}
    for path in sorted(folder.glob("*.whl")):
        name = path.name.partition("-")[0].lower().replace("_", "-").replace(".", "-")
        if name in ("hams", "hams-sdk"):
            continue
        if hashlib.sha256(path.read_bytes()).hexdigest() not in known.get(name, ()):
            path.unlink()
            raise NotLocked(f"{path.name}: expected a file whose digest is in {LOCK.name}, found another one")


def sources(project: str) -> str:
    """What a project's wheel is made from, as one hash."""
    folders = {".": ["sidecar", "operator", "examples/digits"], "./model-sdk": ["model-sdk"]}[project]
    files = sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )
    digest = hashlib.sha256()
    for path in [ROOT / "pyproject.toml", LOCK, Path(__file__), *files]:
        digest.update(
            str(path.relative_to(ROOT)).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest()
        )
    return digest.hexdigest()


def compilation() -> Path | None:
    """The core as machine code, if `make compile` has made it of exactly these sources, for the Python of the
    images."""
    if sys.implementation.cache_tag != PYTHON or not ACTIVATION.exists():
        return None
    made = hams_compiled.folder() / hams_compiled.digest(ROOT / "sidecar")
    return made if (made / ".complete").is_file() else None


def fresh(folder: Path, key: str) -> bool:
    """Whether the folder was made from `key`; otherwise it is empty now."""
    note = folder / "made-from"
    if note.exists() and note.read_text() == key:
        return True
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return False


def make(image: str, thin: bool = False) -> None:
    """Fill the folder of one image. `thin`: an example without what only it needs. Raises CalledProcessError,
    KeyError."""
    if image.startswith("example-"):
        _make_example(image, () if thin else EXAMPLES[image.removeprefix("example-")])
        return
    project, extra = OWN[image]
    folder = OUT / image
    compiled = compilation() if image in COMPILED else None
    if fresh(folder, key := sources(project) + (compiled.name if compiled else "")):
        return
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, project)
    own = next(folder.glob("hams*.whl"))
    download(folder, f"{own}[{extra}]" if extra else str(own))
    if image in COMPILED:
        _add_compiled(folder / "compiled", compiled)
    (folder / "made-from").write_text(key)


def _add_compiled(folder: Path, compiled: Path | None) -> None:
    """What Dockerfiles put beside the installed sources; an empty folder where there is nothing."""
    folder.mkdir()
    if compiled is not None:
        shutil.copytree(compiled, folder / compiled.name, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / compiled.name).chmod(0o755)  # for every user
        shutil.copy2(hams_compiled.__file__, folder)
        shutil.copy2(ACTIVATION, folder)


def _make_example(image: str, needs: tuple[str, ...]) -> None:
    folder = OUT / image
    if fresh(folder, key := hashlib.sha256(repr(needs).encode() + LOCK.read_bytes()).hexdigest()):
        return
    if needs:
        download(folder, *needs)
        for path in folder.glob("numpy-*.whl"):  # the base has it
            path.unlink()
    (folder / "made-from").write_text(key)


def main(images: list[str], thin: Sequence[str] = ()) -> int:
    """Returns 0; 1 when pip failed; 2 on a wrong call."""
    known = [*OWN, *(f"example-{name}" for name in EXAMPLES)]
    if not images or any(image not in known for image in images):
        print(
            f"usage: images/wheels.py IMAGE...; images: {', '.join(known)}; found: {images}", file=sys.stderr
        )
        return 2
    try:
        for image in images:
            make(image, image in thin)
    except subprocess.CalledProcessError as error:
        print(f"wheels: pip failed with exit code {error.returncode}, see above", file=sys.stderr)
        return 1
    except NotLocked as error:
        print(f"wheels: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
