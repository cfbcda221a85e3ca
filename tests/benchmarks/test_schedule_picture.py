"""The picture of what policies make of the same requests."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from benchmarks.schedule_picture import COUNT, SHOWN, main, served

PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "policies.svg"


@pytest.mark.parametrize("name", SHOWN)
def test_every_request_is_in_one_batch_or_refused(name: str) -> None:
    watched, good = served(name)
    ran = [unit.number for batch in watched.batches for unit in batch.units]
    assert sorted([*ran, *(unit.number for _, unit in watched.shed)]) == list(range(COUNT))
    in_time = [unit for batch in watched.batches for unit in batch.units if batch.ends <= unit.due]
    assert good == len(in_time)


def test_the_picture_in_the_pages_is_what_its_command_writes(tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path / "made.svg")]) == 0
    made = (tmp_path / "made.svg").read_text()
    ElementTree.fromstring(made)
    assert made == PICTURE.read_text(), "hams bench schedule-picture --out docs/pictures/policies.svg"
