"""`requirements.lock`: what it says, and how it is written anew.

It holds each version that `make setup` installs, with the digests of every file that the index has of it:
whatever a mirror serves, nothing else is installed. It has sections, one for each step of tools/venv.py, and
names neither an index nor a path.

`python3 tools/lock.py` writes it from the newest versions that both projects allow, every extra together, by
`uv pip compile`; `uv` lives in a temporary environment. Review the difference before committing it.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
HEADER = """\
# Every version that `make setup` installs, with the digests of its files. \
Written by `make lock`; do not edit by hand.
# Resolved for CPython 3.11 on Linux x86_64; pyproject.toml holds the lower bounds for everyone else.
"""
SECTIONS = {
    "core": ["hatchling", "editables", "-e ./model-sdk", "-e .[dev]"],
    "torch": ["-e ./model-sdk[torch]", "-e .[dev,examples]"],
}
"""What each section is resolved from. A section lacks what one before it has."""

_MARK = "# ---- {} ----\n"
_ENTRY = re.compile(
    r"^([a-z0-9][a-z0-9._-]*)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n", re.MULTILINE
)


class Entry:
    """One package: its version, and the digests of the files that may be installed."""

    def __init__(self, name: str, version: str, digests: frozenset[str], text: str) -> None:
        self.name = name
        self.version = version
        self.digests = digests
        self.text = text


def entries(text: str) -> Iterator[Entry]:
    """The packages in a text of this form."""
    for match in _ENTRY.finditer(text):
        yield Entry(match[1], match[2], frozenset(re.findall("[0-9a-f]{64}", match[3])), match[0])


def section(name: str) -> str:
    """The packages of one section, as a requirements file of pip. Raises ValueError if there is no such
    section."""
    _, mark, rest = LOCK.read_text(encoding="utf-8").partition(_MARK.format(name))
    if not mark:
        raise ValueError(f"{LOCK.name}: expected a section {name!r}, found none; write it with: make lock")
    return re.split(r"^# ---- ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def constraints() -> str:
    """All versions without digests, as pip's constraints: with digests pip would ask for some of our own
    wheels, too."""
    return "".join(f"{item.name}=={item.version}\n" for item in entries(LOCK.read_text(encoding="utf-8")))


def resolve() -> dict[str, str]:
    """Each section's packages. Raises CalledProcessError when the projects do not fit together."""
    pins: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        # -P: not venv.py here
        subprocess.run([sys.executable, "-P", "-m", "venv", str(home / "venv")], check=True)
        pip = [str(home / "venv" / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "install", "uv"], check=True)
        uv = [str(home / "venv" / "bin" / "uv"), "pip", "compile", "--quiet", "--no-config", "--native-tls"]
        uv += ["--generate-hashes", "--no-annotate", "--no-header", "--upgrade"]
        uv += ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28"]
        known: dict[str, Entry] = {}
        wanted: list[str] = []
        for name, more in SECTIONS.items():
            wanted += more
            (home / "known.txt").write_text(
                "".join(f"{item.name}=={item.version}\n" for item in known.values())
            )
            done = subprocess.run(
                [*uv, "--constraint", str(home / "known.txt"), "-"],
                input="\n".join(wanted) + "\n",
                check=True,
                cwd=ROOT,
                text=True,
                stdout=subprocess.PIPE,
            )
            new = {item.name: item for item in entries(done.stdout) if item.name not in known}
            pins[name] = "".join(item.text for item in new.values())
            known |= new
    return pins


def main() -> int:
    """Writes the lock; returns 1 and leaves the old one when there is no solution."""
    try:
        pins = resolve()
    except subprocess.CalledProcessError as error:
        print(
            f"lock: no set of versions was found (exit code {error.returncode}), see above; {LOCK.name} is "
            "unchanged",
            file=sys.stderr,
        )
        return 1
    LOCK.write_text(HEADER + "".join(_MARK.format(name) + text for name, text in pins.items()))
    print(f"lock: {', '.join(f'{name} {len(list(entries(text)))} packages' for name, text in pins.items())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
