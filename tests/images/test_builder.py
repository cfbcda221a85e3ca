"""The folder of archives after a build: what nothing can load any more is gone from it."""

from pathlib import Path

import pytest
from images.local import stages
from images.local.builder import LocalBuilder
from images.local.oci import BadArchive, Image, Layer, files_layer, layers_of, write_archive


def layer(folder: Path, name: str, content: bytes) -> Layer:
    return files_layer(folder / name, folder / f"{name}.tar", [(name, content, 0o644)])


def built(folder: Path, base: Layer, image: str, own: Layer, monkeypatch: pytest.MonkeyPatch) -> LocalBuilder:
    """A builder that has built a base, and one image on it."""
    by_name = {"base": Image((base,)), image: Image((base, own))}
    monkeypatch.setattr(stages, "build", lambda _file, _root, _given, work, _find: by_name[work.name])
    builder = LocalBuilder(folder, folder / "cache", folder / "work", folder / "out", "hams.local", "1")
    builder.build("base", folder / "Dockerfile", {}, 0)
    builder.build(image, folder / "Dockerfile", {}, 2)
    return builder


def archives(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "out").iterdir())


def test_an_archive_on_a_base_that_is_no_longer_built_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = layer(tmp_path, "old", b"1"), layer(tmp_path, "new", b"2")
    built(tmp_path, old, "digits", layer(tmp_path, "digits", b"3"), monkeypatch)
    builder = built(tmp_path, new, "chain", layer(tmp_path, "chain", b"4"), monkeypatch)
    assert builder.drop_unfit() == ["2-digits.tar"]
    assert archives(tmp_path) == ["0-base.key", "0-base.tar", "2-chain.key", "2-chain.tar"]


def test_an_archive_that_still_fits_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = layer(tmp_path, "base", b"1")
    built(tmp_path, base, "digits", layer(tmp_path, "digits", b"3"), monkeypatch)
    builder = built(tmp_path, base, "chain", layer(tmp_path, "chain", b"4"), monkeypatch)
    assert builder.drop_unfit() == []
    assert "2-digits.tar" in archives(tmp_path)


def test_what_stands_on_an_archive_that_is_removed_goes_too_and_what_is_none_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, above = (
        layer(tmp_path, "old", b"1"),
        layer(tmp_path, "new", b"2"),
        layer(tmp_path, "above", b"3"),
    )
    out = tmp_path / "out"
    out.mkdir()
    write_archive(out / "1-middle.tar", "hams.local/middle:1", Image((old, above)), {old.digest})
    write_archive(out / "2-top.tar", "hams.local/top:1", Image((above,)), {above.digest})
    write_archive(out / "3-alone.tar", "hams.local/alone:1", Image((above,)))
    (out / "4-torn.tar").write_bytes(b"half of it")
    builder = built(tmp_path, new, "chain", layer(tmp_path, "chain", b"4"), monkeypatch)
    assert builder.drop_unfit() == ["1-middle.tar", "2-top.tar", "4-torn.tar"]
    assert "3-alone.tar" in archives(tmp_path)


def test_an_archive_tells_what_it_has_and_what_it_wants(tmp_path: Path) -> None:
    below, above = layer(tmp_path, "below", b"1"), layer(tmp_path, "above", b"2")
    write_archive(tmp_path / "thin.tar", "hams.local/x:1", Image((below, above)), {below.digest})
    wanted, there = layers_of(tmp_path / "thin.tar")
    assert wanted == {below.digest, above.digest}
    assert wanted & there == {above.digest}


@pytest.mark.parametrize("content", [b"", b"no tar at all", b"\0" * 10240])
def test_another_file_is_no_archive(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(BadArchive, match=r"x\.tar is no image archive"):
        layers_of(tmp_path / "x.tar")
