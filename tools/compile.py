"""Compiles the protocol core with mypyc, if this machine has a C compiler:
`.venv/bin/python tools/compile.py`; with `--simulator` the simulator as well.

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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIDECAR = ROOT / "sidecar"
sys.path.insert(0, str(SIDECAR))

import native  # noqa: E402

import hams_compiled  # noqa: E402

LEFT_OUT = {"frozen.py"}
"""A decorator, which runs at import time only and gives functions attributes of their own."""

NOT_SIMULATING = {"arguments.py", "runner.py", "shrink.py", "worker.py", "workers.py"}
"""Of the simulator what starts simulating processes, and `worker.py`, which Python can run as source only."""

SHELL = ("shell.py", "failure_detector.py", "proposals.py", "limits.py")
"""Of the wire what the simulator drives. It is plain Python, without asyncio."""

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
compiler more than twice its time, and one core."""

FLAGS = ("-fvisibility=hidden", "-flto=auto")
"""Functions of other modules are called directly, not by a table in which another library might replace them;
and what is called across modules may be inlined, as if all were one file. Of them what the compiler takes."""

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


def _taken(cc: list[str]) -> tuple[str, ...]:
    """Those of `FLAGS` with which a library can be made here."""
    flags: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        source, library = Path(scratch) / "some.c", Path(scratch) / "some.so"
        source.write_text("int answer(void) { return 42; }\n")
        for flag in FLAGS:
            command = [*cc, *flags, flag, "-fPIC", "-shared", str(source), "-o", str(library)]
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                flags.append(flag)
    return tuple(flags)


CHECK = """
import importlib, sys
for name in sys.argv[1:]:
    if importlib.import_module(name).__file__.endswith(".py"):
        sys.exit(f"{name} was not compiled")
"""
"""A linker may leave out what it does not understand, and say nothing."""


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


@dataclass(frozen=True)
class Part:
    """What is compiled at once. `needs`: the packages that lie beside each other for it, of which `keeps` go
    into the compilation; `written`: the form that the compiler is given of a source."""

    name: str
    home: Path
    needs: tuple[str, ...]
    keeps: tuple[str, ...]
    is_compiled: Callable[[Path], bool]
    written: Callable[[str], str]


def _is_core(path: Path) -> bool:
    """Whether a source of the core is compiled."""
    return path.name not in LEFT_OUT


def _simulates(path: Path) -> bool:
    """Whether a source of the simulator, or of the wire, is compiled for simulations."""
    package, *below = path.relative_to(SIDECAR).parts
    if package == "hams_wire":
        return len(below) == 1 and below[0] in SHELL
    return package == "hams_sim" and below[0] != "mutants" and path.name not in NOT_SIMULATING


def parts(with_simulator: bool) -> Iterable[Part]:
    """The core; and what simulates, without a core in it: it runs with the one that serves. To mypyc classes
    of a core that is not compiled with it are ordinary ones, so they need not be written out for it."""
    home, core = hams_compiled.folder(), hams_compiled.PACKAGES
    yield Part("core", home, core, core, _is_core, native.plain)
    if with_simulator:
        home, needs = hams_compiled.simulator_folder(), hams_compiled.SIMULATED
        yield Part("simulator", home, needs, ("hams_wire", "hams_sim"), _simulates, str)


def _made(work: Path, names: list[str], cc: list[str]) -> bool:
    """Compile what lies in `work`, and import each module; False if one of both failed, and then it said
    why."""
    environment = {
        **os.environ,
        "CC": " ".join(cc),
        "LDSHARED": " ".join([*cc, "-shared"]),
        "HAMS_PURE": "1",
        "PYTHONPATH": str(work),
    }
    build = ["setup.py", "--quiet", "build_ext", "--inplace", f"--parallel={os.cpu_count() or 1}"]
    modules = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names]
    for command in (build, ["-c", CHECK, *modules]):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
            print(f"compile, with {' '.join(cc)}: {said}", file=sys.stderr)
            return False
    return True


def build(part: Part, target: Path, cc: list[str], optimise: str) -> bool:
    """Compile a part into `target`; False if it cannot be done, and then it said why."""
    with tempfile.TemporaryDirectory(dir=part.home, prefix="building-") as scratch:
        work = Path(scratch)
        for path in hams_compiled.sources(SIDECAR, part.needs):
            copy = work / path.relative_to(SIDECAR)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(part.written(path.read_text(encoding="utf-8")), encoding="utf-8")
        names = [
            str(path.relative_to(SIDECAR))
            for path in hams_compiled.sources(SIDECAR, part.needs)
            if part.is_compiled(path)
        ]
        (work / "mypy.ini").write_text("[mypy]\n")  # types are judged by `make check`
        (work / "setup.py").write_text(SETUP.format(names=names, optimise=optimise))
        if not any(_made(work, names, [*cc, *flags]) for flags in dict.fromkeys((_taken(cc), ()))):
            return False
        for rubbish in {"build", ".mypy_cache", "setup.py", "mypy.ini", *part.needs} - {*part.keeps}:
            path = work / rubbish
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        (work / ".complete").write_text(_made_by(optimise))
        work.rename(target)
        work.mkdir()  # what the context removes
    return True


def compiled(part: Part) -> bool:
    """Compile a part that is not compiled yet, or say why not; False if it failed."""
    home = part.home
    home.mkdir(exist_ok=True)
    target = home / hams_compiled.digest(SIDECAR, part.needs)
    with (home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        optimise = os.environ.get("HAMS_OPTIMISE", "2")
        stamp = target / ".complete"
        if stamp.is_file() and stamp.read_text() == _made_by(optimise):
            print(f"compile: nothing to do, the {part.name} {target.name} is there")
            return True
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
                f"compile: no {missing} here, so the {part.name} runs as Python: it works the same, and is "
                "slower"
            )
            return True
        began = time.monotonic()
        if target.exists():  # made by another compiler, or not to its end
            shutil.rmtree(target)
        if not build(part, target, cc, optimise):
            return False
        others = sorted(
            (path for path in home.iterdir() if path.is_dir() and path != target),
            key=lambda path: path.stat().st_mtime,
        )
        for old in others[: -COMPILATIONS_MAX + 1]:
            shutil.rmtree(old)
        shutil.copyfile(ROOT / "tools" / "hams_compiled.pth", PTH)
        print(f"compile: the {part.name}, {target.name} in {time.monotonic() - began:.0f} s")
    return True


def main(arguments: list[str]) -> int:
    """Compile what is not compiled yet. Returns 0; 1 when it failed; 2 on a wrong call."""
    if arguments not in ([], ["--simulator"]):
        print(f"usage: tools/compile.py [--simulator]; found: {arguments}", file=sys.stderr)
        return 2
    return 0 if all(map(compiled, parts(bool(arguments)))) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
