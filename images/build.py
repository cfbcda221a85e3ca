"""`make images`: every image, with the builder that is there.

Docker, podman or buildah build from the Dockerfiles and keep the images themselves; the local builder writes
archives to `out/images`, which `python -m e2e.cluster up` loads. All of them take the same wheels and give
the same files.

Usage: `python -m images.build [--builder auto|docker|podman|buildah|local] [--registry NAME] [--example
NAME]... [--thin NAME]... [--push]`
"""

import argparse
import fcntl
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster import binaries
from e2e.cluster.commands import CommandFailed
from e2e.cluster.layout import Folders

from images import wheels
from images.local.builder import LocalBuilder
from images.local.dockerfile import BadDockerfile
from images.local.stages import BuildFailed

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "out" / "images"
ENGINES = ("docker", "podman", "buildah")
DEFAULT_EXAMPLES = ("chain",)


def version() -> str:
    """The version of both wheels, and the tag of every image."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def engine() -> str:
    """The first builder that answers; `local` when none does."""
    for name in ENGINES:
        if (
            shutil.which(name)
            and subprocess.run([name, "info"], capture_output=True, check=False).returncode == 0
        ):
            return name
    return "local"


def build_with(name: str, image: str, file: Path, given: dict[str, str]) -> None:
    """Build with an engine. Raises CommandFailed."""
    arguments = [word for key, value in given.items() for word in ("--build-arg", f"{key}={value}")]
    words = [name, "build", "--file", str(file), "--tag", image, *arguments, str(ROOT)]
    if subprocess.run(words, check=False).returncode:
        raise CommandFailed(f"{' '.join(words)} failed, see above")


def push(name: str, image: str) -> None:
    """To the registry that the image's name begins with. Raises CommandFailed."""
    if subprocess.run([name, "push", image], check=False).returncode:
        raise CommandFailed(f"{name} push {image} failed, see above")


def plan(examples: Sequence[str], model: str) -> list[tuple[str, str, dict[str, str], int]]:
    """Image, Dockerfile, build arguments, and its place in the order of loading."""
    own: list[tuple[str, str, dict[str, str], int]] = [
        (f"hams-{name}", f"{name}.Dockerfile", {}, 1) for name in ("sidecar", "controller", "model")
    ]
    return [
        *own,
        *(
            (
                f"hams-example-{name}",
                "code.Dockerfile",
                {"CODE": f"examples/{name}", "WHEELS": f"example-{name}", "MODEL": model},
                2,
            )
            for name in examples
        ),
    ]


def main(words: list[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m images.build", description="Build every image.")
    parser.add_argument("--builder", choices=["auto", *ENGINES, "local"], default="auto")
    parser.add_argument("--registry", default="hams.local")
    parser.add_argument(
        "--example",
        action="append",
        choices=sorted(wheels.EXAMPLES),
        default=[],
        help=f"default: {' '.join(DEFAULT_EXAMPLES)}",
    )
    parser.add_argument(
        "--thin",
        action="append",
        choices=sorted(wheels.EXAMPLES),
        default=[],
        help="an example without the libraries that only it needs: they are mounted where it runs",
    )
    parser.add_argument(
        "--push", action="store_true", help="push them to the registry, with the builder that built them"
    )
    options = parser.parse_args(words)
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT.parent / "images.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one at a time in a tree: layers are made in place
        return build(options)


def build(options: argparse.Namespace) -> int:
    """What was asked for. Returns the exit code."""
    builder = engine() if options.builder == "auto" else options.builder
    if options.push and builder == "local":
        print(
            "images: the local builder pushes nothing: --push needs docker, podman or buildah, and found "
            "none of them running",
            file=sys.stderr,
        )
        return 1
    examples = list(dict.fromkeys([*(options.example or DEFAULT_EXAMPLES), *options.thin]))
    tag = version()
    images = plan(examples, f"{options.registry}/hams-model:{tag}")
    status = wheels.main(
        [image.removeprefix("hams-") for image, _, _, _ in images],
        [f"example-{name}" for name in options.thin],
    )
    if status:
        return status
    try:
        if builder != "local":
            for image, file, given, _ in images:
                build_with(builder, f"{options.registry}/{image}:{tag}", ROOT / "images" / file, given)
            for image, _, _, _ in images if options.push else ():
                push(builder, f"{options.registry}/{image}:{tag}")
            return 0
        folders = Folders.default()
        local = LocalBuilder(
            ROOT, folders.cache / "images", ROOT / "out" / "layers", OUT, options.registry, tag
        )
        local.base()
        for image, file, given, order in images:
            local.build(image, ROOT / "images" / file, given, order)
        _etcd(local, folders)
        for name in local.drop_unfit():
            print(
                f"images: removed {name} of an earlier run: it stands on layers that are no longer built; "
                "ask for it again if you want it"
            )
    except (BuildFailed, BadDockerfile, CommandFailed, subprocess.CalledProcessError) as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("images: interrupted; what is done is kept", file=sys.stderr)
        return 130
    print(f"images: {len(images)} in {OUT.relative_to(ROOT)}, by the local builder")
    return 0


def _etcd(local: LocalBuilder, folders: Folders) -> None:
    """etcd from its Go module, for a cluster that can pull nothing; elsewhere its official image serves."""
    binaries.build(folders.bin)
    target = ROOT / "out" / "etcd"
    target.mkdir(parents=True, exist_ok=True)
    for name in ("etcd", "etcdctl"):
        shutil.copy2(folders.bin / "image" / name, target / name)
    local.build("hams-etcd", ROOT / "images" / "etcd.Dockerfile", {}, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
