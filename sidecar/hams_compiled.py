"""Which copy of the protocol core a process imports: the sources, or the same sources compiled to machine code by mypyc.

`python tools/compile.py` puts the compiled copy into a folder that is named by the digest of the sources. `activate()` runs at interpreter
start (a `.pth` file says so), computes the digest of the sources that would be imported, and puts the folder of that name first on the
path, if there is one. So an edited source is never shadowed by an older compilation, and without any compilation everything runs as it is.

`HAMS_PURE=1` in the environment switches it off.
"""

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("hams_protocol",)
"""What is compiled. Only this: the shells around it are asyncio and foreign code, whose stubs do not always tell the truth."""


def sources(root: Path) -> Iterator[Path]:
    """The files of the packages, below the folder that holds them."""
    for package in PACKAGES:
        yield from sorted((root / package).rglob("*.py"))


def digest(root: Path) -> str:
    """Names a compilation: the sources below `root`, and the interpreter they are compiled for."""
    found = hashlib.sha256(sys.implementation.cache_tag.encode())
    for path in sources(root):
        found.update(path.relative_to(root).as_posix().encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:16]


def folder() -> Path:
    """Where the compilations of this environment are kept."""
    return Path(sys.prefix) / "compiled"


def activate() -> str | None:
    """Put the compilation first on the path; returns the folder, None if the sources are used."""
    home = folder()
    if os.environ.get("HAMS_PURE") == "1" or not home.is_dir():
        return None
    root = next((Path(entry) for entry in sys.path if entry and (Path(entry) / PACKAGES[0]).is_dir()), None)
    if root is None or root.parent == home:
        return None
    compiled = home / digest(root)
    if not os.path.isfile(compiled / ".complete"):  # nor if this user may not look
        return None
    sys.path.insert(0, str(compiled))
    return str(compiled)


def deactivate() -> None:
    """Import the sources after all, in this process: for tests that look inside. Before the core is imported."""
    home = str(folder())
    sys.path[:] = [entry for entry in sys.path if not entry.startswith(home)]
