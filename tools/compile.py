"""Compiles the protocol core with mypyc, if this machine has a C compiler:
`.venv/bin/python tools/compile.py`.

The sources stay what they are and remain in use wherever there is no compilation of exactly them
(`hams_compiled`). What is compiled is kept until the sources change; older compilations are removed.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIDECAR = ROOT / "sidecar"
sys.path.insert(0, str(SIDECAR))

import native  # noqa: E402

import hams_compiled  # noqa: E402

LEFT_OUT = {"frozen.py"}
"""A decorator, which runs at import time only and gives functions attributes of their own."""

COMPILATIONS_MAX = 4
"""Compilations kept: one for each branch that somebody goes back and forth between."""

SETUP = """
import os
from concurrent.futures import ThreadPoolExecutor

from mypyc.build import mypycify
from setuptools import setup
from setuptools.command.build_ext import build_ext


class SourcesBesideEachOther(build_ext):
    def build_extension(self, ext):
        def compiled(source):
            return self.compiler.compile(
                [source],
                output_dir=self.build_temp,
                macros=ext.define_macros,
                include_dirs=ext.include_dirs,
                extra_postargs=ext.extra_compile_args,
            )

        if len(ext.sources) > 1:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                ext.extra_objects = [made for some in pool.map(compiled, ext.sources) for made in some]
            ext.sources = []
        super().build_extension(ext)


modules = mypycify(
    ["--config-file", "mypy.ini", *{names!r}], opt_level={optimise!r}, debug_level="0", multi_file=True
)
setup(
    name="hams-compiled",
    packages=[],
    ext_modules=modules,
    cmdclass={{"build_ext": SourcesBesideEachOther}},
)
"""
"""One C file for each module, as many at a time as there are cores. As one file of 160 MB they take the C
compiler more than twice its time, and one core; what comes out is as fast."""

PTH = Path(sysconfig.get_path("purelib")) / "hams_compiled.pth"


def compiler() -> list[str] | None:
    """A C compiler: CC, cc, gcc, clang, or the one that the package `ziglang` brings."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and shutil.which(name.split()[0]):
            return name.split()
    if (
        subprocess.run([sys.executable, "-c", "import ziglang"], capture_output=True, check=False).returncode
        == 0
    ):
        return [sys.executable, "-m", "ziglang", "cc"]
    return None


def _made_by(optimise: str) -> str:
    """What besides the sources decides what comes out, as one hash: this tool, how classes are written out,
    mypyc, how hard the compiler tries."""
    parts = [
        Path(__file__).read_bytes(),
        Path(native.__file__).read_bytes(),
        version("mypy").encode(),
        optimise.encode(),
    ]
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def build(target: Path, cc: list[str], optimise: str) -> bool:
    """Compile into `target`; False if it cannot be done, and then it said why."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="building-") as scratch:
        work = Path(scratch)
        for path in hams_compiled.sources(SIDECAR):
            copy = work / path.relative_to(SIDECAR)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(native.plain(path.read_text(encoding="utf-8")), encoding="utf-8")
        names = [
            str(path.relative_to(SIDECAR))
            for path in hams_compiled.sources(SIDECAR)
            if path.name not in LEFT_OUT
        ]
        (work / "mypy.ini").write_text("[mypy]\n")  # types are judged by `make check`
        (work / "setup.py").write_text(SETUP.format(names=names, optimise=optimise))
        environment = {
            **os.environ,
            "CC": " ".join(cc),
            "LDSHARED": " ".join([*cc, "-shared"]),
            "HAMS_PURE": "1",
        }
        done = subprocess.run(
            [
                sys.executable,
                "setup.py",
                "--quiet",
                "build_ext",
                "--inplace",
                f"--parallel={os.cpu_count() or 1}",
            ],
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            print("compile: " + "\n".join((done.stdout + done.stderr).splitlines()[-20:]), file=sys.stderr)
            return False
        for rubbish in ("build", ".mypy_cache", "setup.py", "mypy.ini"):
            path = work / rubbish
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        (work / ".complete").write_text(_made_by(optimise))
        work.rename(target)
        work.mkdir()  # what the context removes
    return True


def main() -> int:
    """Compile what is not compiled yet."""
    home = hams_compiled.folder()
    home.mkdir(exist_ok=True)
    target = home / hams_compiled.digest(SIDECAR)
    with (home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        optimise = os.environ.get("HAMS_OPTIMISE", "2")
        stamp = target / ".complete"
        if stamp.is_file() and stamp.read_text() == _made_by(optimise):
            print(f"compile: nothing to do, {target.name} is there")
            return 0
        cc = compiler()
        missing = (
            "C compiler"
            if cc is None
            else None
            if (Path(sysconfig.get_path("include")) / "Python.h").exists()
            else "Python.h"
        )
        if cc is None or missing is not None:
            print(
                f"compile: no {missing} here, so the core runs as Python: it works the same, and takes "
                "about twice the time"
            )
            return 0
        began = time.monotonic()
        if target.exists():  # made by another compiler, or not to its end
            shutil.rmtree(target)
        if not build(target, cc, optimise):
            return 1
        others = sorted(
            (path for path in home.iterdir() if path.is_dir() and path != target),
            key=lambda path: path.stat().st_mtime,
        )
        for old in others[: -COMPILATIONS_MAX + 1]:
            shutil.rmtree(old)
        shutil.copyfile(ROOT / "tools" / "hams_compiled.pth", PTH)
        print(f"compile: the core, {target.name} in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
