"""Histories in files: their places, what cannot be read, and `hams history check`."""

import json
from pathlib import Path

import pytest
from tests.history.synthetic import valid_history

from hams_history.checker import check_directory
from hams_history.command import main
from hams_history.lines import CompleteLine, GraphLine, LogLine, OperatorEntry, encode, line_bytes_max
from hams_history.report import findings_per_invariant_max

HEADER = encode(
    GraphLine(operators={"p": OperatorEntry(kind="stateful", join="combine", inputs=("F",), outputs=("F",))})
)


def write(folder: Path, **files: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name.replace('_', '-')}.jsonl").write_bytes(text)
    return folder


def test_a_folder_is_the_concatenation_of_its_files(tmp_path: Path) -> None:
    lines = valid_history(3, ordered=False)
    write(
        tmp_path,
        **{
            "0_graph": encode(lines[0]),
            "m_all": b"".join(encode(line) for line in lines[1:-1]),
            "z_final": encode(lines[-1]),
        },
    )
    report = check_directory(tmp_path)
    assert report.ok, report.render()
    assert list(report.history.lines) == lines


def test_the_header_may_stand_in_a_later_file(tmp_path: Path) -> None:
    write(tmp_path, a=b'{"t":"log","i":"F","gen":1,"req":"0/0","key":null}\n', b=HEADER)
    assert check_directory(tmp_path).ok


def test_one_file_is_a_history_too(tmp_path: Path) -> None:
    write(tmp_path, all=b"".join(encode(line) for line in valid_history(4, ordered=True)))
    assert check_directory(tmp_path / "all.jsonl").ok


def test_a_last_line_without_a_newline_is_ignored(tmp_path: Path) -> None:
    write(
        tmp_path, a=HEADER, b=b'{"t":"complete","req":"0/0"}\n{"t":"reply","i":"F-1","gen":2,"req":"0/0","val'
    )
    report = check_directory(tmp_path)
    assert report.ok
    assert len(report.history.lines) == 2


def test_unknown_fields_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, a=HEADER, b=b'{"t":"complete","req":"0/0","colour":"blue","at":1.5}\n')
    assert check_directory(tmp_path).ok


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"t":"complete"}\n', "missing required field `req`"),
        (b'{"t":"compleat","req":"0/0"}\n', "Invalid value 'compleat'"),
        (b'{"req":"0/0"}\n', "missing required field `t`"),
        (b'{"t":"complete","req":7}\n', "Expected `str`"),
        (b"garbage\n", "malformed"),
        (b"\n", "truncated"),
        (b"[]\n", "Expected `object`"),
        (b'{"t":"complete","req":"\xff\xfe"}\n', "not a line of a history"),
        (b"[" * 60_000 + b"\n", "not a line of a history"),
        (b'{"t":"complete","req":"' + b"x" * line_bytes_max + b'"}\n', "at most 65536"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(tmp_path: Path, text: bytes, says: str) -> None:
    good = encode(CompleteLine(req="0/1"))
    write(tmp_path, a=HEADER, b=good + text + good)
    report = check_directory(tmp_path)
    assert [problem.where for problem in report.problems] == ["b.jsonl:2"]
    assert says in report.problems[0].message
    assert report.exit_code == 2
    assert report.history.where(1) == "b.jsonl:1"
    assert report.history.where(2) == "b.jsonl:3"


def test_an_empty_folder_is_no_history(tmp_path: Path) -> None:
    report = check_directory(tmp_path)
    assert report.exit_code == 2
    assert "no *.jsonl file" in report.render()


def test_a_violation_is_told_with_file_line_and_text(tmp_path: Path) -> None:
    twice = [LogLine(i="F-1", gen=1, req=f"0/{n}", key="k") for n in (0, 1)]
    write(tmp_path, a=HEADER, b=encode(CompleteLine(req="0/9")) + encode(twice[0]), c=encode(twice[1]))
    text = check_directory(tmp_path).render()
    assert "I4 violated" in text
    assert 'b.jsonl:2  {"t":"log","i":"F-1","gen":1,"req":"0/0","key":"k"}' in text
    assert 'c.jsonl:1  {"t":"log"' in text


def test_of_many_violations_the_first_are_explained_and_the_others_counted(tmp_path: Path) -> None:
    many = findings_per_invariant_max + 7
    logs = [encode(LogLine(i="F-1", gen=1, req=f"0/{n}", key=f"k{n // 2}")) for n in range(2 * many)]
    write(tmp_path, a=HEADER, b=b"".join(logs))
    report = check_directory(tmp_path)
    assert report.counts == {"I4": many}
    assert len(report.violations) == findings_per_invariant_max
    assert "I4: 7 more violations are not shown." in report.render()


# ---- the command ----


def test_the_command_says_0_for_a_valid_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, all=b"".join(encode(line) for line in valid_history(5)))
    assert main(["check", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("OK: ")


def test_the_command_says_1_for_a_violation_and_explains_it_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [encode(LogLine(i="F-1", gen=1, req=f"0/{n}", key="k")) for n in (0, 1)]
    write(tmp_path, a=HEADER, b=b"".join(lines))
    assert main(["check", str(tmp_path), "--output", "json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["exit_code"], report["counts"]) == (False, 1, {"I4": 1})
    assert [line["where"] for line in report["violations"][0]["lines"]] == ["b.jsonl:1", "b.jsonl:2"]
    assert {skip["check"] for skip in report["skipped"]} == {
        "I1 and I7, what clients sent",
        "I1 and I2, what clients got",
        "I7",
    }


def test_the_command_says_2_for_what_is_no_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(write(tmp_path, a=b"garbage\n"))]) == 2
    assert "INVALID" in capsys.readouterr().out
    assert main(["check", str(tmp_path / "nowhere")]) == 2
    assert "cannot read a history" in capsys.readouterr().err
    assert main(["check", str(tmp_path / "nowhere"), "--output", "json"]) == 2
    assert json.loads(capsys.readouterr().out)["exit_code"] == 2
    assert main(["inspect"]) == 2
