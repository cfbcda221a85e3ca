"""`hams bench NAME`: hands over to the `main` of the module `benchmarks.NAME`, or of a package's `__main__`,
in the repository this runs from, or in the current folder."""

import ast
import importlib
import signal
import sys
from pathlib import Path

from hams_operator.cli.output import complain


def bench(arguments: list[str]) -> int:
    """Run one benchmark; without a name, say which there are."""
    root = _root()
    benchmarks = {_name(path): path for path in _files(root / "benchmarks") if _has_main(path)}
    if not arguments or arguments[0].startswith("-"):
        sys.stdout.write(
            "hams bench NAME [--out FILE.json]\n\n"
            + "".join(f"  {name:<16} {_summary(path)}\n" for name, path in benchmarks.items())
        )
        return 0 if arguments in (["--help"], ["-h"]) else 2
    name = arguments[0].replace("-", "_")
    if name not in benchmarks:
        complain(f'no benchmark "{arguments[0]}"; there are: {", ".join(benchmarks)}', 2)
    sys.path.insert(0, str(root))
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # `timeout` and others end a process so: the graph's processes and files go as after Ctrl-C.
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    module = f"benchmarks.{name}" if benchmarks[name].stem == name else f"benchmarks.{name}.__main__"
    result = importlib.import_module(module).main(arguments[1:])
    return result if isinstance(result, int) else 0


def _files(folder: Path) -> list[Path]:
    """Every module, and of every package what runs it."""
    return sorted([*folder.glob("*.py"), *folder.glob("*/__main__.py")], key=_name)


def _name(path: Path) -> str:
    return path.parent.name if path.stem == "__main__" else path.stem


def _root() -> Path:
    for folder in (Path(__file__).resolve().parents[3], Path.cwd()):
        if (folder / "benchmarks" / "__init__.py").is_file():
            return folder
    complain("the benchmarks are not part of an installation: run this from a checkout of the repository")


def _has_main(path: Path) -> bool:
    """Whether it is a benchmark that takes arguments, told without importing it."""
    mains = [
        node
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == "main"
    ]
    return bool(mains) and bool(mains[0].args.args)


def _summary(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())
