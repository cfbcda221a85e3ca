"""The local builder takes the Dockerfiles of this repository, and refuses what it does not understand."""

from pathlib import Path

import pytest
from images.local.dockerfile import BadDockerfile, Copy, Run, Set, parse

IMAGES = Path(__file__).resolve().parents[2] / "images"


@pytest.mark.parametrize("file", sorted(IMAGES.glob("*.Dockerfile")), ids=lambda path: path.stem)
def test_every_dockerfile_of_the_repository_is_understood(file: Path) -> None:
    stages = parse(file.read_text(), {"EXAMPLE": "chain"})
    assert stages[-1].steps


@pytest.mark.parametrize("file", sorted(IMAGES.glob("*.Dockerfile")), ids=lambda path: path.stem)
def test_no_image_runs_as_root(file: Path) -> None:
    stages = parse(file.read_text(), {"EXAMPLE": "chain"})
    users = [step.words[0] for step in stages[-1].steps if isinstance(step, Set) and step.what == "USER"]
    stands_on_a_model = stages[-1].base.endswith("hams-model:0.1.0")
    assert users[-1:] == ["65532:65532"] or (stands_on_a_model and not users)


def test_arguments_are_filled_in_from_outside_or_their_default() -> None:
    text = (
        "ARG BASE=debian\nFROM ${BASE} AS one\nARG NAME\nARG KIND=a\nCOPY ${NAME}/$KIND /x\nRUN echo $NAME\n"
    )
    (stage,) = parse(text, {"NAME": "n"})
    assert (stage.base, stage.name) == ("debian", "one")
    assert stage.steps == [Copy(("n/a",), "/x"), Run("echo $NAME", {"NAME": "n", "KIND": "a"})]


def test_long_lines_and_comments() -> None:
    (stage,) = parse("FROM x\n# about\nRUN one; \\\n  two; \\\n  three\nENV A=1 B='2 3'\n", {})
    assert stage.steps == [Run("one; two; three", {}), Set("ENV", ("A=1", "B=2 3"))]


def test_a_copy_from_a_stage_with_an_owner() -> None:
    (_, last) = parse("FROM x AS build\nFROM y\nCOPY --from=build --chown=1:2 /a /b /c/\n", {})
    assert last.steps == [Copy(("/a", "/b"), "/c/", "build", "1:2")]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no FROM"),
        ("RUN x\n", "line 1: RUN before the first FROM"),
        ("FROM x\nADD a b\n", "line 2: ADD is not among"),
        ('FROM x\nRUN ["a"]\n', "line 2: RUN in shell form"),
        ("FROM x\nRUN --mount=type=cache x\n", "line 2: RUN in shell form"),
        ("FROM x\nCMD a b\n", "line 2: CMD in JSON form"),
        ("FROM x\nCOPY --link a b\n", "line 2: COPY"),
        ("FROM x\nCOPY $WHAT b\n", "line 2: \\$WHAT has no value"),
        ("FROM x\n\nENV A\n", "line 3: ENV"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_line(text: str, says: str) -> None:
    with pytest.raises(BadDockerfile, match=says):
        parse(text, {})
