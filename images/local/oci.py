"""OCI image archives: layers and a configuration in one tar that `ctr images import`, `podman load` and
`docker load` take.

Layers are uncompressed (an import is bound by hashing, not by the disk). A layer that the node already has
may be left out of the archive: a thin image on a loaded base is a few kilobytes.
"""

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EPOCH = "2026-01-01T00:00:00Z"
"""No file of a layer is newer, so that the same content is the same layer."""
CHUNK_BYTES = 1 << 20


class BadArchive(ValueError):
    """A file is not what `write_archive` writes; says which."""


@dataclass(frozen=True)
class Layer:
    """One layer: `folder`, what it holds; `archive`, the same as a tar; `digest` of the tar."""

    folder: Path
    archive: Path
    digest: str


@dataclass(frozen=True)
class Config:
    """How a container of the image is started."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    user: str = ""
    folder: str = ""

    def document(self) -> dict[str, object]:
        """As the OCI image specification writes it."""
        values = {
            "Entrypoint": list(self.entrypoint),
            "Cmd": list(self.command),
            "Env": [f"{name}={value}" for name, value in self.environment.items()],
            "User": self.user,
            "WorkingDir": self.folder,
        }
        return {name: value for name, value in values.items() if value}


@dataclass(frozen=True)
class Image:
    """An image: layers from the ground up, and its configuration."""

    layers: tuple[Layer, ...] = ()
    config: Config = Config()


def digest_of(file: Path) -> str:
    """sha256 of a file, as OCI writes it."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while data := stream.read(CHUNK_BYTES):
            digest.update(data)
    return f"sha256:{digest.hexdigest()}"


def pack(folder: Path, archive: Path) -> Layer:
    """Make a layer of a folder: sorted, owners by number, times no later than EPOCH."""
    words = [
        "tar",
        "--sort=name",
        "--numeric-owner",
        f"--mtime={EPOCH}",
        "--clamp-mtime",
        "-C",
        str(folder),
        "-cf",
        str(archive),
        ".",
    ]
    subprocess.run(words, check=True)
    return Layer(folder, archive, digest_of(archive))


def write_archive(file: Path, name: str, image: Image, omit: Collection[str] = ()) -> None:
    """Write the image under its full name. `omit`: digests of layers that its reader already has."""
    layers = [
        {
            "mediaType": "application/vnd.oci.image.layer.v1.tar",
            "digest": layer.digest,
            "size": layer.archive.stat().st_size,
        }
        for layer in image.layers
    ]
    config = _json(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": EPOCH,
            "config": image.config.document(),
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in image.layers]},
            # buildah counts them before it builds on top
            "history": [{"created": EPOCH, "created_by": "images/local"} for _ in image.layers],
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": _digest(config),
                "size": len(config),
            },
            "layers": layers,
        }
    )
    entry = {
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": _digest(manifest),
        "size": len(manifest),
        "platform": {"architecture": "amd64", "os": "linux"},
        "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name},
    }
    part = file.with_suffix(".part")
    with tarfile.open(part, "w") as archive:
        _add(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(archive, "index.json", _json({"schemaVersion": 2, "manifests": [entry]}))
        for blob in (manifest, config):
            _add(archive, _blob(_digest(blob)), blob)
        written: set[str] = set(omit)
        for layer in image.layers:
            if layer.digest not in written:
                written.add(layer.digest)
                archive.add(layer.archive, _blob(layer.digest))
    part.rename(file)


def layers_of(file: Path) -> tuple[set[str], set[str]]:
    """Of an archive as `write_archive` leaves it: digests of the layers that its image has, and of the blobs
    that lie in the file.

    Raises BadArchive for any other file.
    """
    try:
        with tarfile.open(file) as archive:
            there = {
                name.replace("blobs/sha256/", "sha256:")
                for name in archive.getnames()
                if name.startswith("blobs/sha256/")
            }
            (entry,) = _read(archive, "index.json")["manifests"]
            return {layer["digest"] for layer in _read(archive, _blob(entry["digest"]))["layers"]}, there
    except (tarfile.TarError, KeyError, TypeError, ValueError, EOFError) as error:
        raise BadArchive(f"{file.name} is no image archive: {error}") from None


def _read(archive: tarfile.TarFile, name: str) -> dict[str, Any]:
    stream = archive.extractfile(name)
    if stream is None:
        raise KeyError(f"{name} is no file")
    data: dict[str, Any] = json.loads(stream.read())
    return data


def files_layer(folder: Path, archive: Path, files: Sequence[tuple[str, bytes, int]]) -> Layer:
    """A layer of a few files: path, content, mode."""
    for path, content, mode in files:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(mode)
    return pack(folder, archive)


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _blob(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
