"""Builds the wheels into `dist`: `.venv/bin/python tools/wheels.py [--pure]`.

`hams_sdk` and `hams` for every platform, and `hams` once more for this one with the core as machine code, if
tools/compile.py has made it of exactly these sources. pip takes the one for the platform where it fits, else
the pure one.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
sys.path.insert(0, str(ROOT / "sidecar"))

import hams_compiled  # noqa: E402


def compilation() -> Path | None:
    """The core as machine code, if it was made of exactly these sources by this interpreter."""
    made = Path(sys.prefix) / "compiled" / hams_compiled.digest(ROOT / "sidecar")
    return made if (made / ".complete").is_file() else None


def wheel(project: str, machine_code: Path | None = None) -> Path:
    """Build one project's wheel with the locked build backend. Raises CalledProcessError."""
    folder = DIST / ".one"
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    environment = {**os.environ, "HAMS_MACHINE_CODE": "" if machine_code is None else str(machine_code)}
    subprocess.run([*command, "--wheel-dir", str(folder), project], check=True, cwd=ROOT, env=environment)
    (made,) = folder.glob("*.whl")
    path = made.rename(DIST / made.name)
    folder.rmdir()
    return path


def main(arguments: list[str]) -> int:
    """Returns 0; 1 when a build failed; 2 on a wrong call."""
    if arguments not in ([], ["--pure"]):
        print(f"usage: tools/wheels.py [--pure]; found: {arguments}", file=sys.stderr)
        return 2
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    machine_code = None if arguments else compilation()
    try:
        made = [wheel("./model-sdk"), wheel(".")]
        if machine_code is not None:
            made.append(wheel(".", machine_code))
    except subprocess.CalledProcessError as error:
        print(f"wheels: pip failed with exit code {error.returncode}, see above", file=sys.stderr)
        return 1
    for path in made:
        print(f"wheels: {path.relative_to(ROOT)}  {path.stat().st_size / (1 << 20):.1f} MiB")
    if machine_code is None and not arguments:
        print(
            "wheels: none with the core as machine code, as there is no compilation: make compile makes one"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
