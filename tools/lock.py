"""Writes `requirements.lock` anew: the newest versions that both projects allow, every extra together, resolved but not installed.

The lock is a pip constraints file of names and versions only: no index address, no path, so that any mirror may serve it.
Runs with the pip of `.venv`; nothing in `.venv` changes. Review the difference before committing it.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OWN = {"hams", "hams-sdk"}
HEADER = """\
# Every version that `make setup` installs (pip constraints). Written by `make lock`; do not edit by hand.
# Resolved for CPython 3.11 on Linux x86_64; pyproject.toml holds the lower bounds for everyone else.
"""


def resolve() -> list[tuple[str, str]]:
    """The names and versions pip would install for both projects with every extra; raises CalledProcessError when they do not fit together."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        wanted = ["hatchling", "editables", "-e", "./model-sdk[torch]", "-e", ".[dev,examples,operator]"]
        pip = [str(ROOT / ".venv" / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, "--dry-run", "--ignore-installed", "--report", str(report), *wanted], check=True, cwd=ROOT)
        found = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    return sorted((str(item["name"]).lower().replace("_", "-"), str(item["version"])) for item in found)


def main() -> int:
    """Writes the lock; returns 1 and leaves the old one when pip finds no solution."""
    try:
        versions = resolve()
    except subprocess.CalledProcessError as error:
        print(f"lock: pip found no set of versions (exit code {error.returncode}); requirements.lock is unchanged", file=sys.stderr)
        return 1
    lines = [f"{name}=={version}\n" for name, version in versions if name not in OWN]
    (ROOT / "requirements.lock").write_text(HEADER + "".join(lines))
    print(f"lock: {len(lines)} versions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
