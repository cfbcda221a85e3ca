"""Which copy of the protocol core a process imports: the sources, or the same sources compiled to machine
code by mypyc.

`python tools/compile.py` puts the compiled copy into a folder that is named by the digest of the sources; a
wheel for one platform brings such a folder along. `activate()` runs at interpreter start (a `.pth` file says
so), computes the digest of the sources that would be imported, and puts the folder of that name first on the
path, if there is one. So an edited source is never shadowed by an older compilation, and without any
compilation everything runs as it is.

The simulator may be compiled as well (`--simulator`), for processes that simulate and for no others: `hams
sim` asks `simulator()` for it. It is no part of the core's compilation and has no core in it, so histories
are those of the core that serves.

`HAMS_PURE=1` in the environment switches both off.
"""

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGES = ("hams_protocol", "hams_schedule")
"""What is compiled. Only these: the shells around it are asyncio and foreign code, whose stubs do not always
tell the truth."""

SIMULATED = (*PACKAGES, "hams_history", "hams_wire", "hams_sim")
"""What a compilation of the simulator was made from. Constants of all of them may be part of it."""


IN_WHEEL = "hams_machine_code"
"""The folder of compilations in a wheel: beside the sources that they were made from."""


def sources(root: Path, packages: Iterable[str] = PACKAGES) -> Iterator[Path]:
    """The files of the packages, below the folder that holds them."""
    for package in packages:
        yield from sorted((root / package).rglob("*.py"))


def digest(root: Path, packages: Iterable[str] = PACKAGES) -> str:
    """Names a compilation: the sources below `root`, and the interpreter they are compiled for."""
    hashed = hashlib.sha256(sys.implementation.cache_tag.encode())
    for path in sources(root, packages):
        hashed.update(
            path.relative_to(root).as_posix().encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest()
        )
    return hashed.hexdigest()[:16]


def folder() -> Path:
    """Where the compilations that were made in this environment are kept."""
    return Path(sys.prefix) / "compiled"


def simulator_folder() -> Path:
    """Where compilations of the simulator are kept: not among those of the core, which wheels and images
    carry."""
    return Path(sys.prefix) / "compiled-simulator"


def folders() -> tuple[Path, ...]:
    """Where compilations are looked for: what was made here, then what a wheel brought."""
    return folder(), Path(__file__).resolve().parent / IN_WHEEL


def activate() -> str | None:
    """Put the compilation first on the path; returns the folder, None if the sources are used."""
    homes = [home for home in folders() if home.is_dir()]
    if os.environ.get("HAMS_PURE") == "1" or not homes:
        return None
    root = next((Path(entry) for entry in sys.path if entry and (Path(entry) / PACKAGES[0]).is_dir()), None)
    if root is None or root.parent in homes:
        return None
    made = _complete(homes, digest(root))
    if made is not None:
        sys.path.insert(0, made)
    return made


def simulator(root: Path) -> str | None:
    """The simulator's compilation for the sources below `root`, to stand first on the path of a process that
    simulates; None if there is none, or the core that it was made beside is not compiled."""
    home = simulator_folder()
    if os.environ.get("HAMS_PURE") == "1" or not home.is_dir():
        return None
    if _complete(folders(), digest(root)) is None:
        return None
    return _complete((home,), digest(root, SIMULATED))


def _complete(homes: Iterable[Path], name: str) -> str | None:
    """The folder of a whole compilation."""
    for home in homes:
        if os.path.isfile(home / name / ".complete"):  # it is not, if this user may not look
            return str(home / name)
    return None


def deactivate() -> None:
    """Import the sources after all, in this process: for tests that look inside. Before the core is
    imported."""
    homes = tuple(map(str, folders()))
    sys.path[:] = [entry for entry in sys.path if not entry.startswith(homes)]
