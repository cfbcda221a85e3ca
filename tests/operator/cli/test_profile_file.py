"""Files of profiles: what moves from graph to graph, and what is refused of others."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from hams_operator.cli import profile as command
from hams_operator.cli.output import CommandError, Output
from hams_operator.cli.profile_file import FileRefused, file_bytes_max, read, write
from hams_operator.cli.runs import Target
from hams_operator.learning import NothingLearnt, assigned
from hams_schedule.profile import Profiles
from hams_schedule.stored import document_of, dump, load


def profile(seconds: float = 0.02) -> bytes:
    profiles = Profiles()
    cls = profiles.classify("chat", math.nan)
    for _ in range(300):
        profiles.observe_batch([cls], 1, seconds, 0.0)
    profiles.settle()
    return dump(profiles, "m:S 0123")


def mean_s(data: bytes) -> float:
    profiles = load(data, "m:S 0123")
    return profiles.expected(((profiles.classes.class_of("chat", math.nan), 1),), 1)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "profiles.json"
    write(file, "g", {"a": profile(0.02), "b": profile(0.1)})
    assert json.loads(file.read_text())["graph"] == "g"
    found = read(file)
    assert list(found) == ["a", "b"]
    assert mean_s(found["a"]) == pytest.approx(0.02, rel=0.05)
    assert mean_s(found["b"]) == pytest.approx(0.1, rel=0.05)
    assert load(found["a"], "m:S 0123").samples == load(profile(), "m:S 0123").samples


def altered(path: str, value: Any) -> str:
    """A file in which the member at `path` is `value`."""
    document: Any = {
        "kind": "hams-profiles",
        "format": 1,
        "graph": "g",
        "operators": {"a": json_of(profile())},
    }
    where = document
    *before, last = path.split("/")
    for name in before:
        where = where[name]
    where[last] = value
    return json.dumps(document)


def json_of(data: bytes) -> Any:
    return document_of(data)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: expected what hams profile --save writes, found no JSON"),
        ("{\n  nonsense", "line 2: expected what hams profile --save writes, found no JSON"),
        ("[" * 100_000, "expected what hams profile --save writes, found RecursionError"),
        ('{"a": ' + "9" * 5_000 + "}", "expected what hams profile --save writes, found ValueError"),
        ("[1]", 'expected what hams profile --save writes, with "kind": "hams-profiles"'),
        (altered("kind", "other"), 'expected what hams profile --save writes, with "kind": "hams-profiles"'),
        (altered("format", 2), "format: expected 1, found 2"),
        (altered("operators", []), "operators: expected an object with a profile for each operator"),
        (altered("operators", {}), "operators: expected an object with a profile for each operator"),
        (
            altered("operators", {"../../etc": {}}),
            "operators: expected names of operators, found '../../etc'",
        ),
        (altered("operators", {"\x1b[31m": {}}), r"operators: expected names of operators, found '\x1b[31m'"),
        (altered("operators/a", 7), "operators.a: expected one JSON object"),
        (altered("operators/a/format", 9), "operators.a: expected a profile of format 1, found 9"),
        (altered("operators/a/grid", [0, 1]), "operators.a: grid: expected 1e-07 <= low < high"),
        (altered("operators/a/grid", [math.nan, 1]), "operators.a: grid: expected finite numbers, found nan"),
        (altered("operators/a/laws/127", [[0, 1e300]]), "operators.a: laws: expected a cell and a count"),
        (
            altered("operators/a/sizes", {"2": [1, 1e9, 1, 1, 1]}),
            "operators.a: sizes: expected sums of times",
        ),
        (altered("operators/a/more", "x" * 300_000), "operators.a: expected one JSON object of 262144 bytes"),
    ],
)
def test_what_is_no_file_of_profiles_is_refused_with_where(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "f.json"
    file.write_text(text)
    with pytest.raises(FileRefused) as caught:
        read(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert said in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_files_that_are_not_there_or_endless_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileRefused, match="No such file or directory"):
        read(tmp_path / "none")
    with pytest.raises(FileRefused, match="Is a directory"):
        write(tmp_path, "g", {"a": profile()})
    with pytest.raises(FileRefused, match=f"expected {file_bytes_max} bytes at most, found more"):
        read(Path("/dev/zero"))


def test_a_profile_goes_to_the_operator_of_its_name_or_to_the_one_that_is_named() -> None:
    two = {"a": b"1", "b": b"2"}
    assert assigned(two, ("b", "c"), "") == {"b": b"2"}
    assert assigned(two, ("b", "c"), "b") == {"b": b"2"}
    assert assigned({"a": b"1"}, ("c",), "c") == {"c": b"1"}
    with pytest.raises(NothingLearnt, match="expected a profile of c, or only one; it has a, b"):
        assigned(two, ("b", "c"), "c")
    with pytest.raises(NothingLearnt, match="expected profiles of c; it has a, b"):
        assigned(two, ("c",), "")


def test_without_a_run_the_next_one_begins_with_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HAMS_HOME", str(tmp_path / "home"))
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    write(first, "g", {"a": profile(), "b": profile(0.1)})
    assert command.load(Target(), "h", "", first, Output.TEXT) == 0
    assert capsys.readouterr().out == f"h does not run now; in its next run a, b know what is in {first}\n"
    assert command.save(Target(), "h", "b", second, Output.JSON) == 0
    assert json.loads(capsys.readouterr().out) == {"saved": ["b"]}
    assert mean_s(read(second)["b"]) == pytest.approx(0.1, rel=0.05)
    assert command.load(Target(), "h", "c", second, Output.TEXT) == 0
    assert sorted(path.name for path in (tmp_path / "home" / "h" / "profiles").iterdir()) == [
        "a.profile",
        "b.profile",
        "c.profile",
    ]


def test_what_there_is_nothing_of_and_files_that_are_refused_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAMS_HOME", str(tmp_path / "home"))
    with pytest.raises(
        CommandError, match="nothing is stored of b yet: instances store what is new every 10 s"
    ):
        command.save(Target(), "h", "b", tmp_path / "f", Output.TEXT)
    (tmp_path / "f").write_text("{}")
    with pytest.raises(CommandError, match="expected what hams profile --save writes"):
        command.load(Target(), "h", "", tmp_path / "f", Output.TEXT)
    assert not (tmp_path / "home" / "h").exists()
