"""The manager as a process: what it is told wrongly becomes one line."""

from pathlib import Path

import pytest

from hams_operator.manager.process import main


@pytest.mark.parametrize("what", ["missing", "folder", "no graph"])
def test_a_spec_that_cannot_be_read_is_one_line(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = tmp_path / "graph"
    if what == "folder":
        spec.mkdir()
    elif what == "no graph":
        spec.write_bytes(b"nothing of the kind")
    assert (
        main(["--graph", "g", "--instance", "m-1", "--etcd", "http://127.0.0.1:1", "--spec", str(spec)]) == 1
    )
    (record,) = [item for item in caplog.records if item.name == "hams.process"]
    assert record.exc_info is None
    assert what == "no graph" or str(spec) in record.getMessage()
