"""What `make setup` and the images install: exactly the files whose digests the lock holds."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from images import wheels

ROOT = Path(__file__).resolve().parents[1]
CODE = """
import json, sys
sys.path.insert(0, {tools!r})
import lock, venv
{body}
"""


def in_tools(body: str) -> str:
    """What a few lines print among the modules of tools/, one of which is named as one of the standard
    library."""
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(tools=str(ROOT / "tools"), body=body)],
        text=True,
        capture_output=True,
        check=True,
    )
    return done.stdout


def test_every_version_of_the_lock_has_digests_and_a_section() -> None:
    text = (ROOT / "requirements.lock").read_text()
    pinned = [line.partition("==")[0] for line in text.splitlines() if "==" in line]
    sections = in_tools(
        "print(*[f'{name} {item.name}' for name in lock.SECTIONS for item in "
        "lock.entries(lock.section(name))], sep='\\n')"
    ).splitlines()
    assert [line.split()[1] for line in sections] == pinned
    assert {line.split()[0] for line in sections} == {"core", "torch"}
    assert "torch torch" in sections
    assert "core numpy" in sections


def test_each_step_compares_digests_and_resolves_nothing() -> None:
    for step in ("core", "torch"):
        first = in_tools(f"print(*venv.calls({step!r}, True)[0][0])").split()
        assert {"--require-hashes", "--no-deps", "--requirement"} <= set(first)
    assert in_tools("print(*venv.calls('core', True)[1][0])").split()[:2] == ["--no-deps", "--no-index"]


def test_elsewhere_the_versions_are_the_locks() -> None:
    listed = in_tools("print(venv.calls('core', False)[0][1])")
    assert re.search("^numpy==", listed, re.MULTILINE)
    assert "--hash" not in listed


def test_pytorch_from_an_index_of_processor_builds_brings_nothing_for_gpus() -> None:
    calls = in_tools(
        "for words, text in venv.calls('torch', True, 'https://example/cpu'): print(words, text)"
    )
    assert "'--index-url', 'https://example/cpu', 'torch==" in calls
    assert "nvidia-" not in calls
    assert not re.search("^(torch|triton)==", calls, re.MULTILINE)
    assert "sympy==" in calls


def test_a_file_that_is_large_is_told_and_one_that_is_small_is_not() -> None:
    printed = in_tools(
        "progress = venv.Progress('torch', 27)\n"
        "for line in ('Collecting torch==2.15.0', 'Downloading torch-2.15.0-cp311-x.whl.metadata (20 kB)',\n"
        "             'Downloading torch-2.15.0-cp311-x.whl (899.7 MB)', 'Downloading sympy-1-py3.whl (6.2 "
        "MB)',\n"
        "             'Installing collected packages: torch'): progress.line(line)"
    )
    assert printed.splitlines() == [
        "setup: torch: 1 of 27 packages, 900 MB fetched: torch, 900 MB",
        "setup: torch: 1 of 27 packages, 906 MB fetched: unpacking",
    ]


def test_an_image_takes_no_file_whose_digest_is_not_in_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def served(*words: object) -> None:
        (tmp_path / "hams-0.1.0-py3-none-any.whl").write_bytes(b"built here")
        (tmp_path / "numpy-2.0-cp311-none-any.whl").write_bytes(b"not what the lock was written from")

    monkeypatch.setattr(wheels, "pip", served)
    with pytest.raises(wheels.NotLocked, match="numpy-2"):
        wheels.download(tmp_path, "hams")
    assert [path.name for path in tmp_path.glob("*.whl")] == ["hams-0.1.0-py3-none-any.whl"]
