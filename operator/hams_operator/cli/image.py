"""`hams image build`: the builder of the project's own images, which lies in its repository, on a folder of
the user's."""

import subprocess
import sys
from pathlib import Path

from hams_operator.cli.output import complain

ROOT = Path(__file__).resolve().parents[3]


def build(folder: Path, name: str, builder: str, push: bool) -> int:
    """Returns the builder's exit code; a complaint where there is no repository around this installation."""
    if not (ROOT / "images" / "own.py").exists():
        complain(
            "images are built by a checkout of the project: this is an installed wheel, which has no builder"
        )
    command = [
        sys.executable,
        "-m",
        "images.own",
        str(folder.resolve()),
        "--name",
        name,
        "--builder",
        builder,
    ]
    return subprocess.run([*command, *(["--push"] if push else [])], cwd=ROOT, check=False).returncode
