"""`make images`: what is built, in which order, under which names."""

import re
from pathlib import Path

import pytest
from images.build import ROOT, plan, version

from images import build, wheels


def test_examples_stand_on_the_model_image_and_come_after_it() -> None:
    images = plan(["chain", "digits"], "hams.local/hams-model:1")
    orders = {image: order for image, _, _, order in images}
    assert orders["hams-model"] < orders["hams-example-chain"]
    assert [given for image, _, given, _ in images if image == "hams-example-digits"] == [
        {"CODE": "examples/digits", "WHEELS": "example-digits", "MODEL": "hams.local/hams-model:1"}
    ]
    assert all((ROOT / "images" / file).exists() for _, file, _, _ in images)


def test_every_example_has_an_image() -> None:
    folders = {path.parent.name for path in (ROOT / "examples").glob("*/graph.yaml")}
    assert folders == set(wheels.EXAMPLES)


def test_graphs_of_examples_name_the_images_that_are_built() -> None:
    for name in wheels.EXAMPLES:
        for file in Path(ROOT / "examples" / name).glob("*.yaml"):
            assert f"hams.local/hams-example-{name}:{version()}" in file.read_text(), file


def test_what_the_documents_say_to_push_is_built_and_pushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "said"
    (tmp_path / "docker").write_text(f'#!/bin/sh\necho "$*" >> {said}\n')
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(build, "OUT", tmp_path / "out" / "images")
    monkeypatch.setattr(wheels, "main", lambda *_: 0)
    assert build.main(["--registry", "registry.example/team", "--push"]) == 0
    names = [
        f"registry.example/team/hams-{name}:{version()}"
        for name in ("sidecar", "controller", "model", "example-chain")
    ]
    lines = said.read_text().splitlines()
    assert [line for line in lines if line.startswith("push")] == [f"push {name}" for name in names]
    assert [line.split("--tag ")[1].split()[0] for line in lines if line.startswith("build")] == names


def test_the_local_builder_says_that_it_pushes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "OUT", tmp_path / "out" / "images")
    assert build.main(["--builder", "local", "--push"]) == 1
    assert "--push needs docker, podman or buildah" in capsys.readouterr().err


def test_the_first_graph_of_the_documents_is_of_an_image_that_is_built() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    assert set(re.findall(r"examples/([a-z-]+)/graph\.yaml", page)) <= set(build.DEFAULT_EXAMPLES)


def test_a_wrong_image_is_refused(capsys: object) -> None:
    assert wheels.main(["nothing"]) == 2
    assert wheels.main([]) == 2


def test_wheels_are_made_again_only_when_their_sources_change(tmp_path: Path) -> None:
    folder = tmp_path / "image"
    assert not wheels.fresh(folder, "one")
    (folder / "made-from").write_text("one")
    (folder / "some.whl").touch()
    assert wheels.fresh(folder, "one")
    assert not wheels.fresh(folder, "two")
    assert not (folder / "some.whl").exists()
