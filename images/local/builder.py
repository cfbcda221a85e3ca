"""Builds the project's images where no other builder is, into one folder of archives that a cluster loads in
the order of their names.

The base (Debian with its Python) comes from `debootstrap`, once; its archive is the only one that holds its
layer, so load it first.
"""

import hashlib
import shutil
import subprocess
from pathlib import Path

from images.local import stages
from images.local.oci import (
    BadArchive,
    Config,
    Image,
    Layer,
    digest_of,
    files_layer,
    layers_of,
    pack,
    write_archive,
)

BASE = "docker.io/library/python:3.11-slim-bookworm"
"""What Dockerfiles ask for; here Debian's own Python 3.11 stands in for it."""
PACKAGES = "python3,python3-venv,ca-certificates"
SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
JUNK = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/log",
)
FORMAT = 2
"""Of what `write_archive` writes: another one is written anew."""
PAUSE = """\
#include <signal.h>
#include <unistd.h>
#include <sys/wait.h>
static void quit(int s) { _exit(0); }
static void reap(int s) { while (waitpid(-1, 0, WNOHANG) > 0); }
int main() { signal(SIGINT, quit); signal(SIGTERM, quit); signal(SIGCHLD, reap); for (;;) pause(); }
"""


class LocalBuilder:
    """`cache` keeps the base between builds; `work` holds layers of this tree's images, `out` its
    archives."""

    def __init__(self, root: Path, cache: Path, work: Path, out: Path, registry: str, tag: str) -> None:
        self._root, self._cache, self._work, self._out = root, cache, work, out
        self._registry, self._tag = registry, tag
        self._known: dict[str, Image] = {"scratch": Image()}
        self._archives: set[Path] = set()
        cache.mkdir(parents=True, exist_ok=True)
        out.mkdir(parents=True, exist_ok=True)

    def name(self, image: str) -> str:
        """The full name of an image."""
        return f"{self._registry}/{image}:{self._tag}"

    def base(self) -> None:
        """Debian and Python, and the pause image of every pod. Raises CalledProcessError."""
        image = Image((self._debian(),), Config(command=("python3",), environment={"PATH": stages.PATH}))
        self._known[BASE] = image
        self._write("0-base", f"{self._registry}/base:{SUITE}", image, ())
        self._write(
            "0-pause",
            f"{self._registry}/pause:1",
            Image((self._pause(),), Config(entrypoint=("/pause",))),
            (),
        )

    def build(self, image: str, file: Path, given: dict[str, str], order: int) -> None:
        """One Dockerfile into one archive; layers of images that it stands on are left out. Raises
        BuildFailed, BadDockerfile, KeyError."""
        before = {layer.digest for known in self._known.values() for layer in known.layers}
        made = stages.build(file, self._root, given, self._work / image, self._known.__getitem__)
        self._known[self.name(image)] = made
        self._write(f"{order}-{image}", self.name(image), made, before)

    def build_whole(self, name: str, file: str, dockerfile: Path, given: dict[str, str]) -> Path:
        """One Dockerfile into an archive of its own that leaves nothing out; its path. Raises as `build`."""
        made = stages.build(dockerfile, self._root, given, self._work / file, self._known.__getitem__)
        self._write(f"3-{file}", name, made, ())
        return self._out / f"3-{file}.tar"

    def drop_unfit(self) -> list[str]:
        """Remove archives of earlier runs that nothing can load any more: they leave out layers which no
        archive holds now. Their names."""
        held = {blob for path in self._archives for blob in layers_of(path)[1]}
        dropped = []
        for path in sorted(set(self._out.glob("*.tar")) - self._archives):
            try:
                wanted, there = layers_of(path)
            except BadArchive:
                wanted, there = {path.name}, set()
            if wanted <= held | there:
                held |= there
                continue
            path.unlink()
            path.with_suffix(".key").unlink(missing_ok=True)
            dropped.append(path.name)
        return dropped

    def _write(self, file: str, name: str, image: Image, omit: set[str] | tuple[()]) -> None:
        """Only what changed: a new file makes the cluster import everything anew."""
        target, note = self._out / f"{file}.tar", self._out / f"{file}.key"
        self._archives.add(target)
        key = hashlib.sha256(
            repr(
                (FORMAT, name, image.config, [layer.digest for layer in image.layers], sorted(omit))
            ).encode()
        ).hexdigest()
        if target.exists() and note.exists() and note.read_text() == key:
            return
        write_archive(target, name, image, omit)
        note.write_text(key)

    def _debian(self) -> Layer:
        folder, archive = self._cache / "base", self._cache / "base.tar"
        if archive.exists():
            return Layer(folder, archive, digest_of(archive))
        if shutil.which("debootstrap") is None:
            raise stages.BuildFailed(
                "the local builder makes its base with debootstrap: apt-get install --no-install-recommends "
                "debootstrap"
            )
        part = self._cache / "base.part"
        shutil.rmtree(part, ignore_errors=True)
        # In mounts of its own: what it mounts is gone with it, even if it is killed.
        words = [
            "unshare",
            "-m",
            "debootstrap",
            "--variant=minbase",
            f"--include={PACKAGES}",
            SUITE,
            str(part),
            MIRROR,
        ]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        for junk in JUNK:
            shutil.rmtree(part / junk, ignore_errors=True)
            (part / junk).mkdir()
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
        made = pack(folder, self._cache / "base.tar.part")
        made.archive.rename(archive)
        return Layer(folder, archive, made.digest)

    def _pause(self) -> Layer:
        folder, source = self._cache / "pause", self._cache / "pause.c"
        if not (folder / "pause").exists():
            source.write_text(PAUSE)
            subprocess.run(
                ["gcc", "-Os", "-static", "-s", "-o", str(self._cache / "pause.bin"), str(source)], check=True
            )
            return files_layer(
                folder,
                self._cache / "pause.tar",
                [("pause", (self._cache / "pause.bin").read_bytes(), 0o755)],
            )
        return Layer(folder, self._cache / "pause.tar", digest_of(self._cache / "pause.tar"))
