"""`hams image build DIR`: a model's own code on the base of model images."""

from pathlib import Path

import pytest
from images.local.builder import LocalBuilder
from images.local.dockerfile import parse

from images import build, own, wheels


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a docker was told; nothing is downloaded."""
    file = tmp_path / "said"
    (tmp_path / "docker").write_text(f'#!/bin/sh\necho "$*" >> {file}\n')
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "OUT", tmp_path / "out" / "images")
    monkeypatch.setattr(build, "version", lambda: "7")
    monkeypatch.setattr(wheels, "OUT", tmp_path / "out" / "wheels")
    monkeypatch.setattr(wheels, "main", lambda *_: 0)
    return file


def code(tmp_path: Path) -> Path:
    folder = tmp_path / "classifier"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "models.py").write_text("class Classifier: ...\n")
    return folder


def test_the_base_is_built_first_and_the_code_upon_it_and_pushed(said: Path, tmp_path: Path) -> None:
    assert own.main([str(code(tmp_path)), "--name", "registry.example/team/classifier:1", "--push"]) == 0
    lines = [line for line in said.read_text().splitlines() if not line.startswith("info")]
    tags = [line.split("--tag ")[1].split()[0] for line in lines if line.startswith("build")]
    assert tags == ["hams.local/hams-model:7", "registry.example/team/classifier:1"]
    assert lines[-1] == "push registry.example/team/classifier:1"
    (copied,) = (tmp_path / "out" / "own").iterdir()
    assert [path.name for path in copied.iterdir()] == ["models.py"]
    assert f"CODE=out/own/{copied.name}" in lines[1]


def test_what_the_code_needs_is_fetched_for_the_python_of_the_images(
    said: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(wheels, "pip", lambda *words: asked.append(words))
    folder = code(tmp_path)
    (folder / "requirements.txt").write_text("scikit-learn\n")
    assert own.main([str(folder), "--name", "team/classifier:1"]) == 0
    assert asked[0][0] == "download"
    assert folder / "requirements.txt" in asked[0]


def test_the_local_builder_leaves_no_layer_out(
    said: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    monkeypatch.setattr(LocalBuilder, "base", lambda _: built.append("base"))
    monkeypatch.setattr(LocalBuilder, "build", lambda _, image, *__: built.append(image))
    monkeypatch.setattr(
        LocalBuilder, "build_whole", lambda _, name, file, *__: built.append(name) or Path(f"3-{file}.tar")
    )
    assert own.main([str(code(tmp_path)), "--name", "classifier:1", "--builder", "local"]) == 0
    assert built == ["base", "hams-model", "classifier:1"]


@pytest.mark.parametrize("name", ["classifier", "Team/x:1", "x:", "a b:1"])
def test_a_name_without_a_tag_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        own.main([str(tmp_path), "--name", name])
    assert "expected REGISTRY/NAME:TAG" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        own.main([str(tmp_path / "none"), "--name", "x:1"])
    assert "expected a folder with the model's code" in capsys.readouterr().err


def test_examples_and_own_code_share_one_dockerfile() -> None:
    root = Path(own.__file__).parent
    given = {"CODE": "out/own/x", "WHEELS": "own-x", "MODEL": "m:1"}
    assert parse((root / "code.Dockerfile").read_text(), given)
