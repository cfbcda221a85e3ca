"""The build hook of the wheel `hams`: with HAMS_MACHINE_CODE=FOLDER the wheel carries the core as machine
code.

The folder is one that tools/compile.py made. It is taken only if it is named by the digest of the very
sources that go into the wheel. At an interpreter's start `hams_compiled` compares again, so an edited
installation runs its sources. Without the variable the wheel is pure. Editable installations never carry it:
`make compile` serves those.
"""

import os
import re
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

GLIBC_MIN = (2, 17)
"""What the oldest tag of this form asks for; every Linux that Python 3.11 is built for has it."""

ALWAYS_THERE = {b"libc", b"libm", b"libpthread", b"libdl", b"librt"}
"""Libraries that come with glibc: a wheel may need no others from the machine (PEP 600)."""


def platform_of(made: Path) -> str:
    """The platform tag of a compilation: manylinux for the newest glibc that any of its modules asks for. One
    that needs a library beside glibc runs on machines like this one only."""
    needed, glibc = set(), {GLIBC_MIN}
    for path in made.rglob("*.so"):
        data = path.read_bytes()
        needed |= set(re.findall(rb"\0(lib[^\0/]+?)\.so(?:\.[0-9]+)*(?=\0)", data))
        glibc |= {
            (int(first), int(second)) for first, second in re.findall(rb"GLIBC_([0-9]+)\.([0-9]+)", data)
        }
    machine = os.uname().machine
    if needed - ALWAYS_THERE:
        return f"linux_{machine}"
    major, minor = max(glibc)
    return f"manylinux_{major}_{minor}_{machine}"


class MachineCode(BuildHookInterface):  # type: ignore[type-arg,misc]
    """Adds the compilation, what finds it, and the tag of the platform it was made for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raises ValueError for a compilation of other sources."""
        given = os.environ.get("HAMS_MACHINE_CODE", "")
        if version == "editable" or not given:
            return
        from packaging.tags import sys_tags  # noqa: PLC0415 - hatchling brings it

        sidecar = Path(self.root) / "sidecar"
        sys.path.insert(0, str(sidecar))
        import hams_compiled  # noqa: PLC0415 - the tree's own

        made, wanted = Path(given).resolve(), hams_compiled.digest(sidecar)
        if made.name != wanted or not (made / ".complete").is_file():
            raise ValueError(
                f"HAMS_MACHINE_CODE={made}: expected a whole compilation of these sources, {wanted}; make "
                "it with: make compile"
            )
        tag = next(sys_tags())
        build_data["pure_python"] = False
        build_data["tag"] = f"{tag.interpreter}-{tag.abi}-{platform_of(made)}"
        for path in sorted(made.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                there = path.relative_to(made).as_posix()
                build_data["force_include"][str(path)] = f"{hams_compiled.IN_WHEEL}/{wanted}/{there}"
        build_data["force_include"][hams_compiled.__file__] = "hams_compiled.py"
        build_data["force_include"][str(Path(self.root) / "tools" / "hams_compiled.pth")] = (
            "hams_compiled.pth"
        )
