"""The proxy as a process: what it is told wrongly becomes one line."""

from pathlib import Path

import pytest

from hams_sidecar.proxy import main


def test_a_pid_file_that_cannot_be_written_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = tmp_path / "none" / "pid"
    arguments = [
        "--graph",
        "g",
        "--instance",
        "p-1",
        "--etcd",
        "http://127.0.0.1:1",
        "--operator",
        "p",
        "--socket",
        "s",
        "--arena",
        "a",
    ]
    assert main([*arguments, "--pid-file", str(nowhere)]) == 1
    (record,) = [item for item in caplog.records if item.name == "hams.process"]
    assert str(nowhere) in record.getMessage()
    assert record.exc_info is None
