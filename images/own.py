"""`hams image build DIR`: a model's own code as an image, with the builder that is there.

The code of DIR lies at `/app` in it; what `DIR/requirements.txt` names is installed beside NumPy and
hams-sdk. Docker, podman or buildah build it from the same Dockerfile as the examples and keep it themselves;
the local builder writes an archive that holds all of its layers, so that any node or registry takes it.

Usage: `python -m images.own DIR --name REGISTRY/NAME:TAG [--builder auto|docker|podman|buildah|local]
[--push]`
"""

import argparse
import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

from e2e.cluster.commands import CommandFailed
from e2e.cluster.layout import Folders

from images import build, wheels
from images.local.builder import LocalBuilder
from images.local.dockerfile import BadDockerfile
from images.local.stages import BuildFailed

NAME = re.compile(
    r"(?P<path>[a-z0-9][a-z0-9._:/-]*/)?(?P<image>[a-z0-9][a-z0-9._-]*)"
    r":(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127})"
)
LEFT_OUT = ("__pycache__", "*.pyc", ".git", ".venv", "venv", ".mypy_cache", ".pytest_cache", ".hams")
"""What is in folders of code, and has no place in an image."""


def main(words: list[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="hams image build", description="A model's code as an image.")
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--name", required=True, help="REGISTRY/NAME:TAG, as the graph names it")
    parser.add_argument("--builder", choices=["auto", *build.ENGINES, "local"], default="auto")
    parser.add_argument("--push", action="store_true", help="push it to its registry")
    options = parser.parse_args(words)
    if NAME.fullmatch(options.name) is None:
        parser.error(f"--name: expected REGISTRY/NAME:TAG in lower case, found {options.name!r}")
    if not options.folder.is_dir():
        parser.error(f"expected a folder with the model's code, found none at {options.folder}")
    build.OUT.mkdir(parents=True, exist_ok=True)
    with (build.OUT.parent / "images.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # layers are made in place
        try:
            return _build(options)
        except (BuildFailed, BadDockerfile, CommandFailed, subprocess.CalledProcessError) as error:
            sys.stderr.write(f"hams image build: {error}\n")
            return 1


def _build(options: argparse.Namespace) -> int:
    builder = build.engine() if options.builder == "auto" else options.builder
    if options.push and builder == "local":
        sys.stderr.write(
            "hams image build: the local builder pushes nothing: --push needs docker, podman or buildah\n"
        )
        return 1
    status = wheels.main(["model"])
    if status:
        return status
    key = "own-" + hashlib.sha256(options.name.encode()).hexdigest()[:12]
    code = Path("out") / "own" / key
    shutil.rmtree(build.ROOT / code, ignore_errors=True)
    shutil.copytree(options.folder, build.ROOT / code, ignore=shutil.ignore_patterns(*LEFT_OUT))
    _fetch(options.folder / "requirements.txt", wheels.OUT / key)
    model = f"hams.local/hams-model:{build.version()}"
    given = {"CODE": str(code), "WHEELS": key, "MODEL": model}
    images = build.ROOT / "images"
    if builder != "local":
        build.build_with(builder, model, images / "model.Dockerfile", {})
        build.build_with(builder, options.name, images / "code.Dockerfile", given)
        if options.push:
            build.push(builder, options.name)
        sys.stdout.write(f"{options.name}: built by {builder}\n")
        return 0
    folders = Folders.default()
    local = LocalBuilder(
        build.ROOT,
        folders.cache / "images",
        build.ROOT / "out" / "layers",
        build.OUT,
        "hams.local",
        build.version(),
    )
    local.base()
    local.build("hams-model", images / "model.Dockerfile", {}, 1)
    archive = local.build_whole(options.name, key, images / "code.Dockerfile", given)
    sys.stdout.write(
        f"{options.name}: {archive}\nnext: ctr -n k8s.io images import {archive} (on every node)\n"
    )
    return 0


def _fetch(requirements: Path, folder: Path) -> None:
    """Wheels of what the code needs besides NumPy and hams-sdk, for the images' Python. Raises
    CalledProcessError."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if requirements.exists():
        wheels.pip("download", *wheels.TARGET, "--requirement", requirements, "--dest", folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
