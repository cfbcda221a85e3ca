"""`make images`: what is built, in which order, under which names."""

from pathlib import Path

from images.build import ROOT, plan, version

from images import wheels


def test_examples_stand_on_the_model_image_and_come_after_it() -> None:
    images = plan(["chain", "digits"], "hams.local/hams-model:1")
    orders = {image: order for image, _, _, order in images}
    assert orders["hams-model"] < orders["hams-example-chain"]
    assert [given for image, _, given, _ in images if image == "hams-example-digits"] == [{"EXAMPLE": "digits", "MODEL": "hams.local/hams-model:1"}]
    assert all((ROOT / "images" / file).exists() for _, file, _, _ in images)


def test_every_example_has_an_image() -> None:
    folders = {path.parent.name for path in (ROOT / "examples").glob("*/graph.yaml")}
    assert folders == set(wheels.EXAMPLES)


def test_graphs_of_examples_name_the_images_that_are_built() -> None:
    for name in wheels.EXAMPLES:
        for file in Path(ROOT / "examples" / name).glob("*.yaml"):
            assert f"hams.local/hams-example-{name}:{version()}" in file.read_text(), file


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
