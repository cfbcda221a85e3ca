"""Image archives hold what their index says, and the same content is the same archive."""

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

from images.local.oci import Config, Image, digest_of, files_layer, write_archive


def read(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        by_name = {}
        for member in tar.getmembers():
            stream = tar.extractfile(member)
            assert stream is not None
            by_name[member.name] = stream.read()
        return by_name


def blob(content: dict[str, bytes], digest: str) -> Any:
    return json.loads(content[f"blobs/sha256/{digest.removeprefix('sha256:')}"])


def test_the_index_leads_to_manifest_configuration_and_layers(tmp_path: Path) -> None:
    layer = files_layer(tmp_path / "layer", tmp_path / "layer.tar", [("a/b", b"content", 0o755)])
    config = Config(("run",), ("me",), {"A": "1"}, "65532:65532", "/app")
    write_archive(tmp_path / "image.tar", "hams.local/x:1", Image((layer,), config))
    content = read(tmp_path / "image.tar")
    (entry,) = json.loads(content["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == "hams.local/x:1"
    manifest = blob(content, entry["digest"])
    assert blob(content, manifest["config"]["digest"])["config"] == {
        "Entrypoint": ["run"],
        "Cmd": ["me"],
        "Env": ["A=1"],
        "User": "65532:65532",
        "WorkingDir": "/app",
    }
    assert len(blob(content, manifest["config"]["digest"])["history"]) == 1, (
        "an entry for each layer: builders that stand on it count them"
    )
    (described,) = manifest["layers"]
    data = content[f"blobs/sha256/{described['digest'].removeprefix('sha256:')}"]
    assert hashlib.sha256(data).hexdigest() == described["digest"].removeprefix("sha256:")
    assert len(data) == described["size"]


def test_layers_that_the_reader_has_are_named_but_left_out(tmp_path: Path) -> None:
    below = files_layer(tmp_path / "below", tmp_path / "below.tar", [("base", b"x" * 10000, 0o644)])
    above = files_layer(tmp_path / "above", tmp_path / "above.tar", [("app", b"y", 0o644)])
    write_archive(tmp_path / "thin.tar", "hams.local/x:1", Image((below, above)), {below.digest})
    content = read(tmp_path / "thin.tar")
    (entry,) = json.loads(content["index.json"])["manifests"]
    assert [layer["digest"] for layer in blob(content, entry["digest"])["layers"]] == [
        below.digest,
        above.digest,
    ]
    names = {name.removeprefix("blobs/sha256/") for name in content}
    assert above.digest.removeprefix("sha256:") in names
    assert below.digest.removeprefix("sha256:") not in names


def test_the_same_files_give_the_same_layer(tmp_path: Path) -> None:
    files = [("z", b"1", 0o644), ("a/x", b"2", 0o755)]
    one = files_layer(tmp_path / "one", tmp_path / "one.tar", files)
    two = files_layer(tmp_path / "two", tmp_path / "two.tar", list(reversed(files)))
    assert one.digest == two.digest == digest_of(tmp_path / "two.tar")
